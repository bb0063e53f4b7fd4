"""Defines the options of one arm, and compares them with the robot's data sheet."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from real.franka.impedance import ImpedanceConfig
from real.franka.slot import is_on_this_computer
from robots.config import config
from robots.errors import HandoffError
from robots.franka import RobotName
from robots.franka.robot import Robot

JointTorque = Annotated[float, Field(gt=0.0, le=87.0)]
"""A torque of a joint [Nm]; the strongest joints reach 87."""
Force = Annotated[float, Field(gt=0.0, le=100.0)]
"""A force at the end effector [N]; libfranka's example of impedance control sets 100."""
Moment = Annotated[float, Field(gt=0.0, le=30.0)]
"""A moment at the end effector [Nm]."""
CollisionForce = tuple[Force, Force, Force, Moment, Moment, Moment]
Offset = Annotated[float, Field(ge=-0.3, le=0.3)]
CentreOfMass = tuple[Offset, Offset, Offset]


@config
class FrankaConfig:
    """Connection, controller and collision behaviour of one arm."""

    robot: RobotName = "fr3"
    """Robot that is connected; another one is refused."""
    host: str = "127.0.0.1"
    """Name or address of the robot's control, or of its twin."""
    realtime: Literal["enforce", "ignore"] = "enforce"
    """Real-time check: `enforce` refuses to run without a PREEMPT_RT kernel; `ignore` is for the
    twin."""
    latch: Literal["kept", "connection"] = "kept"
    """Lifetime of a fault: `kept` refuses motions until a person clears it, also after a restart;
    `connection` forgets it on disconnecting, for a twin whose faults belong to an experiment."""
    impedance: ImpedanceConfig = field(default_factory=ImpedanceConfig)
    """Impedance law that follows the targets."""
    collision_torque: tuple[JointTorque, ...] = (40.0, 40.0, 36.0, 36.0, 12.0, 12.0, 12.0)
    """(J,) external joint torque that stops the robot [Nm], at most its largest torque; half of it
    counts as contact."""
    collision_force: CollisionForce = (50.0, 50.0, 50.0, 15.0, 15.0, 15.0)
    """External force x, y, z [N] and moment [Nm] that stop the robot; half of them count as
    contact."""
    tool_length: Annotated[float, Field(ge=0.0, le=0.5)] | None = 0.120
    """Distance from the flange to the tool's tip [m], by default the pusher's; None takes the point
    between the fingertips of the robot's gripper. The end effector frame is the flange's, moved
    along its z."""
    load_mass: Annotated[float, Field(ge=0.0, le=3.0)] = 0.0
    """Mass of a payload beyond the end effector configured in Desk [kg]; the arms carry 3 kg."""
    load_com: CentreOfMass = (0.0, 0.0, 0.0)
    """Centre of mass of that payload in the flange frame [m]."""
    move_dynamics: Annotated[float, Field(gt=0.0, le=0.5)] = 0.1
    """Share of the arm's velocity, acceleration and jerk limits that `move_to_joints` uses."""
    rest_torque: Annotated[float, Field(gt=0.0, le=12.0)] = 4.0
    """External torque of a joint at rest above which the payload counts as wrongly configured
    [Nm]."""
    record_seconds: Annotated[float, Field(gt=0.0, le=3600.0)] = 60.0
    """Time for which memory for robot states is reserved per motion [s], 0.5 kB each
    millisecond."""


def flange_T_tool(config: FrankaConfig, robot: Robot) -> np.ndarray:
    """(4, 4) end effector frame of an arm in the flange frame [m], see
    `FrankaConfig.tool_length`."""
    frame = np.eye(4)
    frame[2, 3] = robot.gripper.tcp_offset if config.tool_length is None else config.tool_length
    return frame


def check_data_sheet(config: FrankaConfig, robot: Robot) -> None:
    """Compares the options of an arm with the data sheet of its robot.

    Raises:
        HandoffError: a torque exceeds the robot's, a number of entries is not that of its joints,
            or `realtime` is `ignore` at an address of another computer, as only a real arm has.
    """
    impedance, most = config.impedance, robot.limits.tau_max
    robot.check_per_joint("arm.collision_torque", config.collision_torque, most, "Nm")
    robot.check_per_joint("arm.impedance.joint_stiffness", impedance.joint_stiffness)
    robot.check_per_joint("arm.impedance.joint_damping", impedance.joint_damping)
    if config.realtime != "enforce" and not is_on_this_computer(config.host):
        raise HandoffError(
            f"arm at {config.host}: realtime is '{config.realtime}', which is for a twin on this computer; a real arm "
            "needs 'enforce' and a PREEMPT_RT kernel."
        )
