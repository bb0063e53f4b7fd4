"""From rollouts to rows with advantages: of decisions, of the actions within chunks, and relative
to a group.

Group-relative advantages are GRPO's (Shao et al., arXiv 2402.03300), with what RLinf-VLA found to
matter (arXiv
2510.06710): a group begins in one state; what follows success counts nowhere; every trajectory
weighs as much as another however long it is; groups that all solve, or all fail, are dropped.
Several rewards are normalised within the group one by one before they are added up, so that none
drowns another by its scale (GDPO, arXiv 2601.05242).

Where systems differ: RLinf divides by the standard deviation of a sample (G - 1), as here, others
by that of the group.

Shape suffixes: T decisions, N worlds, K parts, H actions of a chunk, A entries, V values of a
decision, M rewards.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from policies.rl.on_policy.config import GroupConfig, Level, OnPolicyConfig
from policies.rl.on_policy.ppo_loss import Lagrangian, Reduce, standardised
from policies.rl.on_policy.returns import Advantages, chunk_reward, gae, next_values
from policies.rl.on_policy.rollout import Rollout, Shares, Table, Trace, spread, to_level
from robots.errors import HandoffError


class ChunkRollout(NamedTuple):
    """T chunks in N worlds, whose actor tells how likely every entry was."""

    seen: Any
    """(T, N, ...) what was decided upon: a tensor, or a TensorDict of several."""
    parts: Trace
    """Each (T, N, K, ...)."""
    log_prob_TNKHA: Tensor
    reward_TNH: Tensor
    """Of every action; nothing for those that were not executed."""
    length_TN: Tensor
    """int64, actions executed; 0 in a world that had ended before."""
    terminated_TN: Tensor
    truncated_TN: Tensor
    value_TNV: Tensor | None = None
    """V of 1 values decisions, V of H the actions within them; None where nothing is valued."""
    final_value_TNV: Tensor | None = None
    """Of the true observations after the decisions; looked at where an episode ended."""
    last_value_NV: Tensor | None = None
    """Of what is observed after the last decision."""
    outcome_NM: Tensor | None = None
    """Of every world's one episode, M rewards; for groups."""
    first_row: int = 0
    """Number of this worker's first world in the rollout of all workers."""
    worlds: int = 0
    """N of all workers; 0: those here are all."""


class Grouped(NamedTuple):
    """What groups came to."""

    advantage_N: Tensor
    kept_N: Tensor
    """bool, worlds whose group teaches something."""


def decision_table(
    config: OnPolicyConfig,
    rollout: Rollout,
    lagrangian: Lagrangian,
    episode_cost: float | None,
    reduce: Reduce,
) -> Table:
    """Advantages of decisions, with those of a cost taken off where there is one."""
    ends = (rollout.terminated_TN, rollout.truncated_TN, rollout.discount_TN, config.trace)
    found = gae(rollout.reward_TN, rollout.value_TN, rollout.next_value_TN, *ends)
    advantage, targets, before = found.advantage_TN, [found.return_TN], [rollout.value_TN]
    if rollout.costs is not None:
        if episode_cost is not None:
            lagrangian.update(episode_cost)
        cost = gae(*rollout.costs, *ends)
        advantage = lagrangian.combine(advantage, cost.advantage_TN)
        targets.append(cost.return_TN)
        before.append(rollout.costs.value_TN)
    decisions, here = rollout.reward_TN.shape
    return Table(
        seen=rollout.seen.flatten(0, 1),
        trace={name: value.flatten(0, 1) for name, value in rollout.parts.items()},
        log_prob_RKU=rollout.log_prob_TNK.flatten(0, 1)[..., None],
        advantage_RU=standardised(advantage, reduce=reduce).flatten()[:, None],
        shares=Shares(decisions, here, rollout.worlds or here, rollout.first_row),
        target_RV=torch.stack(targets, dim=-1).flatten(0, 1),
        before_RV=torch.stack(before, dim=-1).flatten(0, 1),
    )


