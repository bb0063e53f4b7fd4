"""Defines the options of a camera, and checks those that only some kinds of cameras have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from robots.config import Delay, Hertz, Pixels, Seconds, Whole, config
from robots.errors import HandoffError

REALSENSE = "realsense:"
"""Beginning of the source of an Intel RealSense camera; its serial number follows."""
Kind = Literal["v4l2", "realsense", "network", "file"]
Kelvin = Annotated[int, Field(ge=1000, le=20_000)]
"""Colour temperature [K]."""


class CameraOptionError(HandoffError):
    """Options that do not fit a camera, so that opening it again cannot help."""


@config
class CameraConfig:
    """Source, size, rate and exposure of one camera."""

    source: str
    """Source of the images: a number or device (`0`, `/dev/video2`: V4L2), a RealSense camera
    (`realsense:SERIAL`), a network camera (`rtsp://...`), or a video file."""
    height: Pixels = 240
    """Height of the images on the page and in recordings [px]. A policy's contract states it for
    the cameras that the policy observes."""
    width: Pixels | None = None
    """Width of the images [px]; None follows from the camera's proportions, after the crop."""
    crop: tuple[Whole, Whole, Pixels, Pixels] | None = None
    """Rectangle of the camera's own picture that is used: left, top, width, height [px]; None uses
    all of it."""
    capture_hz: Hertz | None = None
    """Rate that is asked of the camera [1/s], V4L2 and RealSense alone; None takes the driver's."""
    rate_hz: Hertz = 30.0
    """Highest rate of images on the page [1/s]."""
    max_age: Seconds | None = None
    """Age of the newest picture above which an episode is ended [s]; None takes the session's."""
    exposure: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    """Exposure time at which the automatic exposure is locked [s]; None leaves it automatic. V4L2
    and RealSense alone, as the two below."""
    white_balance: Kelvin | None = None
    """Colour temperature at which the white balance is locked [K]; None leaves it automatic."""
    focus: Whole | None = None
    """Position at which the focus is locked, in the camera's own unit (often 0 for far to 255 for
    near); None leaves the focus automatic. V4L2 alone."""
    quality: Annotated[int, Field(ge=1, le=100)] = 80
    """JPEG quality on the page, 1 to 100."""
    again: Delay = 1.0
    """Time from a lost camera to the next attempt [s]."""


def device_of(source: str) -> str:
    """The path or address of a source: a number is a V4L2 device."""
    return f"/dev/video{source}" if source.isdigit() else source


def kind_of(source: str) -> Kind:
    """Kind of the camera behind a source."""
    device = device_of(source)
    if device.startswith(REALSENSE):
        return "realsense"
    if device.startswith("/dev/"):
        return "v4l2"
    return "network" if "://" in device else "file"


_FOR = {
    "exposure": ("v4l2", "realsense"),
    "white_balance": ("v4l2", "realsense"),
    "focus": ("v4l2",),
    "capture_hz": ("v4l2", "realsense"),
}
"""Options that some kinds of cameras have alone."""
_KINDS = {
    "v4l2": "a V4L2 camera",
    "realsense": "a RealSense camera",
    "network": "a network camera",
    "file": "a video file",
}


def check_camera(name: str, camera: CameraConfig) -> None:
    """Checks the options of a camera without opening it.

    Args:
        name: name of the camera.
        camera: its options.

    Raises:
        CameraOptionError: sizes, rates or a quality without a picture, or an option that this kind
            of camera does not have.
    """
    if camera.height < 1 or camera.rate_hz <= 0.0 or not 1 <= camera.quality <= 100:
        raise CameraOptionError(
            f"camera {name}: {camera}, expected a height and rate above 0 and a quality of 1 to 100."
        )
    kind = kind_of(camera.source)
    if kind == "realsense" and camera.source == REALSENSE:
        raise CameraOptionError(
            f"camera {name}: the source '{camera.source}' has no serial number, expected realsense:SERIAL, as "
            "`rs-enumerate-devices` lists them."
        )
    for option, kinds in _FOR.items():
        if getattr(camera, option) is not None and kind not in kinds:
            known = " and ".join(_KINDS[each] for each in kinds)
            raise CameraOptionError(
                f"camera {name}: {_KINDS[kind]}, {Path(camera.source).name}, has no option '{option}'; {known} has. "
                "Leave it out, and set it at the camera."
            )
