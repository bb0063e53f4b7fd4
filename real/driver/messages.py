"""Messages between the process that drives an arm and the one that runs its policy.

The process of the policy calls, the driver answers with a result or an error. While a call runs,
the driver may ask back, for instance to let the time of a simulated arm pass. A call that arrives
while the driver waits for an answer or for commands ends what runs.
"""

from __future__ import annotations

import traceback
from typing import Any, NamedTuple

import numpy as np

from real.motion.stream import Tick
from robots.errors import HandoffError, describe


class Call(NamedTuple):
    """A request to the driver."""

    number: int
    """Number of the request, from 1."""
    what: str
    """Name of a method of `real.driver.driver_process.DriverProcess`, without the underscore."""
    arguments: tuple[Any, ...]
    has_descriptor: bool = False
    """Whether a file descriptor follows, which becomes the last argument."""


class CallResult(NamedTuple):
    """The end of a call."""

    call: int
    """Number of the call; 0 for an error of which no call knows."""
    value: Any
    error: Exception | None = None
    """What the call raised; the arm is at rest."""


class Failing(NamedTuple):
    """What is about to end a call: sent before the arm is brought to rest, which may fail."""

    call: int
    """Number of the call."""
    cause: str
    """The error, as a sentence."""


class Question(NamedTuple):
    """A question of the driver while a call runs."""

    number: int
    """Number of the question, from 1."""
    what: str
    """`advance`, `now`, `await_motion` or `halted`."""
    arguments: tuple[Any, ...]


class Reply(NamedTuple):
    """The answer to a question."""

    question: int
    value: Any
    error: Exception | None = None
    """What answering it raised."""


class TickCommand(NamedTuple):
    """What the next tick of a stream does."""

    number: int
    """Number of the command, from 1."""
    target: np.ndarray | None
    """(D,) new target [m]; None keeps the present one."""
    brake: bool
    """Whether the reference comes to rest."""
    fed: bool
    """Whether an action was given since the last command, or the arm is held on purpose."""


class Passed(NamedTuple):
    """A tick of a stream that has passed."""

    tick: Tick
    command: int
    """Number of the last command that it has followed."""


def sendable(error: Exception) -> HandoffError:
    """An error as it is sent: errors of Handoff as they are, others as one line with their
    traceback as a note."""
    if isinstance(error, HandoffError):
        return error
    sent = HandoffError(f"driver: {describe(error)}")
    sent.add_note("".join(traceback.format_exception(error)))
    return sent
