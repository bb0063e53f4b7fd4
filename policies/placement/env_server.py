"""The worlds of a simulator, wherever it runs: groups, stepped one at a time in the order in which
it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from robots.interfaces import Observation, Step, VecEnv, WorldState

BEGUN = "begun"
"""Begins the names of what worlds show that have started anew."""


class Asks(Protocol):
    """This side of a simulator: a process of this machine, or an actor of a cluster."""

    number: int
    """Its own, for messages."""
    under_way: set[int]
    """Groups that have been asked and not been heard."""
    observed: dict[int, Observation]
    """What the worlds of a group showed last; kept by who asks."""
    ended: int
    """Worlds that have ended and begun anew by themselves, as far as they were heard of."""

    def ready(self) -> dict[str, Any]:
        """Waits until it has made its worlds; what they say of themselves.

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
            method: of its worlds, or `steps`: several steps, one behind another.
            arguments: small ones; of `steps` the starts, see `Groups.answer`.
            arrays: of actions; copied before this returns.

        Raises:
            HandoffError: it died, or the group has not been heard since it was asked.
        """
        ...

    def hear(self, group: int) -> Any:
        """Waits for the answer to the last question of a group.

        Raises:
            HandoffError: what the worlds raised, or it died.
        """
        ...

    def gone(self) -> bool:
        """Whether it died, and cannot be asked any more."""
        ...

    def close(self) -> None:
        """Ends it; a second call does nothing."""
        ...


class Saved(NamedTuple):
    """All of a simulator's worlds."""

    ended: int
    states: list[WorldState]


class Groups:
    """That side.

    Args:
        make: makes n worlds; called for every group.
        sizes: worlds of every group.
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
        """What the worlds say of themselves."""
        return {
            name: getattr(self._envs[0], name)
            for name in ("observation_spec", "action_spec", "rate_hz")
        }

    def answer(
        self, group: int, method: str, arguments: tuple[Any, ...], actions: Sequence[np.ndarray]
    ) -> tuple[dict[str, np.ndarray], int]:
        """What came of a question, and how many worlds have ended and begun anew by themselves.

        Of `steps`, the argument is None, or the starts of worlds that end. Those that answers under
        way have taken are not known to who asks, so he tells how many he has heard of, and the
        first of those that he has not taken himself.
        """
        if method == "steps":
            return self._steps(self._envs[group], actions, *arguments)
        return getattr(self._envs[group], method)(*arguments), 0

    def save(self) -> Saved:
        """All groups as they are; each must have been reset."""
        return Saved(self._ended, [env.save() for env in self._envs])

    def restore(self, saved: Saved) -> None:
        """Goes on from there."""
        self._ended = saved.ended
        for env, state in zip(self._envs, saved.states, strict=True):
            env.restore(state)

    def close(self) -> None:
        """Closes the worlds; a second call does nothing."""
        for env in self._envs:
            env.close()
        self._envs = []

    def _steps(
        self, env: VecEnv, actions: Sequence[np.ndarray], starts: tuple[int, Sequence[int]] | None
    ) -> tuple[dict[str, np.ndarray], int]:
        steps = [env.step(action) for action in actions]
        found = flat(steps)
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


def flat(steps: Sequence[Step]) -> dict[str, np.ndarray]:
    """The arrays of several steps by one name each; `heard_of` turns them back."""
    found: dict[str, np.ndarray] = {}
    for number, step in enumerate(steps):
        for name, part in step._asdict().items():
            if isinstance(part, dict):
                found |= {f"{number}/{name}/{key}": array for key, array in part.items()}
            else:
                found[f"{number}/{name}"] = part
    return found


class Heard(NamedTuple):
    """What came of several actions."""

    steps: list[Step]
    begun: Observation | None
    """Of all worlds, where some have ended and started anew."""


def heard_of(arrays: Mapping[str, np.ndarray]) -> Heard:
    """The steps whose arrays these are, see `flat`, and what is shown by worlds that started anew
    behind them."""
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
    return Heard([Step(**found[number]) for number in sorted(found)], begun or None)
