"""Advantages of chunks and groups against sums written out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.rl.on_policy.advantages import (
    ChunkRollout,
    group_advantages,
    grouped_table,
    valued_table,
)
from policies.rl.on_policy.config import GroupConfig, OnPolicyConfig
from policies.rl.on_policy.rollout import expand_to_units, to_level
from robots.errors import HandoffError

DECISIONS, NUM_ENVS, HORIZON, ENTRIES = 5, 3, 4, 2
CONFIG = OnPolicyConfig(discount=0.9, gae_lambda=0.8)


def alone(part: Tensor) -> Tensor:
    return part


def rollout(values: int | None, seed: int = 0) -> ChunkRollout:
    """Environment 0 ends within a chunk, environment 1 at the end of one by its time limit,
    environment 2 not at all."""
    draw = torch.Generator().manual_seed(seed)
    length = torch.full((DECISIONS, NUM_ENVS), HORIZON)
    terminated, truncated = torch.zeros(2, DECISIONS, NUM_ENVS, dtype=torch.bool)
    length[2, 0], terminated[2, 0], truncated[3, 1] = 2, True, True
    reward = torch.randn(DECISIONS, NUM_ENVS, HORIZON, generator=draw)
    reward *= torch.arange(HORIZON) < length[..., None]
    made = ChunkRollout(
        obs=torch.randn(DECISIONS, NUM_ENVS, 1, generator=draw),
        trace={"tokens": torch.zeros(DECISIONS, NUM_ENVS, 1, HORIZON, ENTRIES, dtype=torch.long)},
        log_prob_TNKHA=-torch.rand(DECISIONS, NUM_ENVS, 1, HORIZON, ENTRIES, generator=draw),
        reward_TNH=reward,
        length_TN=length,
        terminated_TN=terminated,
        truncated_TN=truncated,
    )
    if values is None:
        return made
    shape = (DECISIONS, NUM_ENVS, values)
    return made._replace(
        value_TNV=torch.randn(shape, generator=draw),
        final_value_TNV=torch.randn(shape, generator=draw),
        last_value_NV=torch.randn(shape[1:], generator=draw),
    )


def by_hand(made: ChunkRollout, env_id: int) -> dict[tuple[int, int], float]:
    """Advantage of every action executed: the sum of all that follows it, each error by its own
    product of fades."""
    assert made.value_TNV is not None
    assert made.final_value_TNV is not None
    assert made.last_value_NV is not None
    steps = [(t, h) for t in range(DECISIONS) for h in range(int(made.length_TN[t, env_id]))]
    errors, links = [], []
    for number, (t, h) in enumerate(steps):
        last = h == int(made.length_TN[t, env_id]) - 1
        over, late = (
            bool(flag[t, env_id]) and last for flag in (made.terminated_TN, made.truncated_TN)
        )
        if over:
            after = 0.0
        elif late:
            after = float(made.final_value_TNV[t, env_id, 0])
        elif number + 1 < len(steps):
            after = float(made.value_TNV[*steps[number + 1][:1], env_id, steps[number + 1][1]])
        else:
            after = float(made.last_value_NV[env_id, 0])
        errors.append(
            float(made.reward_TNH[t, env_id, h]) + 0.9 * after - float(made.value_TNV[t, env_id, h])
        )
        links.append(0.0 if over or late else 0.9 * 0.8)
    return {
        step: sum(errors[k] * float(np.prod(links[number:k])) for k in range(number, len(steps)))
        for number, step in enumerate(steps)
    }


def test_advantages_of_actions_are_the_sums_written_out():
    """Invariant 1, of actions within chunks of unequal length."""
    made = rollout(HORIZON)
    table = valued_table(CONFIG, "action", made, alone)
    assert table.target_RV is not None
    assert table.old_value_RV is not None
    found = (table.target_RV - table.old_value_RV).unflatten(0, (DECISIONS, NUM_ENVS))
    counted = 0
    for env_id in range(NUM_ENVS):
        for (t, h), expected in by_hand(made, env_id).items():
            assert float(found[t, env_id, h]) == pytest.approx(expected, abs=1e-5)
            counted += 1
    assert table.valued_RV is not None
    assert int(table.valued_RV.sum()) == counted == DECISIONS * NUM_ENVS * HORIZON - 2


def test_advantages_that_are_learned_from_have_mean_0_and_deviation_1_over_what_was_executed():
    table = valued_table(CONFIG, "action", rollout(HORIZON), alone)
    assert table.valid_RU is not None
    chosen = table.advantage_RU[table.valid_RU]
    assert float(chosen.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(chosen.std(correction=0)) == pytest.approx(1.0, abs=1e-5)


def test_chunks_of_one_action_have_the_same_advantages_at_both_levels():
    made = rollout(HORIZON)
    one = made._replace(
        trace={name: part[..., :1, :] for name, part in made.trace.items()},
        log_prob_TNKHA=made.log_prob_TNKHA[..., :1, :],
        reward_TNH=made.reward_TNH[..., :1],
        length_TN=torch.ones_like(made.length_TN),
        value_TNV=rollout(1).value_TNV,
        final_value_TNV=rollout(1).final_value_TNV,
        last_value_NV=rollout(1).last_value_NV,
    )
    actions = valued_table(CONFIG, "action", one, alone)
    chunks = valued_table(CONFIG, "chunk", one, alone)
    torch.testing.assert_close(actions.advantage_RU, chunks.advantage_RU)
    torch.testing.assert_close(actions.log_prob_RKU, chunks.log_prob_RKU)


@pytest.mark.parametrize(
    ("level", "units"), [("token", HORIZON * ENTRIES), ("action", HORIZON), ("chunk", 1)]
)
def test_levels_add_up_and_leave_out_what_was_not_executed(level, units):
    made = rollout(1)
    table = valued_table(CONFIG, level, made, alone)
    assert table.log_prob_RKU.shape == (DECISIONS * NUM_ENVS, 1, units)
    assert table.valid_RU is not None
    executed = (torch.arange(HORIZON) < made.length_TN[..., None]).flatten(0, 1)
    total = torch.where(executed[:, None, :, None], made.log_prob_TNKHA.flatten(0, 1), 0.0).sum(
        dim=(1, 2, 3)
    )
    counted = torch.where(table.valid_RU, table.log_prob_RKU[:, 0], 0.0).sum(dim=1)
    torch.testing.assert_close(counted, total)


def test_advantages_of_actions_hold_for_their_tokens_and_not_for_whole_chunks():
    coarse = torch.tensor([[1.0, 2.0]])
    assert expand_to_units(coarse, 6).tolist() == [[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]]
    assert expand_to_units(coarse[:, :1], 6).tolist() == [[1.0]]
    with pytest.raises(
        HandoffError, match="2 advantages per decision do not fit its 1 log-probabilities"
    ):
        expand_to_units(coarse, 1)


def test_a_chunk_that_was_not_executed_at_all_does_not_count():
    log_prob = torch.tensor([[[-1.0, -2.0], [-3.0, -4.0]]])
    units = to_level(log_prob, torch.tensor([[False, False]]), "chunk")
    assert units.log_prob_RU.tolist() == [[0.0]]
    assert units.valid_RU.tolist() == [[False]]
    assert to_level(log_prob, torch.tensor([[True, False]]), "chunk").log_prob_RU.tolist() == [
        [-3.0]
    ]


def test_group_advantages_are_relative_to_the_group():
    outcome = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0])[:, None]
    found = group_advantages(GroupConfig(size=4), outcome)
    # Deviations of a sample: of one in four, and of three in four, both .5.
    assert found.advantage_N.tolist() == pytest.approx(
        [1.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, -1.5], abs=1e-4
    )
    assert found.kept_N.all()


@pytest.mark.parametrize("outcome", [0.0, 1.0, 0.1])
def test_a_group_that_came_to_the_same_teaches_nothing(outcome: float):
    """Invariant 13: equal rewards give no gradient, kept or dropped."""
    outcomes = torch.full((4, 1), outcome)
    assert not group_advantages(GroupConfig(size=4), outcomes).kept_N.any()
    kept = group_advantages(GroupConfig(size=4, drop_alike=False), outcomes)
    assert kept.kept_N.all()
    assert (kept.advantage_N == 0.0).all()


def test_several_rewards_are_normalised_before_they_are_added_up():
    """A reward a thousand times as large drowns nothing."""
    draw = torch.Generator().manual_seed(0)
    one, other = torch.rand(2, 16, generator=draw)
    config = GroupConfig(size=8, weights=(1.0, 1.0), outcomes=("return", "brevity"))
    small = group_advantages(config, torch.stack([one, other], dim=1)).advantage_N
    large = group_advantages(config, torch.stack([1000.0 * one, other], dim=1)).advantage_N
    torch.testing.assert_close(small, large, rtol=1e-3, atol=1e-3)
    # Added up first, the large one alone would count.
    naive = group_advantages(GroupConfig(size=8), (1000.0 * one + other)[:, None]).advantage_N
    assert (naive - large).abs().max() > 0.3


def grouped(lengths: list[int], outcomes: list[float]) -> ChunkRollout:
    """Trajectories of so many actions in chunks of 4."""
    count = len(lengths)
    decisions = -(-max(lengths) // HORIZON)
    length = (torch.tensor(lengths)[None] - HORIZON * torch.arange(decisions)[:, None]).clamp(
        0, HORIZON
    )
    ended = torch.zeros(decisions, count, dtype=torch.bool)
    return ChunkRollout(
        obs=torch.zeros(decisions, count, 1),
        trace={},
        log_prob_TNKHA=torch.zeros(decisions, count, 1, HORIZON, ENTRIES),
        reward_TNH=torch.zeros(decisions, count, HORIZON),
        length_TN=length,
        terminated_TN=ended,
        truncated_TN=ended,
        outcome_NM=torch.tensor(outcomes)[:, None],
    )


def test_every_trajectory_weighs_the_same_however_long_it_is():
    made = grouped([4, 12, 8, 8], [1.0, 0.0, 1.0, 0.0])
    table = grouped_table(GroupConfig(size=4), "action", made, alone)
    assert table.valid_RU is not None
    weights = (
        torch.where(table.valid_RU, table.advantage_RU.abs(), 0.0)
        .unflatten(0, (3, 4))
        .sum(dim=(0, 2))
    )
    assert weights.tolist() == pytest.approx([weights[0].item()] * 4, rel=1e-5)
    plain = grouped_table(GroupConfig(size=4, length_norm=False), "action", made, alone)
    assert plain.valid_RU is not None
    weights = (
        torch.where(plain.valid_RU, plain.advantage_RU.abs(), 0.0)
        .unflatten(0, (3, 4))
        .sum(dim=(0, 2))
    )
    assert weights.tolist() == pytest.approx(
        [weights[0].item() * share for share in (1, 3, 2, 2)], rel=1e-5
    )


def test_what_follows_the_end_counts_nowhere_and_neither_do_dropped_groups():
    made = grouped([2, 8, 8, 8], [1.0, 0.0, 1.0, 1.0])
    table = grouped_table(GroupConfig(size=2), "token", made, alone)
    assert table.valid_RU is not None
    counted = table.valid_RU.unflatten(0, (2, 4)).sum(dim=(0, 2))
    assert counted.tolist() == [2 * ENTRIES, 8 * ENTRIES, 0, 0]
    all_kept = replace(GroupConfig(size=2), drop_alike=False)
    everything = grouped_table(all_kept, "token", made, alone).valid_RU
    assert everything is not None
    assert everything.unflatten(0, (2, 4)).sum(dim=(0, 2)).tolist() == [
        2 * ENTRIES,
        *[8 * ENTRIES] * 3,
    ]


def test_environments_that_make_no_groups_are_refused():
    with pytest.raises(HandoffError, match="3 trajectories with 1 outcomes in groups of 2"):
        group_advantages(GroupConfig(size=2), torch.zeros(3, 1))
    with pytest.raises(HandoffError, match="has no outcomes"):
        grouped_table(GroupConfig(size=2), "token", rollout(None), alone)


def test_values_in_neither_way_are_refused():
    with pytest.raises(HandoffError, match="a decision has 2 values, expected 1, or 4"):
        valued_table(CONFIG, "token", rollout(2), alone)
    with pytest.raises(HandoffError, match="None values"):
        valued_table(CONFIG, "token", rollout(None), alone)
