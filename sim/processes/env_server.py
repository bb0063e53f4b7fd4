"""The environments of one simulator, wherever it runs, and the protocol by which they are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from robots.interfaces import Observation, SplitSteps, Step, VecEnv, WorldState

BEGUN = "begun"
"""First part of the names of arrays that environments show after they have started anew."""


class EnvClient(Protocol):
    """This side of a simulator: a process of this machine, or an actor of a cluster.

    Its environments come in groups, which are asked one at a time, in the order of the questions.
    """

    under_way: set[int]
    """Groups that have been asked and whose answer has not been heard."""
    observed: dict[int, Observation]
    """Last observation of every group; kept by the caller."""
    ended: int
    """Environments that have ended and started anew by themselves, as far as answers were heard."""

    def ready(self) -> dict[str, Any]:
        """Waits until the simulator has made its environments, and returns their specifications.

        Raises:
            HandoffError: it could not make them.
        """
        ...

    def ask(
        self, group: int, method: str, arguments: tuple[Any, ...], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Sets a group going; one question of a group at a time.

        Args:
            group: which.
            method: of its environments, or `steps`: several steps, one behind another.
            arguments: small ones; those of `steps` are the starts, see `EnvServer.answer`.
            arrays: actions; copied before this returns.

        Raises:
            HandoffError: the simulator died, or the group was asked before and not heard.
        """
        ...

    def hear(self, group: int) -> Any:
        """Waits for the answer to the last question of a group.

        Raises:
            HandoffError: what the environments raised, or the simulator died.
        """
        ...

    def gone(self) -> bool:
        """Whether the simulator died, and cannot be asked any more."""
        ...

    def leave(self) -> None:
        """Tells the simulator to end, and does not wait for it."""
        ...

    def close(self) -> None:
        """Ends the simulator; a second call does nothing."""
        ...


class Saved(NamedTuple):
    """State of all environments of a simulator."""

    ended: int
    states: list[WorldState]


class EnvServer:
    """The simulator's side.

    Args:
        make: makes n environments; called for every group.
        sizes: environments of every group.
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

    def answer(
        self, group: int, method: str, arguments: tuple[Any, ...], actions: Sequence[np.ndarray]
    ) -> tuple[dict[str, np.ndarray], int]:
        """Answers a question; returns arrays, and how many environments have started anew.

        The argument of `steps` is None, or the starts of environments that end. The caller does not
        know of those that answers under way have taken, so it tells how many ends it has heard of,
        and the seeds from the first on that it has not taken itself.
        """
        if method == "steps":
            return self._steps(self._envs[group], actions, *arguments)
        return getattr(self._envs[group], method)(*arguments), 0

    def save(self) -> Saved:
        """The state of all groups; each must have been reset."""
        return Saved(self._ended, [env.save() for env in self._envs])

    def restore(self, saved: Saved) -> None:
        """Goes on from a saved state."""
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
        found = flattened(steps)
        if starts is None:
            return found, 0
        heard, seeds = starts
        moved = np.sum([step.executed for step in steps], axis=0) > 0
        over = np.flatnonzero((steps[-1].terminated | steps[-1].truncated) & moved)
        if len(over):
            first = self._ended - heard
            self._ended += len(over)
            begun = env.reset(list(seeds[first : first + len(over)]), over.tolist())
            found |= {f"{BEGUN}/{name}": array for name, array in begun.items()}
        return found, len(over)


def flattened(steps: Sequence[Step]) -> dict[str, np.ndarray]:
    """The arrays of several steps by one name each; `unflattened` turns them back."""
    found: dict[str, np.ndarray] = {}
    for number, step in enumerate(steps):
        for name, part in step._asdict().items():
            if isinstance(part, dict):
                found |= {f"{number}/{name}/{key}": array for key, array in part.items()}
            else:
                found[f"{number}/{name}"] = part
    return found


def unflattened(arrays: Mapping[str, np.ndarray]) -> SplitSteps:
    """The steps whose arrays these are, and the observation of environments that have started anew
    after them."""
    found: dict[int, dict[str, Any]] = {}
    begun: Observation = {}
    for name, array in arrays.items():
        head, field, *key = name.split("/", 2)
        if head == BEGUN:
            begun["/".join([field, *key])] = array
        elif key:
            found.setdefault(int(head), {}).setdefault(field, {})[key[0]] = array
        else:
            found.setdefault(int(head), {})[field] = array
    return SplitSteps([Step(**found[number]) for number in sorted(found)], begun or None)
