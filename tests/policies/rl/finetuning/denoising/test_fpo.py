"""FPO: flow-matching losses by hand, kept pairs, and a vision-language-action policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from policies.policy import ObservationTensors
from policies.rl.finetuning.denoising.config import FpoFinetuneConfig
from policies.rl.finetuning.denoising.fpo import FpoFinetuning
from policies.rl.finetuning.denoising.fpo_actor import FpoActor
from policies.rl.on_policy.ppo_loss import surrogate
from robots.interfaces import no_progress
from tests.policies.rl.finetuning.denoising.flow_actors import (
    FPO,
    FPO_PLUS_PLUS,
    ROWS,
    STEPS,
    TIMESTEPS,
    decided_table,
    flow_policy,
    observations,
)
from tests.policies.rl.on_policy.test_flow_actor import envs, flowing


def still_actor(config: FpoFinetuneConfig) -> FpoActor:
    """An actor whose policy predicts a velocity of 0."""
    policy = flow_policy()
    for parameter in policy.denoiser.output.parameters():  # type: ignore[union-attr]
        torch.nn.init.zeros_(parameter)
    return FpoActor(policy, config)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Noise 1 and clean entries 3 and -1: the velocity's errors are 2 and -2 in two entries.
        ({"prediction": "velocity", "reduce": "sum"}, (8.0, 8.0)),
        ({"prediction": "velocity", "reduce": "mean"}, (8.0 / 6.0, 8.0 / 6.0)),
        ({"prediction": "noise", "reduce": "sum"}, (8.0 * 0.25, 8.0 * 0.0625)),
        ({"prediction": "velocity", "reduce": "sum", "loss_limit": 5.0}, (5.0, 5.0)),
    ],
)
def test_losses_are_those_by_hand(options: dict[str, object], expected: tuple[float, ...]) -> None:
    actor = still_actor(replace(FPO, **options))  # type: ignore[arg-type]
    chunk = torch.ones(1, 3, 2)
    chunk[0, 0, 0], chunk[0, 1, 1] = 3.0, -1.0
    noise = torch.ones(1, 2, 3, 2)
    time = torch.tensor([[0.5, 0.75]])
    with torch.no_grad():
        losses = actor.losses(ObservationTensors(observations(1)), chunk, time, noise)
    torch.testing.assert_close(losses, torch.tensor([expected]))


def test_pairs_are_drawn_with_the_chunk_and_kept() -> None:
    actor = FpoActor(flow_policy(), FPO)
    decided = actor.decide(observations(), torch.Generator().manual_seed(0))
    assert decided.trace["time"].shape == (ROWS, 1, 5)
    assert decided.trace["noise"].shape == (ROWS, 1, 5, 3, 2)
    torch.testing.assert_close(decided.trace["chunk"][:, 0], decided.chunk_BHA)
    again = actor.decide(observations(), torch.Generator().manual_seed(0))
    assert torch.equal(again.trace["noise"], decided.trace["noise"])
    evaluated = actor.evaluate(
        observations(),
        torch.zeros(ROWS, dtype=torch.long),
        {name: values[:, 0] for name, values in decided.trace.items()},
    )
    torch.testing.assert_close(evaluated.log_prob.detach(), decided.log_prob_BK[:, 0])


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ("sampler", [(number + 1) / STEPS for number in range(STEPS)]),
        ("trained", [(number + 1) / TIMESTEPS for number in range(TIMESTEPS)]),
    ],
)
def test_times_are_those_of_the_sampler_or_of_imitation(times: str, expected: list[float]) -> None:
    actor = FpoActor(flow_policy(), replace(FPO, times=times))  # type: ignore[arg-type]
    drawn, _ = actor.draw_pairs(500, torch.Generator().manual_seed(0))
    values, counts = drawn.unique(return_counts=True)
    torch.testing.assert_close(values, torch.tensor(expected))
    assert counts.min() > 0.7 * drawn.numel() / len(expected)


def test_a_ratio_per_pair_has_the_gradient_of_their_mean_at_the_policy_that_acted() -> None:
    gradients = []
    for per_sample in (False, True):
        actor = FpoActor(flow_policy(), replace(FPO, per_sample=per_sample))
        table = decided_table(actor)
        trace = {name: values[:, 0] for name, values in table.trace.items()}
        log_prob = actor.evaluate(table.obs, torch.zeros(ROWS, dtype=torch.long), trace).log_prob
        assert log_prob.shape == (ROWS, 5 if per_sample else 1)
        advantage = table.advantage_RU.expand_as(log_prob)
        loss = surrogate(FPO.learning.ppo, log_prob, log_prob.detach(), advantage).loss
        loss.backward()
        gradients.append(torch.cat([one.grad.flatten() for one in actor.parameters()]))  # type: ignore[union-attr]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("config", [FPO, FPO_PLUS_PLUS], ids=["fpo", "fpo++"])
def test_a_vla_is_finetuned_and_values_depend_on_its_instruction(
    config: FpoFinetuneConfig, tmp_path: Path
) -> None:
    policy = flowing()
    env = envs(policy)
    finetuning = FpoFinetuning(config, policy, env, seed=0)
    before = {name: weight.clone() for name, weight in policy.state_dict().items()}
    figures = finetuning.rollout(5)
    finetuning.rollout(5)
    assert set(figures) == {"kl", "clipped", "ratio", "explained", "value_loss"}
    moved = {
        name
        for name, weight in policy.state_dict().items()
        if not torch.equal(weight, before[name])
    }
    assert any(name.startswith("expert.") for name in moved)
    obs = env.observation()
    other = obs.flip(0)
    other["vector"] = obs["vector"]
    with torch.no_grad():
        assert not torch.allclose(finetuning.critic(obs), finetuning.critic(other))
    assert finetuning.finish("", tmp_path, no_progress) == policy.config


def test_a_resumed_run_restores_policy_critic_and_optimisers() -> None:
    policy = flowing()
    finetuning = FpoFinetuning(FPO, policy, envs(policy), seed=0)
    finetuning.rollout(3)
    state = finetuning.state_dict()
    fresh = flowing(seed=1)
    resumed = FpoFinetuning(FPO, fresh, envs(fresh), seed=0)
    resumed.load_state_dict(state)
    assert resumed.rollouts == 1
    for part in ("policy", "reference", "critic"):
        restored = resumed.state_dict()[part]
        assert all(torch.equal(weight, restored[name]) for name, weight in state[part].items())
