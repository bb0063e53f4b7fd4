"""Measures the steps per second of ManiSkill's own loop, as a reference.

python -m tests.benchmarks.maniskill --json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from typing import Any

import numpy as np

from sim.engines.maniskill_task import (
    ManiSkillConfig,
    environment_arguments,
    find_task,
    make_environment,
)

WARM_UP_STEPS = 20


def steps_per_second(task: str = "PickCube-v1", seconds: float = 10.0) -> float:
    """Environment steps per second of `gym.make(task)` on the CPU with state observations, in one
    thread.

    The loop takes random actions with `env.step`, and `env.reset` after an episode. Time limit and
    rewards are ManiSkill's own.

    Raises:
        HandoffError: ManiSkill or a Vulkan driver is missing.
    """
    # Finds the Vulkan driver and registers the tasks.
    find_task(f"maniskill {task}", task)
    import gymnasium
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    arguments = {**environment_arguments(ManiSkillConfig(), 1), "obs_mode": "state"}
    env: Any = make_environment(f"maniskill {task}", partial(gymnasium.make, task), arguments)
    try:
        space = env.unwrapped.single_action_space
        actions = (
            np.random.default_rng(0)
            .uniform(space.low, space.high, size=(256, *space.shape))
            .astype(np.float32)
        )
        env.reset(seed=0)
        start, steps, passed = time.perf_counter(), -WARM_UP_STEPS, 0.0
        while passed < seconds:
            _, _, terminated, truncated, _ = env.step(actions[steps % len(actions)])
            if bool(terminated) or bool(truncated):
                env.reset()
            steps += 1
            if steps == 0:
                start = time.perf_counter()
            passed = time.perf_counter() - start if steps > 0 else 0.0
    finally:
        env.close()
        torch.set_num_threads(threads)
    return steps / passed


def main() -> None:
    """Prints the figure; with --json one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="PickCube-v1")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # Read when PyTorch starts its threads; the engines compared run on one core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rate = steps_per_second(options.task, options.seconds)
    figures = {"task": options.task, "steps_per_second": round(rate, 1)}
    sys.stdout.write(f"{json.dumps(figures) if options.json else figures}\n")


if __name__ == "__main__":
    main()
