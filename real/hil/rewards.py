"""Where an actor's rewards come from: the world itself, or a success classifier."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from robots.interfaces import Observation, Step
from robots.success import SuccessDetector


class Verdict(NamedTuple):
    """What a step of N worlds was worth."""

    reward: np.ndarray
    """(N,)."""
    success: np.ndarray
    """(N,) bool: the task is done, which ends the episode."""
    terminated: np.ndarray
    """(N,) bool: the task ended, by success or by a failure that cannot be mended."""
    probability: np.ndarray | None = None
    """(N,) of success, where a classifier judges."""


class RewardSource(Protocol):
    """Says what was achieved."""

    def reset(self, worlds: np.ndarray) -> None:
        """New episodes begin in the worlds of these numbers."""
        ...

    def judge(self, step: Step) -> Verdict:
        """Of the observations before any automatic reset, `step.final_observation`; called once per
        step."""
        ...


class OwnReward:
    """The world's own reward, success and end.

    Args:
        sparse: 1 at success and 0 elsewhere, instead of the world's reward.
    """

    def __init__(self, sparse: bool = False) -> None:
        self._sparse = sparse

    def reset(self, worlds: np.ndarray) -> None:
        """See `RewardSource`; the world knows by itself."""

    def judge(self, step: Step) -> Verdict:
        """See `RewardSource`."""
        success = step.terminated & step.info["success"]
        return Verdict(
            success.astype(np.float32) if self._sparse else step.reward, success, step.terminated
        )


class DetectedReward:
    """A success classifier's events: reward 1 and the end of the episode. The world's own judgement
    does not count; where the world ends an episode nevertheless, that counts as a time limit.

    Args:
        probability: observation (N, ...) to probabilities of success (N,), such as an exported
            classifier run on it.
        detector: of N robots.
        allowed: observation (N, ...) to (N,) bool, a condition without which nothing is a success;
            HIL-SERL has one on the robot's own state beside the classifier [C]. None allows always.
    """

    def __init__(
        self,
        probability: Callable[[Observation], np.ndarray],
        detector: SuccessDetector,
        allowed: Callable[[Observation], np.ndarray] | None = None,
    ) -> None:
        self._probability, self._detector, self._allowed = probability, detector, allowed

    def reset(self, worlds: np.ndarray) -> None:
        """See `RewardSource`."""
        self._detector.reset(worlds)

    def judge(self, step: Step) -> Verdict:
        """See `RewardSource`."""
        seen = step.final_observation
        allowed = None if self._allowed is None else self._allowed(seen)
        probability = self._probability(seen)
        success = self._detector.update(probability, allowed)
        return Verdict(success.astype(np.float32), success, success, probability)
