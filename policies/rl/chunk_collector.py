"""Rollouts of chunks whose entries have log-probabilities of their own, one behind another, or episodes in groups.

Shape suffixes: T decisions, N worlds, V values of a decision, M rewards.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from policies.rl.advantages import ChunkRollout
from policies.rl.chunk_worlds import ChunkWorlds
from policies.rl.collector import Decided, EpisodeTally
from policies.rl.experience import Trace
from policies.rl.practice_config import Outcome


class ChunkCollector:
    """Makes rollouts in worlds of chunks.

    Args:
        worlds: N.
        actor: `decide(seen, generator)` gives a chunk, a trace, log-probabilities (N, K, H, A) and values (N, V) or
            None; `value(seen)` values alone.
        seed: of all chance.
    """

    def __init__(self, worlds: ChunkWorlds, actor: Any, seed: int = 0) -> None:
        self.worlds, self._actor = worlds, actor
        self._generator = torch.Generator().manual_seed(seed)
        self.tally = EpisodeTally(worlds.num_envs)

    def begin(self) -> None:
        """Leaves the episodes that are under way, and begins new ones in all worlds."""
        self.worlds.begin()
        self.tally.begin()

    def rollout(self, decisions: int) -> ChunkRollout:
        """The next `decisions` decisions in all worlds; those that end begin anew."""
        rows, traces = [], []
        for row, trace, _ in self._decided(decisions):
            rows.append(row)
            traces.append(trace)
        last = self._actor.value(self.worlds.seen()) if "value" in rows[0] else None
        return _joined(rows, traces)._replace(last_value_NV=last)

    def episodes(self, size: int, decisions: int, outcomes: tuple[Outcome, ...]) -> ChunkRollout:
        """One episode in every world, `size` side by side from one state, of so many decisions at most.

        Args:
            size: of a group.
            decisions: after which an episode is left.
            outcomes: what it comes to.

        Raises:
            HandoffError: the worlds make no whole groups.
        """
        self.worlds.begin_groups(size)
        self.tally.begin()
        rows, traces = [], []
        returned_N = torch.zeros(self.worlds.num_envs)
        solved_N = torch.zeros(self.worlds.num_envs, dtype=torch.bool)
        over_N = torch.zeros(self.worlds.num_envs, dtype=torch.bool)
        decided = self._decided(decisions)
        for row, trace, led in decided:
            returned_N += row["reward"].sum(dim=1)
            ended_N = led.terminated_N | led.truncated_N
            solved_N |= ended_N & led.success_N
            over_N |= ended_N
            rows.append(row)
            traces.append(trace)
            if bool(over_N.all()):
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
            self.tally.add(led)
            yield self._row(seen, made, led), made.trace, led

    def _row(self, seen: Any, made: Any, led: Decided) -> dict[str, Any]:
        row = {"seen": seen, "log_prob": made.log_prob_BKHA, "reward": led.reward_NH, "length": led.length_N}
        row |= {"terminated": led.terminated_N, "truncated": led.truncated_N}
        if made.value_BV is not None:
            row |= {"value": made.value_BV, "final": self._final(led, made.value_BV)}
        return row

    def _final(self, led: Decided, like_NV: Tensor) -> Tensor:
        """(N, V) values of the true final observations, where an episode ended by its time limit alone."""
        found_NV = torch.zeros_like(like_NV)
        asked = torch.nonzero(led.truncated_N)[:, 0]
        if len(asked):
            found_NV[asked] = self._actor.value(led.final_seen[asked])
        return found_NV


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
        final_value_TNV=table.get("final"),
    )
