"""Defines the options of deployments to the twin, at the push-T table or at a task's table, and of
sessions at an arm with either."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal, Protocol

from pydantic import Field

from flows.session.simulated_arm import COLLISION_FORCE, IMPEDANCE, STEP_LIMITS, twin_arm
from real.cameras.config import CameraConfig
from real.deploy.loop import LoopConfig
from real.deploy.supervision import SupervisionConfig
from real.deploy.tracked_field import FieldTrackerConfig, TrackerConfig
from real.franka.config import FrankaConfig
from real.franka.gripper import GripperDriverConfig
from real.hints.config import DeploymentHints
from real.motion.hand_guiding import HandGuidingConfig
from real.motion.planar_space import PlaneConfig
from robots.config import Count, Finite, Metres, Radians, Seconds, Seed, Whole, config
from robots.contract import Contract
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.robot import Robot
from robots.seed_ranges import DEMONSTRATIONS, EVALUATION
from sim.rendering.camera_clock import CameraClockConfig
from sim.twin.twin import TwinConfig

INFERENCES = "inference_ms.json"
"""File with the host times of the inferences [ms], by the seed of the start. They are not part of
the recorded episodes, which a repeated deployment records again."""


@config
class DeployConfig:
    """Deployment to the twin at the push-T table: starts, robot and limits."""

    kind: Literal["push_t"] = "push_t"
    starts: Count = 20
    """Number of episodes, each from the start that gym-pusht samples for its seed."""
    first_seed: Seed = EVALUATION.start
    """Seed of the first start, and of the policy's noise in that episode."""
    videos: Whole = 2
    """Number of episodes rendered as videos, at twice the speed."""
    twin: TwinConfig = field(default_factory=TwinConfig)
    """The simulated robot and its network."""
    arm: FrankaConfig = field(
        default_factory=lambda: FrankaConfig(realtime="ignore", latch="connection")
    )
    """Impedance, limits and recording of the arm. `realtime` is `ignore`, because the twin needs no
    real-time kernel; `latch` is `connection`, because a fault ends one start of several; the
    address is the twin's."""
    plane: PlaneConfig = field(default_factory=PlaneConfig)
    """Height and posture of the pusher over the table."""
    cameras: CameraClockConfig = field(default_factory=CameraClockConfig)
    """Clock of the camera above the board, for a policy that observes it."""
    loop: LoopConfig = field(default_factory=LoopConfig)
    """Rates, limits and watchdog of the control loop."""


@config
class DeployTaskConfig:
    """Deployment to the twin at the table of a simulated task: starts, robot and limits."""

    kind: Literal["task"] = "task"
    starts: Count = 20
    """Number of episodes, each from the start that the simulated environment samples for its
    seed."""
    first_seed: Seed = EVALUATION.start
    """Seed of the first start, and of the policy's noise in that episode."""
    max_steps: Count | None = None
    """Time limit of an episode [policy steps]; None takes the task's."""
    videos: Whole = 2
    """Number of episodes rendered as videos, at twice the speed."""
    twin: TwinConfig = field(default_factory=TwinConfig)
    """The simulated robot and its network."""
    arm: FrankaConfig = field(default_factory=twin_arm)
    """Impedance, limits and recording of the arm; `realtime`, `latch` and address as at the push-T
    table."""
    gripper: GripperDriverConfig = field(default_factory=GripperDriverConfig)
    """Speed and force of the gripper."""
    cameras: CameraClockConfig = field(default_factory=CameraClockConfig)
    """Clocks of the cameras that the policy observes."""
    loop: LoopConfig = field(
        default_factory=lambda: LoopConfig(stream_hz=200.0, governor=STEP_LIMITS)
    )
    """Rates, limits and watchdog of the control loop. The governor's workspace is that of the
    policy's steps."""


@config
class ResetConfig:
    """The time between two episodes, in which a person lays the table."""

    sentence: str = ""
    """Sentence that tells the person what to do, such as "Put the cube back on its mark."; empty
    asks for the objects."""
    by_person: bool | None = None
    """Whether every episode waits until the person starts it; None means at a real arm, whose table
    a person lays."""
    guiding: HandGuidingConfig = field(default_factory=HandGuidingConfig)
    """Damping and bounds of the arm while a hand guides it."""


class ArmSession(Protocol):
    """The options that all sessions at an arm have; see `DeploySession`."""

    @property
    def host(self) -> str:
        """Address of the arm's control unit; empty starts a simulated arm."""
        ...

    @property
    def arm_name(self) -> str:
        """Name of the arm among all computers of a Prefect server."""
        ...

    @property
    def wait_seconds(self) -> float:
        """Time for which the session waits for an arm that is in use [s]."""
        ...

    @property
    def loop(self) -> LoopConfig:
        """Rates, limits and watchdog of the control loop."""
        ...

    @property
    def arm(self) -> FrankaConfig:
        """Impedance, collision limits and recording of the arm."""
        ...

    @property
    def twin(self) -> TwinConfig:
        """The simulated robot."""
        ...

    @property
    def reset(self) -> ResetConfig:
        """What happens between two episodes."""
        ...


