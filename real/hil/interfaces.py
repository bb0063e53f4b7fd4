"""Defines an actor's interfaces to its learner: parameters, actions, observation vectors and
time."""

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
    """A source of parameters; `real.hil.learner_client.LearnerClient` is one."""

    @property
    def policy(self) -> ActorPolicy | None:
        """The policy with the newest parameters, None before the first; never waits."""
        ...

    @property
    def paused(self) -> bool:
        """Whether the learner wants the actor to hold still."""
        ...


class ActionMapping(Protocol):
    """Maps between the learner's actions, in [-1, 1] with the gripper's command last if there is
    one, and the environment's.

    `robots.control.gripper_commands.CommandedGripper` is one.
    """

    size: int
    """Number of entries A of the learner's actions."""

    def to_env(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N, E) actions of the environment, given the learner's (N, A)."""
        ...

    def from_env(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N, A) actions of the learner, given the environment's (N, E), such as a person's."""
        ...

    def toggled(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """(N,) bool: the learner's action (N, A) reverses the gripper: it closes an open gripper,
        or opens a closed one."""
        ...


class Guide(Protocol):
    """A policy that acts in place of the learner at the start of episodes (JSRL, arXiv
    2204.02372)."""

    def propose(
        self,
        episode: np.ndarray,
        number: np.ndarray,
        observation: Observation,
        proposed: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(N, A) proposed actions, of the guide or the learner, and (N,) bool whether they are the
        guide's.

        Args:
            episode: (N,) episode numbers.
            number: (N,) step numbers within the episodes, from 0.
            observation: the current observation.
            proposed: (N, A) actions of the learner.
        """
        ...


class Monitor(Protocol):
    """An observer of the decisions of an actor, which changes none; `real.hil.hints.ActorHints` is
    one."""

    def __call__(
        self,
        policy: ActorPolicy | None,
        vector: np.ndarray,
        pictures: Mapping[str, np.ndarray],
        proposed: np.ndarray,
        intervening: np.ndarray,
    ) -> Mapping[str, np.ndarray]:
        """Takes a step before it is executed.

        Args:
            policy: policy with the newest parameters; None before the first.
            vector: (N, O) observation vectors.
            pictures: images of the observation, as they are sent to the learner.
            proposed: (N, A) the learner's actions.
            intervening: (N,) bool: the person acts in their place.

        Returns:
            (N,) further fields of the step, for recorders.
        """
        ...


class IdentityActions:
    """Implements `ActionMapping` for a learner and an environment with the same actions, without
    gripper commands.

    Args:
        size: number of entries A.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def to_env(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """See `ActionMapping`."""
        return action

    def from_env(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """See `ActionMapping`; entries are clipped to [-1, 1]."""
        return np.clip(action, -1.0, 1.0)

    def toggled(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """See `ActionMapping`."""
        return np.zeros(len(action), bool)


class ScaledActions:
    """Implements `ActionMapping` for an environment whose actions have bounds other than -1 and 1,
    and no gripper: the bounds are the learner's -1 and 1.

    Args:
        low: (A,) lower bounds of the environment's actions.
        high: (A,) upper bounds.
    """

    def __init__(self, low: Sequence[float], high: Sequence[float]) -> None:
        self.size = len(low)
        self._centre = (np.asarray(low) + np.asarray(high)) / 2
        self._half_range = (np.asarray(high) - np.asarray(low)) / 2

    def to_env(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """See `ActionMapping`."""
        return self._centre + self._half_range * action

    def from_env(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """See `ActionMapping`; actions outside the bounds are clipped to them."""
        return np.clip((action - self._centre) / self._half_range, -1.0, 1.0)

    def toggled(self, action: np.ndarray, observation: Observation) -> np.ndarray:
        """See `ActionMapping`."""
        return np.zeros(len(action), bool)


def observation_vector(
    spec: Mapping[str, FieldSpec], fields: Sequence[str] = ()
) -> Callable[[Observation], np.ndarray]:
    """Returns a function that maps observations (N, ...) to vectors (N, O) float32 of concatenated
    fields.

    Args:
        spec: observation of the environment.
        fields: names of the fields, in order; empty takes all but images (unit u8).

    Raises:
        HandoffError: a field that the environment does not observe, or no field at all.
    """
    names = list(fields) or [name for name, field in spec.items() if field.unit != "u8"]
    missing = [name for name in names if name not in spec]
    if missing or not names:
        raise HandoffError(
            f"observation: fields {missing or names} requested, the environment has {sorted(spec)}."
        )
    sizes = [math.prod(spec[name].shape) for name in names]

    def vector(observation: Observation) -> np.ndarray:
        parts = [
            np.asarray(observation[name], np.float32).reshape(-1, size)
            for name, size in zip(names, sizes, strict=True)
        ]
        return np.concatenate(parts, axis=1)

    return vector


class ScaledWallClock:
    """A `robots.interfaces.Clock` that runs at `speed` times real time, for environments without a
    clock of their own.

    A tick that is late by more than a period shifts the schedule; lost time is not made up.

    Args:
        speed: robot time per real time; 1 is real time.
        now: returns the real time [s].
        sleep: waits for a real time [s].

    Raises:
        HandoffError: a speed that is not positive and finite.
    """

    def __init__(
        self,
        speed: float = 1.0,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0.0 < speed < math.inf:
            raise HandoffError(
                f"clock: {speed} times real time, expected a positive number. Omit the clock to run unpaced."
            )
        self._speed = speed
        self._now = now
        self._sleep = sleep
        self._due: float | None = None

    def now(self) -> float:
        """Robot time [s]."""
        return self._speed * self._now()

    def advance(self, seconds: float) -> float:
        """Waits until `seconds` of robot time after the last due time; returns robot time [s]."""
        reached = self.now()
        due = reached if self._due is None else self._due + seconds
        self._due = due if due > reached - seconds else reached
        if self._due > reached:
            self._sleep((self._due - reached) / self._speed)
        return self.now()
