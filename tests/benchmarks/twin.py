"""Measures the simulated arm: its speed in lockstep, alone and three at once, and how near it tracks
a path with and without joint friction.

    python -m tests.benchmarks.twin --json

Speed: franky holds and moves an arm at the table of `reach` under the session's impedance law, with
targets at 250 Hz, in lockstep as fast as it can.

realtime_factor: simulated time of the motions relative to their wall time, median of the repeats;
    with three arms that of the slowest. Limit: 3, on two idle cores.
twin_cpu_s: processor time of a twin's process per simulated second. A computer that is busy
    changes it less than the factor.
client_cpu_s: processor time of all clients' process per simulated second of each arm.
lost: commands that were lost.

Tracking: the end effector follows a circle of 60 mm radius in a vertical plane, once slowly and once
fast, and the errors are those between its position and the path, in mm: root mean square, largest,
and at rest one second after the end.

`fed`: the session's Cartesian impedance law, which is fed the velocity of its reference, as at
push-T's table. `steps`: the same law without, as at tables of tasks. `generator`: the robot's own
controller behind joint positions at 1 kHz.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tests.sim.twin.loopback import address
from tests.sim.twin.wire_client import WireClient

if TYPE_CHECKING:
    from real.franka.arm import FrankaArm
    from sim.twin.twin import Twin

LIMITS = {"realtime_factor": 3.0}
TASK = "reach"
RADIUS = 0.06
SPEEDS = {"slow": 0.05, "fast": 0.2}
"""Speeds along the circle [m/s]."""
PERIOD = 0.004
"""Time between two targets [s]."""
KNOT = 0.02
"""Time between two solutions of the inverse kinematics, between which the joints' path is a cubic
spline [s]."""
REST = 1.0
"""Time after the end of the path at which the error at rest is taken [s]."""


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--repeats", type=int, default=3, help="of every measurement of speed")
    parser.add_argument("--seconds", type=float, default=5.0, help="simulated, of every repeat")
    parser.add_argument("--only", choices=("speed", "tracking"), help="one of the two parts")
    arguments = parser.parse_args()
    # Read by the libraries when they are imported.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    found: dict[str, dict[str, Any]] = {}
    if arguments.only != "tracking":
        for arms in (1, 3):
            runs = [speed(arms, arguments.seconds) for _ in range(arguments.repeats)]
            found[f"{arms} arms"] = {**summarised(runs), "limits": LIMITS}
    if arguments.only != "speed":
        found |= tracking()
    for name, figures in found.items():
        print(f"{name:24s} " + ", ".join(f"{key} {value}" for key, value in figures.items()))
    if arguments.json:
        print(json.dumps(found))


@contextmanager
def arm_at(twin: Twin, collision_force: float = 100.0) -> Iterator[FrankaArm]:
    """The session's driver at a twin."""
    from dataclasses import replace

    from flows.session.simulated_arm import twin_arm
    from real.franka.arm import FrankaArm

    config = replace(
        twin_arm(), host=twin.host, collision_force=(collision_force,) * 3 + (30.0,) * 3
    )
    with FrankaArm(config, twin, twin.wait_for_motion) as arm:
        yield arm


@contextmanager
def twin_at(number: int, friction: Literal["none", "published"] = "none") -> Iterator[Twin]:
    """A twin in lockstep at the table of `TASK`."""
    from sim.twin.task_world import TaskWorld
    from sim.twin.twin import TwinConfig, start_twin

    config = TwinConfig(host=address(number), friction=friction)
    with start_twin(config, partial(TaskWorld, TASK)) as twin:
        twin.reset(0)
        yield twin


def circle(start: np.ndarray, speed: float, at: float) -> tuple[np.ndarray, np.ndarray]:
    """Position (3,) [m] and velocity (3,) [m/s] on the path after a time [s]; it begins and ends at
    rest at `start` (3,)."""
    duration = 2.0 * np.pi * RADIUS / speed
    share = np.clip(at / duration, 0.0, 1.0)
    # A smooth step from 0 to 1 (minimum jerk), whose mean speed is that of the path.
    turned = 2.0 * np.pi * share**3 * (10.0 - 15.0 * share + 6.0 * share**2)
    rate = 2.0 * np.pi * 30.0 * share**2 * (1.0 - share) ** 2 / duration
    outwards = np.array([0.0, np.sin(turned), 1.0 - np.cos(turned)])
    along = rate * np.array([0.0, np.cos(turned), np.sin(turned)])
    return start + RADIUS * outwards, RADIUS * along


def follow(
    twin: Twin, arm: FrankaArm, speed: float, seconds: float, *, fed: bool
) -> list[tuple[float, np.ndarray]]:
    """Streams the path; returns the distance (3,) of the arm from it at every target."""
    from real.arm import PoseTarget

    pose = arm.state().base_T_ee
    start = pose[:3, 3].copy()
    errors = []
    for step in range(1, round(seconds / PERIOD) + 1):
        position, velocity = circle(start, speed, step * PERIOD)
        target = pose.copy()
        target[:3, 3] = position
        twist = np.concatenate([velocity if fed else np.zeros(3), np.zeros(3)])
        arm.set_target(PoseTarget(target, twist, np.zeros(6)))
        twin.advance(PERIOD)
        errors.append((step * PERIOD, arm.state().base_T_ee[:3, 3] - position))
    return errors


