"""The table of a task as a world for the FCI twin: the arm with its hand under joint torques, and
what lies there.

It is the scene of the task's simulated worlds, begun by the same seeds. What differs is the arm: no
impedance law in the engine but torques from outside, and a physics step of 1 ms.
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
from sim.tasks.task import Start, Task
from sim.twin.arm_world import ArmWorld

if TYPE_CHECKING:
    import mujoco

OWN = (
    "q",
    "dq",
    "grasp_pose",
    "target_offset",
    "width",
    "width_target",
    "hand_turn",
    "hand_velocity",
)
"""Fields that the robot's side knows of arm and hand; a tracker of things does not tell them."""
STEP = 0.001
"""[s]."""
POSE_TARGETS = 6 + 1
"""Columns of `View.target` where targets are poses: the pose and the hand's opening."""


class TaskWorld(ArmWorld):
    """An arm with a hand, and the things of one task."""

    def __init__(self, name: str, robot: str = "fr3") -> None:
        """Builds the scene of the task called `name`.

        Args:
            name: of the task.
            robot: name of the arm, since a `Robot` would be another object in the twin's process.

        Raises:
            HandoffError: there is none, or its arm carries another tool than a hand.
        """
        self.task = task = find_task(name, robot=robot)
        super().__init__(f"{name} world", _model(task), task.robot, "hand", "tool_tip")
        self._layout = task.layout(self.model, task.robot)
        self._goal = np.zeros(task.goal_size)
        self._hand = MujocoHand(self)
        self.reset(0)

    @property
    def hand(self) -> MujocoHand:
        """See `World`."""
        return self._hand

    def reset(self, seed: int) -> None:
        """The start that the simulated worlds draw for `seed`, at rest."""
        import mujoco

        mujoco.mj_resetData(self.model, self.data)
        self._goal[:] = 0.0
        start = Start(self._layout, self.data.qpos, self._goal)
        self.task.reset(np.random.default_rng(seed), start)
        self._ctrl[:] = 0.0
        self.hand.press(self.hand.width - start.grip, GRIP_FORCE)
        self._step1(self.model, self.data)

    def things(self) -> Observation:
        """What the task observes beside the arm's own state, per field without a leading dimension:
        as a tracker that sees everything."""
        view = self._view()
        return {
            name: np.ascontiguousarray(term.read(view)[0], dtype=term.spec.dtype)
            for name, term in self.task.observations.items()
            if name not in OWN
        }

    def outcome(self) -> tuple[bool, bool]:
        """Whether the task is solved now, and whether it is beyond repair."""
        view = self._view()
        return bool(self.task.success(view)[0]), bool(self.task.failure(view)[0])

    def scene(self) -> tuple[np.ndarray, np.ndarray]:
        """(nq,) generalised positions and (G,) the task's goal: what a picture is drawn from."""
        return self.data.qpos.copy(), self._goal.copy()

    def _view(self) -> View:
        # The twin knows nothing of targets; who reads them here reads nothing that could pass for
        # one.
        target = np.full((1, POSE_TARGETS), np.nan)
        return View(
            self._layout, self.data.qpos[None], self.data.qvel[None], target, self._goal[None]
        )


class MujocoHand:
    """Implements `sim.twin.world.Hand` by the two fingers' servos."""

    def __init__(self, world: ArmWorld) -> None:
        model, data = world.model, world.data
        # Plain numbers: this is asked every millisecond, and arrays as indices cost ten times as
        # much.
        self._left, self._right = (int(model.joint(joint).qposadr[0]) for joint in FINGER_JOINTS)
        self._servos = [int(model.actuator(f"gripper_{joint}").id) for joint in FINGER_JOINTS]
        self._qpos, self._ctrl, self._range = data.qpos, data.ctrl, model.actuator_forcerange

    @property
    def width(self) -> float:
        """See `Hand`."""
        return float(self._qpos[self._left] + self._qpos[self._right])

    def press(self, target: float, force: float) -> None:
        """See `Hand`."""
        for servo in self._servos:
            self._ctrl[servo] = 0.5 * target
            self._range[servo, 0], self._range[servo, 1] = -force, force


def _model(task: Task) -> mujoco.MjModel:
    """The task's scene with torques in place of the impedance law."""
    import mujoco

    if not isinstance(task.actions, CartesianDelta):
        raise HandoffError(
            f"{task.name}: its arm carries no hand, so this is no table of its; see sim.twin.push_t_world."
        )
    spec = task.scene()
    spec.option.timestep = STEP
    robot = task.robot
    for joint, most in zip(robot.joint_names, robot.limits.tau_max, strict=True):
        spec.add_actuator(
            name=f"torque_{joint}",
            trntype=mujoco.mjtTrn.mjTRN_JOINT,
            target=joint,
            ctrlrange=[-most, most],
        )
    add_gripper(spec)
    for joint in FINGER_JOINTS:
        # At the engine's default fingers that grasp nothing with 40 N would pass their stops by 14
        # mm.
        spec.joint(joint).solref_limit = [2.0 * STEP, 1.0]
    flange = np.array(spec.site(robot.flange_name).pos)
    tip = flange + np.array([0.0, 0.0, robot.gripper.tcp_offset])
    last = spec.body(robot.link_names[-1])
    last.add_site(name="tool_tip", pos=tip, size=[0.002] * 3, rgba=[0] * 4)
    return spec.compile()
