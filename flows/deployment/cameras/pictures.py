"""Takes the newest picture of every camera beside the arm's state, with the time of its capture."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from real.arm import ArmState
from real.cameras.camera import Picture
from robots.episodes.metadata.capture_times import capture_time_field, capture_time_name
from robots.errors import HandoffError, SafetyError
from robots.interfaces import Observation
from robots.spec import FieldSpec

PREFIX = "image_"
"""Beginning of the names of recorded pictures; the camera's name follows."""
FIRST_SECONDS = 15.0
"""Longest time until the first picture of a camera [s]."""
POLL_SECONDS = 0.02


class PictureSource(Protocol):
    """One camera, real or simulated."""

    def read(self) -> Picture | None:
        """Returns the newest picture; None before the first."""
        ...


class ArmPictures:
    """The cameras beside an arm.

    Args:
        cameras: cameras by name.
        max_age: age above which a picture is an error [s].
        now: returns the time by the clock of the pictures [s]; `time.monotonic` of real cameras.
    """

    def __init__(
        self,
        cameras: Mapping[str, PictureSource],
        max_age: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cameras = dict(cameras)
        self._max_age = max_age
        self._now = now
        self.ages: list[float] = []
        """Age of every picture of the episode when it was observed [s]."""
        self._last: dict[str, tuple[float, float]] = {}
        """Capture time of the last picture by camera: by the clock of the pictures [s], and by the
        episode's."""

    def fields(self) -> dict[str, FieldSpec]:
        """The recorded fields: the pictures and their capture times. Waits for the first picture of
        every camera, whose size they have.

        Raises:
            HandoffError: a camera sends none.
        """
        fields = {}
        until = self._now() + FIRST_SECONDS
        for name, newest in self._cameras.items():
            while (picture := newest.read()) is None:
                if self._now() > until:
                    raise HandoffError(
                        f"camera {name}: no picture in {FIRST_SECONDS:g} s. Is it plugged in, or used by another "
                        "program?"
                    )
                time.sleep(POLL_SECONDS)
            source = f"{PREFIX}{name}"
            fields[source] = FieldSpec(
                shape=picture.image.shape,
                dtype="uint8",
                unit="u8",
                about=f"RGB picture of the camera {name}",
                role="observation",
            )
            fields[capture_time_name(source)] = capture_time_field(source)
        return fields

    def begin(self) -> None:
        """Begins a new episode."""
        self._last.clear()
        self.ages.clear()

    def observe(self, state: ArmState, begin: float) -> Observation:
        """The newest pictures, with their capture times on the episode's clock.

        Args:
            state: state of the arm, just read.
            begin: robot time of the episode's first observation [s].

        Raises:
            SafetyError: a camera has sent no picture for too long.
        """
        observation: Observation = {}
        for name, newest in self._cameras.items():
            picture = newest.read()
            assert picture is not None, "`fields` waits for the first one"
            age = self._now() - picture.captured
            if age > self._max_age:
                raise SafetyError(
                    f"camera {name}: its newest picture is {age:.2f} s old, limit max_age={self._max_age:g} s. Was it "
                    "unplugged?"
                )
            self.ages.append(age)
            source = f"{PREFIX}{name}"
            observation[source] = picture.image
            captured = self._on_episodes_clock(name, picture.captured, state.time - begin - age)
            # The last bits depend on how long the robot has been running.
            observation[capture_time_name(source)] = np.array(round(captured, 6))
        return observation

    def _on_episodes_clock(self, name: str, captured: float, time_of_episode: float) -> float:
        """Capture time on the episode's clock [s]: the same for a picture that several steps share,
        and ascending, although the robot's state arrives now sooner, now later.

        Args:
            name: name of the camera.
            captured: capture time by the clock of the pictures [s].
            time_of_episode: the same on the episode's clock, as this step sees it [s].
        """
        last_captured, last = self._last.get(name, (-np.inf, -np.inf))
        if captured > last_captured:
            last = max(last, time_of_episode)
            self._last[name] = captured, last
        return last
