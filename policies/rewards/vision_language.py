"""Rewards that nobody programmed: from an image-text model, from stages; what rescales and compares
them.

The image-text reward is VLM-RM (Rocamonde et al., arXiv 2310.12921). Paper and released code agree:
the paper projects a state's embedding onto the line from baseline to goal, the code its difference
to the goal, and the goal is on that line. The success classifier is
`policies.rewards.train_success_classifier`; its detector, `robots.success`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from robots.errors import HandoffError
from robots.success import DetectorConfig, SuccessDetector

_UNIT = 1e-3
"""Length by which an embedding may miss 1."""


class Embed(Protocol):
    """An image-text model such as CLIP, whose weights are not ours to ship."""

    def images(self, images: np.ndarray) -> np.ndarray:
        """`(B, H, W, 3)` uint8 RGB to unit vectors `(B, D)`."""
        ...

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """B texts to unit vectors `(B, D)` of the same space."""
        ...


class GoalBaselineReward:
    """r = 1 - |P_alpha x - g|^2 / 2 of unit embeddings x, with P_alpha = alpha proj(line b to g) +
    (1 - alpha) I.

    With alpha = 0 it is the cosine between x and the goal g; with alpha = 1 only the component
    along the line from the baseline b, which describes the scene as it is, to the goal counts.
    """

    def __init__(self, goal: np.ndarray, baseline: np.ndarray, alpha: float = 0.5) -> None:
        """Of unit vectors `goal` and `baseline`, `(D,)` each, and `alpha` in [0, 1].

        Raises:
            HandoffError: not unit vectors, or goal and baseline say the same.
        """
        self.goal = _unit_vectors("goal", goal, ())
        baseline = _unit_vectors("baseline", baseline, ())
        line = self.goal - baseline
        length = float(np.linalg.norm(line))
        if length < _UNIT or not 0.0 <= alpha <= 1.0:
            raise HandoffError(
                f"image-text reward: goal and baseline are {length:.2g} apart with alpha {alpha}, expected them "
                "apart and alpha in [0, 1]. Do both prompts say the same?"
            )
        self.alpha, self._direction = alpha, line / length

    def __call__(self, embedding: np.ndarray) -> np.ndarray:
        """Rewards `(B,)` of unit vectors `(B, D)`."""
        off = _unit_vectors("state", embedding, (len(embedding),)) - self.goal
        along = (off @ self._direction)[:, None] * self._direction
        return 1.0 - 0.5 * np.square(self.alpha * along + (1.0 - self.alpha) * off).sum(axis=1)


def image_text_reward(
    embed: Embed, goal: str, baseline: str, alpha: float = 0.5
) -> Callable[[np.ndarray], np.ndarray]:
    """The reward `(B,)` of pictures `(B, H, W, 3)` uint8: how much they look like `goal` rather
    than `baseline`."""
    goal_vector, baseline_vector = embed.texts([goal, baseline])
    reward = GoalBaselineReward(goal_vector, baseline_vector, alpha)
    return lambda images: reward(embed.images(images))


def epic_distance(first: np.ndarray, second: np.ndarray, discount: float) -> float:
    """How differently two rewards rank policies: 0 for equivalent ones, 1 for opposite ones (EPIC,
    Gleave et al., arXiv 2006.13900); blind to potential shaping and to positive scale.

    Args:
        first: `(M, M)`, entry (i, j) the reward of going from sampled state i to sampled state j.
        second: likewise, of the same states.
        discount: of future rewards.

    Raises:
        HandoffError: not such matrices, or a reward that ranks nothing.
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
                "epic: a reward is constant but for shaping, so it ranks no policies."
            )
        canonical.append(values / length)
    # Half the distance of the unit vectors is sqrt((1 - correlation) / 2), without its cancellation
    # near 0.
    return min(1.0, float(np.linalg.norm(canonical[0] - canonical[1])) / 2.0)


class RewardScaler:
    """Divides rewards by the running standard deviation of the discounted return, of N worlds at
    once.

    The mean stays, for taking it away would reward or punish living longer. As in PPO's usual
    implementations (Engstrom et al., arXiv 2005.12729).
    """

    def __init__(self, worlds: int, discount: float = 0.99, clip: float = 10.0) -> None:
        """Nothing seen yet; `clip` bounds what is returned."""
        self.discount, self.clip = discount, clip
        self._return = np.zeros(worlds)
        self._seen, self._mean, self._squares = 0, 0.0, 0.0

    @property
    def deviation(self) -> float:
        """Of all returns seen; 1 before there are two different ones."""
        variance = self._squares / self._seen if self._seen else 0.0
        return variance**0.5 if variance > 1e-12 else 1.0

    def __call__(self, reward: np.ndarray, done: np.ndarray) -> np.ndarray:
        """Takes rewards `(N,)` in and scales them; where `done` (N,), the return begins anew after
        this step."""
        self._return = self.discount * self._return + reward
        n, mean = len(self._return), float(self._return.mean())
        off, total = mean - self._mean, self._seen + n
        self._squares += (
            float(np.square(self._return - mean).sum()) + off * off * self._seen * n / total
        )
        self._mean, self._seen = self._mean + off * n / total, total
        self._return = np.where(done, 0.0, self._return)
        return np.clip(reward / self.deviation, -self.clip, self.clip)

    def state(self) -> dict[str, list[float] | float]:
        """All that later scaling depends on, in plain containers."""
        return {
            "return": self._return.tolist(),
            "seen": self._seen,
            "mean": self._mean,
            "squares": self._squares,
        }

    def restore(self, state: dict[str, list[float] | float]) -> None:
        """Goes on from `state()`."""
        self._return = np.array(state["return"], dtype=np.float64)
        self._seen = int(state["seen"])  # type: ignore[arg-type]
        self._mean = float(state["mean"])  # type: ignore[arg-type]
        self._squares = float(state["squares"])  # type: ignore[arg-type]


class Staged(NamedTuple):
    """What a step of a task in stages earned."""

    reward: np.ndarray
    """(N,) 1 / K at the step that completes one of K stages, else 0."""
    stage: np.ndarray
    """(N,) int: stages completed so far."""
    success: np.ndarray
    """(N,) bool: all of them."""


class StageLatch:
    """A reward for every stage of a task, once each and in order, for N worlds at once.

    Only the stage that is next is looked at, so an undone stage earns nothing a second time, and a
    later one that looks done too early earns nothing yet. At most one stage is completed per step.
    """

    def __init__(self, stages: Sequence[DetectorConfig], worlds: int) -> None:
        """One detector per stage."""
        if not stages:
            raise HandoffError("stages: 0, expected at least 1.")
        self._detectors = [SuccessDetector(config, worlds) for config in stages]
        self._stage = np.zeros(worlds, dtype=np.int64)

    def reset(self, worlds: np.ndarray | None = None) -> None:
        """Begins a new episode in the worlds of the mask `worlds` (N,) bool, or in all."""
        self._stage[slice(None) if worlds is None else worlds] = 0
        for detector in self._detectors:
            detector.reset(worlds)

    def update(self, probability: np.ndarray) -> Staged:
        """Takes the probabilities `(N, K)` that each stage's end is reached at this step."""
        expected = (len(self._stage), len(self._detectors))
        if probability.shape != expected:
            raise HandoffError(f"stages: probabilities {probability.shape}, expected {expected}.")
        before = self._stage.copy()
        for k, detector in enumerate(self._detectors):
            self._stage += detector.update(probability[:, k], allowed=before == k)
        return Staged(
            (self._stage - before) / expected[1], self._stage.copy(), self._stage == expected[1]
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
