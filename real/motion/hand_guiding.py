"""Lets an arm yield to the hand that guides it, within bounds on its speed and outside the fence.

The arm has no stiffness and little damping; the robot itself carries its weight, so that it stays
where the hand leaves it. When guiding ends, the arm comes to rest and stays where it was measured
last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from real.arm import ArmState, YieldingArm, stopping
from real.franka.impedance import JointDamping
from real.franka.joint_limits import tool_jacobian
from real.motion.fence import ENTERED, FenceConfig
from real.motion.fenced_path import check_outside, rooms
from robots.config import config
from robots.errors import SafetyError
from robots.interfaces import Clock

PERIOD = 0.01
"""Time between two checks of the arm [s]."""


@config
class HandGuidingConfig:
    """Damping and bounds of an arm that a hand guides."""

    damping: tuple[JointDamping, ...] = (8.0, 8.0, 8.0, 8.0, 3.0, 3.0, 3.0)
    """(J,) damping of the joints while they have no stiffness [Nms/rad]."""
    max_speed: Annotated[float, Field(gt=0.0, le=1.0)] = 0.6
    """Speed of the end effector above which the arm is held [m/s]."""
    max_joint_speed: Annotated[float, Field(gt=0.0, le=2.0)] = 1.5
    """Speed of a joint above which the arm is held [rad/s]."""


def guide(
    arm: YieldingArm,
    clock: Clock,
    config: HandGuidingConfig,
    fence: FenceConfig,
    wanted: Callable[[], bool],
    moved: Callable[[ArmState], None] = lambda state: None,
) -> None:
    """Lets an arm yield until the person ends it; the arm is at rest when this returns or raises.

    Args:
        arm: a connected arm, at rest and not under control.
        clock: clock of the robot.
        config: damping and bounds.
        fence: places that the arm keeps out of; a point that begins inside may only leave.
        wanted: called every 10 ms; returns False to end it.
        moved: called with every state in between.

    Raises:
        SafetyError: the arm moved too fast, a point entered the fence, or a measurement is no
            finite number; or the robot has stopped by itself.
    """
    arm.robot.check_per_joint("reset.guiding.damping", config.damping)
    with stopping(arm):
        arm.start_limp(config.damping)
        begin = _rooms(fence, arm, arm.state())
        while wanted():
            clock.advance(PERIOD)
            state = arm.state()
            _check_speed(config, arm, state)
            present = _rooms(fence, arm, state)
            # A point that began inside may come no deeper.
            entered = {key: room - min(0.0, begin[key]) for key, room in present.items()}
            if entered and min(entered.values()) < -ENTERED:
                check_outside(present, "has come")
            moved(state)


def _rooms(fence: FenceConfig, arm: YieldingArm, state: ArmState) -> dict[tuple[str, str], float]:
    """Distances of `fenced_path.rooms` [m]; none without a fence."""
    return {} if fence.empty else rooms(fence, arm.robot, arm.flange_T_ee, state.q)


def _check_speed(config: HandGuidingConfig, arm: YieldingArm, state: ArmState) -> None:
    """Checks the measured speeds.

    Raises:
        SafetyError: one is too high, or no finite number.
    """
    if not (np.isfinite(state.q).all() and np.isfinite(state.dq).all()):
        raise SafetyError(
            f"hand guiding: joint positions {state.q.tolist()} rad, velocities {state.dq.tolist()} rad/s, expected "
            "finite numbers. Does the robot send states?"
        )
    fastest = int(np.argmax(np.abs(state.dq)))
    if abs(state.dq[fastest]) > config.max_joint_speed:
        raise SafetyError(
            f"hand guiding: joint{fastest + 1} moved at {abs(state.dq[fastest]):.2f} rad/s, limit "
            f"{config.max_joint_speed:g} rad/s. Guide it more slowly."
        )
    jacobian = tool_jacobian(arm.robot.chain, state.q, arm.flange_T_ee)
    speed = float(np.linalg.norm(jacobian[:3] @ state.dq))
    if speed > config.max_speed:
        raise SafetyError(
            f"hand guiding: the end effector moved at {speed:.2f} m/s, limit {config.max_speed:g} m/s. Guide it more "
            "slowly, and check the payload."
        )
