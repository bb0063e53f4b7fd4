"""Provides an actor's rewards, from the environment itself or from a success classifier."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from robots.interfaces import Observation, Step
from robots.success import DetectorConfig, SuccessDetector


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


class SuccessVersion(NamedTuple):
    """A version of a session's success classifier."""

    number: int
    """Number within the session; 0 is the classifier that it began with."""
    digest: str
    """Digest (hex sha256) of its file."""
    probability: Callable[[Observation], np.ndarray]
    """Maps observations (N, ...) to probabilities of success (N,), such as an exported
    classifier."""
    detector: DetectorConfig
    """Threshold, release and number of steps."""


class ClassifierReward:
    """A success classifier's detections: each has reward 1 and ends the episode.

    The environment's own judgement does not count; if it ends an episode, that counts as a time
    limit.

    A newer version takes over where all environments begin an episode, so that every episode is
    judged by one version.

    Args:
        version: classifier that judges.
        robots: number N of environments.
        allowed: maps observations (N, ...) to (N,) bool, a necessary condition of success; HIL-SERL
            has one on the robot's own state beside the classifier [C]. None allows success always.
        newer: returns a version that is newer than the one of the given number; None where there is
            none. Called when episodes begin.
    """

    def __init__(
        self,
        version: SuccessVersion,
        robots: int = 1,
        allowed: Callable[[Observation], np.ndarray] | None = None,
        newer: Callable[[int], SuccessVersion | None] = lambda number: None,
    ) -> None:
        self.version = version
        self._robots = robots
        self._detector = SuccessDetector(version.detector, robots)
        self._allowed = allowed
        self._newer = newer

    @property
    def threshold(self) -> float:
        """Probability from which on an observation counts as success."""
        return self._detector.config.threshold

    def reset(self, rows: np.ndarray) -> None:
        """See `RewardSource`."""
        newer = self._newer(self.version.number) if len(rows) == self._robots else None
        if newer is not None:
            self.version = newer
            self._detector = SuccessDetector(newer.detector, self._robots)
        self._detector.reset(rows)

    def judge(self, step: Step) -> Verdict:
        """See `RewardSource`."""
        observation = step.final_observation
        allowed = None if self._allowed is None else self._allowed(observation)
        probability = self.version.probability(observation)
        success = self._detector.update(probability, allowed)
        return Verdict(success.astype(np.float32), success, success, probability)
