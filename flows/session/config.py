"""Defines the options of a session's environment and operator."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from flows.session.simulated_arm import SimulatedArm
from real.teleop.keyboard import KeyboardConfig
from real.teleop.spacemouse import SpaceMouseConfig
from real.teleop.takeover import TakeoverConfig
from robots.config import Count, Hertz, NonNegative, Seconds, Whole, config
from robots.episodes.segments.video_codec import VideoConfig
from robots.franka import RobotName
from sim.make import TaskName
from sim.recording.simulated_operator import OperatorConfig
from sim.scene.cameras import CamerasConfig

OperatorKind = Literal["simulated", "keyboard", "spacemouse", "console"]


@config
class HilEnvConfig:
    """Environment of a session: one simulated task of an arm in MuJoCo."""

    task: TaskName = "reach"
    """Name of the task."""
    robot: RobotName = "fr3"
    """Arm that performs the task."""
    rate_hz: Hertz | None = None
    """Control steps per second; None takes the task's. HIL-SERL has 10 [C]."""
    instruction: str | None = None
    """Instruction of every episode of a language task, whose learner reads no text; None draws one
    per episode."""
    arm: SimulatedArm | None = None
    """Simulated arm behind the robot's network protocols that does the task, through the driver,
    governor and limits of a real one; None simulates the arm with the task."""
    cameras: CamerasConfig | None = None
    """Cameras whose pictures are recorded with every step; None records none. The learner of a
    session observes those that `actor.pictures` names."""
    video: VideoConfig | None = None
    """Codec with which the pictures are kept as video, such as `{kind: h264}`; None keeps them
    without loss."""
    randomized: bool = False
    """Domain randomisation within the task's ranges."""
    max_steps: Count | None = None
    """Time limit of an episode [control periods]; None takes the task's."""
    observation_fields: tuple[str, ...] = ("q", "dq", "grasp_pose", "goal")
    """Observation fields of learner and policies, in this order. A commanded gripper needs `width`
    and `width_target` in the environment, and `width_target` here."""


@config
class HilOperator:
    """Operator who demonstrates and corrects: a person with a device, or simulated."""

    kind: OperatorKind = "simulated"
    """Input device of the person, or a simulated operator."""
    person: str = ""
    """Operator name recorded with every episode; empty takes the login."""
    simulated: OperatorConfig = field(default_factory=OperatorConfig)
    """Skill and delays of the simulated operator."""
    half_life: Whole = 4000
    """Training steps after which the simulated operator's attention halves, because they trust the
    policy more; 0 keeps it constant."""
    keyboard: KeyboardConfig = field(default_factory=KeyboardConfig)
    """Speeds of the keyboard."""
    spacemouse: SpaceMouseConfig = field(default_factory=SpaceMouseConfig)
    """Device and speeds of the SpaceMouse."""
    console: TakeoverConfig = field(
        default_factory=lambda: TakeoverConfig(translation=0.6, rotation=0.6)
    )
    """Speeds at full deflection at the console; its port is an option of `handoff hil`."""
    seconds: Seconds = 60.0
    """Longest demonstration of a person, or attempt in practice [s]. A simulated operator has the
    time limit of the environment, as everybody has in training."""
    speed: NonNegative = 1.0
    """Speed of the simulation for a person, in units of real time. With a simulated operator,
    demonstrations run at full speed."""
