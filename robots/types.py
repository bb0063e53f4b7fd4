"""The protocols through which learning, worlds and hardware meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

Observation = dict[str, np.ndarray]
"""Named arrays; a `FieldSpec` per name states shape, unit and frame."""


class Progress(Protocol):
    """Where long work reports how far it is; callers throttle, so it may be called every step."""

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """`done` of `total` units are finished; `note` is a short human phrase such as `loss 0.021`."""
        ...


def no_progress(done: int, total: int, note: str = "") -> None:
    """A `Progress` that says nothing."""


class Policy(Protocol):
    """A chunk is a pure function of observation and noise (the weights are fixed inside)."""

    def __call__(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Predicts one chunk per row.

        Args:
            observation: `(B, n_obs_steps, O)` in the contract's units, newest step last.
            noise: `(B, horizon, A)` standard normal.

        Returns:
            `(B, horizon, A)` actions in the contract's units; entry `n_obs_steps - 1` belongs to the newest step.
        """
        ...


class Step(NamedTuple):
    """What N worlds answer to one action each."""

    observation: Observation
    """Per field `(N, ...)`, after any automatic reset."""
    reward: np.ndarray
    """(N,)."""
    terminated: np.ndarray
    """(N,) bool: the task ended."""
    truncated: np.ndarray
    """(N,) bool: the time limit ended it."""
    final_observation: Observation
    """Per field `(N, ...)`: the true observation of this step, before any automatic reset."""
    info: dict[str, np.ndarray]
    """Named diagnostics, each `(N, ...)`."""


class VecEnv(Protocol):
    """N worlds stepped together."""

    num_envs: int

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Starts every world from its own seed; the same seed gives the same start in any world."""
        ...

    def step(self, action: np.ndarray) -> Step:
        """Steps every world by one control period; `action` is `(N, A)`."""
        ...

    def close(self) -> None:
        """Frees processes and windows."""
        ...


class Clock(Protocol):
    """Robot time. On hardware it passes by itself; in a lockstep twin it passes when asked."""

    def now(self) -> float:
        """Robot time [s]."""
        ...

    def advance(self, seconds: float) -> float:
        """Lets robot time pass by `seconds` (a multiple of 1 ms), returns the new time [s].

        Raises:
            HandoffError: the robot no longer answers.
        """
        ...
