"""Predicts the speed of each placement from the times of its pieces, before hours are spent on it.

Measured are, on this machine and in turns: inference for all worlds, simulation of them in this
process and in another, one part of them decided upon while another is simulated, and an update. How
much of two cores there really is shows in the times of what overlaps; a count of processors does
not tell.

Predicted for a rollout of D decisions: collocated D (infer + simulate) + learn; disaggregated
likewise with worlds that are simulated elsewhere; hybrid with P parts D P overlapped + one part
alone, for the pipe to fill, + learn. Intervals come from resampling the measurements.

Shape suffixes: N worlds, H horizon, A action.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from policies.rl.collection.chunk_env import ChunkWorlds
from policies.rl.collection.interfaces import DrawsAhead
from policies.rl.collection.split_chunk_env import ChunkWorldsInParts, WorldsPart
from robots.interfaces import Progress

PIECES = ("infer", "simulate", "simulate_there", "simulate_part", "overlapped", "learn")
"""Measured, in seconds: of all worlds and one decision, of one part where it says so, and of an
update."""
ROUNDS = 3
"""Least ones, however short the time."""
_RESAMPLES = 2000


@dataclass
class Measured:
    """Times of the pieces."""

    actions: float
    """Carried out in all worlds by one decision: an episode may end in the middle of a chunk."""
    parts: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {piece: [] for piece in PIECES})

    @property
    def transfer(self) -> float:
        """Seconds per decision that it costs to simulate elsewhere."""
        return float(
            np.median(self.seconds["simulate_there"]) - np.median(self.seconds["simulate"])
        )


@dataclass(frozen=True)
class StepRate:
    """Steps of environments per second."""

    steps_per_s: float
    low: float
    high: float
    """95 %, of resampled measurements."""


def measure(
    actor: DrawsAhead,
    here: ChunkWorlds,
    there: ChunkWorlds,
    parts: ChunkWorldsInParts,
    update: Callable[[], object] | None,
    seconds: float,
    progress: Progress,
) -> Measured:
    """Measures the pieces in turns.

    Args:
        actor: decides; its chance can be drawn ahead.
        here: worlds of this process.
        there: as many in one part, in others.
        parts: as many in several parts, in others.
        update: learns from one rollout; None: nothing is learned.
        seconds: for all of it, but at least `ROUNDS` rounds and one update.
        progress: told the seconds spent.
    """
    found = Measured(0.0, len(parts.parts))
    began, generator, rounds = time.perf_counter(), torch.Generator().manual_seed(0), 0
    if update is not None:
        with _timed(found, "learn"):
            update()
    here.take_executed()
    while rounds < ROUNDS or time.perf_counter() - began < seconds:
        for worlds, piece in ((here, "simulate"), (there, "simulate_there")):
            with _timed(found, "infer"):
                chunk_NHA = actor.decide(worlds.seen(), generator).chunk_BHA
            with _timed(found, piece):
                worlds.step(chunk_NHA)
        _overlap(actor, parts, found, generator)
        rounds += 1
        progress(
            min(int(time.perf_counter() - began), int(seconds)), max(1, int(seconds)), "measured"
        )
    found.actions = here.take_executed() / rounds
    return found


def predict(found: Measured, decisions: int) -> dict[str, StepRate]:
    """Rates of the placements, by their names, for rollouts of so many decisions."""
    rng = np.random.default_rng(0)

    def drawn(piece: str) -> np.ndarray:
        """(resamples + 1) means, that of the measurements themselves first."""
        times = np.asarray(found.seconds[piece])
        if not len(times):
            return np.zeros(_RESAMPLES + 1)
        chosen = rng.integers(len(times), size=(_RESAMPLES, len(times)))
        return np.concatenate([[times.mean()], times[chosen].mean(axis=1)])

    time_of = {piece: drawn(piece) for piece in PIECES}
    rollout = {
        "collocated": decisions * (time_of["infer"] + time_of["simulate"]),
        "disaggregated": decisions * (time_of["infer"] + time_of["simulate_there"]),
        "hybrid": decisions * found.parts * time_of["overlapped"] + time_of["simulate_part"],
    }
    rates = {}
    for kind, seconds in rollout.items():
        steps_per_s = found.actions * decisions / (seconds + time_of["learn"])
        low, high = np.percentile(steps_per_s[1:], [2.5, 97.5])
        rates[kind] = StepRate(float(steps_per_s[0]), float(low), float(high))
    return rates


def _overlap(
    actor: DrawsAhead, worlds: ChunkWorldsInParts, found: Measured, generator: torch.Generator
) -> None:
    """One part alone; then every part while another is decided upon, as in the pipeline."""

    def decide(part: WorldsPart) -> torch.Tensor:
        mine = {name: drawn[part.rows] for name, drawn in chance.items()}
        return actor.decide_by(part.worlds.seen(), mine).chunk_BHA

    chance = actor.draw(worlds.num_envs, generator)
    first = worlds.parts[0]
    chunk = decide(first)
    with _timed(found, "simulate_part"):
        first.begin_step(chunk)
        first.end_step()
    for part in worlds.parts:
        part.begin_step(decide(part))
    for part in worlds.parts * 2:
        with _timed(found, "overlapped"):
            part.end_step()
            part.begin_step(decide(part))
    for part in worlds.parts:
        part.end_step()


@contextmanager
def _timed(found: Measured, piece: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    found.seconds[piece].append(time.perf_counter() - start)
