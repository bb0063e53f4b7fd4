"""Options of this package: starts at the twin, at the table of push-T or of a task, and sessions at
an arm."""

from __future__ import annotations

from dataclasses import field

from real.deploy.governor import GovernorConfig
from real.deploy.loop import LoopConfig
from real.deploy.object_tracker import TrackerConfig
from real.deploy.planar_space import PlaneConfig
from real.deploy.supervision import SupervisionConfig
from real.franka.arm import FrankaConfig
from real.franka.gripper import GripperDriverConfig
from real.franka.impedance import GAINS, ImpedanceConfig
from robots.config import config
from robots.contract import Contract
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.robot import Robot
from robots.seed_ranges import DEMONSTRATIONS, EVALUATION
from sim.twin.twin import TwinConfig

IMPEDANCE = ImpedanceConfig(
    error_clip=GAINS.force_limit / GAINS.stiffness[0],
    rotation_clip=GAINS.torque_limit / GAINS.stiffness[3],
)
"""Springs that give way where those of the simulated worlds do."""
COLLISION_FORCE = (100.0, 100.0, 100.0, 30.0, 30.0, 30.0)
"""External force [N] and moment [Nm] that make the robot stop. A hand at work presses: at the end
of the steps' leash of 30 mm the springs do with 60 N, so the 50 N that suit a pusher would end what
is meant. libfranka's example of Cartesian impedance control sets 100 N."""


@config
class DeployConfig:
    """Starts, robot and limits."""

    starts: int = 20
    """Episodes, each from the start that gym-pusht draws for its seed."""
    first_seed: int = EVALUATION.start
    """Seed of the first start, and of the policy's noise there."""
    videos: int = 2
    """First episodes that are rendered, at twice the speed."""
    twin: TwinConfig = field(default_factory=TwinConfig)
    """The simulated robot and its network."""
    arm: FrankaConfig = field(default_factory=lambda: FrankaConfig(realtime="ignore"))
    """`ignore` because the twin needs no real-time kernel; its address is the twin's."""
    plane: PlaneConfig = field(default_factory=PlaneConfig)
    """Height and posture of the pusher over the table."""
    loop: LoopConfig = field(default_factory=LoopConfig)
    """Rates, limits and watchdog of the control loop."""


@config
class DeployTaskConfig:
    """Starts, robot and limits."""

    starts: int = 20
    """Episodes, each from the start that the simulated worlds draw for its seed."""
    first_seed: int = EVALUATION.start
    """Seed of the first start, and of the policy's noise there."""
    max_steps: int | None = None
    """Policy steps after which an episode ends; None: the task's."""
    videos: int = 2
    """First episodes that are rendered, at twice the speed."""
    twin: TwinConfig = field(default_factory=TwinConfig)
    """The simulated robot and its network."""
    arm: FrankaConfig = field(
        default_factory=lambda: FrankaConfig(
            realtime="ignore",
            tool_length=None,
            impedance=IMPEDANCE,
            collision_force=COLLISION_FORCE,
        )
    )
    """`ignore` because the twin needs no real-time kernel; its address is the twin's."""
    hand: GripperDriverConfig = field(default_factory=GripperDriverConfig)
    """Speed and force of the gripper."""
    loop: LoopConfig = field(
        default_factory=lambda: LoopConfig(
            stream_hz=200.0, governor=GovernorConfig(max_speed=0.8, max_acceleration=9.0)
        )
    )
    """The governor's box is that of the policy's steps; a step of 20 mm at 20 Hz along two axes is
    0.57 m/s."""


@config
class DeploySession:
    """What a session at an arm can be told."""

    host: str = ""
    """Address of the arm's control unit; empty starts a simulated arm."""
    first_seed: int = DEMONSTRATIONS.start
    """Seed of the first start and of the policy's noise there; it also places the simulated
    objects."""
    start: tuple[float, float] = (0.256, 0.400)
    """Where an arm's pusher begins an episode [m], board; the simulated one begins where gym-pusht
    draws it."""
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(wait_for_policy=False))
    """Rates, limits and watchdog of the control loop."""
    plane: PlaneConfig = field(default_factory=PlaneConfig)
    """Height and posture of the pusher over the table."""
    arm: FrankaConfig = field(default_factory=FrankaConfig)
    """Impedance, collision limits and recording of the arm."""
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    """Speed and takeover of the person at the console."""
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    """Who sees the T; an arm needs one, the simulated world knows."""
    twin: TwinConfig = field(default_factory=TwinConfig)
    """The simulated robot, read where no host is given."""


def robot_of_bundle(contract: Contract, arm: FrankaConfig) -> Robot:
    """The robot that a twin has to be: that of the policy, or the configured one where the contract
    states none.

    Raises:
        HandoffError: the configuration names another robot than the policy was trained with, or the
            contract one that is not known here.
    """
    if contract.robot and arm.robot not in (contract.robot, FrankaConfig().robot):
        raise _another_robot(contract, arm)
    return find_robot(contract.robot or arm.robot)


def check_robot_of_session(contract: Contract, arm: FrankaConfig) -> None:
    """Checks that the arm of a session is the robot that the policy was trained with.

    Raises:
        HandoffError: it is another one.
    """
    if contract.robot and arm.robot != contract.robot:
        raise _another_robot(contract, arm)


def _another_robot(contract: Contract, arm: FrankaConfig) -> HandoffError:
    return HandoffError(
        f"deploy: the policy of {contract.task} was trained with the robot '{contract.robot}', the arm is "
        f"'{arm.robot}'. Set arm.robot={contract.robot} if that is the arm, or take another bundle."
    )
