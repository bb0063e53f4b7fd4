"""The kernel's statement about its clock."""

from __future__ import annotations

import sys

import pytest

from flows.doctor.clock import KernelClock, clock, kernel_clock


def test_a_synchronised_clock_is_ok_with_its_largest_error() -> None:
    check = clock(KernelClock(True, 0.0123))
    assert (check.status, check.found) == ("ok", "synchronised, largest error 12 ms")


def test_a_clock_that_is_not_synchronised_is_a_warning() -> None:
    check = clock(KernelClock(False, 16.0))
    assert check.status == "warning"
    assert "timedatectl set-ntp true" in check.advice


def test_a_kernel_that_does_not_state_it_is_not_checked() -> None:
    assert clock(None).status == "not checked"


@pytest.mark.skipif(sys.platform != "linux", reason="adjtimex(2) is a call of Linux")
def test_the_kernels_largest_error_is_a_time_below_a_minute() -> None:
    state = kernel_clock()
    # A sandbox may refuse the call; a wrong layout of the structure would give another number.
    if state is None:
        pytest.skip("the kernel refuses adjtimex")
    assert 0.0 <= state.largest_error <= 60.0
