"""Checks whether this machine's clock is synchronised, since recorded times of several computers
are compared.

The kernel is asked by adjtimex(2). chrony, systemd-timesyncd and ntpd all keep its answer up to
date, and `timedatectl` reads it as well.
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

from flows.doctor.check import Check

STA_UNSYNC = 0x0040
"""Bit of the status of an unsynchronised clock, see adjtimex(2)."""
TIMEX_BYTES = 208
"""Size of `struct timex` on 64-bit Linux [bytes]."""


class KernelClock(NamedTuple):
    """The state of the system's clock."""

    synchronised: bool
    largest_error: float
    """Bound of the error that the kernel assumes [s]."""


class _Timex(ctypes.Structure):
    """The first fields of `struct timex`, with room for the others."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("others", ctypes.c_byte * (TIMEX_BYTES - 44)),
    )


def kernel_clock() -> KernelClock | None:
    """Returns the state of the system's clock; None where the kernel does not state it."""
    adjtimex = getattr(ctypes.CDLL(None, use_errno=True), "adjtimex", None)
    if adjtimex is None or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    state = _Timex()
    if adjtimex(ctypes.byref(state)) < 0:
        return None
    return KernelClock(not state.status & STA_UNSYNC, state.maxerror * 1e-6)


def clock(state: KernelClock | None) -> Check:
    """Checks whether the clock is synchronised.

    Args:
        state: the state of the clock; None where the kernel does not state it.
    """
    if state is None:
        return Check("clock", "not checked", f"{os.uname().sysname} does not state it")
    if state.synchronised:
        error = f"{state.largest_error * 1e3:.0f} ms"
        return Check("clock", "ok", f"synchronised, largest error {error}")
    return Check(
        "clock",
        "warning",
        "not synchronised, so recorded times of several computers cannot be compared",
        "Give `timedatectl set-ntp true`, or install chrony.",
    )
