"""Rewards from image-text models.

The reward is VLM-RM (Rocamonde et al., arXiv 2310.12921). Paper and released code are
equivalent: the paper projects a state's embedding onto the line from baseline to goal, the code its
difference to the goal, and the goal is on that line. The success classifier is in
`policies.rewards.train_success_classifier`, its detector in `robots.success`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from robots.errors import HandoffError

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


def _unit_vectors(name: str, vectors: np.ndarray, leading: tuple[int, ...]) -> np.ndarray:
    vectors = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=-1)
    if vectors.shape[:-1] != leading or not (np.abs(lengths - 1.0) <= _UNIT).all():
        raise HandoffError(
            f"image-text reward: {name} embedding of shape {vectors.shape} and length {np.ravel(lengths)[:4]}, "
            "expected unit vectors. Was the model's output not normalised?"
        )
    return vectors
