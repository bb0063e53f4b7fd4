"""Measures rollouts and updates of PPO from scratch by the number of environments.

More environments make better use of a simulator that steps them together, until its hardware is
full; the update takes the same time per step throughout.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress

if TYPE_CHECKING:
    from flows.stages.learn.config import ReinforcePolicyConfig
    from policies.rl.from_scratch.on_policy import RolloutRun

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Measured numbers of environments, relative to that of the recipe."""
ROUNDS = 3
"""Fewest measured rollouts and updates of each number."""


@dataclass
class _Times:
    collect: list[float] = field(default_factory=list)
    """Seconds of the rollouts."""
    update: list[float] = field(default_factory=list)
    """Seconds of the updates."""


def profile_num_envs(
    config: ReinforcePolicyConfig, seconds: float = 60.0, progress: Progress = no_progress
) -> dict[str, Any]:
    """Measures a training by PPO, or PPO-Lagrangian, with several numbers of environments, each in
    environments of its own; the first rollout and update of each are not counted.

    Args:
        config: options of the training.
        seconds: duration of the measurements [s], to which making the environments adds.
        progress: called with the seconds spent.

    Returns:
        `seconds`, the median times of a rollout (`collect`) and an update (`update`) [s] per number
        of environments; `rates`, their environment steps per second with a 95 % interval; and
        `recommended`, the smallest number that is not slower than the fastest.

    Raises:
        HandoffError: another algorithm, or environments that cannot be made.
    """
    from policies.rl.collection.placement_profile import recommended, step_rate
    from policies.rl.from_scratch.config import PpoAlgorithm, PpoLagrangianAlgorithm

    algorithm = config.algorithm
    if not isinstance(algorithm, PpoAlgorithm | PpoLagrangianAlgorithm):
        raise HandoffError(
            f"profile: the algorithm {algorithm.kind} does not alternate rollouts and updates, expected ppo or "
            "ppo_lagrangian."
        )
    counts = sorted({max(1, round(factor * config.num_envs)) for factor in FACTORS})
    times: dict[int, _Times] = {}
    for number, count in enumerate(counts):
        spent = partial(_spent, progress, number, len(counts), seconds, count)
        times[count] = _measured(replace(config, num_envs=count), seconds / len(counts), spent)
    rates = {
        count: step_rate(
            count * algorithm.rollout_steps,
            [a + b for a, b in zip(of.collect, of.update, strict=True)],
        )
        for count, of in times.items()
    }
    return {
        "seconds": {
            str(count): {name: float(np.median(values)) for name, values in asdict(of).items()}
            for count, of in times.items()
        },
        "rates": {str(count): asdict(rate) for count, rate in rates.items()},
        "recommended": str(recommended(rates)),
    }


def _spent(
    progress: Progress, number: int, total: int, seconds: float, count: int, part: float
) -> None:
    done = int(seconds * (number + min(part, 1.0)) / total)
    progress(done, max(1, int(seconds)), f"{count} environments")


def _measured(config: ReinforcePolicyConfig, seconds: float, spent: partial[None]) -> _Times:
    """Times of at least `ROUNDS` rollouts and updates, for so many seconds."""
    from policies.rl.from_scratch.on_policy import RolloutRun
    from policies.rl.from_scratch.train import check_resident, make_run
    from policies.training.loop import torch_threads
    from sim.evaluation.evaluate import device_env, stays_on_device, training_env

    protocol, number = config.protocol, config.num_envs
    resident = stays_on_device(protocol)
    if resident:
        check_resident(config)
    spent(0.0)
    with torch_threads(config.threads), TemporaryDirectory() as folder:
        env = (device_env if resident else training_env)(protocol, number)
        run = make_run(config, env, Path(folder), None)
        assert isinstance(run, RolloutRun)
        try:
            run.resume()
            return _rounds(run, seconds, spent)
        finally:
            run.run.env.env.close()
            run.run.resumable.close()


def _rounds(run: RolloutRun, seconds: float, spent: partial[None]) -> _Times:
    times, began = _Times(), 0.0
    while len(times.collect) < ROUNDS or time.perf_counter() < began + seconds:
        start = time.perf_counter()
        rollout = run.collect()
        collected = time.perf_counter()
        run.update(rollout)
        updated = time.perf_counter()
        if not began:
            # Compilers and caches are warm from here on.
            began = updated
            continue
        times.collect.append(collected - start)
        times.update.append(updated - collected)
        spent((updated - began) / max(seconds, 1e-9))
    return times
