"""The published actor in NumPy against the one in torch."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from policies.rl.actor_export import sac_actor, sac_actor_and_critics
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import GripperConfig, SacConfig
from policies.rl.off_policy.sac import Sac
from policies.rl.replay.transitions import Sizes
from real.hil.actor_policy import ActorPolicy
from robots.errors import HandoffError
from robots.wire.actor_card import ActorCard, MlpCard
from robots.wire.learner import Parameters, decode, encode

SIZES = Sizes(
    observation=6,
    action=3,
    relative_features=((0, 2, 2, 0.2),),
    scaled_features=((1, -1, 2, 0.5), (0, 3, 3, 0.1)),
)


def learned(config: SacConfig) -> Sac:
    """With numbers as after a training: nothing is at its initial zero or one."""
    sac = Sac(config, SIZES, 3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in sac.networks.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    sac.networks.features.fit(torch.arange(6.0) - 3.0, torch.arange(6.0) + 1.0)
    return sac


def numpy_policy(sac: Sac) -> ActorPolicy:
    message = decode(encode(Parameters(1, *sac_actor(sac))))
    assert isinstance(message, Parameters)
    return ActorPolicy(message)


@pytest.mark.parametrize(
    ("activation", "layer_norm", "gripper", "fixed_std"),
    product(("tanh", "relu"), (True, False), (GripperConfig(), None), (None, 0.3)),
)
def test_modes_and_draws_equal_those_of_torch(
    activation: str, layer_norm: bool, gripper: GripperConfig | None, fixed_std: float | None
) -> None:
    network = MlpSizes(hidden=(32, 24), activation=activation, layer_norm=layer_norm)  # type: ignore[arg-type]
    if gripper is not None:
        critic = MlpSizes(hidden=(16,), activation=activation, layer_norm=layer_norm)  # type: ignore[arg-type]
        gripper = GripperConfig(network=critic)
    sac = learned(SacConfig(actor=network, gripper=gripper, fixed_std=fixed_std))
    policy = numpy_policy(sac)
    vector = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)
    assert np.abs(policy.act(vector) - sac.act(vector)).max() < 1e-5
    drawn = policy.act(vector, np.random.default_rng(5))
    assert np.abs(drawn - sac.act(vector, np.random.default_rng(5))).max() < 1e-5
    assert drawn.dtype == np.float32
    assert np.abs(drawn - policy.act(vector)).max() > 0.1
    if gripper is not None:
        assert set(np.unique(drawn[:, -1])) <= {-1.0, 0.0, 1.0}


def test_what_is_sent_is_what_the_policy_acts_with() -> None:
    sac = learned(SacConfig(actor_ema=0.9, gripper=GripperConfig()))
    vector = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    sent = numpy_policy(sac).act(vector)
    assert np.abs(sent - sac.act(vector)).max() < 1e-5
    sac.networks.update_ema(1.0)
    assert np.abs(sent - sac.act(vector)).max() > 0.1


def test_a_network_worked_by_hand() -> None:
    # Features: (o - 1) / 2 = (1, -1); hidden relu(1 - 1 + 0.5) = 0.5; mean 2 * 0.5 = 1.
    card = ActorCard(
        observation=2,
        action=1,
        actor=MlpCard(layers=(2, 1, 1), activation="relu", layer_norm=False),
        log_std_min=-5.0,
        log_std_max=2.0,
        fixed_log_std=-100.0,
    )
    arrays = {
        "centre": np.ones(2),
        "half_range": np.full(2, 2.0),
        "actor.0.weight": np.ones((2, 1)),
        "actor.0.bias": np.array([0.5]),
        "actor.1.weight": np.array([[2.0]]),
        "actor.1.bias": np.zeros(1),
    }
    policy = ActorPolicy(
        Parameters(0, card, {name: array.astype(np.float32) for name, array in arrays.items()})
    )
    assert policy.act(np.array([[3.0, -1.0]])) == pytest.approx(np.tanh(1.0))


def test_an_actor_that_numpy_cannot_run_is_not_published() -> None:
    with pytest.raises(HandoffError, match="object is not SAC"):
        sac_actor(object())


@pytest.mark.parametrize(
    ("activation", "layer_norm", "gripper"),
    product(("tanh", "relu"), (True, False), (GripperConfig(), None)),
)
def test_the_values_of_an_ensemble_equal_those_of_torch(
    activation: str, layer_norm: bool, gripper: GripperConfig | None
) -> None:
    network = MlpSizes(hidden=(32, 24), activation=activation, layer_norm=layer_norm)  # type: ignore[arg-type]
    sac = learned(SacConfig(critic=network, gripper=gripper, critics=3))
    message = decode(encode(Parameters(1, *sac_actor_and_critics(sac))))
    assert isinstance(message, Parameters)
    policy = ActorPolicy(message)
    rng = np.random.default_rng(0)
    vector = rng.standard_normal((50, 6)).astype(np.float32)
    action = policy.act(vector, rng)
    found = policy.evaluate(vector, action)
    assert found is not None
    with torch.no_grad():
        features = sac.networks.features(torch.from_numpy(vector))
        continuous = torch.from_numpy(action[:, : sac.continuous])
        value = sac.networks.critic(torch.cat([features, continuous], dim=1))[..., 0].numpy()
    assert value.shape == (3, 50)
    np.testing.assert_allclose(found.value, value.mean(axis=0), atol=2e-5)
    np.testing.assert_allclose(found.spread, value.std(axis=0), atol=2e-5)
    assert found.spread.min() > 0.0
    # Another observation than that of the last action is encoded anew.
    other = policy.evaluate(vector[:7] + 1.0, action[:7])
    assert other is not None
    assert np.abs(other.value - found.value[:7]).max() > 1e-2


def test_a_policy_without_critics_has_no_values() -> None:
    sac = learned(SacConfig())
    vector = np.zeros((1, 6), np.float32)
    assert numpy_policy(sac).evaluate(vector, np.zeros((1, 3), np.float32)) is None


def test_the_distance_from_the_demonstrations_is_in_widths_of_their_range() -> None:
    # The range of entry i is i - 3 to i + 1, a width of 4.
    policy = numpy_policy(learned(SacConfig()))
    inside = np.arange(6.0)[None] - 1.0
    outside = inside.copy()
    outside[0, 2] = 3.0 + 1.0
    assert policy.distance(inside).tolist() == [0.0]
    assert policy.distance(outside).tolist() == [0.25]
