"""Computes advantages of rollouts: per decision, per action within chunks, or relative to a group.

Group-relative advantages are GRPO's (Shao et al., arXiv 2402.03300) with the choices that RLinf-VLA
found to matter (arXiv 2510.06710): a group begins in one state; steps after success do not count;
every trajectory has the same weight regardless of its length; groups in which all succeed or all
fail are dropped. Several rewards are normalised one by one within the group before they are added,
so that none dominates by its scale (GDPO, arXiv 2601.05242).

Implementations differ: RLinf divides by the sample standard deviation (G - 1), as here, others by
the population standard deviation of the group.

Shape suffixes: T decisions, N environments, K denoising steps, H actions of a chunk, A entries, V
values of a decision, M rewards.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from policies.rl.on_policy.config import GroupConfig, LogProbLevel, OnPolicyConfig
from policies.rl.on_policy.ppo_loss import Lagrangian, Reduce, standardised
from policies.rl.on_policy.returns import Advantages, chunk_reward, gae, next_values
from policies.rl.on_policy.rollout import (
    Rollout,
    Table,
    Trace,
    WorkerShard,
    expand_to_units,
    to_level,
)
from robots.errors import HandoffError


class ChunkRollout(NamedTuple):
    """T chunks in N environments, with a log-probability per entry."""

    obs: Any
    """(T, N, ...) observations before the decisions: a tensor, or a TensorDict of several
    fields."""
    trace: Trace
    """Every entry is (T, N, K, ...)."""
    log_prob_TNKHA: Tensor
    reward_TNH: Tensor
    """Reward of every action; 0 for actions that were not executed."""
    length_TN: Tensor
    """int64, actions executed; 0 in an environment that had ended before."""
    terminated_TN: Tensor
    truncated_TN: Tensor
    value_TNV: Tensor | None = None
    """Values of the decisions (V = 1) or of the actions within them (V = H); None without a value
    head."""
    final_value_TNV: Tensor | None = None
    """Values of the true observations after the decisions; used where an episode ended."""
    last_value_NV: Tensor | None = None
    """Values of the observations after the last decision."""
    outcome_NM: Tensor | None = None
    """M outcomes of the single episode of each environment; None without groups."""
    first_row: int = 0
    """Index of this worker's first environment in the rollout of all workers."""
    num_envs: int = 0
    """N over all workers; 0 if there is one worker."""


class GroupAdvantages(NamedTuple):
    """Group-relative advantages of trajectories."""

    advantage_N: Tensor
    kept_N: Tensor
    """bool, environments whose group has differing outcomes."""


def decision_table(
    config: OnPolicyConfig,
    rollout: Rollout,
    lagrangian: Lagrangian,
    episode_cost: float | None,
    reduce: Reduce,
) -> Table:
    """Rows with advantages of decisions, less the weighted advantages of costs where there are
    costs."""
    ends = (rollout.terminated_TN, rollout.truncated_TN, rollout.discount_TN, config.gae_lambda)
    returns = gae(rollout.reward_TN, rollout.value_TN, rollout.next_value_TN, *ends)
    advantage = returns.advantage_TN
    targets = [returns.return_TN]
    old_values = [rollout.value_TN]
    if rollout.costs is not None:
        if episode_cost is not None:
            lagrangian.update(episode_cost)
        cost = gae(*rollout.costs, *ends)
        advantage = lagrangian.combine(advantage, cost.advantage_TN)
        targets.append(cost.return_TN)
        old_values.append(rollout.costs.value_TN)
    decisions, envs_here = rollout.reward_TN.shape
    log_prob = rollout.log_prob_TNK.flatten(0, 1)
    return Table(
        obs=rollout.obs.flatten(0, 1),
        trace={name: value.flatten(0, 1) for name, value in rollout.trace.items()},
        # One unit, or those of an actor with several.
        log_prob_RKU=log_prob.reshape(*log_prob.shape[:2], -1),
        advantage_RU=standardised(advantage, reduce=reduce).flatten()[:, None],
        shard=WorkerShard(decisions, envs_here, rollout.num_envs or envs_here, rollout.first_row),
        target_RV=torch.stack(targets, dim=-1).flatten(0, 1),
        old_value_RV=torch.stack(old_values, dim=-1).flatten(0, 1),
    )


