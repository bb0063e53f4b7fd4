"""Serves the environments of one simulator, and defines the interface of its clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from robots.interfaces import EnvState, Observation, SplitSteps, Step, VecEnv

RESET_OBSERVATION = "reset_observation"
"""Prefix of the names of observations after a reset within `steps`."""


class EnvClient(Protocol):
    """Client of a simulator, which is a process on this machine or an actor in a cluster.

    Its environments form groups; requests are processed one at a time, in order.
    """

    pending: set[int]
    """Groups with a request whose response has not been received."""
    observations: dict[int, Observation]
    """Last observation of every group; stored by the caller."""
    ended: int
    """Number of environments that have ended and reset themselves, in the received responses."""

    def ready(self) -> dict[str, Any]:
        """Waits until the simulator has made its environments, and returns their specifications.

        Raises:
            HandoffError: the environments could not be made.
        """
        ...

    def request(
        self, group: int, method: str, arguments: tuple[Any, ...], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Sends a request to a group, which may have only one pending request.

        Args:
            group: index of the group.
            method: method of its environments, or `steps`: several steps in sequence.
            arguments: small arguments; those of `steps` are the starts, see `EnvServer.respond`.
            arrays: actions; copied before this returns.

        Raises:
            HandoffError: the simulator died, or the group has a pending request.
        """
        ...

    def receive(self, group: int) -> Any:
        """Waits for the response to a group's pending request.

        Raises:
            HandoffError: the error that the environments raised, or the simulator died.
        """
        ...

    def is_dead(self) -> bool:
        """Whether the simulator has died and cannot process requests."""
        ...

    def request_exit(self) -> None:
        """Requests the simulator to exit, without waiting for it."""
        ...

    def close(self) -> None:
        """Ends the simulator; a second call does nothing."""
        ...


class SavedEnvs(NamedTuple):
    """State of all environments of a simulator."""

    ended: int
    states: list[EnvState]


class EnvServer:
    """Server of a simulator's environments.

    Args:
        make: makes n environments; called for every group.
        sizes: number of environments of every group.
    """

    def __init__(self, make: Callable[[int], VecEnv], sizes: Sequence[int]) -> None:
        self._envs: list[VecEnv] = []
        self._ended = 0
        try:
            for size in sizes:
                self._envs.append(make(size))
        except BaseException:
            self.close()
            raise

    def describe(self) -> dict[str, Any]:
        """Specifications of the environments."""
        env = self._envs[0]
        return {
            "observation_spec": dict(env.observation_spec),
            "action_spec": env.action_spec,
            "rate_hz": env.rate_hz,
        }

    def respond(
        self, group: int, method: str, arguments: tuple[Any, ...], actions: Sequence[np.ndarray]
    ) -> tuple[dict[str, np.ndarray], int]:
        """Processes a request; returns arrays and the number of environments that have been reset.

        The argument of `steps` is None or (ended, seeds) for environments that end. The client does
        not know how many seeds its pending requests use, so it passes the number of ended
        environments in the responses that it has received, and the seeds that follow.
        """
        if method == "steps":
            return self._steps(self._envs[group], actions, *arguments)
        return getattr(self._envs[group], method)(*arguments), 0

    def save(self) -> SavedEnvs:
        """Saves the state of all groups; each must have been reset."""
        return SavedEnvs(self._ended, [env.save() for env in self._envs])

    def restore(self, saved: SavedEnvs) -> None:
        """Restores a saved state."""
        self._ended = saved.ended
        for env, state in zip(self._envs, saved.states, strict=True):
            env.restore(state)

    def close(self) -> None:
        """Closes the environments; a second call does nothing."""
        for env in self._envs:
            env.close()
        self._envs = []

    def _steps(
        self, env: VecEnv, actions: Sequence[np.ndarray], starts: tuple[int, Sequence[int]] | None
    ) -> tuple[dict[str, np.ndarray], int]:
        steps = [env.step(action) for action in actions]
        arrays = flatten_steps(steps)
        if starts is None:
            return arrays, 0
        received, seeds = starts
        # Environments that have ended in these steps are reset with the next seeds.
        moved = np.sum([step.executed for step in steps], axis=0) > 0
        ended = np.flatnonzero((steps[-1].terminated | steps[-1].truncated) & moved)
        if len(ended):
            first = self._ended - received
            self._ended += len(ended)
            observation = env.reset(list(seeds[first : first + len(ended)]), ended.tolist())
            arrays |= {f"{RESET_OBSERVATION}/{name}": array for name, array in observation.items()}
        return arrays, len(ended)


def flatten_steps(steps: Sequence[Step]) -> dict[str, np.ndarray]:
    """The arrays of several steps under unique names; inverse of `unflatten_steps`."""
    arrays: dict[str, np.ndarray] = {}
    for number, step in enumerate(steps):
        for name, value in step._asdict().items():
            if isinstance(value, dict):
                arrays |= {f"{number}/{name}/{key}": array for key, array in value.items()}
            else:
                arrays[f"{number}/{name}"] = value
    return arrays


def unflatten_steps(arrays: Mapping[str, np.ndarray]) -> SplitSteps:
    """The steps of flattened arrays, and the observation of environments that were reset after
    them."""
    fields: dict[int, dict[str, Any]] = {}
    reset_observation: Observation = {}
    for name, array in arrays.items():
        head, field, *key = name.split("/", 2)
        if head == RESET_OBSERVATION:
            reset_observation["/".join([field, *key])] = array
        elif key:
            fields.setdefault(int(head), {}).setdefault(field, {})[key[0]] = array
        else:
            fields.setdefault(int(head), {})[field] = array
    steps = [Step(**fields[number]) for number in sorted(fields)]
    return SplitSteps(steps, reset_observation or None)
