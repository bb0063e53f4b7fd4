"""Exposure, white balance and focus are locked by controls; the kernel's side is a fake."""

import errno
import struct
from pathlib import Path

import pytest

from real.cameras.config import CameraConfig, CameraOptionError
from real.cameras.v4l2_controls import (
    AUTO_WHITE_BALANCE,
    EXPOSURE_ABSOLUTE,
    EXPOSURE_AUTO,
    FOCUS_ABSOLUTE,
    FOCUS_AUTO,
    GET,
    QUERY,
    SET,
    WHITE_BALANCE_TEMPERATURE,
    lock_controls,
)
from robots.errors import HandoffError


class FakeKernel:
    """The controls of a device: smallest and largest value by number."""

    def __init__(self, controls: dict[int, tuple[int, int]]) -> None:
        self.controls = controls
        self.values: dict[int, int] = {}
        self.order: list[int] = []
        self.steps = 1

    def __call__(self, descriptor: int, request: int, data: bytearray) -> None:
        (number,) = struct.unpack_from("=I", data)
        if number not in self.controls:
            raise OSError(errno.EINVAL, "Invalid argument")
        if request == QUERY:
            # Number and type, then the name of 32 bytes.
            struct.pack_into("=ii", data, 40, *self.controls[number])
        elif request == SET:
            (value,) = struct.unpack_from("=i", data, 4)
            self.values[number] = value - value % self.steps
            self.order.append(number)
        elif request == GET:
            struct.pack_into("=i", data, 4, self.values[number])


@pytest.fixture
def device(tmp_path: Path) -> str:
    """A file in the place of a device, for its file descriptor."""
    path = tmp_path / "video"
    path.touch()
    return str(path)


def test_the_requests_are_those_of_the_kernel():
    # VIDIOC_G_CTRL, VIDIOC_S_CTRL and VIDIOC_QUERYCTRL of videodev2.h.
    assert (GET, SET, QUERY) == (0xC008561B, 0xC008561C, 0xC0445624)


def test_the_automatic_is_switched_off_before_a_value_is_set(device):
    kernel = FakeKernel(
        {
            EXPOSURE_AUTO: (0, 3),
            EXPOSURE_ABSOLUTE: (3, 2047),
            AUTO_WHITE_BALANCE: (0, 1),
            WHITE_BALANCE_TEMPERATURE: (2000, 6500),
            FOCUS_AUTO: (0, 1),
            FOCUS_ABSOLUTE: (0, 250),
        }
    )
    camera = CameraConfig(source=device, exposure=0.01, white_balance=4600, focus=30)
    lock_controls(camera, kernel)
    assert kernel.values == {
        EXPOSURE_AUTO: 1,
        EXPOSURE_ABSOLUTE: 100,
        AUTO_WHITE_BALANCE: 0,
        WHITE_BALANCE_TEMPERATURE: 4600,
        FOCUS_AUTO: 0,
        FOCUS_ABSOLUTE: 30,
    }
    assert kernel.order == list(kernel.values)


def test_a_camera_without_the_control_is_refused_by_the_options_name(device):
    kernel = FakeKernel({EXPOSURE_AUTO: (0, 3), EXPOSURE_ABSOLUTE: (3, 2047)})
    with pytest.raises(CameraOptionError, match="has no control for focus"):
        lock_controls(CameraConfig(source=device, focus=30), kernel)


def test_a_value_beyond_the_cameras_range_is_refused_in_seconds(device):
    kernel = FakeKernel({EXPOSURE_AUTO: (0, 3), EXPOSURE_ABSOLUTE: (3, 2047)})
    with pytest.raises(CameraOptionError, match=r"takes 3 to 2047 \(0.0003 s to 0.2047 s\)"):
        lock_controls(CameraConfig(source=device, exposure=0.5), kernel)


def test_a_value_that_the_camera_rounds_is_refused(device):
    kernel = FakeKernel({FOCUS_AUTO: (0, 1), FOCUS_ABSOLUTE: (0, 250)})
    kernel.steps = 5
    with pytest.raises(CameraOptionError, match="focus was set to 32 and is 30 afterwards"):
        lock_controls(CameraConfig(source=device, focus=32), kernel)


def test_what_is_no_video_device_has_no_controls(device):
    # Not the fake, but the kernel of this computer.
    with pytest.raises(CameraOptionError, match="has no control for exposure"):
        lock_controls(CameraConfig(source=device, exposure=0.01))


def test_no_device_there_is_one_clear_error(tmp_path):
    with pytest.raises(HandoffError, match="cannot be opened"):
        lock_controls(CameraConfig(source=str(tmp_path / "none"), focus=3))


def test_a_camera_without_such_options_is_not_touched():
    lock_controls(CameraConfig(source="/dev/none"))
