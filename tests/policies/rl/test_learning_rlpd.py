"""Learning check of RLPD: a few demonstrations in every batch find what chance never does.

PointMaze with its sparse reward. Claims (bars fixed before any run, settings after a look at seed 0): with 20
demonstrations the deterministic policy solves at least 90 % of 100 fresh episodes, averaged over five seeds; the same
learner without them at most 20 %. Negative control of the method's other half: without LayerNorm in the critics the
largest value that they give anywhere in the maze exceeds 1/(1 - g), which no policy can be worth; with it, it does
not.

Ten critics, two of them in every target. Reduced against the released code: networks of 64 units, batch 128, one critic
step per step of the environment instead of 20; in return larger rates, a target that follows faster and a temperature
that begins low, since rewards are.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch

from policies.rl.config import MlpSizes, SacConfig, Sizes
from policies.rl.online import Batches, OnlineConfig, Progressed, learn
from policies.rl.replay import Replay, ReplayConfig
from policies.rl.sac import Sac
from policies.rl.transitions import Seen
from tests.beds.bed import demonstrations, success_rate
from tests.beds.person import collector
from tests.beds.point_maze import PointMaze
from tests.beds.race import better, runs

pytestmark = pytest.mark.slow

STEPS = 6_000
DISCOUNT = 0.95
WORLDS = 10
ONLINE = OnlineConfig(batch_size=128, updates_per_step=0.25, minibatches=4, training_starts=200)


class Learned(NamedTuple):
    """What became of a run."""

    success: float
    """Share of 100 fresh episodes that the deterministic policy solves."""
    largest: float
    """Largest value, over places and actions and the ten critics' mean, seen during training."""


def learned(seed: int, demos: int, layer_norm: bool) -> Learned:
    """One run of RLPD."""
    network = MlpSizes(hidden=(64, 64), activation="relu", layer_norm=layer_norm)
    config = SacConfig(
        critic=network,
        actor=MlpSizes(hidden=(64, 64), activation="relu"),
        critics=10,
        subset=2,
        learning_rate=1e-3,
        actor_learning_rate=1e-3,
        temperature_learning_rate=1e-3,
        init_temperature=0.003,
        tau=0.02,
    )
    learner = Sac(config, Sizes(observation=2, action=2), seed)
    learner.networks.features.fit(torch.zeros(2), torch.ones(2))
    buffer = ReplayConfig(capacity=STEPS, discount=DISCOUNT)
    replay, shown = Replay(buffer, 2, 2), Replay(buffer, 2, 2)
    for steps in demonstrations(PointMaze(1, 1000 + seed), demos):
        shown.append(steps)
    largest = [0.0]

    def watch(progressed: Progressed, metrics: dict[str, object]) -> None:
        if progressed.steps % 500 == 0:
            largest.append(largest_value(learner))

    learn(learner, Batches(ONLINE, replay, shown), collector(PointMaze(WORLDS, seed)), ONLINE, STEPS, seed, watch)
    return Learned(success_rate(PointMaze(50, 2000 + seed), learner.act, 100), max(largest))


@torch.no_grad()
def largest_value(learner: Sac) -> float:
    """Largest value that the critics give, on average, to 21 x 21 places and 9 actions."""
    place = torch.cartesian_prod(*[torch.linspace(0.0, 1.0, 21)] * 2)
    action = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 2)
    features = learner.features(Seen(place)).repeat_interleave(len(action), 0)
    value = learner.networks.critic(torch.cat([features, action.repeat(len(place), 1)], dim=1))[..., 0]
    return float(value.mean(dim=0).max())


def test_demonstrations_solve_the_maze() -> None:
    arms = {"rlpd": 20, "without demonstrations": 0}
    results = runs({name: partial(learned, demos=demos, layer_norm=True) for name, demos in arms.items()})
    success = {name: [one.success for one in values] for name, values in results.items()}
    told = str(results)
    assert np.mean(success["rlpd"]) >= 0.9, told
    assert np.mean(success["without demonstrations"]) <= 0.2, told
    assert better(success, "rlpd", "without demonstrations"), told


def test_without_layer_norm_values_exceed_what_any_policy_can_be_worth() -> None:
    arms = {"with": True, "without": False}
    results = runs({name: partial(learned, demos=20, layer_norm=layer_norm) for name, layer_norm in arms.items()})
    largest = {name: [one.largest for one in values] for name, values in results.items()}
    impossible = 1.0 / (1.0 - DISCOUNT)
    assert max(largest["with"]) <= impossible, largest
    assert min(largest["without"]) > impossible, largest
