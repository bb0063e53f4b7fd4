"""Works at a simulated arm for an hour of its time, and looks for what is lost, late or leaks.

    python -m tests.benchmarks.arm_hour pick_cube --minutes 60 --json

The scripted expert does the task again and again through the driver's process, governor, hand and
limits of a deployment, each episode from a start, over a connection and by a motion of its own.
Time passes in lockstep, so that nothing depends on how busy the computer is.

robot_minutes: simulated time of the motions; wall_minutes beside it.
episodes, solved: of them, with Wilson's interval.
faults: what the robot or a limit ended, with the number of episodes.
commands, lost: commands that the arm waited for, one a millisecond, and those that did not come in
    time.
growth_mb: resident memory at the end, less that after a tenth of the time; descriptors, threads:
    those at the end, less those after a tenth. Of this process, the driver's and the arm's.
growth_mb_second_half: the same, since half of the time: what is filled once does not grow then.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from robots.errors import HandoffError

if TYPE_CHECKING:
    from flows.deployment.arm_environment.engine import TwinEngine
    from robots.interfaces import VecEnv

EARLY, HALF = 0.1, 0.5
"""Shares of the time after which growth is measured from."""
SHORTEST = 1.0
"""Shortest time [min]; an episode takes seconds."""


def main() -> None:
    """Works, says every minute how far it is, and prints the figures last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", nargs="?", default="pick_cube", help="default: %(default)s")
    parser.add_argument(
        "--minutes", type=minutes, default=60.0, help="of the arm's time, default: %(default)s"
    )
    parser.add_argument(
        "--host", default="127.0.0.9", help="address of the twin, default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    try:
        report = work(arguments.task, arguments.host, arguments.minutes)
    except HandoffError as error:
        raise SystemExit(f"arm_hour: {error}") from None
    print(json.dumps(report) if arguments.json else json.dumps(report, indent=2))


def minutes(text: str) -> float:
    """A number of minutes in which there are several episodes, so that growth can be measured
    between them."""
    value = float(text)
    if not SHORTEST <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} minutes, expected at least {SHORTEST:g}")
    return value


def work(task: str, host: str, minutes: float) -> dict[str, Any]:
    """Figures of so many minutes."""
    from flows.config.options import build
    from flows.deployment.arm_environment.engine import TwinEngine
    from flows.deployment.arm_environment.environment import open_session_env
    from flows.session.config import HilEnvConfig
    from flows.session.simulated_arm import SimulatedArm
    from robots.proportions import wilson
    from robots.seed_ranges import EVALUATION
    from sim.twin.twin import TwinConfig

    arm = replace(build(SimulatedArm, {}, "arm"), twin=TwinConfig(host=host))
    config = HilEnvConfig(task=task, arm=arm, observation_fields=("q",))
    env, engine = open_session_env(config, on_end="freeze")
    assert isinstance(engine, TwinEngine)
    began, said, solved, episodes = time.perf_counter(), 0, 0, 0
    faults: Counter[str] = Counter()
    measured: dict[float, dict[str, dict[str, float]]] = {}
    with closing(env):
        while (passed := robot_minutes(engine)) < minutes:
            for share in (EARLY, HALF):
                if passed >= share * minutes and share not in measured:
                    measured[share] = resources(engine)
            if int(passed) > said:
                said = int(passed)
                print(f"{said} of {minutes:g} minutes, {episodes} episodes", file=sys.stderr)
            solved += attempt(env, engine, EVALUATION.start + episodes)
            episodes += 1
            if engine.fault is not None:
                faults[engine.fault] += 1
        stats = engine._twin.stats()
        measured[1.0] = resources(engine)
    return {
        "task": task,
        "robot_minutes": round(stats["motion_ticks"] / 60e3, 2),
        "wall_minutes": round((time.perf_counter() - began) / 60.0, 2),
        "episodes": episodes,
        "solved": solved,
        "interval": [round(bound, 3) for bound in wilson(solved, episodes)],
        "faults": dict(faults),
        "commands": int(stats["motion_ticks"]),
        "lost": int(stats["lost_packets"]),
        "growth_mb": differences(measured, EARLY, "mb"),
        "growth_mb_second_half": differences(measured, HALF, "mb"),
        "descriptors": differences(measured, EARLY, "descriptors"),
        "threads": differences(measured, EARLY, "threads"),
    }


def attempt(env: VecEnv, engine: TwinEngine, seed: int) -> bool:
    """One episode; whether it was solved."""
    env.reset([seed])
    while True:
        step = env.step(engine.expert_action())
        if step.terminated[0] or step.truncated[0]:
            return bool(step.info["success"][0])


def robot_minutes(engine: TwinEngine) -> float:
    """Time of all motions so far."""
    return engine._twin.stats()["motion_ticks"] / 60e3


def resources(engine: TwinEngine) -> dict[str, dict[str, float]]:
    """Memory [MB], open descriptors and threads, by process."""
    import psutil

    pids = {"own": None, "driver": engine._driver.pid, "arm": engine._twin.pid}
    found = {}
    for name, pid in pids.items():
        process = psutil.Process(pid)
        found[name] = {
            "mb": process.memory_info().rss / 2**20,
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
        }
    return found


def differences(
    measured: dict[float, dict[str, dict[str, float]]], share: float, figure: str
) -> dict[str, float]:
    """The figure at the end less that after a share of the time, by process."""
    return {
        name: round(at_end[figure] - measured[share][name][figure], 2)
        for name, at_end in measured[1.0].items()
    }


if __name__ == "__main__":
    main()
