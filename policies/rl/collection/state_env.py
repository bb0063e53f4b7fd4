"""Simulated worlds as a learner of states meets them: one action at a time, steps out; what a
killed run goes on from.

Shape suffixes: N worlds, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from policies.rl.collection.episode_statistics import RECENT, EpisodeStatistics
from policies.rl.collection.reward_shaping import PracticeReward, told_last
from robots.errors import HandoffError
from robots.interfaces import Observation, VecEnv, WorldState
from robots.spec import FieldSpec
from robots.wire.steps import Steps, plain_steps


class StateWorlds:
    """N worlds that freeze when they end, and are begun anew at once, each episode from the next
    seed.

    Args:
        env: whose actions are in [-1, 1].
        fields: seen, in this order; empty takes all but pictures.
        seeds: of the episodes, in the order in which they begin.
        pays: what an action is worth.

    Raises:
        HandoffError: fields that the worlds do not have, or actions with other bounds.
    """

    def __init__(
        self, env: VecEnv, fields: Sequence[str], seeds: Iterator[int], pays: PracticeReward
    ) -> None:
        spec = env.observation_spec
        self.fields = tuple(fields) or tuple(name for name, one in spec.items() if one.unit != "u8")
        missing = [name for name in self.fields if name not in spec]
        if missing or not self.fields:
            raise HandoffError(f"worlds: fields {missing} asked for, they observe {sorted(spec)}.")
        low, high = env.action_spec.low, env.action_spec.high
        if set(low) != {-1.0} or set(high) != {1.0}:
            raise HandoffError(
                f"worlds: actions from {low} to {high}, expected -1 to 1 in every entry. Is there an action space of "
                "scaled steps for this task?"
            )
        self.env, self.num_envs, self._seeds, self._pays = env, env.num_envs, seeds, pays
        n = env.num_envs
        self.episode, self.number = np.arange(n), np.zeros(n, np.int64)
        """(N,) of the running episodes, and of their next steps."""
        self._begun = 0
        self.statistics = EpisodeStatistics(n, keep=RECENT)
        """Counts every step at once, so there is nothing to flush."""
        self._told_N = np.full(n, np.nan)
        """What the task told last of the episodes under way."""
        self._seen = np.zeros((n, 0), np.float32)

    @property
    def shown(self) -> dict[str, FieldSpec]:
        """The fields seen, in their order."""
        return {name: self.env.observation_spec[name] for name in self.fields}

    @property
    def entries(self) -> int:
        """O."""
        return sum(prod(spec.shape) for spec in self.shown.values())

    @property
    def seen(self) -> np.ndarray:
        """(N, O) float32 what is to be acted upon."""
        return self._seen

    def begin(self) -> None:
        """Leaves what is under way in all worlds and begins anew."""
        n = self.num_envs
        self._seen = self._vector(self.env.reset([next(self._seeds) for _ in range(n)]))
        self.episode, self.number = self._begun + np.arange(n), np.zeros(n, np.int64)
        self._begun += n
        self.statistics.begin()
        self._told_N = np.full(n, np.nan)

    def step(self, action_NA: np.ndarray) -> Steps:
        """One step of all worlds by actions in [-1, 1]; those that end begin anew.

        Raises:
            HandoffError: a reward that is not finite.
        """
        before_NO, episode_N, number_N = self._seen, self.episode.copy(), self.number.copy()
        made = self.env.step(action_NA.astype(np.float64))
        over_N = made.terminated | made.truncated
        success_N = np.asarray(made.info["success"], bool)
        solved_N, failed_N = made.terminated & success_N, made.terminated & ~success_N
        told_N1 = np.asarray(made.reward, np.float32)[:, None]
        one_N = np.ones(self.num_envs, np.int64)
        reward_N = self._pays.paid(told_N1, one_N, solved_N, failed_N, self._told_N)[:, 0]
        if not np.isfinite(reward_N).all():
            world = int(np.flatnonzero(~np.isfinite(reward_N))[0])
            raise HandoffError(
                f"worlds: world {world} pays {reward_N[world]}, expected a finite reward."
            )
        # `Step` may share arrays with the worlds, which the reset below changes.
        final_NO = self._vector(made.final_observation).copy()
        self._told_N = told_last(told_N1, one_N, self._told_N, over_N)
        self.statistics.count(reward_N, over_N, success_N)
        self.number += 1
        rows = np.flatnonzero(over_N)
        terminated_N, truncated_N = made.terminated.copy(), made.truncated.copy()
        self._seen = self._begin_again(rows) if len(rows) else final_NO
        return plain_steps(
            episode_N, number_N, before_NO, action_NA, reward_N, final_NO, terminated_N, truncated_N
        )

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on but the seeds; `worlds` is None where they cannot be
        saved."""
        try:
            state: WorldState | None = self.env.save()
        except HandoffError:
            state = None
        return {
            "worlds": None
            if state is None
            else {name: torch.from_numpy(np.array(one)) for name, one in state.items()},
            "episode": torch.from_numpy(self.episode.copy()),
            "number": torch.from_numpy(self.number.copy()),
            "return": torch.from_numpy(self.statistics.return_N.copy()),
            "told": torch.from_numpy(self._told_N.copy()),
            "counts": [self.statistics.episodes, self._begun],
            "recent": [[one.success, one.total_reward] for one in self.statistics.ended],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over; worlds that cannot be restored begin new episodes."""
        episodes, self._begun = state["counts"]
        self.statistics.load_returns(episodes, state["recent"])
        if state["worlds"] is None:
            self.begin()
            return
        # The restored rows need worlds that were begun.
        self.env.reset([0] * self.num_envs)
        told = self.env.restore({name: one.numpy() for name, one in state["worlds"].items()})
        self._seen = self._vector(told)
        self.episode, self.number = state["episode"].numpy().copy(), state["number"].numpy().copy()
        self.statistics.resume_environments(state["return"].numpy().copy(), self.number.copy())
        self._told_N = state["told"].numpy().copy()

    def _begin_again(self, rows: np.ndarray) -> np.ndarray:
        told = self.env.reset([next(self._seeds) for _ in rows], rows.tolist())
        self.episode[rows] = self._begun + np.arange(len(rows))
        self._begun += len(rows)
        self.number[rows] = 0
        return self._vector(told)

    def _vector(self, observation: Observation) -> np.ndarray:
        parts = [
            np.asarray(observation[name], np.float32).reshape(self.num_envs, -1)
            for name in self.fields
        ]
        return np.concatenate(parts, axis=1)
