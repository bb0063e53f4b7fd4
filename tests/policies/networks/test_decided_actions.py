"""A chunk goes on from actions that are decided already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.card import Shapes
from policies.data.demonstrations import read_demonstrations
from policies.families.diffusion import DiffusionPolicy
from policies.imitation.objective import normalized_windows
from policies.networks.config import MlpConfig, NetworkConfig, TransformerConfig, UnetConfig
from policies.networks.decided_actions import (
    decided_places,
    draw_decided,
    none_decided,
    place_decided,
)
from policies.policy import Batch, ObservationTensors
from policies.policy_config import DiffusionPolicyConfig
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec

CONFIG = DiffusionPolicyConfig(
    objective="flow",
    observation_fields=("agent",),
    anchor_field=None,
    horizon=8,
    n_action_steps=2,
    prefix=3,
    train_timesteps=20,
    inference_steps=5,
    network=MlpConfig(width=64),
)
NETWORKS = {
    "mlp": MlpConfig(width=32),
    "unet": UnetConfig(widths=(32, 64)),
    "transformer": TransformerConfig(width=32, layers=2),
}


def chunks(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(seed).standard_normal((rows, 8, 2), dtype=np.float32)
    )


def test_every_number_of_first_actions_is_drawn_equally_often() -> None:
    places, clean = decided_places(1, 3), chunks(4000)
    decided = draw_decided(clean, places, np.random.default_rng(0))
    number = decided.mask_BH1.sum(dim=(1, 2))
    counts = torch.bincount(number.long(), minlength=4)
    assert counts.min() > 900
    for row in range(50):
        last = 1 + int(number[row])
        assert decided.mask_BH1[row, 1:last].all()
        assert not decided.mask_BH1[row, last:].any()
        assert not decided.mask_BH1[row, :1].any()
    shown = decided.mask_BH1.expand_as(clean) > 0
    torch.testing.assert_close(decided.action_BHA[shown], clean[shown])
    assert not decided.action_BHA[~shown].any()


def test_decided_actions_take_the_places_of_noise_and_stand_beside_the_observation() -> None:
    places, clean = decided_places(1, 3), chunks(5)
    prefix = torch.zeros(5, 3, 3)
    prefix[:, :2] = torch.cat([clean[:, 1:3], torch.ones(5, 2, 1)], dim=-1)
    decided = place_decided(prefix, places, 8)
    noisy = chunks(5, seed=1)
    imposed = decided.imposed(noisy)
    torch.testing.assert_close(imposed[:, 1:3], clean[:, 1:3])
    torch.testing.assert_close(imposed[:, 3:], noisy[:, 3:])
    beside = decided.beside(torch.ones(5, 2, 4), places)
    assert beside.shape == (5, 2, 4 + 3 * 3)
    torch.testing.assert_close(beside[:, 1, 4:], prefix.flatten(1))
    torch.testing.assert_close(none_decided(noisy).imposed(noisy), noisy)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("objective", ["flow", "diffusion"])
def test_every_network_takes_them_and_no_prefix_is_one_of_length_zero(
    network: str, objective: str
) -> None:
    sizes: NetworkConfig = NETWORKS[network]
    config = replace(CONFIG, objective=objective, network=sizes, n_obs_steps=2)
    torch.manual_seed(0)
    policy = DiffusionPolicy(config, Shapes.of_vector(2, 2, anchor=None)).eval()
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    observation, noise = torch.randn(4, 2, 2), chunks(4)
    empty = torch.zeros(4, 3, 3)
    torch.testing.assert_close(
        policy(observation, noise), policy(observation, noise, prefix_BPE=empty)
    )
    some = empty.clone()
    some[:, :2] = 1.0
    changed = policy(observation, noise, prefix_BPE=some) - policy(observation, noise)
    assert changed[:, 4:].abs().max() > 1e-3


def test_a_prefix_is_relative_to_the_anchor_as_the_actions_are() -> None:
    """Where agent and prefix move together, so does the chunk."""
    torch.manual_seed(0)
    policy = DiffusionPolicy(CONFIG, Shapes.of_vector(2, 2, anchor=0)).eval()
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    policy.normalize_action.fit(np.stack([np.full((8, 2), -0.1), np.full((8, 2), 0.3)]))
    seen: list[torch.Tensor] = []
    policy.denoiser.register_forward_pre_hook(lambda module, given: seen.append(given[2]))
    observation, noise, prefix = torch.zeros(1, 1, 2), chunks(1), torch.zeros(1, 3, 3)
    prefix[0, 0] = torch.tensor([0.3, 0.3, 1.0])
    policy(observation, noise, prefix_BPE=prefix)
    # 0.3 m from the agent is half a deviation above the mean of 0.1 m.
    torch.testing.assert_close(seen[0][0, 0, -9:-6], torch.tensor([0.5, 0.5, 1.0]))
    moved, together = observation + 0.2, prefix.clone()
    together[0, 0, :2] += 0.2
    policy(moved, noise, prefix_BPE=together)
    torch.testing.assert_close(seen[-1][0, 0, -9:], seen[0][0, 0, -9:])


def test_a_horizon_that_is_too_short_is_refused() -> None:
    with pytest.raises(HandoffError, match="6 decided actions and 4 executed ones"):
        DiffusionPolicyConfig(horizon=9, n_action_steps=4, prefix=6)


@pytest.mark.parametrize("prefix", [3, 0])
def test_a_chunk_stays_in_the_mode_that_was_begun(prefix: int) -> None:
    """Half of the demonstrations go one way and half the other; nothing that is observed says
    which."""
    config = replace(CONFIG, prefix=prefix)
    torch.manual_seed(0)
    policy = DiffusionPolicy(config, Shapes.of_vector(2, 2, anchor=None))
    way = torch.ones(64, 8, 2)
    way[::2] = -1.0
    batch = Batch(
        ObservationTensors(torch.zeros(64, 1, 2)), way, torch.zeros(64, 8, dtype=torch.bool)
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    rng = np.random.default_rng(0)
    for _ in range(300):
        optimizer.zero_grad()
        policy.loss(batch, rng).backward()
        optimizer.step()
    policy.eval()
    begun = torch.zeros(200, 3, 3)
    begun[:, :2] = 1.0
    observation, noise = torch.zeros(200, 1, 2), chunks(200, seed=2)
    with torch.no_grad():
        chunk = policy(observation, noise, prefix_BPE=begun if prefix else None)
    same = float((chunk[:, 2:].mean(dim=(1, 2)) > 0.5).float().mean())
    if prefix:
        assert same > 0.97
    else:
        assert 0.3 < same < 0.7, "the negative control: it cannot know"


def test_what_is_shown_was_executed_and_what_is_learned_is_the_experts() -> None:
    policy = DiffusionPolicy(CONFIG, Shapes.of_vector(2, 2, anchor=None))
    seen: list[torch.Tensor] = []
    policy.denoiser.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    meant, executed = torch.full((64, 8, 2), 0.25), torch.full((64, 8, 2), 7.0)
    batch = Batch(
        ObservationTensors(torch.zeros(64, 1, 2)),
        meant,
        torch.zeros(64, 8, dtype=torch.bool),
        executed_BHA=executed,
    )
    policy.loss(batch, np.random.default_rng(0))
    shown = seen[0][:, :3]
    assert (shown == 7.0).any()
    assert not (shown == 0.25).any()
    assert not (seen[0][:, 3:] == 7.0).any()


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A store whose executed actions are ten times what the expert meant."""
    point = FieldSpec(shape=(2,), unit="m")
    fields = {"agent": point, "action": point, "action_expert": point}
    schema = EpisodeSchema(name="made", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)})
    store = EpisodeStore.create(tmp_path / "store.zarr", schema)
    steps = np.arange(40, dtype=np.float32).reshape(20, 2)
    store.append(
        {"policy": {"agent": steps, "action": 10.0 * steps, "action_expert": steps}},
        {"success": True},
    )
    return tmp_path


@pytest.mark.parametrize("prefix", [3, 0])
def test_the_executed_actions_are_read_beside_the_experts(recorded: Path, prefix: int) -> None:
    config = replace(CONFIG, prefix=prefix, action_field="action_expert")
    data = read_demonstrations(recorded, config)
    np.testing.assert_array_equal(data.action_MA[1], [2.0, 3.0])
    if not prefix:
        assert data.executed_MA is None
        return
    assert data.executed_MA is not None
    np.testing.assert_array_equal(data.executed_MA[1], [20.0, 30.0])
    policy = DiffusionPolicy(config, Shapes.of_vector(2, 2, anchor=None))
    windows = normalized_windows(data, policy, config, np.arange(1))
    executed = windows.batch(torch.tensor([2])).executed_BHA
    assert executed is not None
    torch.testing.assert_close(
        policy.normalize_action.inverse(executed)[0, 1], torch.tensor([60.0, 70.0])
    )


def test_one_field_of_actions_is_read_once(recorded: Path) -> None:
    assert replace(CONFIG, action_field="action").decided_field is None
    assert read_demonstrations(recorded, CONFIG).executed_MA is None
