"""Arms of a learning check against one another: the same seeds for all, several processes, told
apart by AdaStop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from typing import TypeVar

from robots.errors import HandoffError
from sim.evaluation.adastop import AdaStop, AdaStopConfig

T = TypeVar("T")

Arm = Callable[[int], T]
"""A run of a given seed, answering one score or a record. A function of a module, or a
`functools.partial` of one: it travels to another process, and so does the answer."""


def race(
    arms: Mapping[str, Arm[float]], seeds: Iterable[int] = range(5), processes: int = 2
) -> dict[str, list[float]]:
    """Runs every arm with every seed, as `runs`, for one score each; prints all once more at the
    end, an arm a line."""
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
    """Runs every arm with every seed, and prints each answer, where pytest shows it.

    Runs begin seed by seed in the order of `arms`, each process with one torch thread; `processes`
    = 1 runs in this process instead, with the threads it has.

    Args:
        arms: by name.
        seeds: of the runs.
        processes: how many at a time.

    Returns:
        For every arm its answers in the order of the seeds.

    Raises:
        HandoffError: a run failed; its cause is chained.
    """
    numbers = list(seeds)
    named = [(name, seed) for seed in numbers for name in arms]
    if processes == 1:
        results = [_told(name, seed, _run(name, arms[name], seed)) for name, seed in named]
    else:
        with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_one_thread) as pool:
            waiting = [pool.submit(_run, name, arms[name], seed) for name, seed in named]
            try:
                results = [
                    _told(*which, one.result()) for which, one in zip(named, waiting, strict=True)
                ]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                # A seed takes minutes, and nobody is left to hear how it went.
                for child in active_children():
                    child.terminate()
                raise
    answers: dict[str, list[T]] = {name: [] for name in arms}
    for (name, _), result in zip(named, results, strict=True):
        answers[name].append(result)
    return answers


def better(scores: Mapping[str, Sequence[float]], first: str, second: str) -> bool:
    """Whether `first` scored significantly above `second`: one stage of AdaStop (absolute null) at
    alpha .05.

    All scores are permuted, although seeds are shared: exchanging the five of a seed only gives 32
    cases, of which the most extreme two are already 6 %, and nothing could ever be decided.

    Raises:
        HandoffError: an arm is missing, the lists are of different lengths, or a score is not
            finite.
    """
    missing = {first, second} - scores.keys()
    if missing:
        raise HandoffError(
            f"race: no scores of {sorted(missing)}, only of {sorted(scores)}. A misspelt arm?"
        )
    test = AdaStop((first, second), AdaStopConfig(n=len(scores[first]), stages=1, alpha=0.05))
    return any(
        decision.better == first
        for decision in test.add({name: scores[name] for name in (first, second)})
    )


def _told(name: str, seed: int, result: T) -> T:
    """Shows a run's answer as soon as it is its turn; a check takes minutes."""
    sys.stdout.write(f"{name}, seed {seed}: {result}\n")
    sys.stdout.flush()
    return result


def _run(name: str, arm: Arm[T], seed: int) -> T:
    try:
        return arm(seed)
    except Exception as error:
        raise HandoffError(
            f"race: arm {name} failed with seed {seed}: {type(error).__name__}: {error}"
        ) from error


def _one_thread() -> None:
    """Two busy threads on two cores have been seen far slower than one each."""
    import torch

    torch.set_num_threads(1)
