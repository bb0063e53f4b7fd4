"""The gate of RL-100's offline stage, what it learns where the best action is known, and the
dynamics it trusts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from policies.card import Shapes
from policies.families.diffusion import DiffusionPolicy
from policies.networks.config import MlpConfig
from policies.policy import Batch, ObservationTensors
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.networks.config import MlpSizes
from policies.rl.offline.config import (
    RL100_CHAIN,
    DynamicsConfig,
    ExpectileCriticsConfig,
    OfflinePpoConfig,
)
from policies.rl.offline.dynamics_ensemble import ChunkTransitions, DynamicsEnsemble
from policies.rl.offline.offline_ppo import OfflinePpo, fit_critics
from policies.rl.on_policy.config import DppoConfig
from robots.errors import HandoffError

BEST = 0.5
SMALL = MlpSizes(hidden=(32, 32), activation="relu", layer_norm=False)
MODEL = DynamicsConfig(members=3, elites=2, network=SMALL, updates=400, batch_size=64)
PPO = OfflinePpoConfig(
    denoising=DppoConfig(steps=5, chain=RL100_CHAIN),
    learning_rate=1e-3,
    updates=100,
    gate_every=25,
    batch_size=128,
    chains=256,
    judged_rows=200,
    judged_steps=1,
    margin=0.0,
)


def one_armed(rows: int = 2000) -> ChunkTransitions:
    """Random actions in [-1, 1]; each ends its episode and is paid by how near it is to `BEST`."""
    generator = torch.Generator().manual_seed(0)
    obs, done = (
        torch.rand(rows, 2, generator=generator),
        2.0 * torch.rand(rows, 1, generator=generator) - 1.0,
    )
    return ChunkTransitions(obs, done, -(done[:, 0] - BEST).square(), torch.zeros(rows), obs)


def drifting(rows: int = 2000) -> ChunkTransitions:
    """A point that moves by a tenth of the action, and whose second entry only shakes."""
    generator = torch.Generator().manual_seed(1)
    obs, done = (
        torch.rand(rows, 2, generator=generator),
        2.0 * torch.rand(rows, 1, generator=generator) - 1.0,
    )
    shaken = 0.05 * torch.randn(rows, generator=generator)
    after = torch.stack([obs[:, 0] + 0.1 * done[:, 0], obs[:, 1] + shaken], dim=1)
    return ChunkTransitions(obs, done, torch.zeros(rows), torch.ones(rows), after)


@pytest.fixture(scope="module")
def imitation() -> DiffusionPolicy:
    """Of random actions."""
    torch.manual_seed(0)
    config = DiffusionPolicyConfig(
        n_obs_steps=1,
        horizon=1,
        n_action_steps=1,
        train_timesteps=20,
        inference_steps=5,
        clip=1.0,
        network=MlpConfig(width=32, blocks=1),
    )
    policy, data, generator = (
        DiffusionPolicy(config, Shapes.of_vector(2, 1, None)),
        one_armed(),
        np.random.default_rng(0),
    )
    optimizer = torch.optim.Adam(policy.denoiser.parameters(), 1e-3)
    for _ in range(500):
        rows = torch.from_numpy(generator.integers(0, len(data.reward_R), 128))
        batch = Batch(
            ObservationTensors(data.obs_RF[rows, None]),
            data.action_RD[rows, None],
            torch.zeros(128, 1, dtype=torch.bool),
        )
        optimizer.zero_grad()
        policy.loss(batch, generator).backward()
        optimizer.step()
    return policy.eval()


@pytest.fixture(scope="module")
def critics():
    return fit_critics(
        ExpectileCriticsConfig(expectile=0.7, critic=SMALL, value_network=SMALL),
        one_armed(),
        1000,
        128,
        seed=0,
    )


@pytest.fixture(scope="module")
def dynamics() -> DynamicsEnsemble:
    model = DynamicsEnsemble(MODEL, 2, 1)
    model.fit(drifting())
    return model


@pytest.fixture
def learner(imitation, critics, dynamics):
    from copy import deepcopy

    def learned(config: OfflinePpoConfig = PPO) -> OfflinePpo:
        return OfflinePpo(
            config, deepcopy(imitation), critics, dynamics, lambda chunk: chunk.flatten(1)
        )

    return learned


def obs() -> torch.Tensor:
    return one_armed().obs_RF[:, None]


def sampled(policy: DiffusionPolicy) -> torch.Tensor:
    with torch.no_grad():
        generator = torch.Generator().manual_seed(9)
        return policy.sample(
            ObservationTensors(obs()[:500]), torch.randn(500, 1, 1, generator=generator)
        )[:, 0, 0]


def weights(policy: DiffusionPolicy) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in policy.denoiser.state_dict().values()])


@pytest.mark.nightly
def test_the_policy_moves_to_actions_with_high_q(learner):
    learned = learner()
    before = (sampled(learned.policy) - BEST).square().mean()
    results = learned.improve(obs())
    after = (sampled(learned.policy) - BEST).square().mean()
    assert after < 0.5 * before
    assert results[-1].best > results[0].best
    assert [one.updates for one in results] == [25, 50, 75, 100]


def test_a_policy_that_is_not_better_by_the_margin_is_reverted_bit_for_bit(learner):
    learned = learner(replace(PPO, margin=1e6))
    before = weights(learned.policy).clone()
    results = learned.improve(obs())
    assert [one.accepted for one in results] == [False] * 4
    assert all(one.best == results[0].best for one in results)
    assert torch.equal(weights(learned.policy), before)


def test_without_the_gate_a_worse_policy_is_kept(learner, monkeypatch: pytest.MonkeyPatch):
    """The critics turned round: the gate is all that stands between them and the policy."""
    gated, free = learner(), learner(replace(PPO, gate=False))
    for learned in (gated, free):
        advantage = learned._advantage
        monkeypatch.setattr(
            learned, "_advantage", lambda rows, chunk, original=advantage: -original(rows, chunk)
        )
    start = gated.value(obs())
    gated.improve(obs())
    free.improve(obs())
    assert gated.value(obs()) >= start
    assert free.value(obs()) < start - 0.1


def test_the_same_seed_gives_the_same_policy(learner):
    first, second = learner(), learner()
    assert first.improve(obs()) == second.improve(obs())
    assert torch.equal(weights(first.policy), weights(second.policy))


def test_a_value_that_is_not_finite_stops_it(learner, monkeypatch: pytest.MonkeyPatch):
    learned = learner()
    monkeypatch.setattr(
        learned._critics, "action_value", lambda features, done: features[:, 0] * float("nan")
    )
    with pytest.raises(HandoffError, match="the value of the policy is not finite"):
        learned.improve(obs())


def test_the_dynamics_predict_the_effect_of_an_action_and_the_noise(dynamics):
    data = drifting(500)
    after = torch.stack(
        [
            dynamics.step(data.obs_RF, data.action_RD, torch.Generator().manual_seed(number))
            - data.obs_RF
            for number in range(20)
        ]
    )
    moved = after[..., 0].mean(dim=0)
    assert float((moved - 0.1 * data.action_RD[:, 0]).abs().mean()) < 0.01
    assert float(after[..., 1].mean().abs()) < 0.02
    assert float(after[..., 1].std()) == pytest.approx(0.05, rel=0.3)
    assert float(after[..., 0].std(dim=0).mean()) < 0.02


def test_the_elites_are_those_that_predict_held_out_rows_best():
    model = DynamicsEnsemble(replace(MODEL, members=4, elites=2), 2, 1)
    with torch.no_grad():
        # Two members that cannot learn any more: their hidden units are dead.
        for bias in list(model.network.biases)[:1]:
            bias[:2] = -100.0
    model.fit(drifting())
    assert set(model.elites.tolist()) == {2, 3}


def test_fit_reports_the_prediction_error():
    metrics = DynamicsEnsemble(MODEL, 2, 1).fit(drifting())
    # One of two entries is pure noise, with an error of its whole spread; the other has none.
    assert metrics["error"] == pytest.approx(0.5**0.5, abs=0.1)
    assert metrics["rows"] == 2000.0


def test_too_few_rows_and_too_many_elites_are_refused():
    with pytest.raises(HandoffError, match="19 rows, expected at least 20"):
        DynamicsEnsemble(MODEL, 2, 1).fit(drifting(19))
    with pytest.raises(HandoffError, match="4 elites of 3 members"):
        DynamicsEnsemble(replace(MODEL, elites=4), 2, 1)
