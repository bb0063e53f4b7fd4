"""Defines a task for a robot: a scene, initial states, and small terms that read the state of N
environments.

Every task module has a function `task(robot)` that returns it.
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
from robots.control.proprioception import proprioception_fields
from robots.errors import HandoffError, suggest
from robots.franka.robot import Robot
from robots.interfaces import Observation
from robots.spec import WXYZ, XYZ, FieldSpec
from sim.scene.randomize import Range
from sim.scene.view import FREE_JOINT, Layout, View

if TYPE_CHECKING:
    import mujoco

CLOSED = 0.0
"""Opening of a closed gripper [m]; that of an open one is `robot.gripper.width_max`."""


class ObservationTerm(NamedTuple):
    """One observation field."""

    spec: FieldSpec
    read: Callable[[View], np.ndarray]
    """(N, *spec.shape) values in N environments."""


class Reward(NamedTuple):
    """One term of the dense reward per control period."""

    weight: float
    read: Callable[[View], np.ndarray]
    """(N,) unweighted values in N environments."""


class ExpertTarget(NamedTuple):
    """Target of a scripted expert for the gripper, independent of the action space."""

    pose: np.ndarray
    """(N, 6) target of the frame "grasp": position [m], rotation vector [rad], base axes."""
    width: np.ndarray
    """(N,) target opening of the gripper [m]."""
    speed: np.ndarray | float = 1.0
    """(N,) fraction of the action space's maximum step, 0..1."""


class InitialState:
    """Initial state of one environment, which a task's `reset` writes. Everything is at rest."""

    def __init__(self, layout: Layout, qpos: np.ndarray, goal: np.ndarray) -> None:
        """Writes into `qpos` (nq,), which holds the model's default, and `goal` (G,), which holds
        zeros."""
        self.layout = layout
        self.qpos = qpos
        self.goal = goal
        self.grip = 0.0
        """Distance by which the gripper's target is closed beyond the opening [m], to hold an
        object between the fingers."""

    def arm(self, q: np.ndarray) -> None:
        """Sets the joint positions (J,) [rad]."""
        self.qpos[: self.layout.robot.num_joints] = q

    def fingers(self, width: float) -> None:
        """Sets the opening of the gripper [m]."""
        for name in ("finger_left", "finger_right"):
            self.qpos[self.layout.qpos[name]] = width / 2

    def place(
        self, name: str, position: np.ndarray | list[float], quaternion: np.ndarray | None = None
    ) -> None:
        """Places the body with the free joint `name` at `position` (3,) [m], base frame, with
        orientation `quaternion` (wxyz)."""
        a = self.layout.qpos[name]
        self.qpos[a : a + 3] = position
        self.qpos[a + 3 : a + FREE_JOINT] = (
            [1.0, 0.0, 0.0, 0.0] if quaternion is None else quaternion
        )

    def joint(self, name: str, value: float) -> None:
        """Sets the position of a hinge or slide joint [rad or m]."""
        self.qpos[self.layout.qpos[name]] = value


class Capacity(NamedTuple):
    """Numbers of contacts and constraint rows for which batched physics (mujoco-warp, Isaac Lab)
    allocates memory; more of them are an error."""

    contacts: int = 64
    """Contacts per environment, in a pool shared by all environments."""
    constraints: int = 256
    """Constraint rows in each environment; an elliptic contact takes 3, 4 or 6."""


def never(view: View) -> np.ndarray:
    """Returns False for every environment, (N,)."""
    return np.zeros(view.n, dtype=bool)


