"""Rollouts: who decides, and the worlds in which it is decided, turn about.

A decision is one action or a chunk of them. Of a chunk the policy sees no more than of an action: its reward is the
discounted sum of what was executed, and g^length stands before all that comes after, so a world that ends within a
chunk counts as it should. What a decision led to is valued at the true observation after it, also where the episode
ended.

Shape suffixes: T decisions, N worlds, O observation, H horizon, A action.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from policies.chunk_policy import ChunkPolicy
from policies.practised import MOST
from policies.rl.on_policy import Costs, RewardScale, Rollout, Trace
from policies.rl.practice_config import PracticeReward
from policies.rl.returns import chunk_reward, next_values
from robots.errors import HandoffError
from robots.types import Observation, VecEnv


class Decided(NamedTuple):
    """What one decision in each of N worlds led to."""

    reward_N: Tensor
    """Discounted sum of what was executed."""
    discount_N: Tensor
    """g^length of what was executed."""
    terminated_N: Tensor
    truncated_N: Tensor
    final_seen: Tensor
    """(N, ...) what is seen after it, before any new start."""
    success_N: Tensor
    """bool, of episodes that ended."""
    cost_N: Tensor | None = None
    """Likewise summed; None where nothing costs."""
    largest_N: Tensor | None = None
    """Largest reward that the task told, where it is known."""


class DecisionWorlds(Protocol):
    """N worlds that start anew by themselves."""

    num_envs: int

    def begin(self) -> None:
        """Leaves what is under way in all worlds and begins anew."""
        ...

    def seen(self) -> Tensor:
        """(N, ...) what is to be decided upon."""
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


class EpisodeTally:
    """What the episodes of N worlds came to.

    Args:
        num_envs: N.
    """

    def __init__(self, num_envs: int) -> None:
        self.solved: list[bool] = []
        """Of every episode that has ended."""
        self.returns: list[float] = []
        """Sums of the rewards, not discounted between decisions, of the same."""
        self.costs: list[float] = []
        """Sums of what they cost, of the same."""
        self.largest: list[float] = []
        """Largest reward that the task told, of the same, where it is known."""
        self._running = np.zeros((2, num_envs))
        self._largest = np.full(num_envs, -np.inf)

    def begin(self) -> None:
        """Episodes under way are left."""
        self._running[:] = 0.0
        self._largest[:] = -np.inf

    def add(self, led: Decided) -> None:
        """One decision in every world."""
        self._running[0] += led.reward_N.numpy()
        if led.cost_N is not None:
            self._running[1] += led.cost_N.numpy()
        ended_N = (led.terminated_N | led.truncated_N).numpy()
        self.solved += led.success_N.numpy()[ended_N].tolist()
        self.returns += self._running[0, ended_N].tolist()
        self.costs += self._running[1, ended_N].tolist()
        self._running[:, ended_N] = 0.0
        if led.largest_N is not None:
            np.maximum(self._largest, led.largest_N.numpy(), out=self._largest)
            self.largest += self._largest[ended_N].tolist()
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


class ChunkWorlds:
    """Simulated worlds as a chunk policy meets them: histories, normalised units, chunks; `DecisionWorlds`.

    Args:
        env: N worlds that freeze when they end.
        policy: whose units and fields these are.
        n_action_steps: executed of every chunk, from the newest observed step on.
        seeds: of the episodes, in the order in which they begin.
        discount: per action.
        pays: what an action is worth.

    Raises:
        HandoffError: fields that the worlds do not have, more actions than a chunk holds, or histories beyond two.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: ChunkPolicy,
        n_action_steps: int,
        seeds: Iterator[int],
        discount: float,
        pays: PracticeReward | None = None,
    ) -> None:
        history, horizon = policy.observation_shape[0], policy.chunk_shape[0]
        missing = sorted(policy.shapes.entries.keys() - env.observation_spec.keys())
        if missing:
            raise HandoffError(f"practice: the worlds do not observe {missing}, only {sorted(env.observation_spec)}.")
        if not 1 <= n_action_steps <= horizon - history + 1 or history > 2:
            raise HandoffError(
                f"practice: {n_action_steps} actions of chunks of {horizon} behind {history} observed steps; expected "
                "at most the rest of the chunk, and one or two observed steps."
            )
        self.env, self.num_envs, self._policy = env, env.num_envs, policy
        self._execute = slice(history - 1, history - 1 + n_action_steps)
        self.entries = n_action_steps * policy.chunk_shape[1]
        """D, of the executed part of a chunk."""
        self._seeds, self._discount, self._pays = seeds, discount, pays or PracticeReward()
        self.executed = 0
        """Actions executed so far, in all worlds together."""
        self._history: list[np.ndarray] = []
        self._met: deque[Tensor] = deque(maxlen=-(-MOST // env.num_envs))
        self.begin()

    def begin(self) -> None:
        """See `DecisionWorlds.begin`."""
        first = self.env.reset([next(self._seeds) for _ in range(self.num_envs)])
        self._history = [self._vector(first)] * self._policy.observation_shape[0]

    def seen(self) -> Tensor:
        """(N, T, O) normalised."""
        return self._shown(self._history)

    @property
    def met(self) -> Tensor:
        """(R, T, O) the newest states in which was decided, normalised."""
        return torch.cat([*self._met]) if self._met else self.seen()[:0]

    @met.setter
    def met(self, seen_RTO: Tensor) -> None:
        self._met.clear()
        self._met.extend(seen_RTO.split(self.num_envs))

    def executed_part(self, chunk: Tensor) -> Tensor:
        """(..., H, A) to (..., D): what a world sees of a chunk."""
        return chunk[..., self._execute, :].flatten(-2)

    def step(self, decision: Tensor) -> Decided:
        """Executes a normalised chunk (N, H, A); worlds that end start anew from the next seeds.

        Raises:
            HandoffError: worlds that do not freeze.
        """
        newest_NO, policy = self._history[-1], self._policy
        self._met.append(self.seen())
        chunk_NHA = policy.normalize_action.inverse(decision)
        if policy.anchor is not None:
            anchored = newest_NO[:, None, policy.anchor : policy.anchor + policy.chunk_shape[1]]
            chunk_NHA = chunk_NHA + torch.from_numpy(anchored)
        actions_NHA = chunk_NHA[:, self._execute].double().numpy()
        # The observation before the last one is a policy's, too, that sees two: of worlds that have ended, where that
        # was earlier, nothing is asked any more.
        before, rewards, length = self._history[-1], [], np.zeros(self.num_envs, np.int64)
        parts = [actions_NHA[:, :-1], actions_NHA[:, -1:]] if actions_NHA.shape[1] > 1 else [actions_NHA]
        made = None
        for part in parts:
            if made is not None:
                before = self._vector(made.observation)
            made = self.env.step(part)
            rewards.append(made.reward)
            length = length + made.executed
        assert made is not None
        ended = made.terminated | made.truncated
        self.executed += int(length.sum())
        after = [before, self._vector(made.observation)][-len(self._history) :]
        final_seen = self._shown(after)
        self._history = after
        self._begin_again(np.flatnonzero(ended))
        success = np.asarray(made.info["success"], bool).copy()
        told_NH = np.concatenate(rewards, axis=1)
        reward_NH = self._pays.paid(told_NH, length, made.terminated & success, made.terminated & ~success)
        length_N = torch.from_numpy(length)
        return Decided(
            reward_N=chunk_reward(torch.from_numpy(reward_NH), length_N, self._discount),
            discount_N=(self._discount**length_N).float(),
            terminated_N=torch.from_numpy(made.terminated.copy()),
            truncated_N=torch.from_numpy(made.truncated.copy()),
            final_seen=final_seen,
            success_N=torch.from_numpy(success),
            largest_N=torch.from_numpy(told_NH.max(axis=1).astype(np.float32)),
        )

    def _begin_again(self, worlds: np.ndarray) -> None:
        if not len(worlds):
            return
        fresh = self._vector(self.env.reset([next(self._seeds) for _ in worlds], worlds.tolist()))
        rows = []
        for row_NO in self._history:
            row = row_NO.copy()
            row[worlds] = fresh[worlds]
            rows.append(row)
        self._history = rows

    def _vector(self, observation: Observation) -> np.ndarray:
        names = sorted(self._policy.shapes.entries, key=lambda name: self._policy.shapes.entries[name][0])
        parts = [np.asarray(observation[name], np.float32).reshape(self.num_envs, -1) for name in names]
        return np.concatenate(parts, axis=1)

    def _shown(self, history: list[np.ndarray]) -> Tensor:
        return self._policy.normalize_observation(torch.from_numpy(np.stack(history, axis=1)))
