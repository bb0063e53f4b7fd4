"""Asynchronous rollouts: their staleness, their independence of timing, and the publication of
weights."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from policies.rl.collection.admission import Admission
from policies.rl.collection.async_actor import AsyncActor, check_weights_match, weights_digest
from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.finetuning.config import VlaFinetuneConfig
from policies.rl.finetuning.vla import VlaFinetuning
from policies.rl.on_policy.config import FlowNoiseConfig, GroupConfig
from robots.errors import HandoffError
from tests.policies.rl.on_policy.test_flow_actor import actor, flowing
from tests.policies.rl.on_policy.test_token_actor import LEARNING, reading
from tests.toy_envs.word_line import WordLine

DECOUPLED = replace(LEARNING, decoupled=True)
STALE = VlaFinetuneConfig(learning=DECOUPLED, staleness=1)


class SlowLine(WordLine):
    """Takes its time."""

    def step(self, action: Any) -> Any:
        time.sleep(0.01)
        return super().step(action)


def make_finetuning(
    config: VlaFinetuneConfig = STALE, env: type[WordLine] = WordLine, policy: Any = None
) -> VlaFinetuning:
    module = policy or reading()
    return VlaFinetuning(config, module, ChunkEnv(env(8), module, 3, count(1000), 0.99), 0)


def weights(made: VlaFinetuning) -> list[torch.Tensor]:
    return [part.detach().clone() for part in made.policy.parameters()]


def test_admission_is_the_published_inequality() -> None:
    """floor((N - 1) / B) <= v + eta for the N-th sample, written out."""
    for batch in (1, 2, 4):
        for staleness in (0, 1, 3):
            rule = Admission(staleness, batch)
            for version in range(4):
                most = max(
                    number
                    for number in range(1, 100)
                    if (number - 1) // batch <= version + staleness
                )
                assert rule.admits(most - 1, version)
                assert not rule.admits(most, version)


@pytest.mark.parametrize("wrong", [(-1, 1), (0, 0)])
def test_admission_wants_numbers_that_mean_something(wrong: tuple[int, int]) -> None:
    with pytest.raises(HandoffError, match="staleness"):
        Admission(*wrong)


def test_numbers_do_not_depend_on_who_is_quicker() -> None:
    quick, slow = make_finetuning(), make_finetuning(env=SlowLine)
    for _ in range(4):
        assert quick.rollout(5) == slow.rollout(5)
    for one in (quick, slow):
        one.statistics.flush()
    assert quick.statistics.ended == slow.statistics.ended
    assert all(
        torch.equal(one, other) for one, other in zip(weights(quick), weights(slow), strict=True)
    )


def test_every_rollout_but_the_first_lies_one_update_behind() -> None:
    made, found = make_finetuning(), []
    acting = made._async_actor
    assert acting is not None
    collect = made.collect

    def watched(decisions: int) -> Any:
        found.append(weights_digest(acting.actor.policy.parameters()))
        return collect(decisions)

    made.collect = watched  # type: ignore[method-assign]
    versions = [weights_digest(made.policy.parameters())]
    for _ in range(4):
        made.rollout(5)
        versions.append(weights_digest(made.policy.parameters()))
    assert len(set(versions)) == 5
    # Rollouts 1 and 2 by version 0, rollout k by version k - 2.
    assert found == [versions[0], *versions[:4]]


def test_the_first_update_is_that_without_staleness_and_the_second_is_not() -> None:
    stale, fresh = make_finetuning(), make_finetuning(replace(STALE, staleness=0))
    stale.rollout(5)
    fresh.rollout(5)
    assert all(
        torch.equal(one, other) for one, other in zip(weights(stale), weights(fresh), strict=True)
    )
    stale.rollout(5)
    fresh.rollout(5)
    assert not all(
        torch.equal(one, other) for one, other in zip(weights(stale), weights(fresh), strict=True)
    )


def test_what_has_been_made_ahead_is_forgotten_with_its_episodes() -> None:
    made = make_finetuning()
    made.rollout(5)
    state = made.state_dict()
    again = make_finetuning()
    again.rollout(5)
    again.load_state_dict(state)
    assert again._async_actor is not None
    assert again._async_actor._next is None
    again.rollout(5)


def test_staleness_wants_ratios_that_know_of_it() -> None:
    with pytest.raises(HandoffError, match=r"without learning\.decoupled"):
        VlaFinetuneConfig(staleness=1)


@pytest.mark.parametrize("kind", ["sde", "learned"])
def test_all_that_acts_is_published_the_learned_noise_too(kind: Any) -> None:
    learning = actor(FlowNoiseConfig(kind=kind, steps=4))
    stale = AsyncActor(learning, 1)
    with torch.no_grad():
        for module in (learning.policy, learning.noise_network, learning.head):
            for part in [] if module is None else module.parameters():
                part.add_(0.1)
    presampled = learning.sample_noise(3, torch.Generator().manual_seed(0))
    obs = ChunkEnv(WordLine(3), flowing(), 3, count(), 0.99).observation()
    assert not torch.equal(
        learning.decide_with_noise(obs, presampled).chunk_BHA,
        stale.actor.decide_with_noise(obs, presampled).chunk_BHA,
    )
    stale._publish()
    one, other = (
        learning.decide_with_noise(obs, presampled),
        stale.actor.decide_with_noise(obs, presampled),
    )
    assert torch.equal(one.chunk_BHA, other.chunk_BHA)
    assert torch.equal(one.log_prob_BKHA, other.log_prob_BKHA)
    assert one.value_BV is not None
    assert other.value_BV is not None
    assert torch.equal(one.value_BV, other.value_BV)


def test_weights_that_do_not_arrive_stop_the_finetuning(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_finetuning()
    made.rollout(5)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, *_: self)
    with pytest.raises(HandoffError, match="do not arrive"):
        made.rollout(5)


def test_digests_tell_one_weight() -> None:
    one = [torch.zeros(3), torch.ones(2, 2)]
    other = [torch.zeros(3), torch.ones(2, 2)]
    check_weights_match(weights_digest(one), weights_digest(other))
    other[1][1, 1] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    with pytest.raises(HandoffError, match="do not arrive"):
        check_weights_match(weights_digest(one), weights_digest(other))


@pytest.mark.parametrize("solved", [0.0, 0.04])
def test_a_filter_that_drops_nearly_all_stops_the_finetuning_only_where_the_task_is_unsolved(
    solved: float,
) -> None:
    made = make_finetuning(VlaFinetuneConfig(group=GroupConfig(size=4), learning=LEARNING))
    outcome_N1 = (torch.arange(100)[:, None] < 100 * solved).float()

    def hear(outcome_NM: torch.Tensor) -> None:
        for _ in range(100):
            made._check_equal_groups(SimpleNamespace(outcome_NM=outcome_NM), 0.01)  # type: ignore[arg-type]

    with pytest.raises(HandoffError, match=r"99% of the rows"):
        hear(outcome_N1)
    made._equal_group_rollouts = 0
    hear(1.0 - outcome_N1)
