"""Options of this package."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from real.teleop.keyboard import KeyboardConfig
from real.teleop.spacemouse import SpaceMouseConfig
from real.teleop.takeover import TakeoverConfig
from robots.config import config
from robots.franka import RobotName
from sim.recording.simulated_operator import OperatorConfig

OperatorKind = Literal["simulated", "keyboard", "spacemouse", "console"]


@config
class HilWorld:
    """Where a session takes place: a task of an arm in MuJoCo, one world at a time."""

    task: str = "reach"
    """Name of the task."""
    robot: RobotName = "fr3"
    """The arm that does the task."""
    rate_hz: float | None = None
    """Control steps per second; None takes the task's own. HIL-SERL has 10 [C]."""
    randomized: bool = False
    """Domain randomisation from the task's ranges."""
    max_steps: int | None = None
    """Time limit of an episode [control periods]; None takes the task's own."""
    observation_fields: tuple[str, ...] = ("q", "dq", "grasp_pose", "goal")
    """What learner and policies see, in this order. A commanded hand needs `width` and
    `width_target` in the world, and `width_target` here."""


@config
class HilOperator:
    """Who corrects."""

    kind: OperatorKind = "simulated"
    person: str = ""
    """Name that is recorded; empty takes the login."""
    simulated: OperatorConfig = field(default_factory=OperatorConfig)
    """Skill and delays of the simulated operator."""
    half_life: int = 4000
    """Control steps of training in which the simulated person's attention halves: they trust the
    policy more and more. 0 leaves it whole."""
    keyboard: KeyboardConfig = field(default_factory=KeyboardConfig)
    """Speeds of the keyboard."""
    spacemouse: SpaceMouseConfig = field(default_factory=SpaceMouseConfig)
    """Device and speeds of the SpaceMouse."""
    console: TakeoverConfig = field(
        default_factory=lambda: TakeoverConfig(translation=0.6, rotation=0.6)
    )
    """What full deflection at the console asks for; where it listens is said to `handoff hil`."""
    speed: float = 1.0
    """Speed of simulated environments in front of a person, in units of real time. A simulated
    operator demonstrates as fast as the simulation runs."""
