"""On-policy learning: rollouts, and epochs of minibatches over them, for anybody who can say how
likely they acted.

Who acts is an `OnPolicyActor`: a decision is drawn in K parts, each with a log-probability - one
part for a Gaussian, K denoising steps for a diffusion policy (DPPO's two-layer MDP). A row of a
minibatch is one part of one decision; where a part has several log-probabilities, such as the
tokens of a chunk, each has a ratio of its own, see `policies.rl.on_policy.rollout`.

All chance of an update hangs on its number, so a run that was killed goes on as if it had not been;
and on the number of the row in the whole rollout, not on who holds it, so that 1, 2 and 4 workers
make the same update to rounding.

Shape suffixes: R rows of decisions, K parts, U units, V values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from policies.random_streams import minibatch_seed
from policies.rl.on_policy.advantages import decision_table
from policies.rl.on_policy.config import OnPolicyConfig
from policies.rl.on_policy.minibatches import Minibatch, Rows
from policies.rl.on_policy.ppo_loss import (
    Lagrangian,
    Reduce,
    clipped_value_loss,
    followed_rate,
    step_clips,
    step_discounts,
    surrogate,
)
from policies.rl.on_policy.rollout import Rollout, Table, Trace
from robots.errors import HandoffError


class OnPolicyActor(Protocol):
    """Who decides and learns."""

    parts: int
    """K."""

    def log_prob(self, seen: Any, part: Tensor, trace: Trace) -> Tensor:
        """Log-probabilities (rows,) of one part each of decisions.

        Args:
            seen: (rows, ...) as it was shown when the decision was made.
            part: (rows,) int64, which part.
            trace: of these parts, (rows, ...).
        """
        ...

    def parameters(self) -> Any:
        """Those that learn, and maybe some that need no gradient."""
        ...

    def cloning_loss(self, seen: Any, generator: torch.Generator) -> Tensor:
        """Negative log-likelihood of what the policy that it began as would do; asked where
        `cloning` is above 0."""
        ...


class Evaluated(NamedTuple):
    """What an actor says of parts of decisions, in one pass."""

    log_prob: Tensor
    """(rows, U) of the units at the level of the practice."""
    value: Tensor | None = None
    """(rows, V), where the values share the actor's network."""
    entropy: Tensor | None = None
    """(rows, U)."""


@runtime_checkable
class UnitActor(Protocol):
    """An `OnPolicyActor` whose parts have several log-probabilities, and which may value what it
    sees."""

    def evaluate(self, seen: Any, part: Tensor, trace: Trace) -> Evaluated:
        """See `OnPolicyActor.log_prob`."""
        ...


@dataclass
class Learned:
    """What an update was like."""

    policy_loss: float
    value_loss: float
    kl: float
    clipped: float
    ratio: float
    """Largest of all rows."""
    epochs: int
    explained: float
    """Share of the returns' variance that the values told."""
    rate: float
    multiplier: float
    entropy: float = 0.0
    """Mean over units, of actors that tell it [nat]."""


