"""States a task for a robot: a scene, a start, and small terms that read the state of N
environments.

Every module of a task has a function `task(robot)` that states it.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from robots.control.actions import CartesianDelta, PdTarget
from robots.control.impedance import ImpedanceGains
from robots.errors import HandoffError
from robots.franka.robot import Robot
from robots.interfaces import Observation
from robots.spec import FieldSpec
from sim.scene.randomize import Range
from sim.scene.view import FREE_JOINT, Layout, View

if TYPE_CHECKING:
    import mujoco

CLOSED = 0.0
"""Opening of a closed hand [m]; that of an open one is `robot.gripper.width_max`."""


class ObservationTerm(NamedTuple):
    """One observation field."""

    spec: FieldSpec
    read: Callable[[View], np.ndarray]
    """(N, *spec.shape) of N worlds."""


class Reward(NamedTuple):
    """One term of the dense reward per control period."""

    weight: float
    read: Callable[[View], np.ndarray]
    """(N,)."""


class Intent(NamedTuple):
    """Where a scripted expert wants the hand, whatever the action space."""

    pose: np.ndarray
    """(N, 6) target of the frame "grasp": position [m], rotation vector [rad], base axes."""
    width: np.ndarray
    """(N,) opening of the hand [m]."""
    speed: np.ndarray | float = 1.0
    """(N,) share of the action space's largest step, 0..1."""


class Start:
    """What a task's `reset` writes: the start of one world. Everything begins at rest."""

    def __init__(self, layout: Layout, qpos: np.ndarray, goal: np.ndarray) -> None:
        """Writes into `qpos` (nq,), which holds the model's own start, and `goal` (G,), which holds
        zeros."""
        self.layout, self.qpos, self.goal = layout, qpos, goal
        self.grip = 0.0
        """How much further than the fingers stand the hand is told to close [m]: it then holds what
        lies between."""

    def arm(self, q: np.ndarray) -> None:
        """Joint positions (J,) [rad]."""
        self.qpos[: self.layout.robot.num_joints] = q

    def fingers(self, width: float) -> None:
        """Opening of the hand [m]."""
        for name in ("finger_left", "finger_right"):
            self.qpos[self.layout.qpos[name]] = width / 2

    def place(
        self, name: str, position: np.ndarray | list[float], quaternion: np.ndarray | None = None
    ) -> None:
        """Puts the body with the free joint `name` at `position` (3,) [m], base, turned by
        `quaternion` (wxyz)."""
        a = self.layout.qpos[name]
        self.qpos[a : a + 3] = position
        self.qpos[a + 3 : a + FREE_JOINT] = (
            [1.0, 0.0, 0.0, 0.0] if quaternion is None else quaternion
        )

    def joint(self, name: str, value: float) -> None:
        """Position of a hinge or slide joint [rad or m]."""
        self.qpos[self.layout.qpos[name]] = value


def never(view: View) -> np.ndarray:
    """(N,) False."""
    return np.zeros(view.n, dtype=bool)


@dataclass(frozen=True)
class Task:
    """One problem, stated apart from any engine. All callables are pure functions of their
    arguments."""

    name: str
    robot: Robot
    """The arm; it carries its own gripper unless the scene mounts another tool."""
    scene: Callable[[], mujoco.MjSpec]
    """The scene without a controller; bodies with free joints are found by the joint's name. Mocap
    bodies are drawn where the first entries of the world's goal say, three for each of them."""
    reset: Callable[[np.random.Generator, Start], None]
    """Draws one start."""
    q_posture: np.ndarray
    """(J,) posture to which the redundant arm tends [rad]."""
    observations: Mapping[str, ObservationTerm]
    rewards: Mapping[str, Reward]
    """Dense reward: the weighted sum of these."""
    success: Callable[[View], np.ndarray]
    """(N,) bool: solved; the episode ends."""
    expert: Callable[[View], Intent]
    """Scripted expert: a function of the present alone, so it can take over anywhere."""
    failure: Callable[[View], np.ndarray] = never
    """(N,) bool: beyond repair; the episode ends."""
    info: Mapping[str, Callable[[View], np.ndarray]] = field(default_factory=dict)
    """Other figures of a world worth telling, (N,) each."""
    goal_size: int = 0
    """G, entries of a world's goal."""
    actions: CartesianDelta | PdTarget = field(default_factory=CartesianDelta)
    """The Cartesian action space that suits the task."""
    use_gripper: bool = True
    """Whether an action has an entry for the hand."""
    gains: ImpedanceGains = field(default_factory=ImpedanceGains)
    rate_hz: float = 20.0
    """Control periods per second."""
    timestep: float = 0.005
    """Physics step [s]; it divides the control period."""
    max_steps: int = 100
    """Time limit [control periods]."""
    ranges: tuple[Range, ...] = ()
    """Domain randomisation, when asked for."""
    layout: Callable[[mujoco.MjModel, Robot], Layout] = Layout
    thing: Callable[[View], np.ndarray] | None = None
    """(N, 3) where a hand would go to handle a part that does not lie free [m], base: play is drawn
    there. None: to where the expert is going."""
    joints: Callable[[Observation], Mapping[str, np.ndarray]] | None = None
    """Joint positions (N,) [rad or m] by name, beside those of arm and hand, out of what is
    observed: with them a picture can be drawn of what was only recorded or imagined. None where the
    observation does not tell."""


