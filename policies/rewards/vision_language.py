"""Rewards from image-text models and from stages, reward scaling, and the EPIC distance of rewards.

The image-text reward is VLM-RM (Rocamonde et al., arXiv 2310.12921). Paper and released code are
equivalent: the paper projects a state's embedding onto the line from baseline to goal, the code its
difference to the goal, and the goal is on that line. The success classifier is in
`policies.rewards.train_success_classifier`, its detector in `robots.success`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from robots.errors import HandoffError
from robots.success import DetectorConfig, SuccessDetector

_UNIT = 1e-3
"""Tolerance of an embedding's length of 1."""


class Embed(Protocol):
    """An image-text model such as CLIP, provided by the caller."""

    def images(self, images: np.ndarray) -> np.ndarray:
        """`(B, H, W, 3)` uint8 RGB to unit vectors `(B, D)`."""
        ...

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """B texts to unit vectors `(B, D)` of the same space."""
        ...


class GoalBaselineReward:
    """r = 1 - |P_alpha x - g|^2 / 2 of unit embeddings x, with P_alpha = alpha proj(line b to g) +
    (1 - alpha) I.

    With alpha = 0 it is the cosine similarity of x and the goal g; with alpha = 1 only the
    component along the line from the baseline b, a description of the initial scene, to the goal
    counts.
    """

    def __init__(self, goal: np.ndarray, baseline: np.ndarray, alpha: float = 0.5) -> None:
        """Takes unit vectors `goal` and `baseline`, `(D,)` each, and `alpha` in [0, 1].

        Raises:
            HandoffError: vectors of another length, or equal goal and baseline.
        """
        self.goal = _unit_vectors("goal", goal, ())
        baseline = _unit_vectors("baseline", baseline, ())
        line = self.goal - baseline
        length = float(np.linalg.norm(line))
        if length < _UNIT or not 0.0 <= alpha <= 1.0:
            raise HandoffError(
                f"image-text reward: goal and baseline are {length:.2g} apart with alpha {alpha}, expected different "
                "vectors and alpha in [0, 1]. Do both prompts have the same meaning?"
            )
        self.alpha = alpha
        self._direction = line / length

    def __call__(self, embedding: np.ndarray) -> np.ndarray:
        """Rewards `(B,)` of unit vectors `(B, D)`."""
        offset = _unit_vectors("state", embedding, (len(embedding),)) - self.goal
        projection = (offset @ self._direction)[:, None] * self._direction
        return 1.0 - 0.5 * np.square(self.alpha * projection + (1.0 - self.alpha) * offset).sum(
            axis=1
        )


def image_text_reward(
    embed: Embed, goal: str, baseline: str, alpha: float = 0.5
) -> Callable[[np.ndarray], np.ndarray]:
    """Reward function of images `(B, H, W, 3)` uint8, `(B,)`: similarity to the text `goal`
    relative to `baseline`."""
    goal_vector, baseline_vector = embed.texts([goal, baseline])
    reward = GoalBaselineReward(goal_vector, baseline_vector, alpha)
    return lambda images: reward(embed.images(images))


def epic_distance(first: np.ndarray, second: np.ndarray, discount: float) -> float:
    """EPIC distance of two rewards: 0 for equivalent ones, 1 for opposite ones (Gleave et al.,
    arXiv 2006.13900); invariant to potential shaping and positive scale.

    Args:
        first: `(M, M)`, entry (i, j) is the reward of the transition from sampled state i to j.
        second: second reward, for the same states.
        discount: discount of future rewards.

    Raises:
        HandoffError: other shapes, or a reward that is constant up to shaping.
    """
    if first.shape != second.shape or first.ndim != 2 or first.shape[0] != first.shape[1]:
        raise HandoffError(
            f"epic: rewards of shapes {first.shape} and {second.shape}, expected (M, M) both."
        )
    canonical = []
    for reward in (first, second):
        leaving = reward.mean(axis=1)
        values = reward + discount * leaving[None, :] - leaving[:, None] - discount * reward.mean()
        values -= values.mean()
        length = np.linalg.norm(values)
        if not length > 1e-12 * max(1.0, float(np.abs(reward).max())) * len(reward):
            raise HandoffError(
                "epic: a reward is constant up to shaping, so it does not rank policies."
            )
        canonical.append(values / length)
    # Half the distance of the unit vectors is sqrt((1 - correlation) / 2), without cancellation
    # near 0.
    return min(1.0, float(np.linalg.norm(canonical[0] - canonical[1])) / 2.0)


