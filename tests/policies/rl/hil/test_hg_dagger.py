"""Tests HG-DAgger: what it imitates, and its export to NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from policies.rl.hil.config import HgDaggerConfig
from policies.rl.hil.hg_dagger import HgDagger, hg_dagger_actor
from policies.rl.networks.config import MlpSizes
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from real.hil.actor_policy import ActorPolicy
from robots.errors import HandoffError
from robots.wire.learner import Parameters, check_parameters

CONFIG = HgDaggerConfig(network=MlpSizes(hidden=(16,), activation="relu"), learning_rate=1e-2)
SIZES = Sizes(
    observation=4,
    action=3,
    relative_features=((0, 2, 2, 0.5),),
    scaled_features=((1, -1, 1, 0.1),),
)


def batch(rows: int = 6) -> Transitions:
    generator = torch.Generator().manual_seed(0)
    action = torch.rand(rows, 3, generator=generator) - 0.5
    action[:, 2] = torch.tensor([-1.0, 0.0, 1.0]).repeat(rows // 3)
    obs = Observations(torch.randn(rows, 4, generator=generator))
    return Transitions(
        obs=obs,
        action_BA=action,
        reward_B=torch.full((rows,), 7.0),
        discount_B=torch.zeros(rows),
        next_obs=obs,
        demo_B=torch.ones(rows, dtype=torch.bool),
        intervention_B=torch.zeros(rows, dtype=torch.bool),
        toggles_B=torch.zeros(rows),
    )


def test_the_loss_is_the_squared_error_plus_the_entropy_of_the_commands() -> None:
    learner, rows = HgDagger(CONFIG, SIZES, gripper=True), batch()
    out = learner.networks["actor"](learner.networks["features"](rows.obs.vector_BO))[0]
    squared = (torch.tanh(out[:, :2]) - rows.action_BA[:, :2]).square().mean()
    # Commands -1, 0, 1 are classes 0, 1, 2.
    entropy = cross_entropy(out[:, 2:], torch.tensor([0, 1, 2, 0, 1, 2]))
    loss = learner.update([rows])["loss"].item()
    assert loss == pytest.approx((squared + entropy).item(), rel=1e-6)


def test_rewards_and_ends_do_not_matter() -> None:
    learners = [HgDagger(CONFIG, SIZES, gripper=True) for _ in range(2)]
    rows = batch()
    learners[0].update([rows])
    learners[1].update([rows._replace(reward_B=-rows.reward_B, discount_B=rows.discount_B + 1.0)])
    vector = rows.obs.vector_BO.numpy()
    assert np.array_equal(learners[0].act(vector), learners[1].act(vector))


@pytest.mark.parametrize("gripper", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_exported_policy_acts_as_the_learner_and_does_not_explore(
    gripper: bool, layer_norm: bool
) -> None:
    network = MlpSizes(hidden=(16, 8), activation="tanh", layer_norm=layer_norm)
    learner = HgDagger(HgDaggerConfig(network=network), SIZES, seed=3, gripper=gripper)
    learner.networks["features"].fit(torch.full((4,), -2.0), torch.full((4,), 1.0))  # type: ignore[operator]
    for _ in range(20):
        learner.update([batch()])
    parameters = Parameters(0, *hg_dagger_actor(learner))
    check_parameters(parameters)
    vector = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)
    expected = learner.act(vector)
    policy = ActorPolicy(parameters)
    assert policy.act(vector) == pytest.approx(expected, abs=1e-5)
    assert policy.act(vector, np.random.default_rng(0)) == pytest.approx(expected, abs=1e-4)
    if gripper:
        assert set(expected[:, 2].tolist()) <= {-1.0, 0.0, 1.0}


def test_another_learner_is_not_exported() -> None:
    with pytest.raises(HandoffError, match="str is not HG-DAgger"):
        hg_dagger_actor("sac")
