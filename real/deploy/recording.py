"""Stores a deployed episode whatever ended it: a limit, a lost connection, a defect, Ctrl-C or a
signal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from real.deploy.episode_recorder import append_episode, tracking_figures
from real.deploy.loop import EpisodeRecord
from robots.errors import HandoffError, words
from robots.signals import delayed_signals

if TYPE_CHECKING:
    from real.franka.arm import FrankaArm
    from real.franka.state_recorder import FlightRecorder
    from robots.episodes.store import EpisodeStore


class Recording:
    """One episode at an arm, which is stored when the context is left; what ended the context goes
    on.

    The context lies around that of the arm: the arm is at rest before anything is written, and an
    error in leaving the arm's context loses nothing. An episode that ended before its first target
    was streamed has nothing to be stored.

    Args:
        store: made with `real.deploy.episode_recorder.deploy_schema`, open for appending.
        outcome: asked when the episode is over for its metadata, JSON-ready; `fault` and the
            figures of `tracking_figures` are added. None: the episode is not to be stored.

    Raises:
        HandoffError: the episode cannot be stored; tells the fault that ended it, too.
    """

    def __init__(
        self, store: EpisodeStore, outcome: Callable[[], Mapping[str, Any] | None]
    ) -> None:
        self._store, self._outcome = store, outcome
        self._recorder: FlightRecorder | None = None
        self._error: BaseException | None = None
        self.record = EpisodeRecord()
        """Filled by `run_episode`."""
        self.figures: dict[str, float] = {}
        """How well the arm followed, once the episode is stored; none where it is not."""

    @property
    def fault(self) -> str | None:
        """What ended the episode before its time, in words."""
        return None if self._error is None else words(self._error)

    @contextmanager
    def of(self, arm: FrankaArm) -> Iterator[None]:
        """Runs the episode in this context; it ends when the robot's states have arrived.

        Raises:
            HandoffError: they do not arrive.
        """
        try:
            yield
        except BaseException as error:
            self._error = error
            # The fault may have cut off the last states; then it is the fault that must be told.
            with suppress(HandoffError):
                self._await_states(arm)
            raise
        self._await_states(arm)

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._error is None:
            self._error = error
        with delayed_signals():
            try:
                self._append()
            except Exception as lost:
                if self.fault is None:
                    raise
                ended = self.fault.removesuffix(".")
                raise HandoffError(
                    f"{ended}. What was recorded of the episode could not be stored: {words(lost)}"
                ) from lost

    def _await_states(self, arm: FrankaArm) -> None:
        self._recorder = arm.recorder
        if self._recorder is not None and self.record.reference:
            self._recorder.wait(self.record.end)

    def _append(self) -> None:
        record = self.record
        if self._recorder is None or not record.policy or not record.reference:
            return
        outcome = self._outcome()
        if outcome is None:
            return
        robot = self._recorder.arrived(record.begin, record.end)
        figures = tracking_figures(record, robot)
        append_episode(self._store, record, robot, {**outcome, "fault": self.fault, **figures})
        self.figures = figures