@dataclass(frozen=True)
class Task:
    """One task, independent of the engine. All callables are pure functions of their arguments."""

    name: str
    robot: Robot
    """The arm, with its own gripper unless the scene mounts another tool."""
    scene: Callable[[], mujoco.MjSpec]
    """Scene without a controller; bodies with free joints are referred to by the joint's name.
    Mocap bodies are placed at the first entries of the environment's goal, three for each body."""
    reset: Callable[[np.random.Generator, InitialState], None]
    """Draws one initial state."""
    q_posture: np.ndarray
    """(J,) preferred posture of the redundant arm [rad]."""
    observations: Mapping[str, ObservationTerm]
    rewards: Mapping[str, Reward]
    """Terms whose weighted sum is the dense reward."""
    success: Callable[[View], np.ndarray]
    """(N,) bool: the task is solved, which ends the episode."""
    expert: Callable[[View], ExpertTarget]
    """Scripted expert, a function of the current state only, so it can take over at any time."""
    brief: str = ""
    """What is to be done, in one sentence for a person at the console."""
    failure: Callable[[View], np.ndarray] = never
    """(N,) bool: the task can no longer be solved, which ends the episode."""
    info: Mapping[str, Callable[[View], np.ndarray]] = field(default_factory=dict)
    """Other diagnostics of an environment, (N,) each."""
    goal_size: int = 0
    """G, number of entries of an environment's goal."""
    actions: CartesianDelta | PdTarget = field(default_factory=CartesianDelta)
    """Default Cartesian action space of the task."""
    use_gripper: bool = True
    """Whether an action has an entry for the gripper."""
    gains: ImpedanceGains = field(default_factory=ImpedanceGains)
    rate_hz: float = 20.0
    """Control periods per second."""
    timestep: float = 0.005
    """Physics step [s], of which the control period is a multiple."""
    max_steps: int = 100
    """Time limit [control periods]."""
    capacity: Capacity = field(default_factory=Capacity)
    """Memory for contacts in batched physics, which takes time in proportion: twice as much as
    random and pressing actions need."""
    ranges: tuple[Range, ...] = ()
    """Domain randomisation, used only if enabled."""
    layout: Callable[[mujoco.MjModel, Robot], Layout] = Layout
    handled: tuple[str, ...] = ()
    """Names of the bodies that fingers or tool may press; every other contact of the robot adds to
    the contact cost (`sim.scene.contact_cost`)."""
    interaction_point: Callable[[View], np.ndarray] | None = None
    """(N, 3) point at which the gripper handles an articulated part [m], base frame; play is drawn
    towards it. None uses the expert's target."""
    instructions: tuple[str, ...] = ()
    """Instructions of a task whose goal one names; empty for the others."""
    instruct: Callable[[InitialState, str], None] | None = None
    """Changes an initial state to the goal that one of `instructions` names; None without them."""
    phrasings: Mapping[str, Callable[[np.random.Generator, InitialState], None]] = field(
        default_factory=dict
    )
    """Functions by name that put the instruction of an initial state in other words, drawn at
    random; the goal stays."""
    joints: Callable[[Observation], Mapping[str, np.ndarray]] | None = None
    """Joint positions (N,) [rad or m] by name, without those of arm and gripper, computed from an
    observation, so that recorded or imagined states can be rendered. None if the observation does
    not determine them."""


def at_rate(task: Task, rate_hz: float) -> Task:
    """Returns the task at another control rate, with the same duration and proportionally longer
    steps.

    A policy at half the rate has half as many decisions to learn, as in HIL-SERL at 10 Hz. The
    leash, which limits the contact force, grows only with the square root of the step.

    Raises:
        HandoffError: a rate that is not positive, or an action space without Cartesian steps.
    """
    if not rate_hz > 0.0:
        raise HandoffError(f"{task.name}: rate_hz is {rate_hz}, expected a positive rate.")
    if rate_hz == task.rate_hz:
        return task
    if not isinstance(task.actions, CartesianDelta):
        raise HandoffError(
            f"{task.name}: rate_hz is {rate_hz}, but its actions are not Cartesian steps, so only "
            f"{task.rate_hz} Hz is supported."
        )
    scale = task.rate_hz / rate_hz
    actions = task.actions
    scaled = replace(
        actions,
        translation=actions.translation * scale,
        rotation=actions.rotation * scale,
        leash_translation=actions.leash_translation * scale**0.5,
        leash_rotation=actions.leash_rotation * scale**0.5,
    )
    return replace(task, rate_hz=rate_hz, max_steps=round(task.max_steps / scale), actions=scaled)


