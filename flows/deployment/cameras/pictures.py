"""Takes the newest picture of every camera beside the arm's state, with the time of its capture."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from real.arm import ArmState
from real.cameras.calibration.calibration_file import picture_calibration, read_calibrations
from real.cameras.camera import Picture
from real.cameras.config import CameraConfig
from real.cameras.newest_picture import CameraFault
from robots.episodes.metadata.camera_calibration import CameraCalibration
from robots.episodes.metadata.capture_times import capture_time_field, capture_time_name
from robots.errors import HandoffError, SafetyError, suggest
from robots.interfaces import Observation
from robots.spec import FieldSpec

PREFIX = "image_"
"""Beginning of the names of recorded pictures; the camera's name follows."""
FIRST_SECONDS = 15.0
"""Longest time until the first picture of a camera [s]."""
POLL_SECONDS = 0.02


class PictureSource(Protocol):
    """One camera, real or simulated."""

    @property
    def fault(self) -> CameraFault | None:
        """Why it sends no pictures; None if it does, or for a reason that is not known."""
        ...

    def read(self) -> Picture | None:
        """Returns the newest picture; None before the first."""
        ...


class ArmPictures:
    """The cameras beside an arm.

    Args:
        cameras: cameras by name.
        max_age: age above which a picture of the camera is an error [s], by name.
        now: returns the time by the clock of the pictures [s]; `time.monotonic` of real cameras.
        sources: names of the fields with the pictures, by name of the camera; None takes `image_`
            with the camera's name.
    """

    def __init__(
        self,
        cameras: Mapping[str, PictureSource],
        max_age: Mapping[str, float],
        now: Callable[[], float] = time.monotonic,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self._cameras = dict(cameras)
        self._max_age = dict(max_age)
        self._now = now
        self._sources = {name: f"{PREFIX}{name}" for name in cameras} | dict(sources or {})
        self.ages: list[float] = []
        """Age of every picture of the episode when it was observed [s]."""
        self._last: dict[str, tuple[float, float]] = {}
        """Capture time of the last picture by camera: by the clock of the pictures [s], and by the
        episode's."""

    def fields(self) -> dict[str, FieldSpec]:
        """The recorded fields: the pictures and their capture times. Waits for the first picture of
        every camera, whose size they have.

        Raises:
            HandoffError: a camera sends none, or its options do not fit it.
        """
        fields = {}
        for name, picture in self.first().items():
            source = self._sources[name]
            fields[source] = FieldSpec(
                shape=picture.image.shape,
                dtype="uint8",
                unit="u8",
                about=f"RGB picture of the camera {name}",
                role="observation",
            )
            fields[capture_time_name(source)] = capture_time_field(source)
        return fields

    def first(self) -> dict[str, Picture]:
        """The newest picture of every camera; waits until there is one.

        Raises:
            HandoffError: see `fields`.
        """
        pictures = {}
        until = self._now() + FIRST_SECONDS
        for name, newest in self._cameras.items():
            while (picture := newest.read()) is None:
                fault = newest.fault
                if fault is not None and fault.lasting:
                    raise HandoffError(f"{name}: {fault.message}")
                if self._now() > until:
                    why = "Is it plugged in, or used by another program?"
                    why = why if fault is None else fault.message
                    raise HandoffError(f"camera {name}: no picture in {FIRST_SECONDS:g} s. {why}")
                time.sleep(POLL_SECONDS)
            pictures[name] = picture
        return pictures

    def calibrations(
        self, path: str | None, cameras: Mapping[str, CameraConfig]
    ) -> dict[str, CameraCalibration]:
        """The calibration of the recorded pictures, by the name of their field.

        Args:
            path: file of `handoff camera calibrate`; None for cameras that are not calibrated.
            cameras: options of the cameras by name.

        Raises:
            HandoffError: the file cannot be read, lacks a camera, or does not fit its pictures; or
                there is no camera.
        """
        if path is None:
            return {}
        if not self._cameras:
            raise HandoffError(
                f"calibration: {path} is given, but no camera is observed or recorded. Leave it out."
            )
        known = read_calibrations(Path(path))
        found = {}
        for name, picture in self.first().items():
            if name not in known:
                raise HandoffError(
                    f"calibration: {path} has no camera '{name}', {suggest(name, known)}. Add it: handoff camera "
                    f"calibrate {name}=SOURCE --out {path}"
                )
            found[self._sources[name]] = picture_calibration(known[name], cameras[name], picture)
        return found

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
            limit = self._max_age[name]
            if age > limit:
                raise SafetyError(
                    f"camera {name}: its newest picture is {age:.2f} s old, limit max_age={limit:g} s. Was it "
                    "unplugged?"
                )
            self.ages.append(age)
            source = self._sources[name]
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


def age_limits(cameras: Mapping[str, CameraConfig], usual: float) -> dict[str, float]:
    """Age above which a picture is an error [s], by camera; `usual` for those that state none."""
    return {
        name: usual if camera.max_age is None else camera.max_age
        for name, camera in cameras.items()
    }
