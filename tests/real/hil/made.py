"""Steps, cards and parameters for the tests of actor and learner."""

from __future__ import annotations

import numpy as np

from robots.wire.actor_card import ActorCard, MlpCard
from robots.wire.learner import Parameters
from robots.wire.steps import Steps, plain_steps


def steps(
    rows: int = 2, observation: int = 3, action: int = 2, begin: int = 0, episode: int = 0
) -> Steps:
    """Steps of one running episode whose rewards are their numbers."""
    number = np.arange(begin, begin + rows)
    grid = np.repeat(number[:, None], observation, axis=1)
    none = np.zeros(rows, bool)
    return plain_steps(
        np.full(rows, episode), number, grid, np.zeros((rows, action)), number, grid + 1, none, none
    )


CARD = ActorCard(
    observation=3,
    action=2,
    relative_features=((0, 1, 1, 0.5),),
    actor=MlpCard(layers=(4, 5, 2), activation="tanh", layer_norm=True),
    log_std_min=-5.0,
    log_std_max=2.0,
    hand=MlpCard(layers=(4, 3), activation="relu", layer_norm=False),
)
"""A continuous entry and a gripper."""


def parameters(version: int = 7, seed: int = 0) -> Parameters:
    """Random numbers for `CARD`."""
    from robots.wire.actor_card import array_shapes

    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.standard_normal(shape, dtype=np.float32)
        for name, shape in array_shapes(CARD).items()
    }
    return Parameters(version, CARD, arrays)
