"""Generates actions for hard negatives of a success classifier: random walks, and a scripted expert
that leaves success, waits close to it and returns.

Without leaving, a policy learns to stop close to success where the classifier has few negatives;
without waiting, the classifier takes every state at rest for a success.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from robots.interfaces import Observation
from robots.spec import ActionSpec
from sim.episode_streams import EpisodeStream

if TYPE_CHECKING:
    from sim.engines.arm_engine import ArmEngine

LEAVES = 4
"""Control periods of leaving, of waiting and of returning, each."""
ROUNDS = 10
"""Number of times in an episode that the expert leaves, waits and returns."""
DIRECTION_PERIODS = 8
"""Control periods for which a random direction is kept."""

Propose = Callable[[Observation], np.ndarray]
"""Maps an observation to actions (1, A)."""


def random_walk(spec: ActionSpec, seed: int) -> Propose:
    """Moves in random directions, each for `DIRECTION_PERIODS`, because white noise stays in place.

    Args:
        spec: specification of the actions.
        seed: seed of the episode.
    """
    low, high = np.array(spec.low), np.array(spec.high)
    rng = np.random.default_rng([seed, EpisodeStream.RANDOM_WALK])
    step = 0
    direction = low

    def propose(observation: Observation) -> np.ndarray:
        nonlocal step, direction
        direction = rng.uniform(low, high) if step % DIRECTION_PERIODS == 0 else direction
        step += 1
        return direction[None]

    return propose


def leaving_expert(engine: ArmEngine, seed: int) -> Propose:
    """Solves the task with the scripted expert; after the first success it repeatedly moves away in
    a random direction, waits there and returns.

    Args:
        engine: engine with one environment, in which success does not end an episode.
        seed: seed of the episode.
    """
    spec = engine.action_spec
    half = 0.5 * (np.array(spec.high) - np.array(spec.low))
    arm = np.array([name != "gripper" for name in spec.names])
    rng = np.random.default_rng([seed, EpisodeStream.LEAVING])
    solved = False
    step = 0
    direction = half

    def propose(observation: Observation) -> np.ndarray:
        nonlocal solved, step, direction
        action = engine.expert_action()
        solved = solved or bool(engine.task.success(engine.view)[0])
        if not solved:
            return action
        phase, within = divmod(step % (3 * LEAVES), LEAVES)
        if phase == within == 0:
            direction = half * rng.uniform(-1.0, 1.0, spec.size) * rng.uniform(0.05, 0.5)
        step += 1
        return np.where(arm & (phase < 2), direction if phase == 0 else 0.0, action)

    return propose