class RewardScaler:
    """Divides rewards by the running standard deviation of the discounted return, for N
    environments.

    The mean is not subtracted, because that would reward or penalise longer episodes. This is as in
    PPO's usual implementations (Engstrom et al., arXiv 2005.12729).
    """

    def __init__(self, num_envs: int, discount: float = 0.99, clip: float = 10.0) -> None:
        """Starts without data; `clip` bounds the scaled rewards."""
        self.discount = discount
        self.clip = clip
        self._return = np.zeros(num_envs)
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation of all returns so far; 1 before two different ones."""
        variance = self._squares / self._count if self._count else 0.0
        return variance**0.5 if variance > 1e-12 else 1.0

    def __call__(self, reward: np.ndarray, done: np.ndarray) -> np.ndarray:
        """Updates the statistics with rewards `(N,)` and scales them; where `done` (N,), the return
        is reset after this step."""
        self._return = self.discount * self._return + reward
        n, mean = len(self._return), float(self._return.mean())
        difference, total = mean - self._mean, self._count + n
        self._squares += (
            float(np.square(self._return - mean).sum())
            + difference * difference * self._count * n / total
        )
        self._mean = self._mean + difference * n / total
        self._count = total
        self._return = np.where(done, 0.0, self._return)
        return np.clip(reward / self.deviation, -self.clip, self.clip)

    def state(self) -> dict[str, list[float] | float]:
        """State of the scaler in plain containers."""
        return {
            "return": self._return.tolist(),
            "seen": self._count,
            "mean": self._mean,
            "squares": self._squares,
        }

    def restore(self, state: dict[str, list[float] | float]) -> None:
        """Restores the result of `state()`."""
        self._return = np.array(state["return"], dtype=np.float64)
        self._count = int(state["seen"])  # type: ignore[arg-type]
        self._mean = float(state["mean"])  # type: ignore[arg-type]
        self._squares = float(state["squares"])  # type: ignore[arg-type]


class StageReward(NamedTuple):
    """Reward and progress of one step of a task with stages."""

    reward: np.ndarray
    """Reward (N,): 1 / K at the step that completes one of K stages, otherwise 0."""
    stage: np.ndarray
    """Number of completed stages (N,), int."""
    success: np.ndarray
    """Whether all stages are completed (N,), bool."""


class StageLatch:
    """Rewards each stage of a task once and in order, for N environments.

    Only the detector of the next stage is evaluated, so a stage that is undone and repeated gives
    no second reward, and a later stage gives none before its predecessors. At most one stage is
    completed per step.
    """

    def __init__(self, stages: Sequence[DetectorConfig], num_envs: int) -> None:
        """Takes one detector per stage."""
        if not stages:
            raise HandoffError("stages: 0, expected at least 1.")
        self._detectors = [SuccessDetector(config, num_envs) for config in stages]
        self._stage = np.zeros(num_envs, dtype=np.int64)

    def reset(self, env_ids: np.ndarray | None = None) -> None:
        """Resets the environments of the mask `env_ids` (N,) bool, or all."""
        self._stage[slice(None) if env_ids is None else env_ids] = 0
        for detector in self._detectors:
            detector.reset(env_ids)

    def update(self, probability: np.ndarray) -> StageReward:
        """Updates with the probabilities `(N, K)` that each stage is completed at this step."""
        expected = (len(self._stage), len(self._detectors))
        if probability.shape != expected:
            raise HandoffError(f"stages: probabilities {probability.shape}, expected {expected}.")
        previous_stage = self._stage.copy()
        for k, detector in enumerate(self._detectors):
            self._stage += detector.update(probability[:, k], allowed=previous_stage == k)
        return StageReward(
            (self._stage - previous_stage) / expected[1],
            self._stage.copy(),
            self._stage == expected[1],
        )


def _unit_vectors(name: str, vectors: np.ndarray, leading: tuple[int, ...]) -> np.ndarray:
    vectors = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=-1)
    if vectors.shape[:-1] != leading or not (np.abs(lengths - 1.0) <= _UNIT).all():
        raise HandoffError(
            f"image-text reward: {name} embedding of shape {vectors.shape} and length {np.ravel(lengths)[:4]}, "
            "expected unit vectors. Was the model's output not normalised?"
        )
    return vectors
