"""Simulates the table of a task as a world for the FCI twin: the arm with its gripper under joint
torques, and the task's objects.

Scene and initial states (by seed) are those of the task's simulated environments. The arm differs:
it is driven by external torques instead of the engine's impedance law, with a physics step of 1 ms.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robots.control.actions import CartesianDelta
from robots.errors import HandoffError
from robots.interfaces import Observation
from sim.make import find_task
from sim.scene.scene import FINGER_JOINTS, GRIP_FORCE, add_gripper
from sim.scene.view import View
from sim.tasks.task import InitialState, Task
from sim.twin.arm_world import STEP, ArmWorld, PastStates

if TYPE_CHECKING:
    import mujoco

ROBOT_FIELDS = (
    "q",
    "dq",
    "grasp_pose",
    "target_offset",
    "width",
    "width_target",
    "hand_turn",
    "hand_velocity",
)
"""Observation fields that the robot measures itself; an object tracker does not report them."""
POSE_TARGETS = 6 + 1
"""Columns of `View.target` for pose targets: the pose and the gripper's opening."""


class TaskWorld(ArmWorld):
    """An arm with a gripper, and the objects of one task."""

    def __init__(self, name: str, robot: str = "fr3") -> None:
        """Builds the scene of the task called `name`.

        Args:
            name: name of the task.
            robot: name of the arm, because a pickled `Robot` would be a different object in the
                twin's process.

        Raises:
            HandoffError: there is no such task, or its arm carries no gripper.
        """
        self.task = task = find_task(name, robot=robot)
        super().__init__(f"{name} world", _spec(task), task.robot, "hand", "tool_tip")
        self._layout = task.layout(self.model, task.robot)
        self._goal = np.zeros(task.goal_size)
        self._past = PastStates(self.name, self.model.nq)
        self._gripper = MujocoGripper(self)
        self.reset(0)

    @property
    def gripper(self) -> MujocoGripper:
        """See `World`."""
        return self._gripper

    def reset(self, seed: int) -> None:
        """Sets the initial state that the simulated environments draw for `seed`, at rest."""
        import mujoco

        mujoco.mj_resetData(self.model, self.data)
        self._goal[:] = 0.0
        start = InitialState(self._layout, self.data.qpos, self._goal)
        self.task.reset(np.random.default_rng(seed), start)
        self._ctrl[:] = 0.0
        self.gripper.press(self.gripper.width - start.grip, GRIP_FORCE)
        self._step1(self.model, self.data)
        self._past.begin(self.data.qpos)

    def step(self, tau: np.ndarray) -> None:
        """See `World`; remembers the new positions for the cameras."""
        super().step(tau)
        self._past.add(self.data.qpos)

    def object_observations(self) -> Observation:
        """The task's observations except the robot's own state, per field without a leading
        dimension, like a perfect object tracker."""
        view = self._view()
        return {
            name: np.ascontiguousarray(term.read(view)[0], dtype=term.spec.dtype)
            for name, term in self.task.observations.items()
            if name not in ROBOT_FIELDS
        }

    def outcome(self) -> tuple[bool, bool]:
        """Whether the task is solved, and whether it has failed unrecoverably."""
        view = self._view()
        return bool(self.task.success(view)[0]), bool(self.task.failure(view)[0])

    def scene(self) -> tuple[np.ndarray, np.ndarray]:
        """(nq,) generalised positions and (G,) the task's goal, for rendering."""
        return self.data.qpos.copy(), self._goal.copy()

    def scene_state(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(nq,) generalised positions, (nv,) generalised velocities and (G,) the task's goal."""
        return self.data.qpos.copy(), self.data.qvel.copy(), self._goal.copy()

    def scene_time(self) -> float:
        """Time since the last reset [s]."""
        return self.time

    def scene_at(self, time: float) -> tuple[np.ndarray, np.ndarray]:
        """The scene, see `scene`, as it was at a time since the last reset [s]; before that, the
        initial one.

        Raises:
            HandoffError: a time that has not come, or that the world has forgotten.
        """
        return self._past.at(time), self._goal.copy()

    def _view(self) -> View:
        # The twin has no pose targets; NaN reveals a term that reads them.
        target = np.full((1, POSE_TARGETS), np.nan)
        return View(
            self._layout, self.data.qpos[None], self.data.qvel[None], target, self._goal[None]
        )


class MujocoGripper:
    """Implements `sim.twin.world.TwinGripper` with the two fingers' servos."""

    def __init__(self, world: ArmWorld) -> None:
        model, data = world.model, world.data
        # Plain integers: these are used every millisecond, and array indices take ten times as
        # long.
        self._left, self._right = (int(model.joint(joint).qposadr[0]) for joint in FINGER_JOINTS)
        self._servos = [int(model.actuator(f"gripper_{joint}").id) for joint in FINGER_JOINTS]
        self._qpos = data.qpos
        self._ctrl = data.ctrl
        self._range = model.actuator_forcerange

    @property
    def width(self) -> float:
        """See `TwinGripper`."""
        return float(self._qpos[self._left] + self._qpos[self._right])

    def press(self, target: float, force: float) -> None:
        """See `TwinGripper`."""
        for servo in self._servos:
            self._ctrl[servo] = 0.5 * target
            self._range[servo, 0], self._range[servo, 1] = -force, force


def _spec(task: Task) -> mujoco.MjSpec:
    """The task's scene with torque actuators instead of the impedance law."""
    import mujoco

    if not isinstance(task.actions, CartesianDelta):
        raise HandoffError(
            f"{task.name}: its arm carries no gripper, so TaskWorld cannot simulate it. Use "
            "sim.twin.push_t_world for push-T."
        )
    spec = task.scene()
    spec.option.timestep = STEP
    robot = task.robot
    for joint, tau_max in zip(robot.joint_names, robot.limits.tau_max, strict=True):
        spec.add_actuator(
            name=f"torque_{joint}",
            trntype=mujoco.mjtTrn.mjTRN_JOINT,
            target=joint,
            ctrlrange=[-tau_max, tau_max],
        )
    add_gripper(spec)
    for joint in FINGER_JOINTS:
        # With the engine's default, fingers that close on nothing with 40 N would penetrate their
        # stops by 14 mm.
        spec.joint(joint).solref_limit = [2.0 * STEP, 1.0]
    flange = np.array(spec.site(robot.flange_name).pos)
    tip = flange + np.array([0.0, 0.0, robot.gripper.tcp_offset])
    last = spec.body(robot.link_names[-1])
    last.add_site(name="tool_tip", pos=tip, size=[0.002] * 3, rgba=[0] * 4)
    return spec
