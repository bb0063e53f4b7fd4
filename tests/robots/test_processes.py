"""A process that follows its parent ends with it."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

from robots.processes import end_with_parent


def test_a_child_ends_when_its_parent_is_killed():
    context = multiprocessing.get_context("spawn")
    there, here = context.Pipe()
    parent = context.Process(target=_parent, args=(here,))
    parent.start()
    here.close()
    child = there.recv()
    assert parent.pid is not None
    os.kill(parent.pid, signal.SIGKILL)
    parent.join()
    limit = time.monotonic() + 10.0
    while _alive(child):
        assert time.monotonic() < limit, "the child outlived its parent"
        time.sleep(0.02)


def test_a_process_that_nobody_started_goes_on():
    end_with_parent()
    time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _parent(here: Connection) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    child = context.Process(target=_child, args=(ready,))
    child.start()
    ready.wait()
    here.send(child.pid)
    child.join()


def _child(ready: object) -> None:
    end_with_parent()
    ready.set()  # type: ignore[attr-defined]
    time.sleep(600.0)