def valued_table(
    config: OnPolicyConfig, log_prob_level: LogProbLevel, rollout: ChunkRollout, reduce: Reduce
) -> Table:
    """Rows with advantages by GAE, of decisions or of the actions within them, depending on the
    rollout's values.

    Raises:
        HandoffError: no values, or a number of values other than 1 and H; advantages finer than
            log-probabilities.
    """
    value_TNV = rollout.value_TNV
    horizon = rollout.reward_TNH.shape[2]
    if value_TNV is None or value_TNV.shape[2] not in (1, horizon):
        columns = None if value_TNV is None else value_TNV.shape[2]
        raise HandoffError(
            f"finetune: a decision has {columns} values, expected 1, or {horizon} for its actions."
        )
    executed_TNH = _executed_mask(rollout)
    if value_TNV.shape[2] == 1:
        result = _decision_advantages(config, rollout)
        advantage_TNV, return_TNV = (part[..., None] for part in result)
        valued_TNV = executed_TNH.any(dim=2, keepdim=True)
    else:
        advantage_TNV, return_TNV = _action_advantages(config, rollout, executed_TNH)
        valued_TNV = executed_TNH
    advantage_RV = standardised(advantage_TNV, valued_TNV, reduce).flatten(0, 1)
    return _table(rollout, log_prob_level, advantage_RV)._replace(
        target_RV=return_TNV.flatten(0, 1),
        old_value_RV=value_TNV.flatten(0, 1),
        valued_RV=valued_TNV.flatten(0, 1),
    )


def grouped_table(
    config: GroupConfig, log_prob_level: LogProbLevel, rollout: ChunkRollout, reduce: Reduce
) -> Table:
    """Rows with advantages relative to the group that began in the same state; all actions of a
    trajectory share one advantage.

    Args:
        config: options of groups; the environments of a group are neighbours.
        log_prob_level: level of the log-probabilities.
        rollout: rollout of one episode per environment.
        reduce: sums a tensor over workers.

    Raises:
        HandoffError: no outcomes, or a number of environments that is no multiple of the group
            size.
    """
    if rollout.outcome_NM is None:
        raise HandoffError(
            "finetune: the rollout has no outcomes, expected one episode per environment."
        )
    groups = group_advantages(config, rollout.outcome_NM, reduce)
    executed_TNH = _executed_mask(rollout)
    kept_TNH = executed_TNH & groups.kept_N[None, :, None]
    advantage_N = torch.where(groups.kept_N, groups.advantage_N, 0.0)
    if config.length_norm:
        count_N = executed_TNH.sum(dim=(0, 2)).clamp(min=1)
        actions, trajectories = reduce(torch.stack([kept_TNH.sum(), groups.kept_N.sum()]).double())
        # The loss becomes the mean over trajectories of the means over their actions.
        advantage_N = advantage_N * (actions / trajectories.clamp(min=1.0) / count_N).float()
    table = _table(rollout, log_prob_level, advantage_N.repeat(len(kept_TNH))[:, None])
    assert table.valid_RU is not None
    return table._replace(valid_RU=table.valid_RU & kept_TNH.any(dim=2).flatten()[:, None])


def group_advantages(
    config: GroupConfig, outcome_NM: Tensor, reduce: Reduce = lambda tensor: tensor
) -> GroupAdvantages:
    """Advantages of N trajectories in groups of `config.size` neighbours.

    Args:
        config: options of groups.
        outcome_NM: M outcomes of every trajectory.
        reduce: sums a tensor over workers; a group lies within one worker.

    Raises:
        HandoffError: incomplete groups, or a number of weights other than that of the outcomes.
    """
    count, rewards = outcome_NM.shape
    weights = config.weights or (1.0,) * rewards
    if config.size < 2 or count % config.size or len(weights) != rewards:
        raise HandoffError(
            f"grpo: {count} trajectories with {rewards} outcomes in groups of {config.size} with weights {weights}; "
            "expected complete groups of at least 2, and one weight per outcome."
        )
    group_GSM = outcome_NM.reshape(-1, config.size, rewards)
    centred_GSM = group_GSM - group_GSM.mean(dim=1, keepdim=True)
    std_G1M = group_GSM.std(dim=1, keepdim=True)
    # A group with equal outcomes has no gradient; rounding must not create one.
    equal_G1M = std_G1M <= 1e-6 * group_GSM.abs().amax(dim=1, keepdim=True).clamp(min=1.0)
    normalised_GSM = torch.where(equal_G1M, 0.0, centred_GSM / (std_G1M + 1e-6))
    advantage_N = (
        (normalised_GSM * torch.tensor(weights, device=normalised_GSM.device)).sum(dim=2).flatten()
    )
    kept_G = ~equal_G1M.flatten(1).all(dim=1)
    if not config.drop_alike:
        kept_G = torch.ones_like(kept_G)
    kept_N = kept_G.repeat_interleave(config.size)
    if rewards > 1:
        # A sum of several normalised rewards has another scale; GDPO normalises it again.
        advantage_N = standardised(advantage_N, kept_N, reduce)
    return GroupAdvantages(advantage_N, kept_N)


