"""Rollouts: who decides, and the worlds in which it is decided, turn about.

A decision is one action or a chunk of them. Of a chunk the policy sees no more than of an action: its reward is the
discounted sum of what was executed, and g^length stands before all that comes after, so a world that ends within a
chunk counts as it should. What a decision led to is valued at the true observation after it, also where the episode
ended.

Shape suffixes: T decisions, N worlds, O observation, H horizon, A action.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from policies.rl.experience import Costs, RewardScale, Rollout, Trace
from policies.rl.returns import next_values


class Decided(NamedTuple):
    """What one decision in each of N worlds led to."""

    reward_N: Tensor
    """Discounted sum of what was executed."""
    discount_N: Tensor
    """g^length of what was executed."""
    terminated_N: Tensor
    truncated_N: Tensor
    final_seen: Any
    """(N, ...) what is seen after it, before any new start: a tensor, or a TensorDict of several."""
    success_N: Tensor
    """bool, of episodes that ended."""
    cost_N: Tensor | None = None
    """Likewise summed; None where nothing costs."""
    largest_N: Tensor | None = None
    """Largest reward that the task told, where it is known."""
    reward_NH: Tensor | None = None
    """Of every action of a chunk; nothing for those that were not executed."""
    length_N: Tensor | None = None
    """int64, actions executed of a chunk; 0 in a world that had ended before and was not begun anew."""


class DecisionWorlds(Protocol):
    """N worlds that start anew by themselves."""

    num_envs: int

    def begin(self) -> None:
        """Leaves what is under way in all worlds and begins anew."""
        ...

    def seen(self) -> Any:
        """(N, ...) what is to be decided upon: a tensor, or a TensorDict of several."""
        ...

    def step(self, decision: Tensor) -> Decided:
        """Executes a decision (N, ...), an actor's own units, in every world."""
        ...


class Decides(Protocol):
    """An actor's decision."""

    @property
    def trace(self) -> Trace:
        """See `policies.rl.on_policy`."""
        ...

    @property
    def log_prob_BK(self) -> Tensor:
        """Of its parts."""
        ...


RECENT = 100
"""Least number of episodes over which success in practice is told."""


class Recent(NamedTuple):
    """Means over the newest episodes; 0 where none has ended."""

    success: float
    returned: float
    largest: float
    """Reward that the task told, where it is known."""


class EpisodeTally:
    """What the episodes of N worlds came to.

    Args:
        num_envs: N.
    """

    def __init__(self, num_envs: int) -> None:
        self._solved: list[bool] = []
        self._returns: list[float] = []
        self._costs: list[float] = []
        self._largest_of: list[float] = []
        self._running = np.zeros((2, num_envs))
        self._largest = np.full(num_envs, -np.inf)
        self._waiting: list[Decided] = []

    @property
    def solved(self) -> list[bool]:
        """Of every episode that has ended."""
        return self._counted()._solved

    @solved.setter
    def solved(self, solved: list[bool]) -> None:
        self._counted()._solved = solved

    @property
    def returns(self) -> list[float]:
        """Sums of the rewards, not discounted between decisions, of the same."""
        return self._counted()._returns

    @returns.setter
    def returns(self, returns: list[float]) -> None:
        self._counted()._returns = returns

    @property
    def costs(self) -> list[float]:
        """Sums of what they cost, of the same."""
        return self._counted()._costs

    @property
    def largest(self) -> list[float]:
        """Largest reward that the task told, of the same, where it is known."""
        return self._counted()._largest_of

    def recent(self, since: int) -> Recent:
        """Of the episodes that ended from number `since` on, as a rule those of one rollout, or of the newest `RECENT`.

        Worlds that began together run out of time together, so the newest few alone might all be such.
        """
        first = max(0, min(since, len(self.solved) - RECENT))
        columns = (self.solved, self.returns, self.largest)
        return Recent(*(float(np.mean(column[first:])) if column[first:] else 0.0 for column in columns))

    def begin(self) -> None:
        """Episodes under way are left."""
        self._counted()
        self._running[:] = 0.0
        self._largest[:] = -np.inf

    def add(self, led: Decided) -> None:
        """One decision in every world; it is counted when somebody asks, so a device is not waited for before."""
        self._waiting.append(led._replace(final_seen=None, reward_NH=None))

    def _counted(self) -> EpisodeTally:
        waiting, self._waiting = self._waiting, []
        for led in waiting:
            columns: list[Any] = [part.cpu() if isinstance(part, Tensor) else part for part in led]
            self._count(Decided(*columns))
        return self

    def _count(self, led: Decided) -> None:
        self._running[0] += led.reward_N.numpy()
        if led.cost_N is not None:
            self._running[1] += led.cost_N.numpy()
        ended_N = (led.terminated_N | led.truncated_N).numpy()
        self._solved += led.success_N.numpy()[ended_N].tolist()
        self._returns += self._running[0, ended_N].tolist()
        self._costs += self._running[1, ended_N].tolist()
        self._running[:, ended_N] = 0.0
        if led.largest_N is not None:
            np.maximum(self._largest, led.largest_N.numpy(), out=self._largest)
            self._largest_of += self._largest[ended_N].tolist()
            self._largest[ended_N] = -np.inf


