"""Holds steps of episodes on their way from actor to learner: NumPy arrays, one row per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Steps(NamedTuple):
    """N steps, of one episode or of many; those of one episode in their order."""

    episode: np.ndarray
    """(N,) int64: the episode's number, different for different episodes."""
    number: np.ndarray
    """(N,) int64: the step's number within its episode, from 0; steps that follow one another
    differ by 1."""
    observation: np.ndarray
    """(N, O) float32 vector in physical units."""
    action: np.ndarray
    """(N, A) float32 in [-1, 1], as executed: the person's where they intervened."""
    reward: np.ndarray
    """(N,) float32."""
    next_observation: np.ndarray
    """(N, O) float32, the true one, also where the episode ended."""
    terminated: np.ndarray
    """(N,) bool: the task ended."""
    truncated: np.ndarray
    """(N,) bool: the time limit ended it."""
    intervention: np.ndarray
    """(N,) bool: a person acted."""
    demo: np.ndarray
    """(N,) bool: of a demonstration."""
    proposed: np.ndarray
    """(N, A) float32: what the policy would have done; in demonstrations the action itself."""
    toggle: np.ndarray
    """(N,) bool: the hand was told to turn round."""
    policy_version: np.ndarray
    """(N,) int64: which published policy proposed; -1 without one."""
    pictures: Mapping[str, np.ndarray] = {}
    """Per camera (N, height, width, 3) uint8 RGB."""
    next_pictures: Mapping[str, np.ndarray] = {}
    """Likewise, after the step."""

    @property
    def rows(self) -> int:
        """Their number."""
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
    """`Steps` of the given arrays, in their dtypes; what is left out is False, and `proposed` the
    action."""
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


def chosen(steps: Steps, rows: np.ndarray) -> Steps:
    """The rows that the mask or the indices `rows` name."""
    columns = {
        name: value[rows]
        for name, value in steps._asdict().items()
        if isinstance(value, np.ndarray)
    }
    pictures = {name: value[rows] for name, value in steps.pictures.items()}
    after = {name: value[rows] for name, value in steps.next_pictures.items()}
    return Steps(pictures=pictures, next_pictures=after, **columns)


def joined(parts: Sequence[Steps]) -> Steps:
    """The rows of all parts, one after another; at least one part, all with the same pictures."""
    first = parts[0]
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name, value in first._asdict().items()
        if isinstance(value, np.ndarray)
    }
    pictures = {
        name: np.concatenate([part.pictures[name] for part in parts]) for name in first.pictures
    }
    after = {
        name: np.concatenate([part.next_pictures[name] for part in parts])
        for name in first.next_pictures
    }
    return Steps(pictures=pictures, next_pictures=after, **columns)
