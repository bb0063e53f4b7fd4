"""Defines batches of steps that an actor sends to a learner: NumPy arrays with one row per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

GUIDE_VERSION = -2
"""Version of the policy at a step whose action a guide proposed, which has no versions."""


class Steps(NamedTuple):
    """N steps of one or more episodes, in temporal order within each episode."""

    episode: np.ndarray
    """(N,) int64: number of the episode, unique per episode."""
    number: np.ndarray
    """(N,) int64: number of the step within its episode, from 0."""
    observation: np.ndarray
    """(N, O) float32 observation vectors in physical units."""
    action: np.ndarray
    """(N, A) float32 executed actions in [-1, 1]: the person's where they intervened."""
    reward: np.ndarray
    """(N,) float32 rewards."""
    next_observation: np.ndarray
    """(N, O) float32 observation vectors after the step, before any automatic reset."""
    terminated: np.ndarray
    """(N,) bool: the task ended."""
    truncated: np.ndarray
    """(N,) bool: the time limit ended it."""
    intervention: np.ndarray
    """(N,) bool: a person acted."""
    demo: np.ndarray
    """(N,) bool: the step is from a demonstration."""
    proposed: np.ndarray
    """(N, A) float32 actions that the policy proposed; in demonstrations the executed actions."""
    toggle: np.ndarray
    """(N,) bool: the action reversed the gripper."""
    policy_version: np.ndarray
    """(N,) int64: version of the policy that proposed the action; -1 without one,
    `GUIDE_VERSION` if a guide did."""
    pictures: Mapping[str, np.ndarray] = {}
    """Images before the step, per camera (N, height, width, 3) uint8 RGB, or their feature maps
    (N, channels, rows, columns) float16."""
    next_pictures: Mapping[str, np.ndarray] = {}
    """Images after the step, in the same form."""

    @property
    def rows(self) -> int:
        """Number of steps N."""
        return len(self.reward)


def plain_steps(
    episode: np.ndarray,
    number: np.ndarray,
    observation: np.ndarray,
    action: np.ndarray,
    reward: np.ndarray,
    next_observation: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    *,
    demo: bool = False,
    intervention: np.ndarray | None = None,
    proposed: np.ndarray | None = None,
    toggle: np.ndarray | None = None,
    policy_version: int = -1,
) -> Steps:
    """`Steps` from arrays, converted to the dtypes of the fields; flags that are left out are
    False, and `proposed` defaults to `action`."""
    n = len(reward)
    none = np.zeros(n, dtype=bool)
    action = np.asarray(action, np.float32)
    return Steps(
        episode=np.asarray(episode, np.int64),
        number=np.asarray(number, np.int64),
        observation=np.asarray(observation, np.float32),
        action=action,
        reward=np.asarray(reward, np.float32),
        next_observation=np.asarray(next_observation, np.float32),
        terminated=np.asarray(terminated, bool),
        truncated=np.asarray(truncated, bool),
        intervention=none if intervention is None else np.asarray(intervention, bool),
        demo=np.full(n, demo),
        proposed=action if proposed is None else np.asarray(proposed, np.float32),
        toggle=none if toggle is None else np.asarray(toggle, bool),
        policy_version=np.full(n, policy_version, np.int64),
    )


def select_steps(steps: Steps, rows: np.ndarray) -> Steps:
    """The steps selected by `rows`, a mask or indices."""
    columns = {
        name: value[rows]
        for name, value in steps._asdict().items()
        if isinstance(value, np.ndarray)
    }
    pictures = {name: value[rows] for name, value in steps.pictures.items()}
    next_pictures = {name: value[rows] for name, value in steps.next_pictures.items()}
    return Steps(pictures=pictures, next_pictures=next_pictures, **columns)


def concatenate_steps(batches: Sequence[Steps]) -> Steps:
    """Concatenates at least one batch; all batches must have images of the same cameras."""
    first = batches[0]
    columns = {
        name: np.concatenate([getattr(batch, name) for batch in batches])
        for name, value in first._asdict().items()
        if isinstance(value, np.ndarray)
    }
    pictures = {
        name: np.concatenate([batch.pictures[name] for batch in batches]) for name in first.pictures
    }
    next_pictures = {
        name: np.concatenate([batch.next_pictures[name] for batch in batches])
        for name in first.next_pictures
    }
    return Steps(pictures=pictures, next_pictures=next_pictures, **columns)
