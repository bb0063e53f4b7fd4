"""Records exciting motions of an arm behind the robot's network protocol, under the joint law of
its driver (`real.franka`), which the model of `sim.identification.tracking` replays."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.deployment.robot_limit import held_arm
from flows.deployment.twin import PATIENCE, processor_for_twin
from flows.identification.config import ExciteArmConfig
from real.arm import JointPositionTarget
from robots.errors import HandoffError
from robots.interfaces import Progress

if TYPE_CHECKING:
    from real.franka.arm import FrankaArm
    from robots.interfaces import Clock

TICK = 0.005
"""Time for which a target is held [s], the physics step of the model that replays it."""
TABLE = "reach"
"""Task whose table the twin has: one without an object that a motion might touch."""


def record_at_twin(config: ExciteArmConfig, out: Path, progress: Progress) -> dict[str, Any]:
    """Moves the twin along the exciting targets and writes them to the store at `out`.

    Returns:
        See `sim.identification.excitation.record_motions`.

    Raises:
        HandoffError: targets that do not come at a multiple of `TICK`, a fault of the arm, or an
            error of `record_motions`.
    """
    from real.franka.late_arm import new_arm
    from robots.franka import find_robot
    from sim.identification.excitation import record_motions
    from sim.twin.task_world import TaskWorld
    from sim.twin.twin import start_twin

    ticks = 1.0 / (config.rate_hz * TICK)
    if abs(ticks - round(ticks)) > 1e-9 or ticks < 1.0:
        raise HandoffError(
            f"excite_arm: rate_hz is {config.rate_hz}, expected targets at a multiple of {TICK} s, such as 100 Hz."
        )
    robot = find_robot(config.robot)
    with (
        held_arm(config.twin.host, robot.name, patience=PATIENCE, progress=progress),
        processor_for_twin() as cpu,
        start_twin(replace(config.twin, cpu=cpu), partial(TaskWorld, TABLE, config.robot)) as twin,
    ):

        def measure(motion: int, target: np.ndarray) -> np.ndarray:
            twin.reset(config.seed)
            settings = replace(
                config.arm,
                host=config.twin.host,
                robot=config.robot,
                record_seconds=config.settle + config.seconds + 1.0,
            )
            delay = config.twin.deviations.delay
            with new_arm(settings, twin, twin.wait_for_motion, delay) as arm:
                return follow(arm, twin, target, 1.0 / config.rate_hz, config.settle)

        return record_motions(config, out, measure, progress, arm=f"{robot.name} twin")


def follow(
    arm: FrankaArm, clock: Clock, target: np.ndarray, period: float, settle: float
) -> np.ndarray:
    """Moves an arm to the first target, along all of them, and returns where it was.

    Args:
        arm: a connected arm with the joint law, which is at rest when this returns or raises.
        clock: clock of robot time.
        target: (T, J) targets, `period` apart [rad]; between them they are interpolated linearly.
        period: time between two targets [s], a multiple of `TICK`.
        settle: time at the first target before the motion begins [s].

    Returns:
        (T, J) measured positions at the times of the targets [rad].

    Raises:
        SafetyError: the arm is not ready, or stopped on the way.
    """
    arm.preflight()
    arm.move_to_joints(target[0])
    # The law is given positions alone.
    rest = np.zeros(target.shape[1])
    try:
        arm.start()
        arm.set_target(JointPositionTarget(target[0], rest))
        clock.advance(settle)
        begin = arm.state().time
        ticks = round(period / TICK)
        for previous, following in pairwise(target):
            for tick in range(1, ticks + 1):
                q = previous + tick / ticks * (following - previous)
                arm.set_target(JointPositionTarget(q, rest))
                clock.advance(TICK)
            # Raises what stopped the arm.
            arm.state()
        end = begin + (len(target) - 1) * period
        assert arm.recorder is not None
        states = arm.recorder.between(begin - 1.5e-3, end)
    except HandoffError:
        # The fault is the cause; what stopping a faulty arm says would hide it.
        with suppress(HandoffError):
            arm.stop()
        raise
    arm.stop()
    at = begin + np.arange(len(target)) * period
    rows = np.searchsorted(states["time"], at - 5e-4)
    return states["q"][rows]
