"""Defines the options of a session in which a person demonstrates at an arm."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from flows.deployment.config import ResetConfig
from flows.deployment.safety import LONGEST, check_real, is_real
from flows.deployment.session_tables.hosts import HostOptions
from flows.session.simulated_arm import COLLISION_FORCE, IMPEDANCE, STEP_LIMITS
from real.cameras.config import CameraConfig, check_camera
from real.deploy.loop import LoopConfig
from real.franka.config import FrankaConfig, check_data_sheet, flange_T_tool
from real.franka.gripper import GripperDriverConfig
from real.motion.force_guard import check_reflex
from real.motion.governor import check_robot
from real.motion.step_spaces import start_within
from real.teleop.takeover import TakeoverConfig
from robots.config import Delay, Hertz, Radians, Seconds, config, to_plain, validate
from robots.contract import Contract
from robots.control.actions import CartesianDelta, check_actions, with_gripper
from robots.control.proprioception import proprioception_fields
from robots.episodes.segments.video_codec import VideoConfig
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.robot import Robot
from robots.spec import ActionSpec
from sim.twin.twin import TwinConfig

CONTROLLER = "cartesian_delta"
"""Meaning of the recorded actions, see `robots.contract.INTERFACES`."""

STILL_STEPS = 8
"""Steps for which the arm is told at once to stay where it is, while no person has it; a chunk of a
single step would arrive when it is over."""


@config
class DemonstrationSession:
    """All options of a session in which a person demonstrates at an arm."""

    host: str = ""
    """Address of the arm's control unit; empty starts a simulated arm."""
    arm_name: str = ""
    """Name of the arm among all computers of a Prefect server, see `DeploySession.arm_name`."""
    wait_seconds: Delay = 0.0
    """Time for which the session waits for an arm that is in use [s]."""
    rate_hz: Hertz = 20.0
    """Recorded steps per second, each with an action of the person [1/s]."""
    steps: CartesianDelta = field(
        default_factory=lambda: CartesianDelta(translation=0.01, rotation=0.05)
    )
    """Axes, step sizes and workspace of the actions; by default 0.2 m/s and 1 rad/s at full
    deflection."""
    use_gripper: bool = True
    """Whether the last entry of an action moves the gripper."""
    gripper: GripperDriverConfig = field(default_factory=GripperDriverConfig)
    """Speed and force of the gripper."""
    start: tuple[Radians, ...] | None = None
    """(J,) joint positions at which a real arm begins every episode [rad]; None takes the robot's
    home, or the place nearest to it in the workspace of `steps`. A simulated arm begins as the
    simulated task does."""
    lift: Annotated[float, Field(ge=0.0, le=0.3)] = 0.10
    """Height by which a real arm rises first on its way to the start, so that it touches nothing on
    the table [m]."""
    instruction: str | None = None
    """What is demonstrated, in words; recorded with every episode."""
    cameras: dict[str, CameraConfig] = field(default_factory=dict)
    """Cameras by name: shown at the console, and recorded as `image_NAME`."""
    max_age: Seconds = 0.5
    """Age of a camera's newest picture above which the episode is ended [s], for cameras that state
    none."""
    calibration: str | None = None
    """File of `handoff camera calibrate` with the cameras; recorded with every episode."""
    video: VideoConfig | None = None
    """Codec of the recorded pictures; None keeps them as arrays without loss."""
    takeover: TakeoverConfig = field(default_factory=TakeoverConfig)
    """Scaling and axes of the person's motion."""
    reset: ResetConfig = field(default_factory=ResetConfig)
    """What the person is asked to do between two episodes, and bounds of hand guiding."""
    hold_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 60.0
    """Longest robot time for which one episode may be held still under control [s]."""
    loop: LoopConfig = field(
        default_factory=lambda: LoopConfig(
            max_steps=1200,
            stream_hz=200.0,
            wait_for_policy=False,
            governor=replace(STEP_LIMITS, max_speed=0.4),
        )
    )
    """Length, rates and limits of the control loop; the workspace is that of `steps`."""
    arm: FrankaConfig = field(
        default_factory=lambda: FrankaConfig(
            tool_length=None, impedance=IMPEDANCE, collision_force=COLLISION_FORCE
        )
    )
    """Impedance, collision limits and recording of the arm."""
    twin: TwinConfig = field(default_factory=TwinConfig)
    """The simulated robot; used if `host` is empty."""

    @property
    def longest_episode(self) -> float:
        """Longest time for which the arm can be under control in one episode [s]."""
        return self.loop.max_steps / self.rate_hz + self.hold_seconds