def valued_table(
    config: OnPolicyConfig, level: Level, rollout: ChunkRollout, reduce: Reduce
) -> Table:
    """Advantages by generalised advantage estimation, of decisions or of the actions within them,
    as they are valued.

    Raises:
        HandoffError: nothing is valued, or in neither way; advantages finer than log-probabilities.
    """
    value_TNV = rollout.value_TNV
    horizon = rollout.reward_TNH.shape[2]
    if value_TNV is None or value_TNV.shape[2] not in (1, horizon):
        told = None if value_TNV is None else value_TNV.shape[2]
        raise HandoffError(
            f"practice: {told} values of a decision, expected 1, or {horizon} of its actions."
        )
    executed_TNH = _executed(rollout)
    if value_TNV.shape[2] == 1:
        found = _of_decisions(config, rollout)
        advantage_TNV, return_TNV = (part[..., None] for part in found)
        valued_TNV = executed_TNH.any(dim=2, keepdim=True)
    else:
        advantage_TNV, return_TNV = _of_actions(config, rollout, executed_TNH)
        valued_TNV = executed_TNH
    advantage_RV = standardised(advantage_TNV, valued_TNV, reduce).flatten(0, 1)
    return _table(rollout, level, advantage_RV)._replace(
        target_RV=return_TNV.flatten(0, 1),
        before_RV=value_TNV.flatten(0, 1),
        valued_RV=valued_TNV.flatten(0, 1),
    )


def grouped_table(
    config: GroupConfig, level: Level, rollout: ChunkRollout, reduce: Reduce
) -> Table:
    """Advantages relative to the group that began in the same state, those of a trajectory alike at
    all its actions.

    Args:
        config: of groups; a group's worlds stand side by side.
        level: of log-probabilities.
        rollout: of one episode in every world.
        reduce: sums over workers.

    Raises:
        HandoffError: no outcomes, or worlds that make no whole groups.
    """
    if rollout.outcome_NM is None:
        raise HandoffError(
            "practice: trajectories without outcomes, expected one episode in every world."
        )
    found = group_advantages(config, rollout.outcome_NM, reduce)
    executed_TNH = _executed(rollout)
    kept_TNH = executed_TNH & found.kept_N[None, :, None]
    advantage_N = torch.where(found.kept_N, found.advantage_N, 0.0)
    if config.length_norm:
        count_N = executed_TNH.sum(dim=(0, 2)).clamp(min=1)
        actions, trajectories = reduce(torch.stack([kept_TNH.sum(), found.kept_N.sum()]).double())
        # Adds up to the mean over trajectories of the means over their actions.
        advantage_N = advantage_N * (actions / trajectories.clamp(min=1.0) / count_N).float()
    table = _table(rollout, level, advantage_N.repeat(len(kept_TNH))[:, None])
    assert table.valid_RU is not None
    return table._replace(valid_RU=table.valid_RU & kept_TNH.any(dim=2).flatten()[:, None])


def group_advantages(
    config: GroupConfig, outcome_NM: Tensor, reduce: Reduce = lambda part: part
) -> Grouped:
    """Of N trajectories in groups of `config.size` that stand side by side.

    Args:
        config: of groups.
        outcome_NM: M rewards of every trajectory.
        reduce: sums over workers; a group is with one of them.

    Raises:
        HandoffError: no whole groups, or not one weight per reward.
    """
    count, rewards = outcome_NM.shape
    weights = config.weights or (1.0,) * rewards
    if config.size < 2 or count % config.size or len(weights) != rewards:
        raise HandoffError(
            f"grpo: {count} trajectories of {rewards} rewards in groups of {config.size} with weights {weights}; "
            "expected whole groups of at least 2, and a weight per reward."
        )
    group_GSM = outcome_NM.reshape(-1, config.size, rewards)
    centred_GSM = group_GSM - group_GSM.mean(dim=1, keepdim=True)
    spread_G1M = group_GSM.std(dim=1, keepdim=True)
    # A group that is all alike teaches nothing, and rounding must not make it say something.
    alike_G1M = spread_G1M <= 1e-6 * group_GSM.abs().amax(dim=1, keepdim=True).clamp(min=1.0)
    each_GSM = torch.where(alike_G1M, 0.0, centred_GSM / (spread_G1M + 1e-6))
    advantage_N = (each_GSM * torch.tensor(weights, device=each_GSM.device)).sum(dim=2).flatten()
    kept_G = ~alike_G1M.flatten(1).all(dim=1)
    if not config.drop_alike:
        kept_G = torch.ones_like(kept_G)
    kept_N = kept_G.repeat_interleave(config.size)
    if rewards > 1:
        # Sums of several normalised rewards have another scale than one; GDPO brings it back.
        advantage_N = standardised(advantage_N, kept_N, reduce)
    return Grouped(advantage_N, kept_N)


