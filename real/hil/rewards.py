"""Provides an actor's rewards, from the environment itself or from a success classifier."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from robots.interfaces import Observation, Step
from robots.success import SuccessDetector


class Verdict(NamedTuple):
    """Reward and end of one step of N environments."""

    reward: np.ndarray
    """(N,) rewards."""
    success: np.ndarray
    """(N,) bool: the task succeeded, which ends the episode."""
    terminated: np.ndarray
    """(N,) bool: the task ended, by success or by a final failure."""
    probability: np.ndarray | None = None
    """(N,) probabilities of success, if a classifier judges."""


class RewardSource(Protocol):
    """A source of reward and success."""

    def reset(self, rows: np.ndarray) -> None:
        """Begins new episodes in the environments `rows`."""
        ...

    def judge(self, step: Step) -> Verdict:
        """Judges a step by `step.final_observation`, the observation before any automatic reset;
        called once per step."""
        ...


class EnvReward:
    """The environment's own reward, success and end.

    Args:
        sparse: whether the reward is 1 at success and 0 elsewhere, instead of the environment's.
    """

    def __init__(self, sparse: bool = False) -> None:
        self._sparse = sparse

    def reset(self, rows: np.ndarray) -> None:
        """See `RewardSource`; nothing to reset."""

    def judge(self, step: Step) -> Verdict:
        """See `RewardSource`."""
        success = step.terminated & step.info["success"]
        return Verdict(
            success.astype(np.float32) if self._sparse else step.reward, success, step.terminated
        )


class ClassifierReward:
    """A success classifier's detections: each has reward 1 and ends the episode.

    The environment's own judgement does not count; if it ends an episode, that counts as a time
    limit.

    Args:
        probability: maps observations (N, ...) to probabilities of success (N,), such as an
            exported classifier.
        detector: success detector of N environments.
        allowed: maps observations (N, ...) to (N,) bool, a necessary condition of success; HIL-SERL
            has one on the robot's own state beside the classifier [C]. None allows success always.
    """

    def __init__(
        self,
        probability: Callable[[Observation], np.ndarray],
        detector: SuccessDetector,
        allowed: Callable[[Observation], np.ndarray] | None = None,
    ) -> None:
        self._probability = probability
        self._detector = detector
        self._allowed = allowed

    @property
    def threshold(self) -> float:
        """Probability from which on an observation counts as success."""
        return self._detector.config.threshold

    def reset(self, rows: np.ndarray) -> None:
        """See `RewardSource`."""
        self._detector.reset(rows)

    def judge(self, step: Step) -> Verdict:
        """See `RewardSource`."""
        observation = step.final_observation
        allowed = None if self._allowed is None else self._allowed(observation)
        probability = self._probability(observation)
        success = self._detector.update(probability, allowed)
        return Verdict(success.astype(np.float32), success, success, probability)
