"""Image-text reward against worked numbers."""

from collections.abc import Sequence

import numpy as np
import pytest

from policies.rewards.vision_language import (
    GoalBaselineReward,
    image_text_reward,
)
from robots.errors import HandoffError

RNG = np.random.default_rng(0)
GOAL, BASELINE = np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


class RandomProjection:
    """Fake image-text model: images are projected at random, texts are the given vectors."""

    def __init__(self, entries: int, texts: dict[str, np.ndarray]) -> None:
        size = len(next(iter(texts.values())))
        self.matrix = np.random.default_rng(1).standard_normal((entries, size))
        self.vectors = texts

    def images(self, images: np.ndarray) -> np.ndarray:
        return unit(images.reshape(len(images), -1) @ self.matrix)

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        return unit(np.stack([self.vectors[text] for text in texts]))


def test_without_projection_the_reward_is_the_cosine():
    goal, baseline, states = (
        unit(RNG.standard_normal(8)),
        unit(RNG.standard_normal(8)),
        RNG.standard_normal((50, 8)),
    )
    reward = GoalBaselineReward(goal, baseline, alpha=0.0)(unit(states))
    assert reward == pytest.approx(unit(states) @ goal, abs=1e-12)


def test_with_full_projection_what_is_orthogonal_to_the_line_does_not_count():
    states = np.array([[0.48, 0.64, 0.6], [0.48, 0.64, -0.6], [0.0, 0.16, np.sqrt(1 - 0.16**2)]])
    reward = GoalBaselineReward(GOAL, BASELINE, alpha=1.0)(states)
    # x - g along d = (1, -1, 0) / sqrt 2 is (x0 - 1 - x1) / sqrt 2 = -1.16 / sqrt 2, so r = 1 -
    # 1.16^2 / 4.
    assert reward == pytest.approx(np.full(3, 1.0 - 1.16**2 / 4.0), abs=1e-12)


def test_half_projection_is_the_formula():
    goal, baseline, states = (
        unit(RNG.standard_normal(8)),
        unit(RNG.standard_normal(8)),
        RNG.standard_normal((50, 8)),
    )
    states = unit(states)
    direction = unit(goal - baseline)
    on_line = goal + (states - goal) @ np.outer(direction, direction)
    expected = 1.0 - 0.5 * np.square(0.5 * on_line + 0.5 * states - goal).sum(axis=1)
    assert GoalBaselineReward(goal, baseline, alpha=0.5)(states) == pytest.approx(
        expected, abs=1e-12
    )


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_reward_rises_from_baseline_to_goal(alpha: float):
    share = np.linspace(0.0, 1.0, 30)[:, None]
    reward = GoalBaselineReward(GOAL, BASELINE, alpha)(
        unit(share * GOAL + (1.0 - share) * BASELINE)
    )
    assert (np.diff(reward) > 0.0).all()
    assert reward[-1] == pytest.approx(1.0)


def test_a_picture_of_the_goal_is_worth_1():
    pictures = RNG.integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    embed = RandomProjection(
        4 * 4 * 3, {"cube at the goal": np.ones(16), "a table": RNG.standard_normal(16)}
    )
    embed.vectors["cube at the goal"] = embed.images(pictures)[2]
    reward = image_text_reward(embed, "cube at the goal", "a table", alpha=0.5)(pictures)
    assert reward[2] == pytest.approx(1.0)
    assert (np.delete(reward, 2) < 0.999).all()


def test_embeddings_that_are_no_unit_vectors_are_refused():
    with pytest.raises(HandoffError, match="not normalised"):
        GoalBaselineReward(GOAL, BASELINE)(np.array([[2.0, 0.0, 0.0]]))


def test_a_goal_that_is_the_baseline_is_refused():
    with pytest.raises(HandoffError, match="Do both prompts have the same meaning"):
        image_text_reward(
            RandomProjection(48, {"a cube": GOAL, "the cube": GOAL}), "a cube", "the cube"
        )