def _of_decisions(config: OnPolicyConfig, rollout: ChunkRollout) -> Advantages:
    ended_TN = rollout.terminated_TN | rollout.truncated_TN
    value_TN, last_N, final_TN = _first_values(rollout)
    after_TN = next_values(value_TN, last_N, final_TN, ended_TN)
    return gae(
        chunk_reward(rollout.reward_TNH, rollout.length_TN, config.discount),
        value_TN,
        after_TN,
        rollout.terminated_TN,
        rollout.truncated_TN,
        config.discount**rollout.length_TN,
        config.trace,
    )


def _of_actions(
    config: OnPolicyConfig, rollout: ChunkRollout, executed_TNH: Tensor
) -> tuple[Tensor, Tensor]:
    """(T, N, H) advantages and returns: time runs through the actions of all chunks, past those not
    executed."""
    assert rollout.value_TNV is not None
    ended_TN = rollout.terminated_TN | rollout.truncated_TN
    value_TN, last_N, final_TN = _first_values(rollout)
    after_TN = next_values(value_TN, last_N, final_TN, ended_TN)
    last_TNH = executed_TNH & (_numbers(executed_TNH) == rollout.length_TN[..., None] - 1)
    value_TNH = torch.where(executed_TNH, rollout.value_TNV, 0.0)
    within_TNH = torch.cat([value_TNH[..., 1:], torch.zeros_like(value_TNH[..., :1])], dim=2)
    next_TNH = torch.where(
        last_TNH, after_TN[..., None], torch.where(executed_TNH, within_TNH, 0.0)
    )
    # What was not executed takes no time: neither discount nor trace fades there.
    idle = 1.0 / config.trace if config.trace > 0.0 else 1.0
    discount_TNH = torch.where(executed_TNH, config.discount, idle)
    reward_TNH = torch.where(executed_TNH, rollout.reward_TNH, 0.0)
    over = [(last_TNH & flag[..., None]) for flag in (rollout.terminated_TN, rollout.truncated_TN)]
    tables = (reward_TNH, value_TNH, next_TNH, *over, discount_TNH)
    reward, value, after, terminated, truncated, discount = (
        part.transpose(1, 2).flatten(0, 1) for part in tables
    )
    found = gae(reward, value, after, terminated, truncated, discount, config.trace)
    steps, actions = executed_TNH.shape[0], executed_TNH.shape[2]
    advantage, returned = (part.unflatten(0, (steps, actions)).transpose(1, 2) for part in found)
    return advantage, returned


def _first_values(rollout: ChunkRollout) -> tuple[Tensor, Tensor, Tensor]:
    """Of what was decided upon, of what came last, and of true final observations: the value of the
    first action."""
    parts = (rollout.value_TNV, rollout.last_value_NV, rollout.final_value_TNV)
    if any(part is None for part in parts):
        raise HandoffError(
            "practice: values without those of what came last or of the true final observations."
        )
    value, last, final = (part[..., 0] for part in parts if part is not None)
    return value, last, final


def _executed(rollout: ChunkRollout) -> Tensor:
    """(T, N, H) bool."""
    return _numbers(rollout.reward_TNH) < rollout.length_TN[..., None]


def _table(rollout: ChunkRollout, level: Level, advantage_RV: Tensor) -> Table:
    executed_RH = _executed(rollout).flatten(0, 1)
    log_prob_RKHA = rollout.log_prob_TNKHA.flatten(0, 1)
    units = [
        to_level(log_prob_RKHA[:, part], executed_RH, level)
        for part in range(log_prob_RKHA.shape[1])
    ]
    decisions, here = rollout.length_TN.shape
    trace = {name: value.flatten(0, 1) for name, value in rollout.parts.items()}
    trace["executed"] = executed_RH[:, None].expand(-1, log_prob_RKHA.shape[1], -1)
    return Table(
        seen=rollout.seen.flatten(0, 1),
        trace=trace,
        log_prob_RKU=torch.stack([unit.log_prob_RU for unit in units], dim=1),
        advantage_RU=spread(advantage_RV, units[0].log_prob_RU.shape[1]),
        shares=Shares(decisions, here, rollout.worlds or here, rollout.first_row),
        valid_RU=units[0].valid_RU,
    )


def _numbers(like_TNH: Tensor) -> Tensor:
    """(H,) 0, 1, ... where `like_TNH` lies."""
    return torch.arange(like_TNH.shape[2], device=like_TNH.device)
