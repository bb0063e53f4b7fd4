"""Writers in processes of their own, which are killed with SIGKILL."""

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link"}


def killed_before(change: int) -> None:
    """From now on, this process dies by SIGKILL just before its `change`-th change to the disk."""
    changes = 0

    def count(event: str, args: tuple) -> None:
        nonlocal changes
        writes = (
            event == "open"
            and isinstance(args[2], int)
            and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if event in CHANGES or writes:
            changes += 1
            if changes == change:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


class Forker:
    """Runs functions in forks of a single-threaded process that has Zarr already imported: cheap to
    start and kill."""

    def __init__(self) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["zarr", "tests.robots.episodes.test_store"])
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_fork_on_demand, args=(there,))
        self._process.start()
        there.close()

    def start(self, function: Callable[..., None], *args: object) -> int:
        self._connection.send((function, args))
        return self._connection.recv()

    def ended(self, patience_s: float) -> bool:
        return self._connection.poll(patience_s)

    def wait(self) -> int:
        return self._connection.recv()

    def close(self) -> None:
        self._connection.send(None)
        self._process.join()


def _fork_on_demand(connection: Connection) -> None:
    while (job := connection.recv()) is not None:
        function, args = job
        pid = os.fork()
        if pid == 0:
            try:
                function(*args)
            finally:
                os._exit(1)
        connection.send(pid)
        connection.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
