"""Who is scheduled how: only an arm's control thread may keep a real-time priority."""

import os
import sys
import threading

import pytest

from real.franka.realtime import Scheduling, scheduled

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux' scheduling")

BATCH = Scheduling(os.SCHED_BATCH, 0)


def started_inside(scheduling):
    """What a thread inherits that is started where `scheduling` holds."""
    schedulings = []
    with scheduled(scheduling):
        thread = threading.Thread(target=lambda: schedulings.append(Scheduling.current()))
        thread.start()
    thread.join()
    return schedulings[0]


def test_threads_started_inside_inherit_it_and_those_after_do_not():
    assert started_inside(BATCH) == BATCH
    assert started_inside(None) == Scheduling.current() != BATCH


def test_what_was_taken_inside_is_given_back_even_after_an_error():
    before = Scheduling.current()
    with pytest.raises(RuntimeError), scheduled():
        _take_and_fail()
    assert Scheduling.current() == before


def _take_and_fail():
    BATCH.take()
    raise RuntimeError
