"""Reads the colour pictures of an Intel RealSense camera, by Intel's pyrealsense2."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from real.cameras.config import REALSENSE, CameraConfig, CameraOptionError
from real.cameras.picture_size import frame_of
from robots.errors import HandoffError

TIMEOUT_MS = 5000
"""Longest silence of the camera before it counts as lost [ms]."""
CAPTURE_HZ = 30.0
"""Rate that is asked of the camera without the option `capture_hz` [1/s]."""
EXPOSURE_UNIT = 1e-4
"""Unit of the option `exposure` of a colour sensor [s]; that of a depth sensor is 1e-6."""
SIZE = (640, 480)
"""Width and height of the colour pictures [px]; all models have it."""


class RealSenseSource:
    """The colour stream of one camera, see `real.cameras.camera.PictureStream`.

    Args:
        camera: source with the serial number, and exposure.
        wall: returns the computer's wall time [s].

    Raises:
        CameraOptionError: pyrealsense2 is not installed, or the camera does not take an option.
        HandoffError: the camera cannot be opened.
    """

    live = True

    def __init__(self, camera: CameraConfig, wall: Callable[[], float] = time.time) -> None:
        self._rs = _library()
        self._source = camera.source
        self._wall = wall
        self._pipeline = self._rs.pipeline()
        config = self._rs.config()
        config.enable_device(camera.source.removeprefix(REALSENSE))
        rate = round(camera.capture_hz or CAPTURE_HZ)
        config.enable_stream(self._rs.stream.color, *SIZE, self._rs.format.rgb8, rate)
        try:
            profile = self._pipeline.start(config)
        except RuntimeError as error:
            raise HandoffError(
                f"camera {camera.source}: cannot be opened ({error}). Is it plugged in to USB 3, or used by another "
                "program?"
            ) from None
        try:
            self._lock(profile.get_device().first_color_sensor(), camera)
        except BaseException:
            self._pipeline.stop()
            raise

    def read(self) -> tuple[Any, float | None]:
        """See `PictureStream`: the driver stamps pictures with the computer's wall clock where it
        can."""
        try:
            colour = self._pipeline.wait_for_frames(TIMEOUT_MS).get_color_frame()
        except RuntimeError as error:
            raise HandoffError(
                f"camera {self._source}: sends no more images ({error}). Was it unplugged?"
            ) from None
        if colour.get_frame_timestamp_domain() == self._rs.timestamp_domain.hardware_clock:
            captured = None
        else:
            age = self._wall() - colour.get_timestamp() / 1e3
            captured = time.monotonic() - age
        return frame_of(np.asanyarray(colour.get_data())), captured

    def close(self) -> None:
        """See `PictureStream`."""
        self._pipeline.stop()

    def _lock(self, sensor: Any, camera: CameraConfig) -> None:
        """Locks exposure and white balance."""
        option = self._rs.option
        for name, automatic, control, unit in (
            ("exposure", option.enable_auto_exposure, option.exposure, EXPOSURE_UNIT),
            ("white_balance", option.enable_auto_white_balance, option.white_balance, 1.0),
        ):
            value = getattr(camera, name)
            if value is None:
                continue
            try:
                sensor.set_option(automatic, 0.0)
                sensor.set_option(control, value / unit)
            except RuntimeError as error:
                raise CameraOptionError(
                    f"camera {camera.source}: does not take {name}={value:g} ({error})."
                ) from None


def _library() -> Any:
    """pyrealsense2, which is not among the requirements of Handoff.

    Raises:
        CameraOptionError: it is not installed.
    """
    try:
        import pyrealsense2  # pyright: ignore[reportMissingImports]
    except ImportError:
        # Trying again cannot help either.
        raise CameraOptionError(
            "cameras: a source 'realsense:SERIAL' needs pyrealsense2, which is not installed. Install it beside the "
            "arm: pip install pyrealsense2."
        ) from None
    return pyrealsense2
