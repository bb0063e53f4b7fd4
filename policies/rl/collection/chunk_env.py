"""Simulated worlds as a chunk policy meets them: histories, normalised units, chunks; words and
pictures beside them.

Shape suffixes: N worlds, T observed steps, O observation, H horizon, A action, D entries of the
executed part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.data.visited_states import MOST
from policies.policy import ChunkPolicy
from policies.rl.collection.interfaces import Decided
from policies.rl.collection.reward_shaping import PracticeReward, told_last
from policies.rl.on_policy.observations import VECTOR
from policies.rl.on_policy.returns import chunk_reward
from robots.errors import HandoffError
from robots.interfaces import Observation, Step, VecEnv
from robots.language.text import INSTRUCTION


class ChunkWorlds:
    """Simulated worlds as a chunk policy meets them: histories, normalised units, chunks;
    implements `policies.rl.collection.interfaces.DecisionEnv`.

    What is seen is the history of the observation vector; of a policy that reads, a TensorDict of
    it (`vector`), of the words (`instruction`, UTF-8) and of the cameras' newest pictures.

    Args:
        env: N worlds that freeze when they end.
        policy: whose units and fields these are.
        n_action_steps: executed of every chunk, from the newest observed step on.
        seeds: of the episodes, in the order in which they begin.
        discount: per action.
        pays: what an action is worth.

    Raises:
        HandoffError: fields that the worlds do not have, more actions than a chunk holds, or
            histories beyond two.
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
        self._others = others_of(policy)
        check_fits(env.observation_spec, policy, n_action_steps, self._others)
        history = policy.observation_shape[0]
        self.env, self.num_envs, self._policy = env, env.num_envs, policy
        self.device = torch.device("cpu")
        """Where what is seen lies."""
        self._execute = slice(history - 1, history - 1 + n_action_steps)
        self.entries = n_action_steps * policy.chunk_shape[1]
        """D, of the executed part of a chunk."""
        self._seeds, self._discount, self._pays = seeds, discount, pays or PracticeReward()
        self._executed = 0
        self._told_N = np.full(env.num_envs, np.nan)
        """What the task told last of the episodes under way."""
        self._history: list[np.ndarray] = []
        self._beside: dict[str, np.ndarray] = {}
        self._begins_again = True
        self._met: deque[Any] = deque(maxlen=-(-MOST // env.num_envs))
        self.begin()

    def prepare(self) -> None:
        """Before a rollout: nothing, for starts are drawn as they are needed."""

    def begin(self) -> None:
        """See `RolloutEnv.begin`."""
        self.begin_from([next(self._seeds) for _ in range(self.num_envs)])

    def begin_groups(self, size: int) -> None:
        """Begins in all worlds, `size` of them side by side in the same state; those that end then
        stay as they are.

        Raises:
            HandoffError: the worlds make no whole groups.
        """
        self.begin_from(group_seeds(self._seeds, self.num_envs, size), again=False)

    def begin_from(self, seeds: Sequence[int], again: bool = True) -> None:
        """Begins in all worlds from these; `again`: and anew in those that end, from the next."""
        first = self.env.reset(seeds)
        self._history = [self._vector(first)] * self._policy.observation_shape[0]
        self._beside = {name: first[name] for name in self._others}
        self._begins_again = again
        self._told_N = np.full(self.num_envs, np.nan)

    def seen(self) -> Any:
        """(N, T, O) normalised; see the class."""
        return self._shown(self._history, self._beside)

    def visited_states(self) -> Any:
        """(R, T, O) the newest states in which was decided, normalised; see the class."""
        return torch.cat([*self._met]) if self._met else self.seen()[:0]

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run keeps of the worlds; their episodes begin anew."""
        return {"met": self.visited_states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over; other entries of `state` are left alone."""
        self._met.clear()
        self._met.extend(state["met"].split(self.num_envs))

    def take_executed(self) -> int:
        """Actions executed since the last call, in all worlds together."""
        executed = self._executed
        self._executed = 0
        return executed

    def executed_part(self, chunk: Tensor) -> Tensor:
        """(..., H, A) to (..., D): what a world sees of a chunk."""
        return chunk[..., self._execute, :].flatten(-2)

    def step(self, decision: Tensor) -> Decided:
        """Executes a normalised chunk (N, H, A); worlds that end start anew from the next seeds.

        Raises:
            HandoffError: worlds that do not freeze.
        """
        return self.led([self.env.step(actions) for actions in self.actions(decision)])

    def actions(self, decision: Tensor) -> list[np.ndarray]:
        """What the worlds are to be stepped with for a normalised chunk (N, H, A), one behind
        another: all that is executed but the last action, for the observation before the last, and
            this."""
        newest_NO, policy = self._history[-1], self._policy
        chunk_NHA = policy.normalize_action.inverse(decision)
        if policy.anchor is not None:
            anchored = newest_NO[:, None, policy.anchor : policy.anchor + policy.chunk_shape[1]]
            chunk_NHA = chunk_NHA + torch.from_numpy(anchored)
        actions_NHA = chunk_NHA[:, self._execute].double().numpy()
        return (
            [actions_NHA[:, :-1], actions_NHA[:, -1:]]
            if actions_NHA.shape[1] > 1
            else [actions_NHA]
        )

    @property
    def begins_again(self) -> bool:
        """Whether worlds that end start anew."""
        return self._begins_again

    def led(self, steps: Sequence[Step], begun: Observation | None = None) -> Decided:
        """What a decision led to, of the worlds' answers to its `actions`; those that ended start
        anew.

        Args:
            steps: one for each of them.
            begun: where the worlds have started anew by themselves, from the next seeds: what all
                of them show.
        """
        self._met.append(self.seen())
        made = steps[-1]
        # The observation before the last one is a policy's, too, that sees two: of worlds that have
        # ended, where that was earlier, nothing is asked any more.
        before = self._vector(steps[-2].observation) if len(steps) > 1 else self._history[-1]
        length = np.stack([step.executed for step in steps]).sum(axis=0, dtype=np.int64)
        # A world that stays ended says so again and again.
        terminated, truncated = made.terminated & (length > 0), made.truncated & (length > 0)
        self._executed += int(length.sum())
        after = [before, self._vector(made.observation)][-len(self._history) :]
        beside = {name: made.observation[name] for name in self._others}
        final_seen = self._shown(after, beside)
        self._history, self._beside = after, beside
        if self._begins_again:
            self._begin_again(np.flatnonzero(terminated | truncated), begun)
        success = np.asarray(made.info["success"], bool).copy()
        told_NH = np.concatenate([step.reward for step in steps], axis=1)
        reward_NH = self._pays.paid(
            told_NH, length, terminated & success, terminated & ~success, self._told_N
        )
        reward_NH *= np.arange(reward_NH.shape[1]) < length[:, None]
        self._told_N = told_last(told_NH, length, self._told_N, terminated | truncated)
        length_N = torch.from_numpy(length)
        return Decided(
            reward_N=chunk_reward(torch.from_numpy(reward_NH), length_N, self._discount),
            discount_N=(self._discount**length_N).float(),
            terminated_N=torch.from_numpy(terminated),
            truncated_N=torch.from_numpy(truncated),
            final_seen=final_seen,
            success_N=torch.from_numpy(success),
            largest_N=torch.from_numpy(told_NH.max(axis=1).astype(np.float32)),
            reward_NH=torch.from_numpy(reward_NH),
            length_N=length_N,
        )

    def _begin_again(self, worlds: np.ndarray, begun: Observation | None) -> None:
        if not len(worlds):
            return
        seeds = [next(self._seeds) for _ in worlds]
        if begun is None:
            begun = self.env.reset(seeds, worlds.tolist())
        fresh = self._vector(begun)
        # What had not ended is told anew by the reset, as it was.
        self._beside = {name: begun[name] for name in self._others}
        rows = []
        for row_NO in self._history:
            row = row_NO.copy()
            row[worlds] = fresh[worlds]
            rows.append(row)
        self._history = rows

    def _vector(self, observation: Observation) -> np.ndarray:
        names = sorted(
            self._policy.shapes.entries, key=lambda name: self._policy.shapes.entries[name][0]
        )
        parts = [
            np.asarray(observation[name], np.float32).reshape(self.num_envs, -1) for name in names
        ]
        return np.concatenate(parts, axis=1)

    def _shown(self, history: list[np.ndarray], beside: dict[str, np.ndarray]) -> Any:
        vector = self._policy.normalize_observation(torch.from_numpy(np.stack(history, axis=1)))
        if not self._others:
            return vector
        from tensordict import TensorDict

        parts = {name: torch.from_numpy(array.copy()) for name, array in beside.items()}
        return TensorDict({VECTOR: vector, **parts}, batch_size=[self.num_envs])


def group_seeds(seeds: Iterator[int], worlds: int, size: int) -> list[int]:
    """One of every world, the same for `size` of them side by side.

    Raises:
        HandoffError: the worlds make no whole groups.
    """
    if worlds % size:
        raise HandoffError(f"practice: {worlds} worlds make no groups of {size}.")
    return [seed for _ in range(worlds // size) for seed in [next(seeds)] * size]


def check_fits(
    observed: Collection[str], policy: ChunkPolicy, n_action_steps: int, others: Sequence[str]
) -> None:
    """Whether worlds of these `observed` fields can be met by this policy.

    Raises:
        HandoffError: fields that the worlds do not have, more actions than a chunk holds, or
            histories beyond two.
    """
    history, horizon = policy.observation_shape[0], policy.chunk_shape[0]
    missing = sorted({*policy.shapes.entries, *others} - {*observed})
    if missing:
        raise HandoffError(
            f"practice: the worlds do not observe {missing}, only {sorted(observed)}."
        )
    if not 1 <= n_action_steps <= horizon - history + 1 or history > 2:
        raise HandoffError(
            f"practice: {n_action_steps} actions of chunks of {horizon} behind {history} observed steps; expected "
            "at most the rest of the chunk, and one or two observed steps."
        )


def others_of(policy: ChunkPolicy) -> tuple[str, ...]:
    """Fields beside the observation vector that the policy is shown."""
    hears = policy.reads_language and policy.said is None
    return (*policy.shapes.sensors, *((INSTRUCTION,) if hears else ()))
