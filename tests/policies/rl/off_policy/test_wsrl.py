"""WSRL's warm-up: steps are collected by the frozen policy, and nothing else happens."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.online import MinibatchSampler, OnlineProgress, learn_online
from policies.rl.off_policy.wsrl import (
    load_offline,
    warm_started,
    wsrl_online,
    wsrl_sac,
)
from policies.rl.offline.calql import CalQl
from policies.rl.offline.config import CalQlConfig
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Sizes
from robots.errors import HandoffError
from tests.policies.rl.offline_state import save_offline
from tests.toy_envs.person import collector
from tests.toy_envs.point_maze import PointMaze

SIZES = Sizes(observation=2, action=2)
SMALL = wsrl_sac(hidden=(16, 16))
BOUNDS = ((-1.0, -1.0), (1.0, 1.0))


def test_weights_do_not_change_in_5000_warm_up_steps_and_then_do() -> None:
    learner = warm_started(CalQl(CalQlConfig(sac=SMALL), SIZES, seed=1), SMALL, SIZES, seed=2)
    before = deepcopy(learner.networks.state_dict())
    replay = Replay(ReplayConfig(capacity=6000), 2, 2)
    obs: list[tuple[int, int, bool]] = []

    def watch(progress: OnlineProgress, metrics: dict[str, object]) -> None:
        now = learner.networks.state_dict()
        same = all(torch.equal(now[name], value) for name, value in before.items())
        obs.append((progress.steps, progress.updates, same))

    config = wsrl_online()
    learn_online(
        learner,
        MinibatchSampler(config, replay),
        collector(PointMaze(50)),
        config,
        5050,
        watch=watch,
    )
    assert [steps for steps, _, _ in obs] == list(range(50, 5051, 50))
    assert all(updates == 0 and same for _, updates, same in obs[:-1])
    assert obs[-1] == (5050, 50, False)
    assert not replay.columns["demo"].any()


def test_without_the_warm_up_it_learns_from_the_first_step() -> None:
    learner = warm_started(CalQl(CalQlConfig(sac=SMALL), SIZES), SMALL, SIZES)
    config = replace(wsrl_online(warm_up_steps=0), batch_size=8)
    progress = learn_online(
        learner,
        MinibatchSampler(config, Replay(ReplayConfig(capacity=10), 2, 2)),
        collector(PointMaze(1)),
        config,
        3,
    )
    assert progress.updates == 3


def test_the_online_learner_starts_with_the_offline_weights() -> None:
    offline = CalQl(CalQlConfig(sac=SMALL), SIZES, seed=1)
    with torch.no_grad():
        offline.networks.log_temperature.fill_(-2.0)
        for parameter in offline.networks.critic_target.parameters():
            parameter.add_(0.1)
    online = warm_started(offline, SMALL, SIZES, seed=2)
    theirs = offline.networks.state_dict()
    assert all(
        torch.equal(value, theirs[name]) for name, value in online.networks.state_dict().items()
    )
    vector = np.array([[0.2, 0.7]], np.float32)
    assert np.array_equal(online.act(vector), offline.act(vector))


def test_the_offline_learner_does_not_change() -> None:
    offline = CalQl(CalQlConfig(sac=SMALL), SIZES)
    before = offline.networks.log_temperature.item()
    online = warm_started(offline, SMALL, SIZES)
    with torch.no_grad():
        online.networks.log_temperature.add_(1.0)
    assert offline.networks.log_temperature.item() == before


def test_networks_of_other_sizes_are_refused() -> None:
    other = replace(SMALL, critic=MlpSizes(hidden=(8,), activation="relu"))
    with pytest.raises(HandoffError, match="wsrl: the weights of the offline learner do not fit"):
        warm_started(CalQl(CalQlConfig(sac=SMALL), SIZES), other, SIZES)


def test_the_networks_of_an_offline_learner_are_restored_from_its_folder(tmp_path: Path) -> None:
    offline = CalQl(CalQlConfig(sac=SMALL), SIZES, seed=1)
    offline.networks.features.fit(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 5.0]))
    save_offline(tmp_path, offline, ("agent",))
    online = warm_started(load_offline(tmp_path, ("agent",), *BOUNDS), SMALL, SIZES, seed=2)
    theirs = offline.networks.state_dict()
    assert all(
        torch.equal(value, theirs[name]) for name, value in online.networks.state_dict().items()
    )
    assert online.networks.features.centre.tolist() == [1.0, 3.0]


def test_a_policy_without_critics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="an imitated policy has no critics"):
        load_offline(tmp_path, ("agent",), *BOUNDS)


def test_an_offline_learner_with_another_observation_is_refused(tmp_path: Path) -> None:
    save_offline(tmp_path, CalQl(CalQlConfig(sac=SMALL), SIZES), ("agent",))
    with pytest.raises(HandoffError, match=r"observes \['agent'\], the session \['goal'\]"):
        load_offline(tmp_path, ("goal",), *BOUNDS)


def test_an_offline_learner_with_actions_of_another_scale_is_refused(tmp_path: Path) -> None:
    save_offline(tmp_path, CalQl(CalQlConfig(sac=SMALL), SIZES), ("agent",), half_range=0.5)
    with pytest.raises(HandoffError, match="actions -1 and 1 are"):
        load_offline(tmp_path, ("agent",), *BOUNDS)
