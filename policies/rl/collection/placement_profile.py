"""Predicts the speed of each placement from measured times of its pieces.

Measured on this machine, in turns: inference for all environments, their simulation in this process
and in another one, both for one part alone, inference for one part while another part is simulated,
and an update. The times
of the overlapping pieces show how many cores are really available; a count of processors does not.

Predicted for a rollout of D decisions: collocated D (infer + simulate) + learn; disaggregated the
same with the simulation in other processes; hybrid with P parts D P overlapped + one part alone (to
fill the pipeline) + learn. Confidence intervals come from resampling the measurements.

Shape suffixes: N environments, H horizon, A action.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.collection.interfaces import PresampledNoiseActor
from policies.rl.collection.split_chunk_env import ChunkEnvPart, SplitChunkEnv
from robots.interfaces import Progress

PIECES = (
    "infer",
    "simulate",
    "simulate_there",
    "infer_part",
    "simulate_part",
    "overlapped",
    "learn",
)
"""Measured pieces [s]: per decision of all environments, per decision of one part for `infer_part`,
`simulate_part` and `overlapped`, and per update for `learn`."""
ROUNDS = 3
"""Minimum number of measured rounds."""
_RESAMPLES = 2000
Name = TypeVar("Name")


@dataclass
class PlacementTimes:
    """Measured times of the pieces."""

    actions: float
    """Actions executed per decision in all environments; fewer than a chunk where episodes end
    within it."""
    parts: int
    """Parts of the split environments."""
    seconds: dict[str, list[float]] = field(default_factory=lambda: {piece: [] for piece in PIECES})

    @property
    def transfer(self) -> float:
        """Additional seconds per decision for simulation in another process."""
        return float(
            np.median(self.seconds["simulate_there"]) - np.median(self.seconds["simulate"])
        )


@dataclass(frozen=True)
class StepRate:
    """Environment steps per second."""

    steps_per_s: float
    low: float
    high: float
    """Bounds of the 95 % interval from resampled measurements."""


def measure(
    actor: PresampledNoiseActor,
    here: ChunkEnv,
    there: ChunkEnv,
    split: SplitChunkEnv,
    update: Callable[[], object] | None,
    seconds: float,
    progress: Progress,
) -> PlacementTimes:
    """Measures the pieces in turns.

    Args:
        actor: actor whose noise can be sampled in advance.
        here: environments in this process.
        there: as many environments in one part, in other processes.
        split: as many environments in several parts, in other processes.
        update: learns from one rollout; None measures no update.
        seconds: time budget; at least `ROUNDS` rounds and one update are measured.
        progress: receives the seconds spent.
    """
    times = PlacementTimes(0.0, len(split.parts))
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(0)
    rounds = 0
    if update is not None:
        with _timed(times, "learn"):
            update()
    here.take_executed()
    while rounds < ROUNDS or time.perf_counter() - started < seconds:
        for env, piece in ((here, "simulate"), (there, "simulate_there")):
            with _timed(times, "infer"):
                chunk_NHA = actor.decide(env.observation(), generator).chunk_BHA
            with _timed(times, piece):
                env.step(chunk_NHA)
        _overlap(actor, split, times, generator)
        rounds += 1
        progress(
            min(int(time.perf_counter() - started), int(seconds)), max(1, int(seconds)), "measured"
        )
    times.actions = here.take_executed() / rounds
    return times


def predict(times: PlacementTimes, decisions: int) -> dict[str, StepRate]:
    """Predicted rate of each placement, by name, for rollouts of `decisions` decisions."""
    rng = np.random.default_rng(0)

    time_of = {piece: _resampled_means(times.seconds[piece], rng) for piece in PIECES}
    rollout = {
        "collocated": decisions * (time_of["infer"] + time_of["simulate"]),
        "disaggregated": decisions * (time_of["infer"] + time_of["simulate_there"]),
        "hybrid": decisions * times.parts * time_of["overlapped"] + time_of["simulate_part"],
    }
    rates = {}
    for kind, seconds in rollout.items():
        rates[kind] = _rate(times.actions * decisions / (seconds + time_of["learn"]))
    return rates


def step_rate(steps: int, seconds: Sequence[float]) -> StepRate:
    """Rate of what takes so many environment steps and was measured several times.

    Args:
        steps: environment steps of each.
        seconds: duration of each [s], at least one.
    """
    return _rate(steps / _resampled_means(seconds, np.random.default_rng(0)))


def recommended(rates: Mapping[Name, StepRate]) -> Name:
    """The first name whose interval overlaps that of the fastest."""
    fastest = max(rates.values(), key=lambda rate: rate.steps_per_s)
    return next(name for name, rate in rates.items() if rate.high >= fastest.low)


def _resampled_means(seconds: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    """(resamples + 1) means; the first is that of the measurements themselves."""
    measured = np.asarray(seconds)
    if not len(measured):
        return np.zeros(_RESAMPLES + 1)
    sample = rng.integers(len(measured), size=(_RESAMPLES, len(measured)))
    return np.concatenate([[measured.mean()], measured[sample].mean(axis=1)])


def _rate(steps_per_s: np.ndarray) -> StepRate:
    """The rate of `_resampled_means`, with its interval."""
    low, high = np.percentile(steps_per_s[1:], [2.5, 97.5])
    return StepRate(float(steps_per_s[0]), float(low), float(high))


def _overlap(
    actor: PresampledNoiseActor,
    env: SplitChunkEnv,
    times: PlacementTimes,
    generator: torch.Generator,
) -> None:
    """Measures one part alone, then every part during inference for another, as in the
    pipeline."""

    def decide(part: ChunkEnvPart) -> torch.Tensor:
        noise = {name: rows[part.rows] for name, rows in presampled.items()}
        return actor.decide_with_noise(part.chunk_env.observation(), noise).chunk_BHA

    presampled = actor.sample_noise(env.num_envs, generator)
    first = env.parts[0]
    with _timed(times, "infer_part"):
        chunk = decide(first)
    with _timed(times, "simulate_part"):
        first.begin_step(chunk)
        first.end_step()
    for part in env.parts:
        part.begin_step(decide(part))
    for part in env.parts * 2:
        with _timed(times, "overlapped"):
            part.end_step()
            part.begin_step(decide(part))
    for part in env.parts:
        part.end_step()


@contextmanager
def _timed(times: PlacementTimes, piece: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    times.seconds[piece].append(time.perf_counter() - start)
