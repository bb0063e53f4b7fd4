"""A test may leave its thread with another priority than it had; the next one has its own again."""

import os
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux' scheduling")


def test_a_priority_is_changed() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    assert os.sched_getscheduler(0) == os.SCHED_BATCH


def test_the_next_test_has_its_own_again() -> None:
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
