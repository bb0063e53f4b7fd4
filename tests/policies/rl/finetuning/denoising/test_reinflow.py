"""ReinFlow: likelihoods by hand, bounds and entropy of the noise, and its removal."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from policies.policy import ObservationTensors
from policies.rl.finetuning.denoising.reinflow import ReinFlowFinetuning
from policies.rl.finetuning.denoising.reinflow_actor import ReinFlowActor
from policies.rl.on_policy.config import LearnedNoiseConfig
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.rl.finetuning.denoising.flow_actors import (
    REINFLOW,
    ROWS,
    STEPS,
    decided_table,
    flow_policy,
    learned,
    observations,
)
from tests.toy_envs.bimodal_reach import BimodalReach
from tests.toy_envs.rollout_env import ToyRolloutEnv

WIDE = replace(REINFLOW, noise=LearnedNoiseConfig(low=0.05, high=0.8, hidden=(8,)))


class Env(ToyRolloutEnv):
    """`ToyRolloutEnv` as the method is given it: chunks of one action."""

    device = torch.device("cpu")
    entries = 2


def likelihood(actor: ReinFlowActor, chain: torch.Tensor) -> tuple[float, float]:
    with torch.no_grad():
        found = actor.evaluate(
            observations(len(chain)), torch.zeros(1, dtype=torch.long), {"chain": chain}
        )
    assert found.entropy is not None
    return float(found.log_prob), float(found.entropy)


@pytest.mark.parametrize(("reduce", "divisor"), [("sum", 1), ("mean", 2 * 6)])
def test_a_chain_is_as_likely_as_its_steps_by_hand(reduce: str, divisor: int) -> None:
    """A velocity of 0 and a fixed standard deviation: every step is a Gaussian around its
    sample."""
    policy = flow_policy()
    for parameter in policy.denoiser.output.parameters():  # type: ignore[union-attr]
        torch.nn.init.zeros_(parameter)
    noise = LearnedNoiseConfig(low=0.1, high=0.1, hidden=(8,))
    actor = ReinFlowActor(policy, replace(REINFLOW, steps=2, noise=noise, reduce=reduce))  # type: ignore[arg-type]
    chain = torch.zeros(1, 3, 3, 2)
    # One standard deviation, then two, in one of six entries.
    chain[0, 1:, 0, 0] = torch.tensor([0.1, 0.3])
    still = -math.log(0.1) - 0.5 * math.log(2.0 * math.pi)
    log_prob, entropy = likelihood(actor, chain)
    assert log_prob == pytest.approx((12.0 * still - 0.5 - 2.0) / divisor, abs=1e-4)
    assert entropy == pytest.approx(
        math.log(0.1) + 0.5 * math.log(2.0 * math.pi * math.e), abs=1e-5
    )


def test_steps_are_eulers_with_noise_within_its_bounds() -> None:
    actor = ReinFlowActor(flow_policy(), WIDE)
    torch.nn.init.normal_(actor.step_noise.layers[-1].weight, std=100.0)  # type: ignore[arg-type]
    with torch.no_grad():
        std = torch.stack([actor.step_noise(observations(), step) for step in range(STEPS)])
        assert float(std.min()) == pytest.approx(0.05, rel=1e-3)
        assert float(std.max()) == pytest.approx(0.8, rel=1e-3)
        assert not torch.allclose(std[0], std[1])
        chain = actor.decide(observations(), torch.Generator().manual_seed(0)).trace["chain"][:, 0]
        velocity = actor.policy.velocity(ObservationTensors(observations()))
        for step in range(STEPS):
            mean = (
                chain[:, step]
                - velocity(chain[:, step], torch.full((ROWS,), 1.0 - step / STEPS)) / STEPS
            )
            standard = (chain[:, step + 1] - mean) / std[step]
            assert float(standard.abs().max()) < 3.0 + 1e-3
            assert float(standard.std()) == pytest.approx(0.986, abs=0.05)


@pytest.mark.parametrize(("weight", "wider"), [(0.3, True), (0.0, False)])
def test_the_entropy_bonus_widens_the_noise(weight: float, wider: bool) -> None:
    """Without advantages nothing else acts on it."""
    learning = replace(WIDE.learning, entropy_coef=weight)
    actor = ReinFlowActor(flow_policy(), replace(WIDE, learning=learning))
    table = decided_table(actor)
    before = learned(actor, table._replace(advantage_RU=0.0 * table.advantage_RU)).entropy
    after = learned(actor, table._replace(advantage_RU=0.0 * table.advantage_RU), 5).entropy
    assert (after > before + 0.05) == wider
    assert wider or after == pytest.approx(before, abs=1e-6)


def test_the_finetuned_policy_has_no_noise_and_keeps_its_steps(tmp_path: Path) -> None:
    policy = flow_policy(horizon=1, steps=12)
    names = set(policy.state_dict())
    env = Env(BimodalReach(4), lambda observed: torch.from_numpy(observed)[:, None], 0.99)
    finetuning = ReinFlowFinetuning(REINFLOW, policy, env, seed=0)  # type: ignore[arg-type]
    assert set(finetuning.rollout(5)) >= {"entropy", "kl"}
    model = finetuning.finish("", tmp_path, no_progress)
    assert model == replace(policy.config, inference_steps=STEPS)
    assert set(policy.state_dict()) == names
    state = finetuning.state_dict()
    assert {"step_noise", "reference"} <= set(state)
    # Its chunks are those of Euler's steps from the noise.
    noise = torch.randn(5, 1, 2)
    with torch.no_grad():
        chunks = [policy.sample(ObservationTensors(observations(5)), noise) for _ in range(2)]
    assert torch.equal(*chunks)


def test_bounds_that_are_swapped_are_refused() -> None:
    with pytest.raises(HandoffError, match=r"noise.low is 0\.5 and noise.high 0\.1"):
        LearnedNoiseConfig(low=0.5, high=0.1)
