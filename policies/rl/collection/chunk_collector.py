"""Rollouts of chunks whose entries have log-probabilities of their own, one behind another, or
episodes in groups.

Shape suffixes: T decisions, N worlds, V values of a decision, M rewards.
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
    Decided,
    DecisionEnv,
)
from policies.rl.on_policy.advantages import ChunkRollout
from policies.rl.on_policy.config import Outcome
from policies.rl.on_policy.rollout import Trace


class ChunkCollector:
    """Makes rollouts in worlds of chunks.

    Args:
        worlds: N.
        actor: decides, and values what it sees if it values anything.
        seed: of all chance.
    """

    def __init__(self, worlds: DecisionEnv, actor: ChunkActor, seed: int = 0) -> None:
        self.worlds = worlds
        self._actor = actor
        self._generator = torch.Generator(worlds.device).manual_seed(seed)
        self.statistics = EpisodeStatistics(worlds.num_envs)

    def begin(self) -> None:
        """Leaves the episodes that are under way, and begins new ones in all worlds."""
        self.worlds.begin()
        self.statistics.begin()

    def rollout(self, decisions: int) -> ChunkRollout:
        """The next `decisions` decisions in all worlds; those that end begin anew."""
        self.worlds.prepare()
        rows, traces, ends = [], [], []
        for row, trace, led in self._decided(decisions):
            rows.append(row)
            traces.append(trace)
            ends.append(led.final_seen)
        made = _joined(rows, traces)
        if made.value_TNV is None:
            return made
        finals = self._finals(made.truncated_TN, ends, made.value_TNV)
        return made._replace(
            final_value_TNV=finals, last_value_NV=self._actor.value(self.worlds.seen())
        )

    def episodes(self, size: int, decisions: int, outcomes: tuple[Outcome, ...]) -> ChunkRollout:
        """One episode in every world, `size` side by side from one state, of so many decisions at
        most.

        Args:
            size: of a group.
            decisions: after which an episode is left.
            outcomes: what it comes to.

        Raises:
            HandoffError: the worlds make no whole groups.
        """
        self.worlds.prepare()
        self.worlds.begin_groups(size)
        self.statistics.begin()
        rows, traces = [], []
        returned_N = torch.zeros(self.worlds.num_envs, device=self.worlds.device)
        solved_N = torch.zeros(self.worlds.num_envs, dtype=torch.bool, device=self.worlds.device)
        over_N = torch.zeros_like(solved_N)
        decided = self._decided(decisions)
        for row, trace, led in decided:
            returned_N += row["reward"].sum(dim=1)
            ended_N = led.terminated_N | led.truncated_N
            solved_N |= ended_N & led.success_N
            over_N |= ended_N
            rows.append(row)
            traces.append(trace)
            # A device is not asked before all is done: it would have to wait for the answer.
            if over_N.device.type == "cpu" and bool(over_N.all()):
                break
        decided.close()
        made = _joined(rows, traces)
        # Of the longest that there could have been, how much was left.
        left_N = 1.0 - made.length_TN.sum(dim=0) / (decisions * made.reward_TNH.shape[2])
        told = {"return": returned_N, "success": solved_N.float(), "brevity": solved_N * left_N}
        return made._replace(outcome_NM=torch.stack([told[name] for name in outcomes], dim=1))

    def state_dict(self) -> dict[str, Any]:
        """Chance; the worlds' own state is theirs."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        self._generator.set_state(state["generator"])

    def _decided(self, decisions: int) -> Generator[tuple[dict[str, Any], Trace, Decided]]:
        """So many decisions in all worlds, one behind another, each as it is asked for."""
        for _ in range(decisions):
            seen = self.worlds.seen()
            made = self._actor.decide(seen, self._generator)
            led = self.worlds.step(made.chunk_BHA)
            self.statistics.add(led)
            yield self._row(seen, made, led), made.trace, led

    def _row(self, seen: Any, made: ChunkActorOutput, led: Decided) -> dict[str, Any]:
        row = {
            "seen": seen,
            "log_prob": made.log_prob_BKHA,
            "reward": led.reward_NH,
            "length": led.length_N,
        }
        row |= {"terminated": led.terminated_N, "truncated": led.truncated_N}
        if made.value_BV is not None:
            row["value"] = made.value_BV
        return row

    def _finals(self, truncated_TN: Tensor, seen: list[Any], like_TNV: Tensor) -> Tensor:
        """(T, N, V) values of the true final observations `seen`, where an episode ended by its
        time limit alone."""
        found_TNV = torch.zeros_like(like_TNV)
        time, world = torch.nonzero(truncated_TN, as_tuple=True)
        if not len(time):
            return found_TNV
        seen_R = torch.stack(seen)[time, world]
        most = self.worlds.num_envs
        found_TNV[time, world] = torch.cat([self._actor.value(part) for part in seen_R.split(most)])
        return found_TNV


def _joined(rows: list[dict[str, Any]], traces: list[Trace]) -> ChunkRollout:
    table = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return ChunkRollout(
        seen=table["seen"],
        parts={name: torch.stack([trace[name] for trace in traces]) for name in traces[0]},
        log_prob_TNKHA=table["log_prob"],
        reward_TNH=table["reward"],
        length_TN=table["length"],
        terminated_TN=table["terminated"],
        truncated_TN=table["truncated"],
        value_TNV=table.get("value"),
    )
