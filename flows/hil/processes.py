"""The two processes of the stage `train`: started, listened to, started again when they are killed,
and ended.

Each end of a pipe says what the other must know; data go from actor to learner over their own
websocket.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from typing import Any

from flows.runner.isolate import describe
from flows.runner.lock import WriteLock, inheritable_lock
from robots import errors
from robots.errors import HandoffError
from robots.processes import end_with_parent
from robots.signals import raising_signals

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
        self.name, self._function, self.arguments = name, function, arguments
        self._context = multiprocessing.get_context("spawn")
        self._restarts = 0
        self.process: Any = None
        self.done = False
        """Whether it has ended as it should."""
        self._pipe: Connection | None = None

    def start(self) -> None:
        """Starts the process, which inherits the lock of the artifact that it writes into."""
        self._pipe, there = self._context.Pipe()
        arguments = (there, inheritable_lock(), self._function, self.arguments)
        self.process = self._context.Process(
            target=work, args=arguments, name=f"handoff-{self.name}"
        )
        self.process.start()
        there.close()

    def say(self, message: Any) -> None:
        """Sends a message; a process that has just died does not hear it."""
        try:
            if self._pipe is not None:
                self._pipe.send(message)
        except (BrokenPipeError, OSError):
            return

    def hear(self) -> list[Any]:
        """Messages that have come, of a process that was never started none; starts a killed
        process again.

        Raises:
            HandoffError: what the process raised, or it was killed too often.
        """
        heard: list[Any] = []
        try:
            while self._pipe is not None and self._pipe.poll():
                message = self._pipe.recv()
                if message[0] == "error":
                    error = getattr(errors, message[1], HandoffError)(message[2])
                    error.add_note(message[3])
                    raise error
                self.done |= message[0] == "done"
                heard.append(message)
        except (EOFError, ConnectionResetError):
            if not self.done:
                self._again()
        return heard

    def end(self, seconds: float = 10.0) -> None:
        """Asks the process to end, then makes it."""
        if self.process is None:
            return
        if self.process.is_alive():
            self.process.terminate()
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _again(self) -> None:
        self.process.join()
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise HandoffError(
                f"{self.name}: its process ended {self._restarts} times with exit code {self.process.exitcode} and no "
                "result. Was the machine out of memory?"
            )
        self.start()


def work(
    there: Connection,
    lock: WriteLock | None,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    """The process: calls `function(*arguments, there)`; ends with whoever started it, and holds
    `lock` until then."""
    end_with_parent()
    try:
        with raising_signals(), nullcontext() if lock is None else lock.held():
            function(*arguments, there)
        there.send(("done",))
    except KeyboardInterrupt:
        return
    except Exception as error:  # noqa: BLE001  every failure must reach the parent, whatever its type
        # A parent that is gone is what ended it.
        with suppress(BrokenPipeError):
            there.send(("error", type(error).__name__, describe(error), traceback.format_exc()))
