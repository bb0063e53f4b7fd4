"""On-policy learning: rollouts, and epochs of minibatches over them, for anybody who can say how likely they acted.

Who acts is an `OnPolicyActor`: a decision is drawn in K parts, each with a log-probability - one part for a Gaussian,
K denoising steps for a diffusion policy (DPPO's two-layer MDP). A row of a minibatch is one part of one decision.

All chance of an update hangs on its number, so a run that was killed goes on as if it had not been; and on the number
of the row in the whole rollout, not on who holds it, so that 1, 2 and 4 workers make the same update to rounding.

Shape suffixes: T decisions, N worlds, K parts, R rows of decisions (T * N), F features.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from policies.rl.policy_gradient import (
    Lagrangian,
    Reduce,
    followed_rate,
    normalised,
    step_clips,
    step_discounts,
    surrogate,
    value_loss,
)
from policies.rl.practice_config import OnPolicyConfig
from policies.rl.returns import gae
from robots.errors import HandoffError

Trace = dict[str, Tensor]
"""What an actor keeps of its decisions to say later how likely they were; every entry (R, K, ...)."""


class OnPolicyActor(Protocol):
    """Who decides and learns."""

    parts: int
    """K."""

    def log_prob(self, seen: Tensor, part: Tensor, trace: Trace) -> Tensor:
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

    def cloning_loss(self, seen: Tensor, generator: torch.Generator) -> Tensor:
        """Negative log-likelihood of what the policy that it began as would do; asked where `cloning` is above 0."""
        ...


class Costs(NamedTuple):
    """What T decisions in N worlds cost, apart from their reward."""

    cost_TN: Tensor
    value_TN: Tensor
    """The critic's second value."""
    next_value_TN: Tensor


class Rollout(NamedTuple):
    """T decisions in N worlds."""

    seen: Tensor
    """(T, N, ...) what was decided upon."""
    parts: Trace
    """Each (T, N, K, ...)."""
    log_prob_TNK: Tensor
    reward_TN: Tensor
    """Of a chunk the discounted sum of what was executed."""
    value_TN: Tensor
    next_value_TN: Tensor
    """Of the true observations after the decisions."""
    terminated_TN: Tensor
    truncated_TN: Tensor
    discount_TN: Tensor
    """g^length of what was executed."""
    first_row: int = 0
    """Number of this worker's first world in the rollout of all workers."""
    worlds: int = 0
    """N of all workers; 0: those here are all."""
    costs: Costs | None = None
    """Where there is something to be avoided."""


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


class OnPolicyLearner:
    """Actor, critic and their optimisers.

    Args:
        config: see there.
        actor: who acts.
        critic: (rows, ...) as seen, to (rows, 1), or (rows, 2) with the value of costs second.
        seed: of the order of the rows.
        reduce: sums a tensor over all workers; alone it stays as it is.
    """

    def __init__(
        self,
        config: OnPolicyConfig,
        actor: OnPolicyActor,
        critic: nn.Module,
        seed: int = 0,
        reduce: Reduce = lambda part: part,
    ) -> None:
        self.config, self.actor, self.critic, self.seed, self._reduce = config, actor, critic, seed, reduce
        self._trained = [parameter for parameter in actor.parameters() if parameter.requires_grad]
        self.actor_optimizer = torch.optim.Adam(self._trained, config.actor_rate)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), config.critic_rate)
        self.rollouts = 0
        self.rate = config.actor_rate
        self.lagrangian = Lagrangian(config.cost_limit, config.cost_rate, config.cost_gain)
        clips = None if config.least_clip is None else step_clips(actor.parts, config.ppo.clip, config.least_clip)
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
        config, rows = self.config, _Rows(rollout, self.actor.parts)
        table = self._table(rollout, episode_cost)
        learns = self.rollouts >= config.critic_warm_up
        figures: list[Tensor] = []
        largest, epochs, kl = 0.0, 0, 0.0
        while epochs < config.epochs and not (learns and config.target_kl is not None and kl > config.target_kl):
            made = []
            for number, batch in enumerate(rows.minibatches(config.batch_size, self._draw(epochs))):
                loss, told, ratio = self._loss(table, batch, learns, self._draw(epochs, number))
                self._step(loss, learns)
                made.append(self._reduce(told))
                largest = max(largest, ratio)
            epochs, kl = epochs + 1, float(torch.stack(made)[:, 2].mean())
            figures += made
        if learns and config.followed_kl is not None:
            self.rate = followed_rate(self.rate, kl, config.followed_kl)
            self.actor_optimizer.param_groups[0]["lr"] = self.rate
        self.rollouts += 1
        policy, value, mean_kl, clipped = torch.stack(figures).mean(dim=0).tolist()
        explained = _explained(table.target[:, 0], table.before[:, 0])
        return Learned(
            policy, value, mean_kl, clipped, largest, epochs, explained, self.rate, self.lagrangian.multiplier
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
        self.rollouts, self.rate = state["rollouts"], state["rate"]
        self.lagrangian.integral, self.lagrangian.multiplier = state["integral"], state["multiplier"]

    def _table(self, rollout: Rollout, episode_cost: float | None) -> _Table:
        """The rollout as rows of decisions, with normalised advantages and the values' targets."""
        ends = (rollout.terminated_TN, rollout.truncated_TN, rollout.discount_TN, self.config.trace)
        found = gae(rollout.reward_TN, rollout.value_TN, rollout.next_value_TN, *ends)
        advantage, targets, before = found.advantage_TN, [found.return_TN], [rollout.value_TN]
        if rollout.costs is not None:
            if episode_cost is not None:
                self.lagrangian.update(episode_cost)
            cost = gae(*rollout.costs, *ends)
            advantage = self.lagrangian.combine(advantage, cost.advantage_TN)
            targets.append(cost.return_TN)
            before.append(rollout.costs.value_TN)
        return _Table(
            seen=rollout.seen.flatten(0, 1),
            trace={name: value.flatten(0, 1) for name, value in rollout.parts.items()},
            log_prob_RK=rollout.log_prob_TNK.flatten(0, 1),
            advantage_R=normalised(advantage, reduce=self._reduce).flatten(),
            target=torch.stack(targets, dim=-1).flatten(0, 1),
            before=torch.stack(before, dim=-1).flatten(0, 1),
        )

    def _loss(
        self, table: _Table, batch: _Minibatch, learns: bool, draw: torch.Generator
    ) -> tuple[Tensor, Tensor, float]:
        """Of this worker's rows of a minibatch: the loss, four figures that workers sum, and the largest ratio."""
        config, (decision, part, count) = self.config, batch
        seen = table.seen[decision]
        values = self.critic(seen)[:, : table.target.shape[1]]
        worth = value_loss(config.ppo, values, table.target[decision], table.before[decision], rows=count)
        loss = config.value_weight * worth
        found = surrogate(
            config.ppo,
            self.actor.log_prob(seen, part, {name: kept[decision, part] for name, kept in table.trace.items()}),
            table.log_prob_RK[decision, part],
            table.advantage_R[decision] * self._weights[part],
            rows=count,
            clip=None if self._clips is None else self._clips[part],
        )
        if learns:
            loss = loss + found.loss
            if config.cloning > 0.0 and len(decision):
                # Every decision is there with K parts, and says the same with each: one in K rows is asked. Shares of
                # workers add up to the mean over the minibatch.
                asked = self.actor.cloning_loss(seen[:: self.actor.parts], draw)
                loss = loss + config.cloning * asked * (len(decision) / count)
        told = torch.stack([found.loss, worth, found.kl, found.clipped]).detach()
        return loss, told, float(found.ratio)

    def _draw(self, epoch: int, number: int = -1) -> torch.Generator:
        """Chance of one epoch, or of one of its minibatches."""
        key = ((self.seed * 1_000_003 + self.rollouts) * 1_009 + epoch) * 100_003 + number + 1
        return torch.Generator().manual_seed(key % (1 << 63))

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
            (list(self.critic.parameters()), self.critic_optimizer, True),
        ):
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad = self._reduce(parameter.grad)
            if self.config.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
            if moves:
                optimizer.step()