def at_rate(task: Task, rate_hz: float) -> Task:
    """The task with another number of control periods per second: as much time, and steps as much
    longer.

    A policy that decides half as often has half as many decisions to learn, as HIL-SERL at 10 Hz.
    The leash, which bounds the force in contact, grows with the root of a step only.

    Raises:
        HandoffError: a rate that is not positive, or an action space whose steps are not lengths.
    """
    if not rate_hz > 0.0:
        raise HandoffError(f"{task.name}: rate_hz is {rate_hz}, expected more than 0.")
    if rate_hz == task.rate_hz:
        return task
    if not isinstance(task.actions, CartesianDelta):
        raise HandoffError(
            f"{task.name}: its actions are not steps, so it has no other rate than {task.rate_hz} Hz."
        )
    longer, actions = task.rate_hz / rate_hz, task.actions
    slowed = replace(
        actions,
        translation=actions.translation * longer,
        rotation=actions.rotation * longer,
        leash_translation=actions.leash_translation * longer**0.5,
        leash_rotation=actions.leash_rotation * longer**0.5,
    )
    return replace(task, rate_hz=rate_hz, max_steps=round(task.max_steps / longer), actions=slowed)


def proprioception(robot: Robot, use_gripper: bool = True) -> dict[str, ObservationTerm]:
    """What the arm knows of itself: joints, the frame "grasp", its target and the hand."""
    joints = (robot.num_joints,)
    fields = {
        "q": ObservationTerm(
            FieldSpec(shape=joints, unit="rad", about="joint positions"), lambda v: v.q
        ),
        "dq": ObservationTerm(
            FieldSpec(shape=joints, unit="rad/s", about="joint velocities"), lambda v: v.dq
        ),
        "grasp_pose": ObservationTerm(
            FieldSpec(
                shape=(6,),
                unit="m, rad",
                frame="base",
                about="position, rotation vector of the frame grasp",
            ),
            lambda v: v.grasp_pose,
        ),
    }
    ahead = FieldSpec(
        shape=(6,),
        unit="m, rad",
        frame="base",
        about="the controller's target, seen from grasp_pose",
    )
    # Without it the same picture of the arm has different futures: an action moves the target, not
    # the arm.
    fields["target_offset"] = ObservationTerm(ahead, lambda v: v.target_offset)
    if use_gripper:
        width = FieldSpec(shape=(1,), unit="m", about="opening of the hand")
        fields["width"] = ObservationTerm(width, lambda v: v.width[:, None])
        told = FieldSpec(
            shape=(1,),
            unit="m",
            about="opening that the hand was last told, less than `width` while closing",
        )
        fields["width_target"] = ObservationTerm(told, lambda v: v.target[:, -1:])
    return fields


def body(name: str) -> dict[str, ObservationTerm]:
    """Position and orientation of the body with the free joint `name`."""
    position = FieldSpec(shape=(3,), unit="m", frame="base", about=f"position of {name}")
    quaternion = FieldSpec(shape=(4,), frame="base", about=f"orientation of {name}, wxyz, w >= 0")
    return {
        f"{name}_position": ObservationTerm(position, lambda v: v.position(name)),
        f"{name}_quaternion": ObservationTerm(quaternion, lambda v: _same_half(v.quaternion(name))),
    }


def _same_half(quaternion: np.ndarray) -> np.ndarray:
    return quaternion * np.where(quaternion[:, :1] < 0.0, -1.0, 1.0)


def near(distance: np.ndarray, scale: float) -> np.ndarray:
    """1 at distance 0, 0.24 at `scale`, falling to 0: the usual shaping `1 - tanh(d / scale)`."""
    return 1.0 - np.tanh(distance / scale)


def start_posture(
    rng: np.random.Generator, start: Start, q: np.ndarray, spread: float = 0.02
) -> None:
    """Arm at `q` (J,) with uniform noise of `spread` [rad] per joint, hand open."""
    start.arm(q + rng.uniform(-spread, spread, len(q)))
    start.fingers(start.layout.robot.gripper.width_max)
