"""FastTD3 on a device, here a CPU: its statistics, its noise, and the updates of the host."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.normalize import DeviceMoments, MomentStatistics
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.device_fast_td3 import DeviceFastTd3
from policies.rl.off_policy.exploration_noise import DeviceNoise, PerEnvNoise
from policies.rl.off_policy.fast_td3 import FastTd3
from policies.rl.off_policy.fast_td3_config import FastTd3Config, PerEnvNoiseConfig
from policies.rl.replay.transitions import Observations, Sizes, Transitions, without_person
from robots.errors import HandoffError

CPU = torch.device("cpu")
N, ENTRIES, A = 5, 3, 2
SIZES = Sizes(observation=ENTRIES, action=A)
LAYERS = MlpSizes(hidden=(16,), activation="relu", layer_norm=False)
CONFIG = FastTd3Config(critic=LAYERS, actor=LAYERS, atoms=11, low=-5.0, high=5.0, target_noise=0.2)


def minibatches(count: int) -> list[Transitions]:
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    return [
        without_person(
            obs=Observations(normal(8, ENTRIES)),
            action_BA=normal(8, A).clamp(-1, 1),
            reward_B=normal(8),
            discount_B=torch.full((8,), 0.9),
            next_obs=Observations(normal(8, ENTRIES)),
        )
        for _ in range(count)
    ]


def same(first: Any, second: Any) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first) and first.keys() == (
        second.keys()
    )


def test_updates_are_those_of_the_host_bit_for_bit() -> None:
    host = FastTd3(CONFIG, SIZES, N, seed=3)
    device = DeviceFastTd3(CONFIG, SIZES, N, 3, CPU)
    assert same(host.networks.state_dict(), device.networks.state_dict()), "initial weights"
    before = {name: value.clone() for name, value in host.networks.state_dict().items()}
    batches = minibatches(4)
    assert same(host.update(batches), device.update(batches))
    assert same(host.networks.state_dict(), device.networks.state_dict())
    assert not torch.equal(before["actor.weights.0"], host.networks.state_dict()["actor.weights.0"])
    assert (device.updates, device.policy_updates) == (4, 2)


def test_statistics_are_those_of_the_host_to_double_precision() -> None:
    draws = np.random.default_rng(0)
    host, device = MomentStatistics((ENTRIES,)), DeviceMoments((ENTRIES,), CPU)
    assert torch.equal(device.deviation, torch.zeros(ENTRIES, dtype=torch.float64))
    for rows in (1, N, 40):
        values = (1e3 + draws.normal(size=(rows, ENTRIES))).astype(np.float32)
        host.update(values)
        device.update(torch.from_numpy(values))
    assert device.count == host.count
    np.testing.assert_allclose(device.mean, host.mean, rtol=1e-13)
    np.testing.assert_allclose(device.deviation, host.deviation, rtol=1e-9)
    device.check()


@pytest.mark.parametrize("lost", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_is_found_however_many_follow(lost: float) -> None:
    moments = DeviceMoments((ENTRIES,), CPU)
    moments.update(torch.ones(N, ENTRIES))
    moments.update(torch.tensor([[0.0, lost, 0.0]]))
    for _ in range(3):
        moments.update(torch.ones(N, ENTRIES))
    with pytest.raises(
        HandoffError, match=r"values of the entries \[\[1\]\], expected all of them"
    ):
        moments.check()


def test_acting_without_noise_is_that_of_the_host() -> None:
    silent = PerEnvNoiseConfig(low=0.0, high=0.0)
    config = FastTd3Config(critic=LAYERS, actor=LAYERS, noise=silent)
    host, device = FastTd3(config, SIZES, N, 3), DeviceFastTd3(config, SIZES, N, 3, CPU)
    obs_NO = np.random.default_rng(0).normal(5.0, 2.0, (N, ENTRIES)).astype(np.float32)
    host.observe(obs_NO, np.ones(N, bool), np.random.default_rng(0))
    device.observe(torch.from_numpy(obs_NO), torch.ones(N).bool(), torch.Generator())
    action_NA = device.act(torch.from_numpy(obs_NO), torch.Generator())
    np.testing.assert_allclose(action_NA, host.act(obs_NO), rtol=1e-5, atol=1e-7)
    assert action_NA.abs().max() > 0.0


def test_noise_has_the_deviation_of_its_environment_and_is_clipped() -> None:
    config = PerEnvNoiseConfig(spread="linear", low=0.05, high=0.8)
    noise = DeviceNoise(config, N, CPU)
    np.testing.assert_allclose(noise.deviation_N, PerEnvNoise(config, N).deviation_N, rtol=1e-6)
    began = noise.deviation_N.clone()
    noise.begin_episodes(torch.ones(N).bool(), torch.Generator())
    assert torch.equal(noise.deviation_N, began), "only uniform ones are drawn anew"
    noisy = noise.add_noise(torch.zeros(N, 20_000), torch.Generator().manual_seed(0))
    assert noisy.abs().max() == 1.0
    narrow = began < 0.3
    np.testing.assert_allclose(noisy.std(dim=1)[narrow], began[narrow], rtol=0.03)


def test_uniform_deviations_are_drawn_where_an_episode_begins() -> None:
    config = PerEnvNoiseConfig(low=0.1, high=0.4)
    noise = DeviceNoise(config, 2000, CPU)
    draw = torch.Generator().manual_seed(0)
    noise.begin_episodes(torch.ones(2000).bool(), draw)
    first = noise.deviation_N
    assert 0.1 <= first.min() < 0.11
    assert 0.39 < first.max() <= 0.4
    began_N = torch.arange(2000) < 1000
    noise.begin_episodes(began_N, draw)
    assert torch.equal(noise.deviation_N == first, ~began_N)


def test_a_state_restores_what_acts_and_what_learns() -> None:
    learner = DeviceFastTd3(CONFIG, SIZES, N, 3, CPU)
    obs_NO = torch.randn(N, ENTRIES, generator=torch.Generator().manual_seed(1))
    learner.observe(obs_NO, torch.ones(N).bool(), torch.Generator().manual_seed(2))
    learner.update(minibatches(2))
    other = DeviceFastTd3(CONFIG, SIZES, N, 3, CPU)
    other.load_state_dict(deepcopy(learner.state_dict()))
    for one in (learner, other):
        one.observe(2.0 * obs_NO, torch.arange(N) < 2, torch.Generator().manual_seed(3))
        one.update(minibatches(2))
    acted = [one.act(obs_NO, torch.Generator().manual_seed(4)) for one in (learner, other)]
    assert torch.equal(*acted)
    assert other.updates == 4


def test_no_environments_are_refused() -> None:
    with pytest.raises(HandoffError, match="0 environments, expected at least 1"):
        DeviceFastTd3(CONFIG, SIZES, 0, 3, CPU)