def _decision_advantages(config: OnPolicyConfig, rollout: ChunkRollout) -> Advantages:
    ended_TN = rollout.terminated_TN | rollout.truncated_TN
    value_TN, last_N, final_TN = _first_action_values(rollout)
    next_TN = next_values(value_TN, last_N, final_TN, ended_TN)
    return gae(
        chunk_reward(rollout.reward_TNH, rollout.length_TN, config.discount),
        value_TN,
        next_TN,
        rollout.terminated_TN,
        rollout.truncated_TN,
        config.discount**rollout.length_TN,
        config.gae_lambda,
    )


def _action_advantages(
    config: OnPolicyConfig, rollout: ChunkRollout, executed_TNH: Tensor
) -> tuple[Tensor, Tensor]:
    """(T, N, H) advantages and returns over the sequence of all actions, skipping those not
    executed."""
    assert rollout.value_TNV is not None
    ended_TN = rollout.terminated_TN | rollout.truncated_TN
    value_TN, last_N, final_TN = _first_action_values(rollout)
    next_TN = next_values(value_TN, last_N, final_TN, ended_TN)
    # Values after each action: of the next action in the chunk, or after the chunk.
    last_TNH = executed_TNH & (_action_index(executed_TNH) == rollout.length_TN[..., None] - 1)
    value_TNH = torch.where(executed_TNH, rollout.value_TNV, 0.0)
    later_TNH = torch.cat([value_TNH[..., 1:], torch.zeros_like(value_TNH[..., :1])], dim=2)
    next_TNH = torch.where(last_TNH, next_TN[..., None], torch.where(executed_TNH, later_TNH, 0.0))
    # Actions that were not executed take no time: neither discount nor lambda applies.
    idle = 1.0 / config.gae_lambda if config.gae_lambda > 0.0 else 1.0
    discount_TNH = torch.where(executed_TNH, config.discount, idle)
    reward_TNH = torch.where(executed_TNH, rollout.reward_TNH, 0.0)
    ends = [(last_TNH & flag[..., None]) for flag in (rollout.terminated_TN, rollout.truncated_TN)]
    # Flatten chunks into one sequence of actions, and back.
    tables = (reward_TNH, value_TNH, next_TNH, *ends, discount_TNH)
    reward, value, next_value, terminated, truncated, discount = (
        table.transpose(1, 2).flatten(0, 1) for table in tables
    )
    result = gae(reward, value, next_value, terminated, truncated, discount, config.gae_lambda)
    steps, actions = executed_TNH.shape[0], executed_TNH.shape[2]
    advantage, returns = (table.unflatten(0, (steps, actions)).transpose(1, 2) for table in result)
    return advantage, returns


def _first_action_values(rollout: ChunkRollout) -> tuple[Tensor, Tensor, Tensor]:
    """First values of the observations before the decisions, after the last decision, and at the
    true ends of episodes."""
    tables = (rollout.value_TNV, rollout.last_value_NV, rollout.final_value_TNV)
    if any(table is None for table in tables):
        raise HandoffError(
            "finetune: the rollout lacks last_value_NV or final_value_TNV, expected both with value_TNV."
        )
    value, last, final = (table[..., 0] for table in tables if table is not None)
    return value, last, final


def _executed_mask(rollout: ChunkRollout) -> Tensor:
    """(T, N, H) bool, actions that were executed."""
    return _action_index(rollout.reward_TNH) < rollout.length_TN[..., None]


def _table(rollout: ChunkRollout, log_prob_level: LogProbLevel, advantage_RV: Tensor) -> Table:
    executed_RH = _executed_mask(rollout).flatten(0, 1)
    log_prob_RKHA = rollout.log_prob_TNKHA.flatten(0, 1)
    units = [
        to_level(log_prob_RKHA[:, step], executed_RH, log_prob_level)
        for step in range(log_prob_RKHA.shape[1])
    ]
    decisions, envs_here = rollout.length_TN.shape
    trace = {name: value.flatten(0, 1) for name, value in rollout.trace.items()}
    trace["executed"] = executed_RH[:, None].expand(-1, log_prob_RKHA.shape[1], -1)
    return Table(
        obs=rollout.obs.flatten(0, 1),
        trace=trace,
        log_prob_RKU=torch.stack([unit.log_prob_RU for unit in units], dim=1),
        advantage_RU=expand_to_units(advantage_RV, units[0].log_prob_RU.shape[1]),
        shard=WorkerShard(decisions, envs_here, rollout.num_envs or envs_here, rollout.first_row),
        valid_RU=units[0].valid_RU,
    )


def _action_index(like_TNH: Tensor) -> Tensor:
    """(H,) 0, 1, ... on the device of `like_TNH`."""
    return torch.arange(like_TNH.shape[2], device=like_TNH.device)
