"""Runs random actions for thousands of episodes on every FR3 task, and looks for diverging values
and growing memory.

    python -m tests.benchmarks.endurance --episodes 10000 --json

Each environment keeps an action for a random time (8 control periods on average), because actions
drawn in each period cancel out and stay close to the initial state. Prints per task: episodes,
environment steps, successes, the maximum joint and body speeds, the maximum distance of a body from
the base, and the growth of memory between the first tenth and the end. A non-finite state stops the
run with the guard's message (`sim.vec_env`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import psutil

from sim.make import TASKS, EnvConfig, make_vec_env

NUM_ENVS = 200
REDRAW = 1.0 / 8.0
"""Probability of a new action per environment and control period."""


def endure(task: str, episodes: int, *, randomized: bool = False) -> dict[str, Any]:
    """Runs random actions until `episodes` have ended.

    Returns:
        `joint_speed` [rad/s], `body_speed` [m/s], `body_spin` [rad/s], `distance` [m]: maxima
        over the run; `successes`, `episodes`, `steps`, `seconds`, `memory_growth_mb`.
    """
    env = make_vec_env(EnvConfig(task=task, randomized=randomized), NUM_ENVS)
    engine: Any = env.engine  # type: ignore[attr-defined]
    free = [name for name, a in engine.layout.qpos.items() if _is_free(engine, name)]
    rng = np.random.default_rng(0)
    # Actions are drawn within the action space's bounds, which are finite for these tasks.
    low, high = np.array(env.action_spec.low), np.array(env.action_spec.high)
    env.reset(range(NUM_ENVS))
    largest = dict.fromkeys(("joint_speed", "body_speed", "body_spin", "distance"), 0.0)
    ended = successes = steps = 0
    process, early = psutil.Process(), None
    began = time.perf_counter()
    action = rng.uniform(low, high, (NUM_ENVS, len(low)))
    while ended < episodes:
        fresh = rng.random(NUM_ENVS) < REDRAW
        action[fresh] = rng.uniform(low, high, (int(fresh.sum()), len(low)))
        step = env.step(action)
        view = engine.view
        largest["joint_speed"] = max(largest["joint_speed"], float(np.abs(view.dq).max()))
        for name in free:
            velocity = view.velocity(name)
            largest["body_speed"] = max(largest["body_speed"], float(np.abs(velocity[:, :3]).max()))
            largest["body_spin"] = max(largest["body_spin"], float(np.abs(velocity[:, 3:]).max()))
            largest["distance"] = max(largest["distance"], float(np.abs(view.position(name)).max()))
        over = step.terminated | step.truncated
        ended += int(over.sum())
        successes += int(step.info["success"][over].sum())
        steps += NUM_ENVS
        if early is None and ended >= episodes / 10:
            early = process.memory_info().rss
    seconds = time.perf_counter() - began
    growth = (process.memory_info().rss - (early or 0)) / 2**20
    env.close()
    return {
        "episodes": ended,
        "steps": steps,
        "successes": successes,
        **{name: round(value, 3) for name, value in largest.items()},
        "memory_growth_mb": round(growth, 2),
        "seconds": round(seconds, 1),
    }


def _is_free(engine: Any, name: str) -> bool:
    # A free joint is the only one with seven positions.
    later = [a for a in engine.layout.qpos.values() if a > engine.layout.qpos[name]]
    return (min(later) if later else engine.layout.nq) - engine.layout.qpos[name] == 7


def main() -> None:
    """Runs the tasks one after another; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--randomized", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = {}
    for task in arguments.tasks:
        results[task] = endure(task, arguments.episodes, randomized=arguments.randomized)
        print(task, results[task], file=sys.stderr, flush=True)
    print(
        json.dumps(results)
        if arguments.json
        else "\n".join(f"{task}: {r}" for task, r in results.items())
    )


if __name__ == "__main__":
    main()
