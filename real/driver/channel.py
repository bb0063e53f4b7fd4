"""The driver's end of the pipe to the process of the policy."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from select import select
from typing import Any

from real.driver.messages import Call, Passed, Question, Reply, TickCommand
from robots.errors import SafetyError
from robots.processes import CLOSED_PIPE_ERRORS


class CalledError(Exception):
    """Another call has come while one runs."""


class LeftError(Exception):
    """The process of the policy has ended."""


class DriverChannel:
    """Calls, commands and answers that come, ticks and questions that go.

    Args:
        pipe: pipe to the process of the policy.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._questions = 0
        self._waiting: deque[Call] = deque()
        """Calls that have come while another one ran."""
        self._outbox: deque[Passed] = deque()
        """Ticks that have not been sent, because the other process does not read."""

    def next_call(self) -> Call:
        """The next call; what else is left of earlier ones is passed over."""
        while not self._waiting:
            message = self._receive()
            if isinstance(message, Call):
                return message
        return self._waiting.popleft()

    def next_command(self, limit: float | None) -> TickCommand | None:
        """The newest command; None if none has come within `limit` [s]. None waits for one.

        Raises:
            CalledError: a call has come.
        """
        newest: TickCommand | None = None
        deadline = None if limit is None else time.monotonic() + limit
        while True:
            if newest is not None:
                wait = 0.0
            elif deadline is None:
                wait = None
            else:
                wait = max(0.0, deadline - time.monotonic())
            if not self._poll(wait):
                return newest
            message = self._receive()
            if isinstance(message, Call):
                self._waiting.append(message)
                raise CalledError
            if isinstance(message, TickCommand):
                newest = _joined(newest, message)

    def ask(self, what: str, *arguments: Any, limit: float | None = None) -> Any:
        """The answer to a question.

        Args:
            what: the question.
            arguments: its arguments.
            limit: time limit for the answer [s]; None waits for it.

        Raises:
            CalledError: a call has come instead.
            LeftError: the process of the policy has ended.
            SafetyError: no answer within the limit.
        """
        self._questions += 1
        self.send(Question(self._questions, what, arguments))
        while True:
            if not self._poll(limit):
                raise SafetyError(
                    f"driver: no answer of the policy's process for {limit} s. Does it hang?"
                )
            message = self._receive()
            if isinstance(message, Call):
                self._waiting.append(message)
                raise CalledError
            if isinstance(message, Reply) and message.question == self._questions:
                if message.error is not None:
                    raise message.error
                return message.value

    def post(self, passed: Passed) -> None:
        """Sends a tick, now or, if the other process does not read, later: the stream never waits
        for it."""
        self._outbox.append(passed)
        with _noticing_the_end():
            while self._outbox and select([], [self._pipe], [], 0.0)[1]:
                self._pipe.send(self._outbox.popleft())

    def tell(self, message: Any) -> None:
        """Sends a message if the other process reads; waits for nobody, and does not fail."""
        with suppress(LeftError), _noticing_the_end():
            if not self._outbox and select([], [self._pipe], [], 0.0)[1]:
                self._pipe.send(message)

    def forget(self) -> None:
        """Drops the ticks that have not been sent."""
        self._outbox.clear()

    def send(self, message: Any) -> None:
        """Sends a message behind the ticks before it."""
        with _noticing_the_end():
            while self._outbox:
                self._pipe.send(self._outbox.popleft())
            self._pipe.send(message)

    def _poll(self, seconds: float | None) -> bool:
        with _noticing_the_end():
            return self._pipe.poll(seconds)

    def _receive(self) -> Any:
        """The next message; a descriptor that follows a call becomes its last argument."""
        with _noticing_the_end():
            message = self._pipe.recv()
            if isinstance(message, Call) and message.has_descriptor:
                handle = recv_handle(self._pipe)
                return message._replace(arguments=(*message.arguments, handle))
            return message


@contextmanager
def _noticing_the_end() -> Iterator[None]:
    """Converts the errors of a pipe whose other end is closed."""
    try:
        yield
    except (*CLOSED_PIPE_ERRORS, OSError):
        raise LeftError from None


def _joined(earlier: TickCommand | None, later: TickCommand) -> TickCommand:
    """Two commands as one."""
    if earlier is None:
        return later
    target = earlier.target if later.target is None else later.target
    return later._replace(target=target, fed=earlier.fed or later.fed)
