"""Rollouts while worlds are simulated: for one part of them the policy infers, while the others are
stepped.

RLinf's fine-grained pipelining (arXiv 2510.06710, `rollout.pipeline_stage_num` there). Here the
parts take turns in one fixed order, and the chance of a decision is drawn for all worlds before it
is dealt out. So a rollout is the sequential loop's: the same worlds, seeds and chance, and the same
numbers to the rounding of products of other batch sizes.

Shape suffixes: N worlds.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import torch

from policies.rl.collection.chunk_collector import ChunkCollector
from policies.rl.collection.interfaces import (
    ChunkActor,
    ChunkActorOutput,
    Decided,
    DecisionEnv,
    DrawsAhead,
)
from policies.rl.collection.split_chunk_env import ChunkWorldsInParts, WorldsPart, joined_parts
from policies.rl.on_policy.rollout import Trace
from robots.errors import HandoffError


class PipelinedCollector(ChunkCollector):
    """A `ChunkCollector` that infers for one part of the worlds while others are simulated.

    Args:
        worlds: in parts.
        actor: see `ChunkCollector`; must be able to draw ahead.
        seed: of all chance.

    Raises:
        HandoffError: it cannot.
    """

    def __init__(self, worlds: ChunkWorldsInParts, actor: ChunkActor, seed: int = 0) -> None:
        if not isinstance(actor, DrawsAhead):
            raise HandoffError(
                f"placement: {len(worlds.parts)} parts of the worlds for a {type(actor).__name__}, whose chance cannot "
                "be drawn ahead; numbers would depend on the parts. Place it disaggregated, or give it draw and "
                "decide_by."
            )
        super().__init__(worlds, actor, seed)
        self._ahead = actor
        self._parts = worlds.parts

    def _decided(self, decisions: int) -> Generator[tuple[dict[str, Any], Trace, Decided]]:
        begun: list[_Begun] = []
        before = self._generator.get_state()
        try:
            for number in range(decisions + 1):
                decides, ended, going = number < decisions, [], []
                before = self._generator.get_state()
                chance = {}
                if decides:
                    chance = self._ahead.draw(self.worlds.num_envs, self._generator)
                for place, part in enumerate(self._parts):
                    if begun:
                        ended.append(self._end(part, begun[place]))
                    if decides:
                        going.append(self._begin(part, chance))
                begun = going
                if ended:
                    yield self._whole(ended)
        except GeneratorExit:
            # All worlds have ended, so what was begun ahead changed nothing: as if it had not been
            # decided.
            for part in self._parts:
                part.discard()
            self._generator.set_state(before)
            raise

    def _begin(self, part: WorldsPart, chance: Trace) -> _Begun:
        seen = part.worlds.seen()
        made = self._ahead.decide_by(
            seen, {name: drawn[part.rows] for name, drawn in chance.items()}
        )
        part.begin_step(made.chunk_BHA)
        return _Begun(seen, made)

    def _end(self, part: WorldsPart, begun: _Begun) -> _Ended:
        led = part.end_step()
        return _Ended(self._row(begun.seen, begun.made, led), begun.made.trace, led)

    def _whole(self, parts: list[_Ended]) -> tuple[dict[str, Any], Trace, Decided]:
        led = joined_parts([part.led for part in parts])
        self.statistics.add(led)
        return _cat([part.row for part in parts]), _cat([part.trace for part in parts]), led


class _Begun(NamedTuple):
    seen: Any
    made: ChunkActorOutput


class _Ended(NamedTuple):
    row: dict[str, Any]
    trace: Trace
    led: Decided


def collector_of(worlds: DecisionEnv, actor: ChunkActor, seed: int = 0) -> ChunkCollector:
    """The collector for worlds as they are placed; see `ChunkCollector`."""
    if isinstance(worlds, ChunkWorldsInParts) and len(worlds.parts) > 1:
        return PipelinedCollector(worlds, actor, seed)
    return ChunkCollector(worlds, actor, seed)


def _cat(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
