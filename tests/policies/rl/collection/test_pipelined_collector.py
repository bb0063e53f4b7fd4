"""Rollouts in several parts and processes equal those of the sequential collector, in data and
learning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import torch

from policies.rl.collection.pipelined_collector import PipelinedCollector, make_collector
from policies.rl.collection.split_chunk_env import make_chunk_env
from policies.rl.finetuning.config import VlaFinetuneConfig
from policies.rl.finetuning.vla import VlaFinetuning
from policies.rl.on_policy.advantages import ChunkRollout
from policies.rl.on_policy.config import FlowNoiseConfig, GroupConfig
from policies.rl.on_policy.flow_actor import FlowActor
from policies.rl.on_policy.token_actor import TokenActor
from robots.errors import HandoffError
from sim.processes.config import Kind, PlacementConfig
from sim.processes.vec_env import place_vec_env
from tests.policies.rl.on_policy.test_flow_actor import flowing
from tests.policies.rl.on_policy.test_token_actor import LEARNING, reading
from tests.toy_envs.word_line import WordLine

NUM_ENVS, DECISIONS = 8, 6
PLACES = [
    ("disaggregated", 1, 1),
    ("disaggregated", 1, 2),
    ("disaggregated", 1, 4),
    ("hybrid", 2, 1),
    ("hybrid", 2, 2),
]
PLACED = pytest.mark.parametrize(("kind", "parts", "simulators"), PLACES)
ROUNDING: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
"""Products of other batch sizes are summed in another order."""


def tokens() -> TokenActor:
    return TokenActor(reading(), "token", "action", (8,))


def flow() -> FlowActor:
    return FlowActor(flowing(), FlowNoiseConfig(steps=4), "chunk", "chunk", (8,))


@contextmanager
def collecting(make: Callable[[], Any], placement: PlacementConfig) -> Iterator[Any]:
    torch.manual_seed(7)
    actor = make()
    env = place_vec_env(placement, WordLine, NUM_ENVS)
    try:
        vec_env = make_chunk_env(env, actor.policy, 3, count(1000), 0.99)
        yield make_collector(vec_env, actor, seed=3)
    finally:
        env.close()


def same(one: ChunkRollout, other: ChunkRollout) -> None:
    pairs: list[tuple[str, Any, Any]] = list(zip(one._fields, one, other, strict=True))
    for name, here, there in pairs:
        if here is None or isinstance(here, int):
            assert here == there
        elif name in ("length_TN", "terminated_TN", "truncated_TN"):
            assert torch.equal(here, there), name
        elif isinstance(here, dict):
            for key, part in here.items():
                torch.testing.assert_close(part, there[key], **ROUNDING)
        elif isinstance(here, torch.Tensor):
            torch.testing.assert_close(here, there, **ROUNDING)
        else:
            for key in here.keys():  # noqa: SIM118 - iterating goes through the rows
                torch.testing.assert_close(here[key], there[key], **ROUNDING)


@PLACED
@pytest.mark.parametrize("make", [tokens, flow], ids=["tokens", "flow"])
def test_rollouts_are_those_of_one_process(
    make: Callable[[], Any], kind: Kind, parts: int, simulators: int
) -> None:
    with (
        collecting(make, PlacementConfig()) as alone,
        collecting(make, PlacementConfig(kind=kind, parts=parts, simulators=simulators)) as apart,
    ):
        for _ in range(3):
            same(alone.rollout(DECISIONS), apart.rollout(DECISIONS))
        for one in (alone, apart):
            one.statistics.flush()
        assert alone.statistics.ended == apart.statistics.ended
        assert alone.statistics.episodes > NUM_ENVS, "episodes ended and began anew"
        same(alone.episodes(4, 20, ("success",)), apart.episodes(4, 20, ("success",)))
        # Of groups all may end before the time: what was begun ahead must not be felt by what comes
        # next.
        alone.begin()
        apart.begin()
        same(alone.rollout(DECISIONS), apart.rollout(DECISIONS))
        assert alone.env.take_executed() == apart.env.take_executed() > 0
        assert alone.env.take_executed() == apart.env.take_executed() == 0
        assert torch.equal(
            torch.as_tensor(alone.state_dict()["generator"]), apart.state_dict()["generator"]
        )


@PLACED
@pytest.mark.parametrize("group", [None, GroupConfig(size=4)], ids=["ppo", "grpo"])
def test_the_update_does_not_depend_on_the_placement(
    group: GroupConfig | None, kind: Kind, parts: int, simulators: int
) -> None:
    def learned(placement: PlacementConfig) -> dict[str, torch.Tensor]:
        env = place_vec_env(placement, WordLine, NUM_ENVS)
        try:
            policy = reading()
            vec_env = make_chunk_env(env, policy, 3, count(1000), 0.99)
            finetuning = VlaFinetuning(
                VlaFinetuneConfig(group=group, learning=LEARNING), policy, vec_env, 0
            )
            for _ in range(2):
                finetuning.rollout(DECISIONS)
            return policy.state_dict()
        finally:
            env.close()

    one, other = (
        learned(PlacementConfig()),
        learned(PlacementConfig(kind=kind, parts=parts, simulators=simulators)),
    )
    untaught = reading().state_dict()
    moved = 0.0
    for name, weight in one.items():
        moved = max(
            moved,
            float((weight - untaught[name]).abs().max()) if weight.is_floating_point() else 0.0,
        )
        torch.testing.assert_close(weight, other[name], rtol=1e-3, atol=2e-5, msg=name)
    assert moved > 1e-4, "the update is larger than what is allowed for its rounding"


def test_an_actor_whose_noise_cannot_be_sampled_in_advance_is_refused_for_several_parts() -> None:
    env = place_vec_env(PlacementConfig(kind="hybrid"), WordLine, NUM_ENVS)
    try:
        vec_env = make_chunk_env(env, reading(), 3, count(1000), 0.99)
        with pytest.raises(HandoffError, match="have 2 parts, but object cannot sample its noise"):
            PipelinedCollector(vec_env, object())  # type: ignore[arg-type]
    finally:
        env.close()


@pytest.mark.parametrize("wrong", [{"simulators": 0}, {"kind": "hybrid", "parts": 1}, {"parts": 0}])
def test_placements_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HandoffError, match="placement: "):
        PlacementConfig(**wrong)
