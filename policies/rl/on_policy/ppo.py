"""Runs PPO over any actor that exposes log-probabilities of its actions.

The actor is an `OnPolicyActor`: a decision has K denoising steps, each with a log-probability (K =
1 for a Gaussian; K denoising steps for a diffusion policy, DPPO's two-layer MDP). A row of a
minibatch is one denoising step of one decision. If a step has several log-probabilities, such as
the tokens of a chunk, each has its own ratio; see `policies.rl.on_policy.rollout`.

The randomness of an update depends only on its number, so a resumed run makes the same updates, and
on the index of a row in the whole rollout, so 1, 2 and 4 workers make the same update to rounding.

Shape suffixes: R rows of decisions, K denoising steps, U units, V values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from policies.random_streams import minibatch_seed
from policies.rl.on_policy.advantages import decision_table
from policies.rl.on_policy.config import CostConstraint, OnPolicyConfig
from policies.rl.on_policy.minibatches import Minibatch, RolloutMinibatches
from policies.rl.on_policy.ppo_loss import (
    Lagrangian,
    Reduce,
    adaptive_learning_rate,
    clipped_value_loss,
    step_clips,
    step_discounts,
    surrogate,
)
from policies.rl.on_policy.rollout import Rollout, Table, Trace
from robots.errors import HandoffError


class OnPolicyActor(Protocol):
    """An actor that PPO trains."""

    denoising_steps: int
    """K, denoising steps per decision that have a log-probability; 1 without denoising."""

    def log_prob(self, obs: Any, denoising_step: Tensor, trace: Trace) -> Tensor:
        """Log-probabilities (rows,) of one denoising step per row.

        Args:
            obs: (rows, ...) observations before the decisions.
            denoising_step: (rows,) int64, index of the step.
            trace: trace of these steps, (rows, ...).
        """
        ...

    def parameters(self) -> Any:
        """Parameters of the actor; those without `requires_grad` are not trained."""
        ...

    def bc_loss(self, obs: Any, generator: torch.Generator) -> Tensor:
        """Behaviour cloning loss towards the initial policy; called where `bc_weight` is above
        0."""
        ...


class ActorEvaluation(NamedTuple):
    """An actor's outputs for denoising steps, from one forward pass."""

    log_prob: Tensor
    """(rows, U) log-probabilities of the units at the configured level."""
    value: Tensor | None = None
    """(rows, V) values, where they share the actor's network."""
    entropy: Tensor | None = None
    """(rows, U) entropies [nat]; None for an actor without an entropy."""


@runtime_checkable
class UnitActor(Protocol):
    """An `OnPolicyActor` with several log-probabilities per denoising step, and possibly a value
    head."""

    def evaluate(self, obs: Any, denoising_step: Tensor, trace: Trace) -> ActorEvaluation:
        """See `OnPolicyActor.log_prob`."""
        ...


@dataclass
class UpdateStatistics:
    """Statistics of one update."""

    policy_loss: float
    value_loss: float
    kl: float
    clipped: float
    ratio: float
    """Largest ratio of all rows."""
    epochs: int
    explained: float
    """Share of the returns' variance that the values explain."""
    rate: float
    multiplier: float
    entropy: float = 0.0
    """Mean entropy over units [nat]; 0 for an actor without an entropy."""


