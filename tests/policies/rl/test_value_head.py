"""Value heads: their input, and a trunk of their own."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch

from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.finetuning.config import VlaFinetuneConfig
from policies.rl.finetuning.vla import VlaFinetuning
from policies.rl.on_policy.config import FlowNoiseConfig, Trunk
from policies.rl.on_policy.flow_actor import FlowActor
from policies.rl.on_policy.token_actor import TokenActor
from tests.policies.rl.on_policy.test_flow_actor import flowing
from tests.policies.rl.on_policy.test_token_actor import LEARNING, reading
from tests.toy_envs.word_line import WordLine

TRUNKS: list[Trunk] = ["shared", "detached", "own"]
FAMILIES = pytest.mark.parametrize("family", ["tokens", "causal tokens", "flow"])


def actor(family: str, trunk: Trunk) -> Any:
    torch.manual_seed(0)
    if family == "flow":
        return FlowActor(flowing(), FlowNoiseConfig(steps=4), "chunk", "chunk", (8,), trunk=trunk)
    policy = reading("autoregressive" if family == "causal tokens" else "parallel")
    return TokenActor(policy, "chunk", "chunk", (8,), trunk=trunk)


def obs(made: Any) -> Any:
    return ChunkEnv(WordLine(4), made.policy, 3, count(), 0.99).observation()


def reached(made: Any) -> bool:
    """Whether the loss of values has a gradient in the policy."""
    shown, presampled = obs(made), made.sample_noise(4, torch.Generator().manual_seed(0))
    decided = made.decide_with_noise(shown, presampled)
    # As the table of a rollout lays a part out.
    trace = {name: kept[:, 0] for name, kept in decided.trace.items()}
    trace["executed"] = torch.ones((4, made.policy.chunk_shape[0]), dtype=torch.bool)
    made.evaluate(shown, torch.zeros(4, dtype=torch.long), trace).value.square().mean().backward()
    return any(
        part.grad is not None and bool(part.grad.abs().sum() > 0.0)
        for part in made.policy.parameters()
    )


@FAMILIES
def test_only_a_shared_trunk_takes_the_policy_along(family: str) -> None:
    assert {trunk: reached(actor(family, trunk)) for trunk in TRUNKS} == {
        "shared": True,
        "detached": False,
        "own": False,
    }


@FAMILIES
def test_all_begin_with_the_same_values(family: str) -> None:
    values = [made.value(obs(made)) for made in (actor(family, trunk) for trunk in TRUNKS)]
    for value in values[1:]:
        torch.testing.assert_close(value, values[0])


@pytest.mark.parametrize("trunk", TRUNKS)
def test_while_the_critic_warms_up_its_own_trunk_learns_and_the_policy_does_not(
    trunk: Trunk,
) -> None:
    policy = reading()
    before = copy.deepcopy(policy.state_dict())
    config = VlaFinetuneConfig(
        learning=replace(LEARNING, critic_warmup_rollouts=2), critic_trunk=trunk
    )
    made = VlaFinetuning(config, policy, ChunkEnv(WordLine(8), policy, 3, count(1000), 0.99), 0)
    made.rollout(5)
    assert all(torch.equal(part, before[name]) for name, part in policy.state_dict().items())
    head = made.actor.head
    assert head is not None
    assert (head.trunk is not None) == (trunk == "own")
    if head.trunk is not None:
        assert any(
            not torch.equal(part, before[name]) for name, part in head.trunk.state_dict().items()
        )


def test_a_trunk_of_its_own_is_saved_with_the_state() -> None:
    def make_finetuning(seed: int) -> VlaFinetuning:
        policy = reading(seed=seed)
        config = VlaFinetuneConfig(learning=LEARNING, critic_trunk="own")
        return VlaFinetuning(
            config, policy, ChunkEnv(WordLine(8), policy, 3, count(1000), 0.99), seed
        )

    made, other = make_finetuning(0), make_finetuning(1)
    made.rollout(5)
    other.load_state_dict(made.state_dict())
    shown = made._collector.env.observation()
    torch.testing.assert_close(other.actor.value(shown), made.actor.value(shown))
