"""Knows whether the pages have recent pictures of every camera, without which nothing may move."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class PictureWatch:
    """Times of the newest pictures of the cameras that a session has.

    Args:
        seconds: age above which a picture is too old [s]; None watches nothing.
        now: returns the time [s].
    """

    def __init__(self, seconds: float | None, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._newest: dict[str, float | None] = {}
        """Time of the newest picture of every camera [s]; None before the first."""
        self._awaited = False

    def await_cameras(self, names: Iterable[str] | None) -> None:
        """The robot's process says which cameras there will be.

        Args:
            names: the cameras; None if a process that draws will name them.
        """
        if names is None:
            self._awaited = not self._newest
        else:
            self.announce(names, draws=False)

    def announce(self, names: Iterable[str], *, draws: bool = True) -> None:
        """A process says which cameras it has; those that sent pictures before keep their times.

        Args:
            names: the cameras.
            draws: whether it is the process that draws, whose cameras may be awaited.
        """
        if draws:
            self._awaited = False
        for name in names:
            self._newest.setdefault(name, None)

    def picture(self, name: str) -> None:
        """A picture of the camera `name` came."""
        self._newest[name] = self._now()

    def trouble(self) -> str:
        """Which camera has no recent picture, as a sentence for the pages; empty if all have."""
        if self._seconds is None:
            return ""
        if self._awaited:
            return "Waiting for the first pictures."
        now = self._now()
        for name, newest in self._newest.items():
            if newest is None:
                return f"Waiting for the first picture of '{name}'."
            if now - newest > self._seconds:
                return f"No picture of '{name}' for {now - newest:.1f} s."
        return ""
