"""Starts the process that drives an arm, calls it, and notices how it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing.reduction import send_handle
from typing import Any

from real.arm import ConnectionLostError
from real.driver.messages import Call, CallResult, Question, Reply, sendable
from robots.processes import CLOSED_PIPE_ERRORS, Child, ChildEndedError, end
from robots.signals import ENDING_SIGNALS

ANSWER_SECONDS = 60.0
"""Longest silence of the driver while it works for a call [s]; a busy computer may delay it by
seconds."""
END_SECONDS = 10.0
"""Time in which the driver brings an arm to rest and disconnects, after which it is killed [s]."""
Answers = Callable[..., Any]
"""A function that answers the driver's questions, by their name and arguments."""


class DriverLostError(ConnectionLostError):
    """The process that drives the arm has ended, or does not answer; the robot brakes by itself as
    soon as its connection closes.

    Args:
        cause: how it ended, as a sentence to follow the process's name.
        orderly: whether it ended by a signal that had it bring the arm to rest first, as Ctrl-C in
            a terminal does to all processes.
        before: what it had told to be wrong before, as a sentence; empty for nothing.
    """

    def __init__(self, cause: str, *, orderly: bool = False, before: str = "") -> None:
        about = (
            "It brought the arm to rest first."
            if orderly
            else "The robot brakes by itself once its connection is closed; look at the arm before you go on."
        )
        cause = (
            f"{before} The driver of the arm {cause}" if before else f"driver of the arm: {cause}"
        )
        super().__init__(f"{cause} {about}")
        self.orderly = orderly


class Driver:
    """The process that drives the arms of a session, one at a time; a context manager.

    The process begins with the context, so that no episode waits for it, and begins anew with the
    first call after it was lost.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._calls = 0
        self.when_lost: Callable[[DriverLostError], None] = lambda error: None
        """Called when the process was lost, before the error is raised."""

    def __enter__(self) -> Driver:
        self._begin()
        return self

    def __exit__(self, *exception: object) -> None:
        child = self._child
        self._child = None
        if child is None:
            return
        # The driver ends when its pipe closes, too, but an arm that moves is a fault then.
        end([child.process], END_SECONDS)
        child.pipe.close()

    @property
    def running(self) -> bool:
        """Whether the process has begun and was not lost since."""
        return self._child is not None

    @property
    def pid(self) -> int | None:
        """Process id; None where no process runs."""
        return None if self._child is None else self._child.process.pid

    def call(
        self, what: str, *arguments: Any, answers: Answers, descriptor: int | None = None
    ) -> Any:
        """The result of a call.

        Args:
            what: name of the call, see `real.driver.driver_process`.
            arguments: its arguments.
            answers: answers what the driver asks meanwhile.
            descriptor: open file that the driver gets a descriptor of, as the last argument.

        Raises:
            DriverLostError: the process has ended, or does not answer.
            HandoffError: what the call raised.
        """
        number = self.begin(what, *arguments, descriptor=descriptor)
        while True:
            message = self.receive(ANSWER_SECONDS)
            if isinstance(message, Question):
                self.answer(message, answers)
            elif isinstance(message, CallResult) and message.call == number:
                if message.error is not None:
                    raise message.error
                return message.value

    def begin(self, what: str, *arguments: Any, descriptor: int | None = None) -> int:
        """Sends a call without waiting for its result; returns its number. See `call`."""
        child = self._begin()
        self._calls += 1
        self.send(Call(self._calls, what, arguments, descriptor is not None))
        if descriptor is not None:
            send_handle(child.pipe, descriptor, child.process.pid)
        return self._calls

    def send(self, message: Any) -> None:
        """Sends a message.

        Raises:
            DriverLostError: the process has ended.
        """
        child = self._running()
        try:
            child.pipe.send(message)
        except CLOSED_PIPE_ERRORS:
            raise self._ended(child) from None

    def answer(self, question: Question, answers: Answers) -> None:
        """Answers a question; an error of the answer is raised by the driver, and by the call."""
        try:
            value = answers(question.what, *question.arguments)
        except Exception as error:  # noqa: BLE001  raised where the answer is needed
            self.send(Reply(question.number, None, sendable(error)))
            return
        self.send(Reply(question.number, value))

    def has_message(self) -> bool:
        """Whether a message can be received without waiting."""
        try:
            return self._running().pipe.poll()
        except CLOSED_PIPE_ERRORS:
            # Receiving says why.
            return True

    def receive(self, seconds: float, failing: str = "") -> Any:
        """The next message.

        Args:
            seconds: longest time without one [s].
            failing: what the process has told to be wrong, while it brings the arm to rest.

        Raises:
            DriverLostError: the process has ended, or is silent for so long; then it is killed.
        """
        child = self._running()
        try:
            if not child.pipe.poll(seconds):
                child.process.kill()
                undone = "bring it to rest" if failing else "answer"
                silent = DriverLostError(
                    f"did not {undone} for {seconds:g} s and was killed.", before=failing
                )
                raise self._lost(silent)
            return child.receive()
        except (*CLOSED_PIPE_ERRORS, ChildEndedError):
            raise self._ended(child) from None

    def _begin(self) -> Child:
        """The process, which is started if none runs."""
        from real.driver.driver_process import drive

        if self._child is None:
            self._child = Child("handoff-driver", drive, daemon=True)
        return self._child

    def _running(self) -> Child:
        if self._child is None:
            raise DriverLostError("ended before.")
        return self._child

    def _ended(self, child: Child) -> DriverLostError:
        """The error of a process that has closed its pipe."""
        cause = child.cause_of_death()
        code = child.process.exitcode or 0
        orderly = code - 128 in (signal.SIGINT, *ENDING_SIGNALS)
        if orderly:
            cause = f"was ended by {signal.Signals(code - 128).name}."
        return self._lost(DriverLostError(cause, orderly=orderly))

    def _lost(self, error: DriverLostError) -> DriverLostError:
        """The same error, once the process is forgotten."""
        child = self._child
        self._child = None
        if child is not None:
            child.pipe.close()
        self.when_lost(error)
        return error
