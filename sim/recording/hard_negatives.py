"""Acts so that a success classifier sees states beside success: on random ways, and as the scripted
expert, who leaves success, waits beside it and returns.

Without the last the learned policy finds the sides from which hardly a state beside success was
seen, and stops there; without the waiting whatever stands still is taken for a success.
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
"""Control periods of leaving, as many of standing still there, and as many of returning."""
ROUNDS = 10
"""Times that there is time to leave, stand still and return in an episode."""
WAY_PERIODS = 8
"""Control periods for which a random way is kept."""

Propose = Callable[[Observation], np.ndarray]
"""From an observation to the actions (1, A)."""


def random_ways(spec: ActionSpec, seed: int) -> Propose:
    """Goes one random way after another, each for a while: white noise goes nowhere.

    Args:
        spec: the actions.
        seed: of the episode.
    """
    low, high = np.array(spec.low), np.array(spec.high)
    rng = np.random.default_rng([seed, EpisodeStream.RANDOM_WALK])
    step = 0
    way = low

    def propose(observation: Observation) -> np.ndarray:
        nonlocal step, way
        way = rng.uniform(low, high) if step % WAY_PERIODS == 0 else way
        step += 1
        return way[None]

    return propose


def leaving_expert(engine: ArmEngine, seed: int) -> Propose:
    """Solves the task as the scripted expert; after the first success it goes some random way,
    waits there and returns, again and again.

    Args:
        engine: of one environment, in which success does not end an episode.
        seed: of the episode.
    """
    spec = engine.action_spec
    half = 0.5 * (np.array(spec.high) - np.array(spec.low))
    arm = np.array([name != "gripper" for name in spec.names])
    rng = np.random.default_rng([seed, EpisodeStream.LEAVING])
    solved = False
    step = 0
    way = half

    def propose(observation: Observation) -> np.ndarray:
        nonlocal solved, step, way
        action = engine.expert_action()
        solved = solved or bool(engine.task.success(engine.view)[0])
        if not solved:
            return action
        phase, within = divmod(step % (3 * LEAVES), LEAVES)
        if phase == within == 0:
            way = half * rng.uniform(-1.0, 1.0, spec.size) * rng.uniform(0.05, 0.5)
        step += 1
        return np.where(arm & (phase < 2), way if phase == 0 else 0.0, action)

    return propose