@config
class SupervisedSession:
    """The options that all sessions have in which a person supervises a policy at an arm."""

    host: str = ""
    """Address of the arm's control unit; empty starts a simulated arm."""
    arm_name: str = ""
    """Name of the arm among all computers of a Prefect server, whose limit `robot-NAME` a session
    takes; empty takes the address."""
    wait_seconds: Annotated[float, Field(ge=0.0)] = 0.0
    """Time for which a session waits for an arm that is in use [s]."""
    first_seed: Seed = DEMONSTRATIONS.start
    """Seed of the first start and of the policy's noise in that episode; also places the simulated
    objects."""
    hold_to_run: bool | None = None
    """Whether the policy acts only while the person at the console holds the key that starts it;
    None means at a real arm."""
    shadow: bool = False
    """Whether the policy only thinks: the arm does what the person does, and stays where it is
    while nobody has it; what the policy would have done is recorded beside it."""
    speed: Annotated[float, Field(ge=0.05, le=1.0)] = 1.0
    """Speed of the policy in units of that of its training: with 0.1 every step lasts ten times as
    long. The gripper's fingers keep their speed."""
    recording: str = ""
    """Folder of recorded episodes whose executed actions are repeated in the policy's place, from
    the starts of these episodes; empty runs the policy."""
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    """Speed and takeover of the person at the console."""
    reset: ResetConfig = field(default_factory=ResetConfig)
    """What the person is asked to do between two episodes, and bounds of hand guiding."""
    hints: DeploymentHints = field(default_factory=DeploymentHints)
    """Hints to the person when the policy is likely to fail; without a source there are none."""
    cameras: dict[str, CameraConfig] = field(default_factory=dict)
    """Cameras by name, shown at the console. A policy that observes pictures takes `image_NAME` of
    its contract (or NAME itself) by the camera NAME, and they are recorded."""
    max_age: Seconds = 0.5
    """Age of a camera's newest picture above which the episode is ended [s], for cameras that state
    none."""
    calibration: str | None = None
    """File of `handoff camera calibrate` with the cameras that the policy observes; recorded with
    every episode."""
    clocks: CameraClockConfig = field(default_factory=CameraClockConfig)
    """Clocks of the simulated cameras that a policy observes at a simulated arm, where `cameras` is
    empty."""
    twin: TwinConfig = field(default_factory=TwinConfig)
    """The simulated robot; used if `host` is empty."""


@config
class DeploySession(SupervisedSession):
    """All options of a session with a policy of push-T."""

    start: tuple[Metres, Metres] = (0.256, 0.400)
    """Start position of a real arm's pusher [m], board frame; gym-pusht samples that of the
    simulated arm."""
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(wait_for_policy=False))
    """Rates, limits and watchdog of the control loop."""
    plane: PlaneConfig = field(default_factory=PlaneConfig)
    """Height and posture of the pusher over the table."""
    arm: FrankaConfig = field(default_factory=FrankaConfig)
    """Impedance, collision limits and recording of the arm."""
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    """Tracker of the T; used at a real arm only."""


@config
class DeployTaskSession(SupervisedSession):
    """All options of a session with a policy of any other task, whose actions are steps of the
    gripper's pose or of the joints."""

    start: tuple[Radians, ...] | None = None
    """(J,) joint positions at which a real arm begins every episode [rad]; None takes the robot's
    home. A simulated arm begins as the simulated task does."""
    lift: Annotated[float, Field(ge=0.0, le=0.3)] = 0.10
    """Height by which a real arm rises first on its way to the start, so that it touches nothing on
    the table [m]."""
    instruction: str | None = None
    """What a language-conditioned policy is told; None takes the sentence of the simulated task, at
    a real arm the default instruction of the policy."""
    trackers: dict[str, FieldTrackerConfig] = field(default_factory=dict)
    """Trackers of observed fields by name, such as one of a cube and one of a drawer; a simulated
    arm measures the fields of no tracker itself."""
    constants: dict[str, tuple[Finite, ...]] = field(default_factory=dict)
    """Values of observed fields that do not change, in their units, such as `goal`."""
    gripper: GripperDriverConfig = field(default_factory=GripperDriverConfig)
    """Speed and force of the gripper."""
    loop: LoopConfig = field(
        default_factory=lambda: LoopConfig(
            stream_hz=200.0, wait_for_policy=False, governor=STEP_LIMITS
        )
    )
    """Length, rates and limits of the control loop; the governor's workspace is that of the
    policy's steps."""
    arm: FrankaConfig = field(
        default_factory=lambda: FrankaConfig(
            tool_length=None, impedance=IMPEDANCE, collision_force=COLLISION_FORCE
        )
    )
    """Impedance, collision limits and recording of the arm."""


def robot_of_bundle(contract: Contract, arm: FrankaConfig) -> Robot:
    """Returns the robot of the twin: the policy's, or the configured one if the contract states
    none.

    Raises:
        HandoffError: the configured robot differs from the one of the training, or the contract
            names an unknown robot.
    """
    if contract.robot and arm.robot not in (contract.robot, FrankaConfig().robot):
        raise _wrong_robot(contract, arm)
    return find_robot(contract.robot or arm.robot)


def check_robot_of_session(contract: Contract, arm: FrankaConfig) -> None:
    """Checks that the arm of a session is the robot with which the policy was trained.

    Raises:
        HandoffError: the robots differ.
    """
    if contract.robot and arm.robot != contract.robot:
        raise _wrong_robot(contract, arm)


def _wrong_robot(contract: Contract, arm: FrankaConfig) -> HandoffError:
    return HandoffError(
        f"deploy: the policy of {contract.task} was trained with the robot '{contract.robot}', the arm is "
        f"'{arm.robot}'. Set arm.robot={contract.robot} if that is the arm, or use another bundle."
    )
