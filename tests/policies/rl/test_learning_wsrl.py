"""Learning check of WSRL and Cal-QL: what the warm-up and the calibration are for.

PointMaze, 50,000 steps of mixed data: half of the episodes random, half by someone who misjudges
where the point is and trembles. Claims (rates, sizes and the 50 % of the third after a look at seed
100): (1) online learning without the warm-up loses at least 30 points of success within its first
2,000 steps; (2) with the warm-up it does not; (3) CQL, which is Cal-QL without calibration, values
the data's actions far below the returns that the data got. (1) is the negative control of (2), and
Cal-QL's own values, nearer to the returns, that of (3).

Reduced: 5,000 offline updates instead of 20,000, at learning rates of 1e-3; two actions of each
kind instead of ten; 4 critics of 64 units; a warm-up of 1,000 steps, for episodes have about 30
steps here and not 1,000; 2,000 steps with updates. Rewards are 10 r - 5, as for AntMaze [C]: times
10 alone, a step is worth less than the entropy, and online learning forgets all with a warm-up as
without.

(1) is missed: with seeds 0 to 4 success falls by .03, -.02, 0, -.08 and -.14 without the warm-up,
and by -.01, -.02, 0,
-.08 and -.14 with it: it rises. Nor does it fall at online rates 3.3 times these, in proportion to
the offline ones (seed 100).
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from policies.rl.off_policy.online import Learner, MinibatchSampler, OnlineProgress, learn_online
from policies.rl.off_policy.sac import Sac
from policies.rl.off_policy.wsrl import warm_started, wsrl_online, wsrl_sac
from policies.rl.offline.calql import CalQl
from policies.rl.offline.config import CalQlConfig
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Sizes
from robots.wire.steps import Steps
from tests.toy_envs.comparison import better, compare
from tests.toy_envs.person import collector, expert_with, uniform
from tests.toy_envs.point_maze import PointMaze
from tests.toy_envs.toy_env import success_rate

pytestmark = pytest.mark.slow

DATA, OFFLINE, WARM_UP, ONLINE = 50_000, 5000, 1000, 2000
EVERY, EPISODES = 250, 100
"""Steps between evaluations, and episodes of each."""
SCALE, BIAS, DISCOUNT, SKILL, TREMBLE, BATCH = 10.0, -5.0, 0.97, 0.4, 0.3, 128
SIZES = Sizes(observation=2, action=2)
SAC = replace(
    wsrl_sac(hidden=(64, 64)),
    critics=4,
    learning_rate=1e-3,
    actor_learning_rate=1e-3,
    temperature_learning_rate=1e-3,
)
ONLINE_SAC = replace(
    SAC, learning_rate=3e-4, actor_learning_rate=1e-4, temperature_learning_rate=1e-4
)
"""Online the learning rates are WSRL's [C]."""


def mixed(seed: int) -> Replay:
    """The data, with the return from every step."""
    replay = Replay(ReplayConfig(capacity=DATA, discount=DISCOUNT, mc_return=True), 2, 2)
    toy_env, rng = PointMaze(10, seed), np.random.default_rng([seed, 5])
    person, anything, knows = (
        expert_with(toy_env, SKILL, seed),
        uniform(toy_env, seed),
        np.zeros(10, bool),
    )
    while replay.added < DATA:
        knows = np.where(toy_env.steps == 0, rng.random(10) < 0.5, knows)
        shown = toy_env.observe()
        trembling = person(shown) + TREMBLE * rng.standard_normal((10, 2))
        replay.append(
            scaled(toy_env.transition(np.where(knows[:, None], trembling, anything(shown)))[0])
        )
    return replay


def scaled(steps: Steps) -> Steps:
    return steps._replace(reward=SCALE * steps.reward + BIAS)


def pretrained(seed: int, replay: Replay, calibrated: bool) -> CalQl:
    config = CalQlConfig(sac=SAC, calibrated=calibrated, actions=2, target_actions=2)
    learner = CalQl(config, SIZES, seed)
    learner.networks.features.fit(torch.zeros(2), torch.ones(2))
    for number in range(OFFLINE):
        learner.update([replay.sample(BATCH, np.random.default_rng([seed, 6, number]))])
    return learner


def pessimism(seed: int, calibrated: bool) -> float:
    """By how much the data's returns exceed the values of their actions, as a share of the returns'
    size."""
    replay = mixed(seed)
    learner = pretrained(seed, replay, calibrated)
    rows = replay.sample(4096, np.random.default_rng([seed, 7]))
    returns = rows.extra["mc_return"]
    known = torch.isfinite(returns)
    with torch.no_grad():
        inputs = torch.cat([learner.features(rows.obs), rows.action_BA], dim=1)
        values = learner.networks.critic(inputs)[..., 0].mean(dim=0)
    return float((returns[known] - values[known]).mean() / returns[known].abs().mean())


def dip(seed: int, warm_up: int) -> float:
    """By how much success falls below the pretrained policy's within the first 2,000 steps with
    updates, at worst."""
    online = warm_started(pretrained(seed, mixed(seed), calibrated=True), ONLINE_SAC, SIZES, seed)
    before, worst = tried(online, seed), []
    toy_env = PointMaze(1, seed)
    acts = collector(toy_env)

    def collect(learner: Learner, draw: np.random.Generator) -> Steps:
        return scaled(acts(learner, draw))

    def watch(progress: OnlineProgress, metrics: dict[str, object]) -> None:
        learned = progress.steps - warm_up
        if learned > 0 and learned % EVERY == 0:
            worst.append(tried(online, seed))

    config = replace(wsrl_online(warm_up), batch_size=BATCH)
    replay = Replay(ReplayConfig(capacity=10_000, discount=DISCOUNT), 2, 2)
    learn_online(
        online, MinibatchSampler(config, replay), collect, config, warm_up + ONLINE, seed, watch
    )
    return before - min(worst)


def tried(learner: Sac, seed: int) -> float:
    return success_rate(PointMaze(50, 2000 + seed), learner.act, EPISODES)


def test_without_the_warm_up_success_dips_and_with_it_not() -> None:
    dips = compare({"cold": partial(dip, warm_up=0), "warm": partial(dip, warm_up=WARM_UP)})
    assert np.mean(dips["cold"]) >= 0.3
    assert np.mean(dips["warm"]) < 0.3
    assert better(dips, "cold", "warm")


def test_without_calibration_values_lie_far_below_the_returns() -> None:
    shares = compare(
        {"cql": partial(pessimism, calibrated=False), "cal-ql": partial(pessimism, calibrated=True)}
    )
    assert np.mean(shares["cql"]) >= 0.5
    assert better(shares, "cql", "cal-ql")