def check_demonstrations(session: DemonstrationSession) -> None:
    """Checks the options of a session against the robot and one another, before anything moves.

    Raises:
        HandoffError: an option is out of its range, exceeds the robot's data sheet or contradicts
            another one; or it is for a simulated arm, or looser than its default, at a real one.
    """
    validate(DemonstrationSession, to_plain(session), "")
    robot = find_robot(session.arm.robot)
    governor, period = session.loop.governor, 1.0 / session.loop.stream_hz
    check_robot(governor, period, robot, feeds_velocity=False)
    session.loop.watchdog.check_period(1.0 / session.rate_hz)
    check_data_sheet(session.arm, robot)
    check_reflex(session.loop.force, session.arm)
    check_actions("steps", session.steps, robot)
    robot.check_per_joint("reset.guiding.damping", session.reset.guiding.damping)
    for name, camera in session.cameras.items():
        check_camera(name, camera)
    if session.start is not None:
        robot.check_per_joint("start", session.start)
        _check_start(session, robot, np.array(session.start))
    if session.longest_episode > LONGEST:
        raise HandoffError(
            f"record: an episode of {session.loop.max_steps} steps at {session.rate_hz:g} Hz takes up to "
            f"{session.longest_episode:.0f} s, limit {LONGEST:g} s. Lower loop.max_steps."
        )
    if is_real(session):
        check_real(session, DemonstrationSession())


def _check_start(session: DemonstrationSession, robot: Robot, start: np.ndarray) -> None:
    """Checks that an arm at joint positions `start` (J,) [rad] stands still until a person moves
    it: one outside the workspace would be led in."""
    flange_T_ee = flange_T_tool(session.arm, robot)
    if start_within(session.steps, robot, flange_T_ee, start) is start:
        return
    place = (robot.chain.forward_kinematics(start) @ flange_T_ee)[:3, 3]
    steps = session.steps
    raise HandoffError(
        f"start: the fingertips are at {np.round(place, 3).tolist()} m there, outside the workspace steps.low "
        f"{list(steps.low)} to steps.high {list(steps.high)} m, so that the arm would move by itself. Move the start, "
        "or widen the workspace."
    )


def host_options(session: DemonstrationSession) -> HostOptions:
    """The options of the session's arm."""
    return HostOptions(
        host=session.host,
        arm=session.arm,
        twin=session.twin,
        gripper=session.gripper if session.use_gripper else None,
        start=session.start,
        lift=session.lift,
        ceiling=session.steps.high[2],
        fence=session.loop.fence,
        workspace=session.steps,
    )


def action_spec(session: DemonstrationSession, robot: Robot) -> ActionSpec:
    """The actions of the session: steps of the arm, and the gripper's entry behind them."""
    arm = session.steps.spec(robot)
    return with_gripper(arm) if session.use_gripper else arm


def demonstration_contract(session: DemonstrationSession, task: str, robot: Robot) -> Contract:
    """The contract under which a person's actions move the arm: what is observed of it, and what an
    action means."""
    return Contract(
        task=task,
        observation=proprioception_fields(robot, session.use_gripper),
        action=action_spec(session, robot).field_spec(),
        rate_hz=session.rate_hz,
        n_obs_steps=1,
        horizon=STILL_STEPS,
        n_action_steps=STILL_STEPS,
        action_interface=CONTROLLER,
        sampler="person",
        training_data="",
        policy="",
        steps=session.steps,
        robot=robot.config_name,
    )
