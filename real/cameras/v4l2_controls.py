"""Locks exposure, white balance and focus of a V4L2 camera by its controls.

The numbers are those of the kernel's interface (linux/v4l2-controls.h, videodev2.h). linuxpy, which
would do the same, is under the GPL.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from typing import NamedTuple

from real.cameras.config import CameraConfig, CameraOptionError, device_of
from robots.errors import HandoffError

_USER, _CAMERA = 0x00980900, 0x009A0900
"""First numbers of the two classes of controls."""
AUTO_WHITE_BALANCE = _USER + 12
WHITE_BALANCE_TEMPERATURE = _USER + 26
EXPOSURE_AUTO = _CAMERA + 1
EXPOSURE_ABSOLUTE = _CAMERA + 2
FOCUS_ABSOLUTE = _CAMERA + 10
FOCUS_AUTO = _CAMERA + 12
MANUAL_EXPOSURE = 1
"""Value of `EXPOSURE_AUTO` for a fixed time and aperture."""
EXPOSURE_UNIT = 1e-4
"""Unit of `EXPOSURE_ABSOLUTE` [s]."""


class _Lock(NamedTuple):
    """The controls behind one option."""

    option: str
    value: int
    automatic: int
    """Control that switches the automatic off."""
    off: int
    """Value for which it is off."""
    control: int


def lock_controls(
    camera: CameraConfig, call: Callable[[int, int, bytearray], object] | None = None
) -> None:
    """Locks what the options of a V4L2 camera state, and reads the values back.

    Args:
        camera: options with the source of the camera.
        call: called with file descriptor, request and data in place of `fcntl.ioctl`.

    Raises:
        CameraOptionError: the camera lacks the control, or does not take the value.
        HandoffError: the device cannot be opened.
    """
    locks = _locks(camera)
    if not locks:
        return
    device = device_of(camera.source)
    try:
        descriptor = os.open(device, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise HandoffError(
            f"camera {camera.source}: cannot be opened ({error.strerror}). "
            "Is it plugged in, or used by another program?"
        ) from None
    try:
        controls = Controls(descriptor, camera.source, call)
        for lock in locks:
            controls.lock(lock.option, lock.automatic, lock.off)
            controls.lock(lock.option, lock.control, lock.value)
    finally:
        os.close(descriptor)


def _locks(camera: CameraConfig) -> list[_Lock]:
    """The controls that the options of a camera lock, in the order in which they are set."""
    locks = []
    if camera.exposure is not None:
        time = max(1, round(camera.exposure / EXPOSURE_UNIT))
        locks.append(_Lock("exposure", time, EXPOSURE_AUTO, MANUAL_EXPOSURE, EXPOSURE_ABSOLUTE))
    if camera.white_balance is not None:
        kelvin = camera.white_balance
        locks.append(
            _Lock("white_balance", kelvin, AUTO_WHITE_BALANCE, 0, WHITE_BALANCE_TEMPERATURE)
        )
    if camera.focus is not None:
        locks.append(_Lock("focus", camera.focus, FOCUS_AUTO, 0, FOCUS_ABSOLUTE))
    return locks


_CONTROL = struct.Struct("=Ii")
"""`struct v4l2_control`: number, value."""
_QUERY = struct.Struct("=II32siiiiI8x")
"""`struct v4l2_queryctrl`: number, type, name, minimum, maximum, step, default, flags."""


def _request(number: int, size: int) -> int:
    """`_IOWR('V', number, size)` of the kernel."""
    return 3 << 30 | size << 16 | ord("V") << 8 | number


GET = _request(27, _CONTROL.size)
SET = _request(28, _CONTROL.size)
QUERY = _request(36, _QUERY.size)


class Controls:
    """The controls of an open device.

    Args:
        descriptor: file descriptor of the device.
        source: name of the camera in messages.
        call: see `lock_controls`.
    """

    def __init__(
        self,
        descriptor: int,
        source: str,
        call: Callable[[int, int, bytearray], object] | None = None,
    ) -> None:
        if call is None:
            from fcntl import ioctl as call
        self._call = call
        self._descriptor = descriptor
        self._source = source

    def lock(self, option: str, control: int, value: int) -> None:
        """Sets a control, and reads it back.

        Args:
            option: name of the option behind it, for messages.
            control: number of the control.
            value: its value.

        Raises:
            CameraOptionError: the camera lacks it, or does not take the value.
        """
        low, high = self._range(option, control)
        if not low <= value <= high:
            raise CameraOptionError(
                f"camera {self._source}: {option} needs the value {value} of control {control:#x}, the camera takes "
                f"{low} to {high}{_in_unit(control, low, high)}. Give a value in this range."
            )
        try:
            self._ask(SET, _CONTROL.pack(control, value))
            taken = _CONTROL.unpack(self._ask(GET, _CONTROL.pack(control, 0)))[1]
        except OSError as error:
            raise CameraOptionError(
                f"camera {self._source}: does not take {option} ({error.strerror}). Is another program using it?"
            ) from None
        if taken != value:
            raise CameraOptionError(
                f"camera {self._source}: {option} was set to {value} and is {taken} afterwards. Give {taken}, or "
                "leave the option out."
            )

    def _range(self, option: str, control: int) -> tuple[int, int]:
        """Smallest and largest value of a control."""
        try:
            answer = self._ask(QUERY, _QUERY.pack(control, 0, b"", 0, 0, 0, 0, 0))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTTY):
                raise CameraOptionError(
                    f"camera {self._source}: its controls cannot be read ({error.strerror})."
                ) from None
            raise CameraOptionError(
                f"camera {self._source}: has no control for {option}. Leave the option out; `v4l2-ctl -d "
                f"{device_of(self._source)} -L` lists what it has."
            ) from None
        low, high = _QUERY.unpack(answer)[3:5]
        return low, high

    def _ask(self, request: int, data: bytes) -> bytes:
        answer = bytearray(data)
        self._call(self._descriptor, request, answer)
        return bytes(answer)


def _in_unit(control: int, low: int, high: int) -> str:
    if control != EXPOSURE_ABSOLUTE:
        return ""
    return f" ({low * EXPOSURE_UNIT:g} s to {high * EXPOSURE_UNIT:g} s)"