class _Table(NamedTuple):
    """A rollout as R decisions in a row."""

    seen: Tensor
    trace: Trace
    log_prob_RK: Tensor
    advantage_R: Tensor
    target: Tensor
    """(R, 1), or (R, 2) with that of costs."""
    before: Tensor
    """Likewise, as the critic said in the rollout."""


class _Minibatch(NamedTuple):
    """Rows of one step of gradient descent, as far as this worker has them."""

    decision: Tensor
    part: Tensor
    rows: float
    """Of all workers."""


class _Rows:
    """The rows of a rollout in orders that do not depend on who holds which worlds."""

    def __init__(self, rollout: Rollout, parts: int) -> None:
        self._decisions, self._here = rollout.reward_TN.shape
        self._worlds, self._first, self._parts = rollout.worlds or self._here, rollout.first_row, parts

    def minibatches(self, size: int, generator: torch.Generator) -> list[_Minibatch]:
        """One pass over all rows."""
        order = torch.randperm(self._decisions * self._worlds * self._parts, generator=generator)
        found = []
        # A last one of a few rows would have a gradient of its own size: it joins the one before.
        for chunk in order.chunk(max(1, round(len(order) / size))):
            decision, part = chunk // self._parts, chunk % self._parts
            time, world = decision // self._worlds, decision % self._worlds - self._first
            mine = (world >= 0) & (world < self._here)
            found.append(_Minibatch(time[mine] * self._here + world[mine], part[mine], float(len(chunk))))
        return found


@dataclass
class RewardScale:
    """Divides rewards by the running deviation of the discounted sum behind them, as gymnasium's and DPPO's do."""

    discount: float
    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    sums: list[float] = field(default_factory=list)

    def __call__(self, reward_N: Tensor, ended_N: Tensor) -> Tensor:
        """(N,) scaled; `ended_N` bool says where the episode ended with it."""
        if not self.sums:
            self.sums = [0.0] * len(reward_N)
        sums = torch.tensor(self.sums, dtype=torch.float64) * self.discount + reward_N.double()
        # Chan, Golub and LeVeque (1979), a batch at a time.
        total, gap = self.count + len(sums), float(sums.mean()) - self.mean
        self.squares += float(sums.var(correction=0)) * len(sums) + gap * gap * self.count * len(sums) / total
        self.mean += gap * len(sums) / total
        self.count = total
        self.sums = torch.where(ended_N, torch.zeros_like(sums), sums).tolist()
        deviation = (self.squares / self.count) ** 0.5
        # While all sums are alike there is nothing to go by.
        return reward_N / deviation if deviation > 1e-6 * abs(self.mean) else reward_N.clone()


def _explained(target_R: Tensor, value_R: Tensor) -> float:
    """Share of the targets' variance that the values told; 0 where they do not vary."""
    spread = float(target_R.var(correction=0))
    return 1.0 - float((target_R - value_R).var(correction=0)) / spread if spread > 0.0 else 0.0
