"""Collects rollouts of chunks with a log-probability per entry: consecutive rollouts, or groups of
whole episodes.

Shape suffixes: T decisions, N environments, V values of a decision, M rewards.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import (
    ChunkActor,
    ChunkActorOutput,
    DecisionEnv,
    StepResult,
)
from policies.rl.on_policy.advantages import ChunkRollout
from policies.rl.on_policy.config import Outcome
from policies.rl.on_policy.rollout import Trace


class ChunkCollector:
    """Collects rollouts in environments of action chunks.

    Args:
        env: N environments.
        actor: samples chunks, and values if it has a value head.
        seed: seed of all sampling.
    """

    def __init__(self, env: DecisionEnv, actor: ChunkActor, seed: int = 0) -> None:
        self.env = env
        self._actor = actor
        self._generator = torch.Generator(env.device).manual_seed(seed)
        self.statistics = EpisodeStatistics(env.num_envs)

    def begin(self) -> None:
        """Abandons the running episodes and resets all environments."""
        self.env.begin()
        self.statistics.begin()

    def rollout(self, decisions: int) -> ChunkRollout:
        """The next `decisions` decisions of all environments; episodes that end are reset."""
        self.env.prepare()
        rows = []
        traces = []
        final_obs = []
        for row, trace, result in self._decisions(decisions):
            rows.append(row)
            traces.append(trace)
            final_obs.append(result.final_obs)
        rollout = _stack(rows, traces)
        if rollout.value_TNV is None:
            return rollout
        final_values = self._final_values(rollout.truncated_TN, final_obs, rollout.value_TNV)
        return rollout._replace(
            final_value_TNV=final_values, last_value_NV=self._actor.value(self.env.observation())
        )

    def episodes(self, size: int, decisions: int, outcomes: tuple[Outcome, ...]) -> ChunkRollout:
        """One episode per environment; each group of `size` neighbours begins in one state.

        Args:
            size: environments per group.
            decisions: decisions after which an episode is cut off.
            outcomes: outcomes to compute per episode.

        Raises:
            HandoffError: the number of environments is no multiple of `size`.
        """
        self.env.prepare()
        self.env.begin_groups(size)
        self.statistics.begin()
        rows = []
        traces = []
        returned_N = torch.zeros(self.env.num_envs, device=self.env.device)
        solved_N = torch.zeros(self.env.num_envs, dtype=torch.bool, device=self.env.device)
        over_N = torch.zeros_like(solved_N)
        # Steps until all episodes have ended, or are cut off.
        steps = self._decisions(decisions)
        for row, trace, result in steps:
            returned_N += row["reward"].sum(dim=1)
            ended_N = result.terminated_N | result.truncated_N
            solved_N |= ended_N & result.success_N
            over_N |= ended_N
            rows.append(row)
            traces.append(trace)
            # On a device the early exit would force a synchronisation per decision.
            if over_N.device.type == "cpu" and bool(over_N.all()):
                break
        steps.close()
        rollout = _stack(rows, traces)
        # Share of the time limit that was left.
        remaining_N = 1.0 - rollout.length_TN.sum(dim=0) / (decisions * rollout.reward_TNH.shape[2])
        outcome_of = {
            "return": returned_N,
            "success": solved_N.float(),
            "brevity": solved_N * remaining_N,
        }
        return rollout._replace(
            outcome_NM=torch.stack([outcome_of[name] for name in outcomes], dim=1)
        )

    def state_dict(self) -> dict[str, Any]:
        """State of the random generator; the environments save their own state."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`."""
        self._generator.set_state(state["generator"])

    def _decisions(self, decisions: int) -> Generator[tuple[dict[str, Any], Trace, StepResult]]:
        """Yields one decision of all environments at a time."""
        for _ in range(decisions):
            obs = self.env.observation()
            output = self._actor.decide(obs, self._generator)
            result = self.env.step(output.chunk_BHA)
            self.statistics.add(result)
            yield self._row(obs, output, result), output.trace, result

    def _row(self, obs: Any, output: ChunkActorOutput, result: StepResult) -> dict[str, Any]:
        row = {
            "obs": obs,
            "log_prob": output.log_prob_BKHA,
            "reward": result.reward_NH,
            "length": result.length_N,
        }
        row |= {"terminated": result.terminated_N, "truncated": result.truncated_N}
        if output.value_BV is not None:
            row["value"] = output.value_BV
        return row

    def _final_values(self, truncated_TN: Tensor, final_obs: list[Any], like_TNV: Tensor) -> Tensor:
        """(T, N, V) values of the final observations, where an episode was truncated."""
        value_TNV = torch.zeros_like(like_TNV)
        time, env = torch.nonzero(truncated_TN, as_tuple=True)
        if not len(time):
            return value_TNV
        obs_R = torch.stack(final_obs)[time, env]
        batches = obs_R.split(self.env.num_envs)
        value_TNV[time, env] = torch.cat([self._actor.value(batch) for batch in batches])
        return value_TNV


def _stack(rows: list[dict[str, Any]], traces: list[Trace]) -> ChunkRollout:
    table = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return ChunkRollout(
        obs=table["obs"],
        trace={name: torch.stack([trace[name] for trace in traces]) for name in traces[0]},
        log_prob_TNKHA=table["log_prob"],
        reward_TNH=table["reward"],
        length_TN=table["length"],
        terminated_TN=table["terminated"],
        truncated_TN=table["truncated"],
        value_TNV=table.get("value"),
    )
