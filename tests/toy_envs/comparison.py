"""Compares the arms of a learning check over the same seeds, in several processes, by AdaStop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

from robots.errors import HandoffError
from sim.evaluation.adastop import AdaStop, AdaStopConfig

T = TypeVar("T")

LISTENERS: list[Callable[[Mapping[str, Sequence[Any]]], None]] = []
"""Are given the results of all arms whenever `runs` has them."""

Arm = Callable[[int], T]
"""Runs one seed and returns a score or a record. A module-level function or a `functools.partial`
of one, because it is pickled for another process, as is its result."""


def compare(
    arms: Mapping[str, Arm[float]], seeds: Iterable[int] = range(5), processes: int = 2
) -> dict[str, list[float]]:
    """Runs every arm with every seed, as `runs`, for one score each, and prints the scores per arm
    at the end."""
    scores = {
        name: [float(score) for score in values]
        for name, values in runs(arms, seeds, processes).items()
    }
    for name, values in scores.items():
        sys.stdout.write(f"{name}: {', '.join(f'{value:.3g}' for value in values)}\n")
    return scores


def runs(
    arms: Mapping[str, Arm[T]], seeds: Iterable[int] = range(5), processes: int = 2
) -> dict[str, list[T]]:
    """Runs every arm with every seed, and prints each result for pytest to show.

    Runs start seed by seed in the order of `arms`, in processes with one torch thread each;
    `processes` = 1 runs in this process with its threads.

    Args:
        arms: arms by name.
        seeds: seeds of the runs.
        processes: number of parallel runs.

    Returns:
        Results of every arm in the order of the seeds.

    Raises:
        HandoffError: a run failed; its cause is chained.
    """
    numbers = list(seeds)
    jobs = [(name, seed) for seed in numbers for name in arms]
    if processes == 1:
        results = [_print_result(name, seed, _run(name, arms[name], seed)) for name, seed in jobs]
    else:
        with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_one_thread) as pool:
            futures = [pool.submit(_run, name, arms[name], seed) for name, seed in jobs]
            try:
                results = [
                    _print_result(*job, future.result())
                    for job, future in zip(jobs, futures, strict=True)
                ]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                # A seed takes minutes, and its result is not needed any more.
                for child in active_children():
                    child.terminate()
                raise
    results_of: dict[str, list[T]] = {name: [] for name in arms}
    for (name, _), result in zip(jobs, results, strict=True):
        results_of[name].append(result)
    for listen in LISTENERS:
        listen(results_of)
    return results_of


def better(scores: Mapping[str, Sequence[float]], first: str, second: str) -> bool:
    """Whether `first` scored significantly above `second`: one stage of AdaStop (absolute null) at
    alpha .05.

    All scores are permuted, although seeds are shared: exchanging within five seeds only gives 32
    cases, of which the most extreme two are already 6 %, so no decision would be possible.

    Raises:
        HandoffError: an arm is missing, the lists are of different lengths, or a score is not
            finite.
    """
    missing = {first, second} - scores.keys()
    if missing:
        raise HandoffError(
            f"compare: no scores of {sorted(missing)}, only of {sorted(scores)}. A misspelt arm?"
        )
    test = AdaStop((first, second), AdaStopConfig(n=len(scores[first]), stages=1, alpha=0.05))
    return any(
        decision.better == first
        for decision in test.add({name: scores[name] for name in (first, second)})
    )


def _print_result(name: str, seed: int, result: T) -> T:
    """Prints a run's result as soon as possible, because a check takes minutes."""
    sys.stdout.write(f"{name}, seed {seed}: {result}\n")
    sys.stdout.flush()
    return result


def _run(name: str, arm: Arm[T], seed: int) -> T:
    try:
        return arm(seed)
    except Exception as error:
        raise HandoffError(
            f"compare: arm {name} failed with seed {seed}: {type(error).__name__}: {error}"
        ) from error


def _one_thread() -> None:
    """Uses one torch thread: several busy threads per core were far slower."""
    import torch

    torch.set_num_threads(1)
