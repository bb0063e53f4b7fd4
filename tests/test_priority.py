"""A test may change the priority of its thread; the next test has the initial one."""

import os
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux' scheduling")


def test_a_priority_is_changed() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    assert os.sched_getscheduler(0) == os.SCHED_BATCH


def test_the_next_test_has_the_initial_priority() -> None:
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
