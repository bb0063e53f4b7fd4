"""What an actor is handed, beside its worlds and its operator: where parameters come from, and what
actions mean."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from real.hil.actor_policy import ActorPolicy
from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.spec import FieldSpec


class PolicySource(Protocol):
    """Where parameters arrive; `real.hil.learner_client.Link` is one."""

    @property
    def policy(self) -> ActorPolicy | None:
        """The newest; None before the first. Never waits."""
        ...

    @property
    def paused(self) -> bool:
        """Whether the learner wants the actor to hold still."""
        ...


class Actions(Protocol):
    """Between the learner's actions, in [-1, 1] with the hand's command last if it has one, and the
    world's.

    `robots.control.gripper_commands.CommandedHand` is one.
    """

    size: int
    """A of the learner."""

    def to_world(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N, A) of the learner to (N, W) of the world."""
        ...

    def from_world(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N, W) of the world, such as a person's, to (N, A) of the learner."""
        ...

    def toggled(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N,) bool: the learner's action (N, A) tells the hand to turn round: to close while open,
        or to open."""
        ...


class SameActions:
    """A learner and a world that speak of the same actions, and no hand that counts its turns.

    Args:
        size: A.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def to_world(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """See `Actions`."""
        return action

    def from_world(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """See `Actions`; what is beyond [-1, 1] becomes the bound."""
        return np.clip(action, -1.0, 1.0)

    def toggled(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """See `Actions`."""
        return np.zeros(len(action), bool)


def observation_vector(
    spec: Mapping[str, FieldSpec], fields: Sequence[str] = ()
) -> Callable[[Observation], np.ndarray]:
    """A function from observations (N, ...) to (N, O) float32: fields side by side, pictures (unit
    u8) left out.

    Args:
        spec: of the worlds.
        fields: those that count, in their order; empty takes all.

    Raises:
        HandoffError: a field that the worlds do not have, or none at all.
    """
    names = list(fields) or [name for name, one in spec.items() if one.unit != "u8"]
    missing = [name for name in names if name not in spec]
    if missing or not names:
        raise HandoffError(
            f"observation: fields {missing or names} asked for, the worlds have {sorted(spec)}."
        )
    sizes = [math.prod(spec[name].shape) for name in names]

    def vector(observation: Observation) -> np.ndarray:
        parts = [
            np.asarray(observation[name], np.float32).reshape(-1, size)
            for name, size in zip(names, sizes, strict=True)
        ]
        return np.concatenate(parts, axis=1)

    return vector


class PacedClock:
    """A `robots.interfaces.Clock` for worlds that have no time of their own: `speed` times real
    time.

    A tick that comes late by more than a period is not made up for.

    Args:
        speed: 1 is real time.
        now: real time [s].
        sleep: lets real time pass [s].

    Raises:
        HandoffError: a speed that is none.
    """

    def __init__(
        self,
        speed: float = 1.0,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0.0 < speed < math.inf:
            raise HandoffError(
                f"clock: {speed} times real time, expected a positive number. Without a pace, leave it out."
            )
        self._speed, self._now, self._sleep = speed, now, sleep
        self._due: float | None = None

    def now(self) -> float:
        """Robot time [s]."""
        return self._speed * self._now()

    def advance(self, seconds: float) -> float:
        """Waits until `seconds` of robot time after the last time due, returns robot time [s]."""
        reached = self.now()
        due = reached if self._due is None else self._due + seconds
        self._due = due if due > reached - seconds else reached
        if self._due > reached:
            self._sleep((self._due - reached) / self._speed)
        return self.now()
