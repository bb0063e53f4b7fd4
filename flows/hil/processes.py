"""The two processes of the stage `train`: started, listened to, started again when they are killed,
and ended.

Each end of a pipe says what the other must know; data go from actor to learner over their own
websocket.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from flows.runner.lock import WriteLock, inheritable_lock
from robots.errors import HandoffError
from robots.processes import END_SECONDS, Child, ChildEndedError, end

RESTARTS = 3
"""Times that a side which was killed is started again."""


class Side:
    """One of the two processes.

    Args:
        name: for messages.
        function: of the process, called with `arguments` and its end of the pipe.
        arguments: picklable; may be replaced before a restart.
    """

    def __init__(
        self, name: str, function: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.done = False
        """Whether it has ended as it should."""
        self._function = function
        self._restarts = 0
        self._child: Child | None = None

    @property
    def process(self) -> BaseProcess | None:
        """The process that was started last; None before the first."""
        return None if self._child is None else self._child.process

    def start(self) -> None:
        """Starts the process, which inherits the lock of the artifact that it writes into."""
        arguments = (inheritable_lock(), self._function, self.arguments)
        self._child = Child(f"handoff-{self.name}", _work, arguments, daemon=False)

    def say(self, message: Any) -> None:
        """Sends a message; a process that has just died does not hear it."""
        try:
            if self._child is not None:
                self._child.pipe.send(message)
        except OSError:
            return

    def hear(self) -> list[Any]:
        """Messages that have come, of a process that was never started none; starts a killed
        process again.

        Raises:
            HandoffError: what the process raised, or it was killed too often.
        """
        heard: list[Any] = []
        try:
            while self._child is not None and self._child.pipe.poll():
                message = self._child.receive()
                self.done |= message[0] == "done"
                heard.append(message)
        except ChildEndedError as error:
            if not self.done:
                self._again(error)
        return heard

    def end(self, seconds: float = END_SECONDS) -> None:
        """Asks the process to end, then makes it."""
        if self._child is not None:
            end([self._child.process], seconds)

    def _again(self, error: ChildEndedError) -> None:
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise HandoffError(
                f"{self.name}: its process ended {self._restarts} times with no result; the last one {error}"
            )
        self.start()


def _work(
    lock: WriteLock | None,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    pipe: Connection,
) -> None:
    """The process, which holds `lock` while it works."""
    with nullcontext() if lock is None else lock.held():
        function(*arguments, pipe)
    pipe.send(("done",))
