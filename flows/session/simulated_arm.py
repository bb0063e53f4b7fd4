"""Defines the options of a simulated arm at which a session takes place, behind the network
protocols of a real one, and the limits of an arm with a gripper."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from real.franka.config import FrankaConfig
from real.franka.gripper import GripperDriverConfig
from real.franka.impedance import GAINS, ImpedanceConfig
from real.motion.governor import GovernorConfig
from real.motion.stream import StreamConfig
from robots.config import config
from sim.twin.twin import TwinConfig

if TYPE_CHECKING:
    from real.driver.driven_arm import DrivenArm
    from real.driver.driver import Driver
    from sim.twin.twin import Twin

IMPEDANCE = ImpedanceConfig(
    error_clip=GAINS.force_limit / GAINS.stiffness[0],
    rotation_clip=GAINS.torque_limit / GAINS.stiffness[3],
)
"""Impedance with the same error limits as the controller of the simulated environments."""
COLLISION_FORCE = (100.0, 100.0, 100.0, 30.0, 30.0, 30.0)
"""External force [N] and moment [Nm] at which the robot stops. A gripper in contact presses: at the
target lag limit of 30 mm the impedance exerts 60 N, so the limit of 50 N that suits a pusher would
stop intended contacts. libfranka's example of Cartesian impedance control sets 100 N."""
STEP_LIMITS = GovernorConfig(max_speed=0.8, max_acceleration=30.0, max_jerk=12_000.0)
"""Limits of a reference that moves by a policy's steps. A step of 20 mm at 20 Hz along two axes is
0.57 m/s. A change of the speed by 0.4 m/s along one of four coordinates takes 5 mm, so that the arm
moves almost as in simulation, where the path has no such limit; with 9 m/s^2 it took 18 mm. The
torques and their rates bound the reference as well (`real.motion.reference_bounds`)."""


def twin_arm() -> FrankaConfig:
    """The driver's options at a simulated arm with a gripper: no real-time kernel is needed, and a
    fault ends one episode of several."""
    return FrankaConfig(
        realtime="ignore",
        latch="connection",
        tool_length=None,
        impedance=IMPEDANCE,
        collision_force=COLLISION_FORCE,
    )


@config
class SimulatedArm:
    """A simulated arm with a gripper behind the robot's network protocols: its driver, governor,
    limits and faults are those of a real arm."""

    arm: FrankaConfig = field(default_factory=twin_arm)
    """Impedance and collision limits of the arm; the robot and the address are those of the task
    and of `twin`."""
    gripper: GripperDriverConfig = field(default_factory=GripperDriverConfig)
    """Speed and force of the gripper."""
    stream: StreamConfig = field(
        default_factory=lambda: StreamConfig(stream_hz=200.0, governor=STEP_LIMITS)
    )
    """Rate and limits of the stream of references; the governor's workspace is that of the task's
    steps."""
    twin: TwinConfig = field(default_factory=TwinConfig)
    """Address and clock of the simulated robot."""


def arm_of_twin(
    driver: Driver, settings: FrankaConfig, options: TwinConfig, twin: Twin
) -> DrivenArm:
    """The arm of a running twin, whose targets arrive late where the twin deviates so.

    Args:
        driver: the process that drives it.
        settings: options of the arm, with the address of the twin.
        options: those with which the twin was started.
        twin: the running twin, which is the clock of the arm.
    """
    from real.driver.driven_arm import DrivenArm

    delay = options.deviations.delay
    return DrivenArm(driver, settings, twin, twin.wait_for_motion, delay)
