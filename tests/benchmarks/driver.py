"""Measures how late an action reaches the arm, and how evenly references are sent, with the arm
driven in the policy's process and in a process of its own.

    python -m tests.benchmarks.driver --json

The arm is a simulated one whose time is its own (`handoff twin` with the clock `paced`, in another
process), so that the stream goes the way of a real arm: the unmodified client, the robot's clock,
200 references per second. Every 50 ms a new target is set, as by a policy at 20 Hz. Both ways run
under each load: nothing else, a thread that computes in Python beside the policy, and processes that
keep every processor busy.

age_ms: from setting a target to sending the first reference that heads for it; median, 95th and 99th
percentile.
jitter_ms: difference of the time between two references from 5 ms; the same.
late: share of the references sent more than a millisecond late.
success_rate: smallest share of control commands that arrived in time, by the robot.
load: average number of running processes of the computer during the measurement.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

WAYS = ("in process", "driver")
LOADS = ("none", "thread", "processes")
RATE_HZ = 20.0
REACH = 0.01
"""Distance of the targets from the start [m]."""


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--host", default="127.0.90.7", help="address of the simulated arm")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    figures = measured(arguments.host, arguments.seconds)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


def measured(host: str, seconds: float) -> dict[str, Any]:
    """The figures of all ways under all loads.

    Args:
        host: address of the simulated arm.
        seconds: duration of each measurement [s].
    """
    with simulated_arm(host):
        return {load: {way: _under(load, way, host, seconds) for way in WAYS} for load in LOADS}


@contextmanager
def simulated_arm(host: str) -> Iterator[None]:
    """Runs a simulated arm with a time of its own in another process."""
    context = multiprocessing.get_context("spawn")
    over, ready = context.Event(), context.Event()
    # It has a process below it, so it is no daemon.
    process = context.Process(target=_run_arm, args=(host, over, ready))
    process.start()
    try:
        assert ready.wait(60.0), "the simulated arm does not begin"
        yield
    finally:
        over.set()
        process.join(10.0)


def _run_arm(host: str, over: Event, ready: Event) -> None:
    from flows.session.standalone_twin import StandaloneTwin, run_twins

    run_twins(
        StandaloneTwin(task="reach", host=host),
        [],
        say=lambda text: ready.set() if "connect any program" in text else None,
        show=lambda text: None,
        ended=over.is_set,
    )


def _under(load: str, way: str, host: str, seconds: float) -> dict[str, Any]:
    with ExitStack() as stack:
        ended = threading.Event()
        stack.callback(ended.set)
        if load == "thread":
            threading.Thread(target=_compute, args=(ended.is_set,), daemon=True).start()
        if load == "processes":
            context = multiprocessing.get_context("spawn")
            for _ in range(len(os.sched_getaffinity(0))):
                burner = context.Process(target=_compute, daemon=True)
                burner.start()
                stack.callback(burner.join, 5.0)
                stack.callback(burner.terminate)
        found = _streamed(stack, way, host, seconds)
        return {**found, "load": round(os.getloadavg()[0], 1)}


def _compute(ended: Callable[[], bool] = lambda: False) -> None:
    """Keeps a processor, and within a process Python's lock, busy."""
    number = 1
    while not ended():
        for _ in range(1000):
            number = number * 1103515245 % 2147483647


def _streamed(stack: ExitStack, way: str, host: str, seconds: float) -> dict[str, Any]:
    """Streams to the arm for so many seconds."""
    from flows.session.simulated_arm import STEP_LIMITS, twin_arm
    from real.driver.driven_arm import DrivenArm
    from real.driver.driver import Driver
    from real.franka.arm import FrankaArm
    from real.motion.action_space import CartesianSteps
    from real.motion.stream import ReferenceStream, StreamConfig
    from sim.make import find_task
    from tests.flows.deployment.test_task_table import contract_for

    settings = replace(twin_arm(), host=host)
    task = find_task("reach")
    stated = contract_for("reach", ("grasp_pose",))
    arm: Any
    if way == "driver":
        arm = stack.enter_context(DrivenArm(stack.enter_context(Driver()), settings))
    else:
        arm = stack.enter_context(FrankaArm(settings))
    space = CartesianSteps(stated, arm.preflight().base_T_ee, task.robot)
    config = StreamConfig(stream_hz=200.0, governor=space.governed(STEP_LIMITS))
    arm.start()
    if way == "driver":
        stream: Any = arm.stream(arm.clock, space, config, None)
    else:
        stream = ReferenceStream(arm, arm.clock, space, config, arm.flange_T_ee)
    start, sent, ages, rates = stream.target, [], [], [1.0]
    pending: tuple[np.ndarray, float] | None = None
    steps, due = 0, 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if stream.last.number >= due:
            due = stream.last.number + round(config.stream_hz / RATE_HZ)
            steps += 1
            aim = start + np.eye(len(start))[0] * REACH * (1.0 if steps % 2 else -1.0)
            pending = (aim, time.monotonic())
            stream.set_target(aim)
        stream.send()
        for tick in stream.pass_tick():
            sent.append(tick.sent_at)
            rates.append(tick.state.success_rate)
            if pending is not None and np.array_equal(tick.target, pending[0]):
                ages.append(tick.sent_at - pending[1])
                pending = None
    arm.stop()
    between = 1e3 * (np.diff(sent) - 1.0 / config.stream_hz)
    return {
        "age_ms": _quantiles(1e3 * np.array(ages)),
        "jitter_ms": _quantiles(np.abs(between)),
        "late": round(float(np.mean(between > 1.0)), 4),
        # The first second has no full window of commands.
        "success_rate": float(min(rates[200:], default=min(rates))),
        "references": len(sent),
    }


def _quantiles(values: np.ndarray) -> list[float]:
    """Median, 95th and 99th percentile."""
    return [round(float(each), 3) for each in np.quantile(values, (0.5, 0.95, 0.99))]


if __name__ == "__main__":
    main()