class OnPolicyLearner:
    """Actor, critic and their optimisers.

    Args:
        config: see there.
        actor: who acts.
        critic: (rows, ...) as seen, to (rows, 1), or (rows, 2) with the value of costs second. Of
            an actor that values what it sees, the part that does nothing else: it learns at the
            critic's rate. None values nothing.
        seed: of the order of the rows.
        reduce: sums a tensor over all workers; alone it stays as it is.
    """

    def __init__(
        self,
        config: OnPolicyConfig,
        actor: OnPolicyActor,
        critic: nn.Module | None,
        seed: int = 0,
        reduce: Reduce = lambda part: part,
    ) -> None:
        self.config = config
        self.actor = actor
        self.critic = critic
        self.seed = seed
        self._reduce = reduce
        self._trained = [parameter for parameter in actor.parameters() if parameter.requires_grad]
        self._valuing = [] if critic is None else list(critic.parameters())
        self.actor_optimizer = torch.optim.Adam(self._trained, config.actor_rate)
        # Without a critic there is nothing to learn, and an optimiser wants something.
        nothing = [nn.Parameter(torch.zeros(()))]
        self.critic_optimizer = torch.optim.Adam(self._valuing or nothing, config.critic_rate)
        self.rollouts = 0
        self.rate = config.actor_rate
        self.lagrangian = Lagrangian(config.cost_limit, config.cost_rate, config.cost_gain)
        clips = (
            None
            if config.least_clip is None
            else step_clips(actor.parts, config.ppo.clip, config.least_clip)
        )
        self._clips = clips
        self._weights = step_discounts(actor.parts, config.part_discount)

    def update(self, rollout: Rollout, episode_cost: float | None = None) -> Learned:
        """Learns from one rollout.

        Args:
            rollout: made by the policy as it is now.
            episode_cost: mean of its episodes, where there is a limit.

        Raises:
            HandoffError: a loss that is not finite; that step was not made.
        """
        return self.learn(
            decision_table(self.config, rollout, self.lagrangian, episode_cost, self._reduce)
        )

    def learn(self, table: Table) -> Learned:
        """Learns from rows with advantages.

        Raises:
            HandoffError: a loss that is not finite; that step was not made.
        """
        config, rows = self.config, Rows(table.shares, self.actor.parts)
        learns = self.rollouts >= config.critic_warm_up
        bound = table.log_prob_RKU if not config.decoupled else self._proximal(table)
        figures: list[Tensor] = []
        largest, epochs, kl = 0.0, 0, 0.0
        while epochs < config.epochs and not (
            learns and config.target_kl is not None and kl > config.target_kl
        ):
            made = []
            for number, batch in enumerate(
                rows.minibatches(config.batch_size, self._draw(epochs), table.log_prob_RKU.device)
            ):
                loss, told, ratio = self._loss(
                    table, bound, batch, learns, self._draw(epochs, number)
                )
                self._step(loss, learns)
                made.append(self._reduce(told))
                largest = max(largest, ratio)
            epochs, kl = epochs + 1, float(torch.stack(made)[:, 2].mean())
            figures += made
        if learns and config.followed_kl is not None:
            self.rate = followed_rate(self.rate, kl, config.followed_kl)
            self.actor_optimizer.param_groups[0]["lr"] = self.rate
        self.rollouts += 1
        policy, value, mean_kl, clipped, entropy = torch.stack(figures).mean(dim=0).tolist()
        return Learned(
            policy_loss=policy,
            value_loss=value,
            kl=mean_kl,
            clipped=clipped,
            ratio=largest,
            epochs=epochs,
            explained=_explained(table),
            rate=self.rate,
            multiplier=self.lagrangian.multiplier,
            entropy=entropy,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on, apart from actor and critic."""
        return {
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "rollouts": self.rollouts,
            "rate": self.rate,
            "integral": self.lagrangian.integral,
            "multiplier": self.lagrangian.multiplier,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.rollouts = state["rollouts"]
        self.rate = state["rate"]
        self.lagrangian.integral = state["integral"]
        self.lagrangian.multiplier = state["multiplier"]

    def _evaluate(self, seen: Any, part: Tensor, trace: Trace) -> Evaluated:
        """With (rows, U) log-probabilities, and values if any."""
        if isinstance(self.actor, UnitActor):
            return self.actor.evaluate(seen, part, trace)
        log_prob = self.actor.log_prob(seen, part, trace)[:, None]
        return Evaluated(log_prob, None if self.critic is None else self.critic(seen))

    @torch.no_grad()
    def _proximal(self, table: Table) -> Tensor:
        """(R, K, U) log-probabilities under the policy as it is, before it learns."""
        found = torch.empty_like(table.log_prob_RKU)
        parts = table.log_prob_RKU.shape[1]
        rows = max(1, self.config.batch_size // parts)
        for part in range(parts):
            for decision in torch.arange(len(found), device=found.device).split(rows):
                trace = {name: kept[decision, part] for name, kept in table.trace.items()}
                asked = self._evaluate(table.seen[decision], torch.full_like(decision, part), trace)
                found[decision, part] = asked.log_prob
        return found

    def _loss(
        self, table: Table, bound_RKU: Tensor, batch: Minibatch, learns: bool, draw: torch.Generator
    ) -> tuple[Tensor, Tensor, float]:
        """Of this worker's rows of a minibatch: the loss, five figures that workers sum, and the
        largest ratio."""
        config, (decision, part, count) = self.config, batch
        if table.valid_RU is not None:
            some = table.valid_RU[decision].any(dim=1)
            decision, part = decision[some], part[some]
        units = table.log_prob_RKU.shape[2]
        valid = None if table.valid_RU is None else table.valid_RU[decision]
        rows = self._rows(valid, count * units)
        if not len(decision):
            # Of several workers one may have nothing to learn from, and takes part in all sums of
            # the others.
            if table.valued_RV is not None:
                self._rows(table.valued_RV[decision], 0.0)
            nothing = (
                torch.stack(
                    [parameter.sum() for parameter in [*self._trained, *self._valuing]]
                ).sum()
                * 0.0
            )
            return nothing, torch.zeros(5, device=nothing.device), 1.0
        seen = table.seen[decision]
        asked = self._evaluate(
            seen, part, {name: kept[decision, part] for name, kept in table.trace.items()}
        )
        found = surrogate(
            config.ppo,
            asked.log_prob,
            bound_RKU[decision, part],
            (table.advantage_RU[decision] * self._weights.to(part.device)[part, None]).expand_as(
                asked.log_prob
            ),
            valid=valid,
            rows=rows,
            clip=None if self._clips is None else self._clips.to(part.device)[part, None],
            behaviour=table.log_prob_RKU[decision, part] if config.decoupled else None,
        )
        worth = self._worth(table, decision, asked.value, count)
        entropy = (
            found.loss.new_zeros(()) if asked.entropy is None else _mean(asked.entropy, valid, rows)
        )
        loss = config.value_weight * worth
        if learns:
            loss = loss + found.loss - config.entropy * entropy
            if config.cloning > 0.0:
                # Every decision is there with K parts, and says the same with each: one in K rows
                # is asked. Shares of workers add up to the mean over the minibatch.
                asked_of = self.actor.cloning_loss(seen[:: self.actor.parts], draw)
                loss = loss + config.cloning * asked_of * (len(decision) / count)
        told = torch.stack([found.loss, worth, found.kl, found.clipped, entropy]).detach()
        return loss, told, float(found.ratio)

    def _worth(self, table: Table, decision: Tensor, value: Tensor | None, count: float) -> Tensor:
        """Loss of the values."""
        if value is None or table.target_RV is None or table.before_RV is None:
            return table.log_prob_RKU.new_zeros(())
        valued = None if table.valued_RV is None else table.valued_RV[decision]
        values = value[:, : table.target_RV.shape[1]]
        rows = self._rows(valued, count)
        return clipped_value_loss(
            self.config.ppo,
            values,
            table.target_RV[decision],
            table.before_RV[decision],
            valid=valued,
            rows=rows,
        )

    def _rows(self, valid: Tensor | None, otherwise: float) -> float:
        """How many count, of all workers."""
        return otherwise if valid is None else float(self._reduce(valid.sum().double()))

    def _draw(self, epoch: int, number: int | None = None) -> torch.Generator:
        """Chance of one epoch, or of one of its minibatches."""
        return torch.Generator().manual_seed(
            minibatch_seed(self.seed, self.rollouts, epoch, number)
        )

    def _step(self, loss: Tensor, learns: bool) -> None:
        if not bool(torch.isfinite(loss)):
            raise HandoffError(
                f"reinforcement: the loss of rollout {self.rollouts} is {loss.item()}. Are rewards or "
                "log-probabilities not finite, or is the actor's rate too high?"
            )
        self.actor_optimizer.zero_grad()
        self.critic_optimizer.zero_grad()
        loss.backward()
        for parameters, optimizer, moves in (
            (self._trained, self.actor_optimizer, learns),
            (self._valuing, self.critic_optimizer, bool(self._valuing)),
        ):
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad = self._reduce(parameter.grad)
            if self.config.max_grad_norm is not None and parameters:
                nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
            if moves:
                optimizer.step()


def _mean(part: Tensor, valid: Tensor | None, rows: float) -> Tensor:
    """Sum over those that count, over the number of all workers' rows."""
    return (part if valid is None else torch.where(valid, part, 0.0)).sum() / max(rows, 1.0)


def _explained(table: Table) -> float:
    """Share of the targets' variance that the first values told; 0 where they do not vary, or
    nothing is valued."""
    if table.target_RV is None or table.before_RV is None:
        return 0.0
    target, value = table.target_RV, table.before_RV
    if table.valued_RV is None:
        target, value = target[:, 0], value[:, 0]
    else:
        target, value = target[table.valued_RV], value[table.valued_RV]
    spread = float(target.var(correction=0)) if len(target) else 0.0
    return 1.0 - float((target - value).var(correction=0)) / spread if spread > 0.0 else 0.0
