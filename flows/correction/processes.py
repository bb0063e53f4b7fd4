"""Starts, monitors, restarts and ends the two processes of the stage `correct`.

Pipes carry messages between each process and this one; data go from actor to learner over a
websocket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from flows.runner.lock import WriteLock, inheritable_lock
from robots.errors import HandoffError
from robots.processes import END_SECONDS, Child, ChildEndedError, end

RESTARTS = 3
"""Maximum number of restarts of a killed process."""


class RestartedProcess:
    """A child process that is restarted when it is killed.

    Args:
        name: name in messages.
        function: main function of the process, called with `arguments` and its end of the pipe.
        arguments: picklable; may be replaced before a restart.
    """

    def __init__(
        self, name: str, function: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.done = False
        """Whether the process has finished normally."""
        self._function = function
        self._restarts = 0
        self._child: Child | None = None

    @property
    def process(self) -> BaseProcess | None:
        """The current process; None before the first start."""
        return None if self._child is None else self._child.process

    def start(self) -> None:
        """Starts the process, which inherits the write lock of its artifact."""
        arguments = (inheritable_lock(), self._function, self.arguments)
        self._child = Child(f"handoff-{self.name}", _work, arguments, daemon=False)

    def send(self, message: Any) -> None:
        """Sends a message; it is lost if the process has just died."""
        try:
            if self._child is not None:
                self._child.pipe.send(message)
        except OSError:
            return

    def receive(self) -> list[Any]:
        """Returns the pending messages, none before the first start; restarts a killed process.

        Raises:
            HandoffError: an error of the process, or it was killed too often.
        """
        messages: list[Any] = []
        try:
            while self._child is not None and self._child.pipe.poll():
                message = self._child.receive()
                self.done |= message[0] == "done"
                messages.append(message)
        except ChildEndedError as error:
            if not self.done:
                self._restart(error)
        return messages

    def _restart(self, error: ChildEndedError) -> None:
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise HandoffError(
                f"{self.name}: its process ended {self._restarts} times without a result; the last one {error}"
            )
        self.start()


def end_together(processes: Sequence[RestartedProcess], seconds: float = END_SECONDS) -> None:
    """Asks processes to end, all at once, and kills those that still run after `seconds`."""
    end([one.process for one in processes if one.process is not None], seconds)


def _work(
    lock: WriteLock | None,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    pipe: Connection,
) -> None:
    """Main function of the process; holds `lock` while it runs."""
    with nullcontext() if lock is None else lock.held():
        function(*arguments, pipe)
    pipe.send(("done",))
