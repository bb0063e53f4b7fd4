"""What the force guard and the energy tank do to the scripted expert of a task at the twin.

    python -m tests.benchmarks.contact_guards open_drawer --json force.limit=30 energy_tank.size=10

The further arguments are options of the stream (`real.motion.stream.StreamConfig`). Time passes in
lockstep, so the figures do not depend on the computer. `slowest` is the largest number of policy
steps of an episode.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from flows.config.options import build
from flows.config.overrides import parse_overrides, set_value
from flows.deployment.arm_environment.engine import TwinEngine
from flows.deployment.arm_environment.environment import open_session_env
from flows.session.config import HilEnvConfig
from flows.session.simulated_arm import SimulatedArm
from real.driver.driven_stream import DrivenStream
from real.motion.stream import Tick
from robots.proportions import wilson
from robots.seed_ranges import EVALUATION
from sim.twin.twin import TwinConfig


def main() -> None:
    """Prints the solved episodes, their faults, and the extremes of what the guards found."""
    parser = argparse.ArgumentParser(description="the expert under a force guard and a tank")
    parser.add_argument("task")
    parser.add_argument("options", nargs="*", help="such as force.limit=30 energy_tank.size=10")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--host", default="127.0.0.9", help="address of the twin")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_intermixed_args()
    values: dict[str, Any] = {}
    for override in parse_overrides([f"stream.{option}" for option in arguments.options]):
        set_value(values, override.keys, override.value)
    arm = build(SimulatedArm, values, "arm")
    arm = replace(arm, twin=TwinConfig(host=arguments.host))
    report = measure(arguments.task, arm, arguments.episodes)
    report = {"task": arguments.task, "options": arguments.options, **report}
    print(json.dumps(report) if arguments.json else json.dumps(report, indent=2))


def measure(task: str, arm: SimulatedArm, episodes: int) -> dict[str, Any]:
    """Plays the expert from the first starts of the evaluation."""
    config = HilEnvConfig(task=task, arm=arm, observation_fields=("q",))
    env, engine = open_session_env(config, on_end="freeze")
    assert isinstance(engine, TwinEngine)
    solved = 0
    steps: list[int] = []
    faults: list[str] = []
    found: list[dict[str, np.ndarray]] = []
    passed = DrivenStream.pass_tick
    with closing(env), patch.object(DrivenStream, "pass_tick", _noting(passed, found)):
        for seed in range(EVALUATION.start, EVALUATION.start + episodes):
            env.reset([seed])
            step = env.step(engine.expert_action())
            number = 1
            while not (step.terminated[0] or step.truncated[0]):
                step = env.step(engine.expert_action())
                number += 1
            solved += bool(step.info["success"][0])
            steps.append(number)
            faults += [] if engine.fault is None else [engine.fault]
    return {
        "solved": solved,
        "episodes": episodes,
        "interval": [round(bound, 3) for bound in wilson(solved, episodes)],
        "faults": faults,
        "steps": round(float(np.mean(steps)), 1),
        "slowest": max(steps),
        **_extremes(found),
    }


def _noting(
    passed: Callable[[DrivenStream], Sequence[Tick]], found: list[dict[str, np.ndarray]]
) -> Callable[[DrivenStream], Sequence[Tick]]:
    """`DrivenStream.pass_tick` that also notes what the guards found."""

    def pass_tick(stream: DrivenStream) -> Sequence[Tick]:
        ticks = passed(stream)
        found.extend(
            {name: np.array(value) for name, value in tick.monitored.items()} for tick in ticks
        )
        return ticks

    return pass_tick


def _extremes(found: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Largest external force [N] and least energy in the tank [J]; only of guards that are on."""
    extremes = {}
    if "wrench_ext" in found[0]:
        force = max(float(np.linalg.norm(each["wrench_ext"][:3])) for each in found)
        extremes["peak_external_force_n"] = round(force, 2)
    if "tank_energy" in found[0]:
        least = min(float(each["tank_energy"]) for each in found)
        extremes["min_tank_energy_j"] = round(least, 2)
    return extremes


if __name__ == "__main__":
    main()
