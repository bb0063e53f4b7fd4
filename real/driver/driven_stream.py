"""The stream of references of an arm that another process drives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from real.driver.driver import ANSWER_SECONDS, Answers, Driver
from real.driver.messages import CallResult, Failing, Passed, Question, TickCommand
from real.motion.action_space import Space
from real.motion.governor import KeepInBox
from real.motion.stream import ActionAge, StreamConfig, Tick

TICK_SECONDS = 2.0
"""Longest silence of the driver of a real arm during a stream [s]."""


class DrivenStream:
    """Implements `real.motion.stream.Stream`; the driver has the governor, the fence, the guards
    and the watchdog.

    Args:
        driver: the driver, whose arm is under control.
        space: coordinates of the targets.
        config: rate and limits.
        age: age limits of the newest action; None sets none.
        answers: answers what the driver asks.
        on_request: whether the robot's time passes on request, so that the driver waits for every
            command.

    Raises:
        HandoffError: limits that contradict one another, or exceed the robot's; or the driver is
            lost.
        SafetyError: the arm is outside the keep-in box, or feels too large a force at rest.
    """

    def __init__(
        self,
        driver: Driver,
        space: Space,
        config: StreamConfig,
        age: ActionAge | None,
        answers: Answers,
        *,
        on_request: bool,
    ) -> None:
        self.period = 1.0 / config.stream_hz
        """Period of a tick [s]."""
        self._driver = driver
        self._box = KeepInBox(config.governor)
        self._answers = answers
        self._patience = ANSWER_SECONDS if on_request else TICK_SECONDS
        self._commands = 0
        self._aimed = 0
        """Number of the last command with a target."""
        self._new_target: np.ndarray | None = None
        self._fed = False
        self._error: Exception | None = None
        """What has ended the stream, behind the ticks that have passed before it."""
        self._call = driver.begin("stream", space, config, age)
        begun = self._receive()
        if begun is None:
            assert self._error is not None
            raise self._error
        self.last: Tick = begun.tick
        """See `Stream`."""
        self._target = begun.tick.target

    @property
    def target(self) -> np.ndarray:
        """See `Stream`."""
        return self._target

    def clamp(self, target: np.ndarray) -> np.ndarray:
        """See `Stream`."""
        return self._box.clamp(target)

    def feed(self) -> None:
        """See `Stream`: with the next command."""
        self._fed = True

    def set_target(self, target: np.ndarray) -> None:
        """See `Stream`: with the next command."""
        self._target = self.clamp(target)
        self._new_target = self._target

    def send(self, *, brake: bool = False) -> None:
        """See `Stream`.

        Raises:
            HandoffError: what has ended the stream.
        """
        if self._error is not None:
            raise self._error
        self._commands += 1
        if self._new_target is not None:
            self._aimed = self._commands
        self._driver.send(TickCommand(self._commands, self._new_target, brake, self._fed))
        self._new_target = None
        self._fed = False

    def pass_tick(self) -> Sequence[Tick]:
        """See `Stream`.

        Raises:
            HandoffError: what has ended the stream; or the driver is lost.
        """
        passed: list[Tick] = []
        while self._error is None and (not passed or self._driver.has_message()):
            message = self._receive()
            if message is None:
                break
            passed.append(message.tick)
            self.last = message.tick
            # A target that the driver does not know yet stays the newest one.
            if message.command >= self._aimed and self._new_target is None:
                self._target = message.tick.target
        if not passed:
            assert self._error is not None
            raise self._error
        return passed

    def _receive(self) -> Passed | None:
        """The next tick; None if the stream has ended, see `_error`."""
        failing = ""
        while True:
            message = self._driver.receive(self._patience, failing)
            if isinstance(message, Failing) and message.call == self._call:
                failing = message.cause
            elif isinstance(message, Question):
                self._driver.answer(message, self._answers)
            elif isinstance(message, Passed):
                return message
            elif isinstance(message, CallResult) and message.call == self._call:
                self._error = message.error
                return None