class Collector:
    """Makes rollouts, one behind another; episodes go on from one to the next.

    Args:
        worlds: N.
        actor: `decide(seen, generator)` gives a `Decides` whose first entry is the decision.
        critic: (N, ...) as seen to (N, 1), or (N, 2) with the value of costs.
        discount: per action, for the scale of rewards.
        seed: of all chance.
    """

    def __init__(self, worlds: DecisionWorlds, actor: Any, critic: nn.Module, discount: float, seed: int = 0) -> None:
        self.worlds, self._actor, self._critic = worlds, actor, critic
        self._generator = torch.Generator().manual_seed(seed)
        self._scale = RewardScale(discount)
        self.tally = EpisodeTally(worlds.num_envs)

    def begin(self) -> None:
        """Leaves the episodes that are under way, and begins new ones in all worlds."""
        self.worlds.begin()
        self.tally.begin()
        self._scale.sums = []

    def rollout(self, decisions: int) -> Rollout:
        """The next `decisions` decisions in all worlds."""
        rows: list[dict[str, Tensor]] = []
        traces: list[Trace] = []
        for _ in range(decisions):
            seen = self.worlds.seen()
            made = self._actor.decide(seen, self._generator)
            led = self.worlds.step(made[0])
            ended_N = led.terminated_N | led.truncated_N
            self.tally.add(led)
            with torch.no_grad():
                row = {"seen": seen, "value": self._critic(seen), "final": self._critic(led.final_seen)}
            row |= {"log_prob": made.log_prob_BK, "reward": self._scale(led.reward_N, ended_N).float()}
            row |= {"discount": led.discount_N, "terminated": led.terminated_N, "truncated": led.truncated_N}
            row |= {} if led.cost_N is None else {"cost": led.cost_N}
            rows.append(row)
            traces.append(made.trace)
        return self._joined(rows, traces)

    def state_dict(self) -> dict[str, Any]:
        """Chance and scales; the worlds' own state is theirs."""
        scale = {name: getattr(self._scale, name) for name in ("count", "mean", "squares", "sums")}
        return {"generator": self._generator.get_state(), "scale": scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        self._generator.set_state(state["generator"])
        for name, value in state["scale"].items():
            setattr(self._scale, name, value)

    def _joined(self, rows: list[dict[str, Tensor]], traces: list[Trace]) -> Rollout:
        table = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        with torch.no_grad():
            last = self._critic(self.worlds.seen())
        ended = table["terminated"] | table["truncated"]
        values, finals = table["value"].unbind(-1), table["final"].unbind(-1)
        after = [next_values(*columns, ended) for columns in zip(values, last.unbind(-1), finals, strict=True)]
        return Rollout(
            seen=table["seen"],
            parts={name: torch.stack([trace[name] for trace in traces]) for name in traces[0]},
            log_prob_TNK=table["log_prob"],
            reward_TN=table["reward"],
            value_TN=values[0],
            next_value_TN=after[0],
            terminated_TN=table["terminated"],
            truncated_TN=table["truncated"],
            discount_TN=table["discount"],
            costs=Costs(table["cost"], values[1], after[1]) if "cost" in table else None,
        )