# Speed


def speed(arms: int, seconds: float) -> dict[str, float]:
    """Figures of so many arms that move at once."""
    import psutil

    with ExitStack() as stack:
        twins = [stack.enter_context(twin_at(51 + number)) for number in range(arms)]
        drivers = [stack.enter_context(arm_at(twin)) for twin in twins]
        processes = [psutil.Process(twin.pid) for twin in twins]
        pool = stack.enter_context(ThreadPoolExecutor(arms))
        for driver in drivers:
            driver.start()
        before = [sum(process.cpu_times()[:2]) for process in processes]
        own, began = time.process_time(), [twin.stats() for twin in twins]

        def run(twin: Twin, driver: FrankaArm) -> None:
            follow(twin, driver, SPEEDS["slow"], seconds, fed=True)

        list(pool.map(run, twins, drivers))
        after = [sum(process.cpu_times()[:2]) for process in processes]
        client, ended = time.process_time() - own, [twin.stats() for twin in twins]
        factors = [
            1e-3
            * (last["motion_ticks"] - first["motion_ticks"])
            / (last["motion_s"] - first["motion_s"])
            for first, last in zip(began, ended, strict=True)
        ]
        used = statistics.mean(b - a for a, b in zip(before, after, strict=True))
        return {
            "realtime_factor": min(factors),
            "twin_cpu_s": used / seconds,
            "client_cpu_s": client / seconds,
            "lost": sum(stats["lost_packets"] for stats in ended),
        }


def summarised(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Medians of the repeats."""
    return {
        name: round(statistics.median(run[name] for run in runs), 3)
        for name in ("realtime_factor", "twin_cpu_s", "client_cpu_s")
    } | {"lost": int(sum(run["lost"] for run in runs))}


# Tracking


def tracking() -> dict[str, dict[str, Any]]:
    """Errors by friction, controller and speed."""
    found: dict[str, dict[str, Any]] = {}
    frictions: tuple[Literal["none", "published"], ...] = ("none", "published")
    for friction in frictions:
        for name, pace in SPEEDS.items():
            for law, fed in (("fed", True), ("steps", False)):
                with twin_at(55, friction) as twin, arm_at(twin) as arm:
                    arm.start()
                    seconds = 2.0 * np.pi * RADIUS / pace + REST
                    errors = follow(twin, arm, pace, seconds, fed=fed)
                found[f"{law} {name} {friction}"] = in_mm(errors)
            with twin_at(55, friction) as twin:
                found[f"generator {name} {friction}"] = in_mm(generated(twin, pace))
    return found


def generated(twin: Twin, pace: float) -> list[tuple[float, np.ndarray]]:
    """The path by joint positions at 1 kHz; errors as those of `follow`."""
    from scipy.interpolate import CubicSpline

    from robots.franka import find_robot
    from robots.franka.kinematics import inverse_kinematics
    from sim.twin.protocol import Generator, RobotMode

    robot = find_robot("fr3")
    chain = robot.chain
    errors = []
    with WireClient(twin.host) as client:
        q = client.read()["q_d"].astype(float)
        pose = chain.forward_kinematics(q)
        start = pose[:3, 3].copy()
        client.move(Generator.JOINT_POSITION)
        client.send(q_c=q)
        twin.wait_for_motion()
        duration = 2.0 * np.pi * RADIUS / pace
        cycles = round((duration + REST) * 1e3)
        knots = [q]
        times = np.linspace(0.0, duration, round(duration / KNOT) + 1)
        for at in times[1:]:
            target = pose.copy()
            target[:3, 3] = circle(start, pace, at)[0]
            knots.append(inverse_kinematics(robot, target, knots[-1], tolerance=1e-9))
        path = CubicSpline(times, knots, bc_type="clamped")

        def command(cycle: int) -> dict[str, Any]:
            measured = chain.forward_kinematics(client.state["q"].astype(float))[:3, 3]
            errors.append((1e-3 * cycle, measured - circle(start, pace, 1e-3 * cycle)[0]))
            return {"q_c": path(min(1e-3 * cycle, duration))}

        ends: list[int] = []
        thread = client.follow(command, cycles, ends)
        twin.advance(1e-3 * (cycles + 1))
        thread.join(60.0)
        assert ends == [cycles]
        assert client.state["robot_mode"] == RobotMode.MOVE, "the motion ended early"
    return errors


def in_mm(errors: list[tuple[float, np.ndarray]]) -> dict[str, float]:
    """Root mean square and largest distance from the path while it moves, and the last one."""
    end = errors[-1][0] - REST
    moving = np.linalg.norm([error for at, error in errors if at <= end], axis=1)
    return {
        "rms_mm": round(1e3 * float(np.sqrt(np.mean(moving**2))), 2),
        "max_mm": round(1e3 * float(moving.max()), 2),
        "rest_mm": round(1e3 * float(np.linalg.norm(errors[-1][1])), 2),
    }


if __name__ == "__main__":
    main()