class OnPolicyLearner:
    """Trains actor and critic with one optimiser each.

    Args:
        config: options of the update.
        actor: actor that is trained in place.
        critic: maps observations (rows, ...) to values (rows, 1), or (rows, 2) with cost values
            second. For an actor with a value head, the head, which learns at the critic's rate.
            None trains without values.
        seed: seed of the order of the rows.
        reduce: sums a tensor over all workers; the identity for one worker.
        constraint: limit on the cost of an episode; None has none, and a rollout's costs then train
            the critic alone.
    """

    def __init__(
        self,
        config: OnPolicyConfig,
        actor: OnPolicyActor,
        critic: nn.Module | None,
        seed: int = 0,
        reduce: Reduce = lambda tensor: tensor,
        constraint: CostConstraint | None = None,
    ) -> None:
        self.config = config
        self.actor = actor
        self.critic = critic
        self.seed = seed
        self._reduce = reduce
        self._actor_parameters = [
            parameter for parameter in actor.parameters() if parameter.requires_grad
        ]
        self._critic_parameters = [] if critic is None else list(critic.parameters())
        self.actor_optimizer = torch.optim.Adam(self._actor_parameters, config.actor_learning_rate)
        # An optimiser needs at least one parameter.
        placeholder = [nn.Parameter(torch.zeros(()))]
        self.critic_optimizer = torch.optim.Adam(
            self._critic_parameters or placeholder, config.critic_learning_rate
        )
        self.rollouts = 0
        self.rate = config.actor_learning_rate
        self.lagrangian = (
            Lagrangian(math.inf)
            if constraint is None
            else Lagrangian(constraint.limit, constraint.rate, constraint.gain)
        )
        clips = (
            None
            if config.clip_min is None
            else step_clips(actor.denoising_steps, config.ppo.clip, config.clip_min)
        )
        self._clips = clips
        self._weights = step_discounts(actor.denoising_steps, config.denoising_discount)

    def table(self, rollout: Rollout, episode_cost: float | None = None) -> Table:
        """Rows with advantages of a rollout; arguments as `update`."""
        return decision_table(self.config, rollout, self.lagrangian, episode_cost, self._reduce)

    def update(self, rollout: Rollout, episode_cost: float | None = None) -> UpdateStatistics:
        """Learns from one rollout.

        Args:
            rollout: collected by the current policy.
            episode_cost: mean cost of its episodes; needed under a cost limit.

        Raises:
            HandoffError: a loss that is not finite; no optimiser step was taken for it.
        """
        return self.learn(self.table(rollout, episode_cost))

    def learn(self, table: Table) -> UpdateStatistics:
        """Learns from rows with advantages.

        Raises:
            HandoffError: a loss that is not finite; no optimiser step was taken for it.
        """
        config, rows = self.config, RolloutMinibatches(table.shard, self.actor.denoising_steps)
        policy_trains = self.rollouts >= config.critic_warmup_rollouts
        proximal_log_prob = table.log_prob_RKU if not config.decoupled else self._proximal(table)
        # Epochs of minibatches, until the policy has moved too far.
        figures: list[Tensor] = []
        max_ratio = 0.0
        epochs = 0
        kl = 0.0
        while epochs < config.epochs and not (
            policy_trains and config.target_kl is not None and kl > config.target_kl
        ):
            epoch_figures = []
            for number, batch in enumerate(
                rows.minibatches(
                    config.batch_size, self._generator(epochs), table.log_prob_RKU.device
                )
            ):
                loss, batch_figures, ratio = self._loss(
                    table, proximal_log_prob, batch, policy_trains, self._generator(epochs, number)
                )
                self._step(loss, policy_trains)
                epoch_figures.append(self._reduce(batch_figures))
                max_ratio = max(max_ratio, ratio)
            epochs, kl = epochs + 1, float(torch.stack(epoch_figures)[:, 2].mean())
            figures += epoch_figures
        # Adapt the actor's learning rate to the divergence.
        if policy_trains and config.adaptive_kl_target is not None:
            self.rate = adaptive_learning_rate(self.rate, kl, config.adaptive_kl_target)
            self.actor_optimizer.param_groups[0]["lr"] = self.rate
        self.rollouts += 1
        policy, value, mean_kl, clipped, entropy = torch.stack(figures).mean(dim=0).tolist()
        return UpdateStatistics(
            policy_loss=policy,
            value_loss=value,
            kl=mean_kl,
            clipped=clipped,
            ratio=max_ratio,
            epochs=epochs,
            explained=_explained_variance(table),
            rate=self.rate,
            multiplier=self.lagrangian.multiplier,
            entropy=entropy,
        )

    def state_dict(self) -> dict[str, Any]:
        """State that the next update depends on, without actor and critic."""
        return {
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "rollouts": self.rollouts,
            "rate": self.rate,
            "integral": self.lagrangian.integral,
            "multiplier": self.lagrangian.multiplier,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`."""
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.rollouts = state["rollouts"]
        self.rate = state["rate"]
        self.lagrangian.integral = state["integral"]
        self.lagrangian.multiplier = state["multiplier"]

    def _evaluate(self, obs: Any, denoising_step: Tensor, trace: Trace) -> ActorEvaluation:
        """(rows, U) log-probabilities, and values if there is a critic or a value head."""
        if isinstance(self.actor, UnitActor):
            evaluation = self.actor.evaluate(obs, denoising_step, trace)
            if evaluation.value is not None or self.critic is None:
                return evaluation
            return evaluation._replace(value=self.critic(obs))
        log_prob = self.actor.log_prob(obs, denoising_step, trace)[:, None]
        return ActorEvaluation(log_prob, None if self.critic is None else self.critic(obs))

    @torch.no_grad()
    def _proximal(self, table: Table) -> Tensor:
        """(R, K, U) log-probabilities under the policy before the update."""
        log_prob_RKU = torch.empty_like(table.log_prob_RKU)
        denoising_steps = table.log_prob_RKU.shape[1]
        rows = max(1, self.config.batch_size // denoising_steps)
        for denoising_step in range(denoising_steps):
            for decision in torch.arange(len(log_prob_RKU), device=log_prob_RKU.device).split(rows):
                trace = {
                    name: values[decision, denoising_step] for name, values in table.trace.items()
                }
                evaluation = self._evaluate(
                    table.obs[decision], torch.full_like(decision, denoising_step), trace
                )
                log_prob_RKU[decision, denoising_step] = evaluation.log_prob
        return log_prob_RKU

    def _loss(
        self,
        table: Table,
        proximal_RKU: Tensor,
        batch: Minibatch,
        policy_trains: bool,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor, float]:
        """Loss of this worker's rows of a minibatch, five statistics to sum over workers, and the
        largest ratio."""
        config, (decision, denoising_step, count) = self.config, batch
        # Rows that count.
        if table.valid_RU is not None:
            has_units = table.valid_RU[decision].any(dim=1)
            decision, denoising_step = decision[has_units], denoising_step[has_units]
        units = table.log_prob_RKU.shape[2]
        valid = None if table.valid_RU is None else table.valid_RU[decision]
        rows = self._rows(valid, count * units)
        if not len(decision):
            # A worker without valid rows still takes part in all reductions.
            if table.valued_RV is not None:
                self._rows(table.valued_RV[decision], 0.0)
            zero_loss = (
                torch.stack(
                    [
                        parameter.sum()
                        for parameter in [*self._actor_parameters, *self._critic_parameters]
                    ]
                ).sum()
                * 0.0
            )
            return zero_loss, torch.zeros(5, device=zero_loss.device), 1.0
        # Policy loss.
        obs = table.obs[decision]
        evaluation = self._evaluate(
            obs,
            denoising_step,
            {name: values[decision, denoising_step] for name, values in table.trace.items()},
        )
        policy_loss = surrogate(
            config.ppo,
            evaluation.log_prob,
            proximal_RKU[decision, denoising_step],
            (
                table.advantage_RU[decision]
                * self._weights.to(denoising_step.device)[denoising_step, None]
            ).expand_as(evaluation.log_prob),
            valid=valid,
            rows=rows,
            clip=None
            if self._clips is None
            else self._clips.to(denoising_step.device)[denoising_step, None],
            behaviour=table.log_prob_RKU[decision, denoising_step] if config.decoupled else None,
        )
        # Value loss, entropy bonus and behaviour cloning.
        value_loss = self._value_loss(table, decision, evaluation.value, count)
        entropy = (
            policy_loss.loss.new_zeros(())
            if evaluation.entropy is None
            else _mean(evaluation.entropy, valid, rows)
        )
        loss = config.value_weight * value_loss
        if policy_trains:
            loss = loss + policy_loss.loss - config.entropy_coef * entropy
            if config.bc_weight > 0.0:
                # The K rows of a decision share its observation, so every K-th row suffices. The
                # workers' contributions add up to the mean over the minibatch.
                bc_loss = self.actor.bc_loss(obs[:: self.actor.denoising_steps], generator)
                loss = loss + config.bc_weight * bc_loss * (len(decision) / count)
        figures = torch.stack(
            [policy_loss.loss, value_loss, policy_loss.kl, policy_loss.clipped, entropy]
        ).detach()
        return loss, figures, float(policy_loss.ratio)

    def _value_loss(
        self, table: Table, decision: Tensor, value: Tensor | None, count: float
    ) -> Tensor:
        """Loss of this worker's values; 0 without a critic."""
        if value is None or table.target_RV is None or table.old_value_RV is None:
            return table.log_prob_RKU.new_zeros(())
        valid = None if table.valued_RV is None else table.valued_RV[decision]
        values = value[:, : table.target_RV.shape[1]]
        rows = self._rows(valid, count)
        return clipped_value_loss(
            self.config.ppo,
            values,
            table.target_RV[decision],
            table.old_value_RV[decision],
            valid=valid,
            rows=rows,
        )

    def _rows(self, valid: Tensor | None, default: float) -> float:
        """Number of valid entries over all workers; `default` where all are valid."""
        return default if valid is None else float(self._reduce(valid.sum().double()))

    def _generator(self, epoch: int, number: int | None = None) -> torch.Generator:
        """Random generator of an epoch, or of one of its minibatches."""
        return torch.Generator().manual_seed(
            minibatch_seed(self.seed, self.rollouts, epoch, number)
        )

    def _step(self, loss: Tensor, policy_trains: bool) -> None:
        if not bool(torch.isfinite(loss)):
            raise HandoffError(
                f"ppo: the loss of rollout {self.rollouts} is {loss.item()}, expected a finite number. Are rewards "
                "or log-probabilities infinite, or is actor_learning_rate too high?"
            )
        self.actor_optimizer.zero_grad()
        self.critic_optimizer.zero_grad()
        loss.backward()
        for parameters, optimizer, steps in (
            (self._actor_parameters, self.actor_optimizer, policy_trains),
            (self._critic_parameters, self.critic_optimizer, bool(self._critic_parameters)),
        ):
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad = self._reduce(parameter.grad)
            if self.config.max_grad_norm is not None and parameters:
                nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
            if steps:
                optimizer.step()


def _mean(tensor: Tensor, valid: Tensor | None, rows: float) -> Tensor:
    """Sum over valid entries, divided by the number of rows of all workers."""
    return (tensor if valid is None else torch.where(valid, tensor, 0.0)).sum() / max(rows, 1.0)


def _explained_variance(table: Table) -> float:
    """Share of the targets' variance that the old values explain; 0 for constant targets or without
    a critic."""
    if table.target_RV is None or table.old_value_RV is None:
        return 0.0
    target, value = table.target_RV, table.old_value_RV
    if table.valued_RV is None:
        target, value = target[:, 0], value[:, 0]
    else:
        target, value = target[table.valued_RV], value[table.valued_RV]
    variance = float(target.var(correction=0)) if len(target) else 0.0
    return 1.0 - float((target - value).var(correction=0)) / variance if variance > 0.0 else 0.0
