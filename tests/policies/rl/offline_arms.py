"""Arms of the learning checks of offline methods: data, a small learner, and a score.

The networks are smaller, the rates higher and the targets faster than the methods' defaults, so
that a few thousand updates do what a million do there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from policies.rl.networks.config import MlpSizes
from policies.rl.offline.config import InSampleConfig, IqlConfig
from policies.rl.offline.iql import Iql
from policies.rl.offline.train import OfflineConfig, fit_features, learn_offline
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.trajectory_weighting import (
    TrajectoryWeightingConfig,
    trajectory_probability,
)
from policies.rl.replay.transitions import Sizes
from robots.wire.steps import Steps
from tests.toy_envs.datasets import random_and_expert
from tests.toy_envs.maze_walks import maze_walks
from tests.toy_envs.point_maze import PointMaze
from tests.toy_envs.point_reach import PointReach
from tests.toy_envs.toy_env import ToyEnv, success_rate

SMALL = MlpSizes(hidden=(128, 128), activation="relu", layer_norm=False)
FAST: dict[str, Any] = {
    "critic": SMALL,
    "value_network": SMALL,
    "actor": SMALL,
    "learning_rate": 1e-3,
    "actor_learning_rate": 1e-3,
    "tau": 0.03,
}
IQL = IqlConfig(**FAST)
"""w .9 and b 10, as in mazes, at this scale."""
MAZE_IQL = replace(IQL, tau=0.1)
"""For values that have a whole maze to cross within 3,000 updates."""
ALIKE = TrajectoryWeightingConfig(kind="uniform")
EPISODES = 100


def filled(data: list[Steps], sizes: Sizes, discount: float, shift: float) -> Replay:
    """A replay of the data, `shift` added to every reward (-1 in IQL's and f-DVL's mazes)."""
    replay = Replay(
        ReplayConfig(capacity=sum(steps.rows for steps in data), discount=discount),
        sizes.observation,
        sizes.action,
    )
    for steps in data:
        replay.append(steps._replace(reward=steps.reward + shift))
    return replay


def trained(
    config: InSampleConfig,
    replay: Replay,
    sizes: Sizes,
    budget: OfflineConfig,
    weighting: TrajectoryWeightingConfig,
    seed: int,
) -> Iql:
    """A learner that has spent its budget."""
    learner = Iql(config, sizes, seed)
    fit_features(learner.networks.features, replay)
    probability = trajectory_probability(replay, weighting)
    learn_offline(learner, replay, budget, probability=probability, seed=seed)
    return learner


def solved(learner: Iql, toy_env: type[ToyEnv], seed: int) -> float:
    """Share of `EPISODES` that the learner's mean action solves."""
    return success_rate(toy_env(20, 1000 + seed), learner.act, EPISODES)


def maze_success(
    seed: int,
    config: InSampleConfig,
    weighting: TrajectoryWeightingConfig = ALIKE,
    updates: int = 3000,
) -> float:
    """Share of PointMaze that is solved after learning from 900 walks of which none solves it.

    Every step costs 1 until the goal, discount .98.
    """
    sizes = Sizes(observation=2, action=2)
    replay = filled(maze_walks(900, seed), sizes, 0.98, -1.0)
    return solved(
        trained(config, replay, sizes, OfflineConfig(updates=updates), weighting, seed),
        PointMaze,
        seed,
    )


def largest_value(seed: int, config: InSampleConfig, updates: int = 2500) -> float:
    """Largest |V| on the data, over the largest return there is: 10, paid at the goal and nowhere
    else.

    300 walks, discount .98, 64 rows an update.
    """
    sizes = Sizes(observation=2, action=2)
    walks = [steps._replace(reward=10.0 * steps.reward) for steps in maze_walks(300, seed)]
    replay = filled(walks, sizes, 0.98, 0.0)
    learner = trained(
        config, replay, sizes, OfflineConfig(updates=updates, batch_size=64), ALIKE, seed
    )
    seen = torch.from_numpy(replay.columns["observation"][: len(replay)])
    with torch.no_grad():
        v = learner.networks.state_value(learner.networks.features(seen))
    return float(v.abs().max()) / 10.0


def reach_success(
    seed: int,
    weighting: TrajectoryWeightingConfig,
    expert_share: float = 0.05,
    episodes: int = 1000,
) -> float:
    """Share of PointReach that is solved after learning from random and expert trajectories.

    One reward of 1 at the end, discount .97; 3,000 updates, b 3 and w .7, as IQL has them outside
    mazes.
    """
    sizes = Sizes(observation=7, action=3, relative_features=((0, 2, 2, 0.2), (2, 4, 2, 0.2)))
    replay = filled(
        random_and_expert(PointReach, episodes, expert_share, seed=seed), sizes, 0.97, 0.0
    )
    config = replace(IQL, expectile=0.7, inverse_temperature=3.0)
    return solved(
        trained(config, replay, sizes, OfflineConfig(updates=3000), weighting, seed),
        PointReach,
        seed,
    )