def with_instruction(task: Task, instruction: str) -> Task:
    """Returns the task with one instruction in all episodes; initial states are otherwise the same.

    Raises:
        HandoffError: a task without instructions, or an instruction that it does not have.
    """
    instruct = task.instruct
    if instruct is None:
        raise HandoffError(
            f"{task.name}: got the instruction '{instruction}', but the task has none. Leave it out."
        )
    if instruction not in task.instructions:
        raise HandoffError(
            f"{task.name}: instruction '{instruction}', {suggest(instruction, task.instructions)}"
        )

    def reset(rng: np.random.Generator, start: InitialState) -> None:
        task.reset(rng, start)
        instruct(start, instruction)

    return replace(task, reset=reset)


def with_phrasing(task: Task, phrasing: str) -> Task:
    """Returns the task with its instructions in other words, drawn per episode; initial states are
    otherwise the same.

    Raises:
        HandoffError: a task without such phrasings.
    """
    if phrasing not in task.phrasings:
        known = suggest(phrasing, task.phrasings) if task.phrasings else "the task has none"
        raise HandoffError(f"{task.name}: phrasing '{phrasing}', {known}")
    rephrase = task.phrasings[phrasing]

    def reset(rng: np.random.Generator, start: InitialState) -> None:
        task.reset(rng, start)
        rephrase(rng, start)

    return replace(task, reset=reset)


def with_gripper_entry(task: Task) -> Task:
    """Returns the task with the gripper in its actions and observations, though it may not be
    needed, so that one policy can do it beside tasks that need it. Initial states, rewards and
    success are the same."""
    if task.use_gripper:
        return task
    observations = {**proprioception(task.robot), **task.observations}
    return replace(task, use_gripper=True, observations=observations)


def proprioception(robot: Robot, use_gripper: bool = True) -> dict[str, ObservationTerm]:
    """Observation terms of the robot: joints, the frame "grasp", its target and the gripper."""
    reads: dict[str, Callable[[View], np.ndarray]] = {
        "q": lambda v: v.q,
        "dq": lambda v: v.dq,
        "grasp_pose": lambda v: v.grasp_pose,
        "target_offset": lambda v: v.target_offset,
        "width": lambda v: v.width[:, None],
        "width_target": lambda v: v.target[:, -1:],
    }
    specs = proprioception_fields(robot, use_gripper)
    return {name: ObservationTerm(spec, reads[name]) for name, spec in specs.items()}


def body(name: str) -> dict[str, ObservationTerm]:
    """Observation terms of the body with the free joint `name`: position and orientation."""
    position = FieldSpec(shape=(3,), unit="m", frame="base", about=f"position of {name}", names=XYZ)
    quaternion = FieldSpec(
        shape=(4,), frame="base", about=f"orientation of {name}, wxyz, w >= 0", names=WXYZ
    )
    return {
        f"{name}_position": ObservationTerm(position, lambda v: v.position(name)),
        f"{name}_quaternion": ObservationTerm(quaternion, lambda v: _same_half(v.quaternion(name))),
    }


def _same_half(quaternion: np.ndarray) -> np.ndarray:
    return quaternion * np.where(quaternion[:, :1] < 0.0, -1.0, 1.0)


def near(distance: np.ndarray, scale: float) -> np.ndarray:
    """Distance shaping `1 - tanh(d / scale)`: 1 at distance 0, 0.24 at `scale`, then falling to
    0."""
    return 1.0 - np.tanh(distance / scale)


def start_posture(
    rng: np.random.Generator, start: InitialState, q: np.ndarray, spread: float = 0.02
) -> None:
    """Sets the arm to `q` (J,) plus uniform noise of `spread` [rad] per joint, and opens the
    gripper."""
    start.arm(q + rng.uniform(-spread, spread, len(q)))
    start.fingers(start.layout.robot.gripper.width_max)
