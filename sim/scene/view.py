"""Provides the state of N environments of one MuJoCo model as named arrays, which a task's terms
read, independent of the engine.

Everything is computed from generalised positions and velocities, so it belongs exactly to the
current state (the engine's sensors are one physics step old).
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import numpy as np

from robots.franka.kinematics import batched_jacobian, batched_rotation_vector, rotation_of
from robots.franka.robot import Robot

if TYPE_CHECKING:
    import mujoco

FREE_JOINT = 7
"""Number of generalised positions of a free joint: position (3) and quaternion (4)."""

Read = TypeVar("Read")


class lazy_property(Generic[Read]):  # noqa: N801 - a decorator
    """A property that is computed when it is first read, like `functools.cached_property`, whose
    lock torch.compile cannot trace (needed in `sim.device.arm`)."""

    def __init__(self, read: Callable[[Any], Read]) -> None:
        self._read = read
        self._name = read.__name__
        self.__doc__ = read.__doc__

    def __get__(self, view: Any, kind: type | None = None) -> Read:
        cache = view.cache
        if self._name not in cache:
            cache[self._name] = self._read(view)
        return cache[self._name]


Params = ParamSpec("Params")


def memoized(
    read: Callable[Concatenate[View, Params], Read],
) -> Callable[Concatenate[View, Params], Read]:
    """Caches a function of a view per (hashable) arguments, because several terms of a task use the
    same values."""

    name = f"{read.__module__}.{read.__qualname__}"

    @wraps(read)
    def cached(view: View, *args: Params.args, **kwargs: Params.kwargs) -> Read:
        key = (name, args, tuple(kwargs.items()))
        if key not in view.cache:
            view.cache[key] = read(view, *args, **kwargs)
        return view.cache[key]

    return cached


class Layout:
    """Indices of a model's joints in its state vectors. The arm's joints come first in all of
    them."""

    def __init__(
        self,
        model: mujoco.MjModel,
        robot: Robot,
        tool_offset: np.ndarray | None = None,
        tool_rotation: np.ndarray | None = None,
    ) -> None:
        """Reads the names of `model`.

        Args:
            model: a model whose first joints are the arm's.
            robot: the arm.
            tool_offset: (3,) origin of the frame "grasp" relative to the flange [m], flange axes;
                None takes that of the robot's gripper.
            tool_rotation: (3, 3) axes of the frame "grasp" in the flange frame; None takes those of
                the robot's gripper.
        """
        self.robot = robot
        self.nq = model.nq
        self.nv = model.nv
        names = [model.joint(i).name for i in range(model.njnt)]
        self.qpos = {name: int(model.jnt_qposadr[i]) for i, name in enumerate(names)}
        self.qvel = {name: int(model.jnt_dofadr[i]) for i, name in enumerate(names)}
        self.has_gripper = "finger_left" in self.qpos
        gripper = robot.gripper
        self.tool_offset = (
            np.array([0.0, 0.0, gripper.tcp_offset]) if tool_offset is None else tool_offset
        )
        self.tool_rotation = gripper.flange_R_grasp if tool_rotation is None else tool_rotation


class View:
    """The current state of N environments. Arrays are in base axes unless stated otherwise, and
    must not be modified."""

    def __init__(
        self,
        layout: Layout,
        qpos: np.ndarray,
        qvel: np.ndarray,
        target: np.ndarray,
        goal: np.ndarray,
        *,
        joint_targets: bool = False,
    ):
        """Wraps arrays without copying them.

        Args:
            layout: indices of the model's joints.
            qpos: (N, nq) generalised positions.
            qvel: (N, nv) generalised velocities.
            target: (N, C) the controller's targets: the arm's (6 of a pose or J of joints), the
                agent's velocity (2) if actions are `PdTarget`, then the gripper's opening [m].
            goal: (N, G) the task's own variables, as its `reset` wrote them.
            joint_targets: whether the arm's targets are joint positions [rad].
        """
        self.layout = layout
        self.qpos = qpos
        self.qvel = qvel
        self.target = target
        self.goal = goal
        self.joint_targets = joint_targets
        self.cache: dict[Any, Any] = {}
        """Values computed so far, by name and arguments."""

    @property
    def n(self) -> int:
        """N, the number of environments."""
        return len(self.qpos)

    @property
    def q(self) -> np.ndarray:
        """(N, J) joint positions [rad]."""
        return self.qpos[:, : self.layout.robot.num_joints]

    @property
    def dq(self) -> np.ndarray:
        """(N, J) joint velocities [rad/s]."""
        return self.qvel[:, : self.layout.robot.num_joints]

    @lazy_property
    def _frames(self) -> tuple[np.ndarray, np.ndarray]:
        return self.layout.robot.chain.batched_joint_frames(self.q)

    @lazy_property
    def grasp_position(self) -> np.ndarray:
        """(N, 3) origin of the frame "grasp" [m]: the point between the fingertips, or the tool's
        tip."""
        positions, rotations = self._frames
        return positions[:, -1] + rotations[:, -1] @ self.layout.tool_offset

    @lazy_property
    def grasp_rotation(self) -> np.ndarray:
        """(N, 3, 3) axes of the frame "grasp"; the identity when the gripper points straight
        down."""
        return self._frames[1][:, -1] @ self.layout.tool_rotation

    @lazy_property
    def grasp_pose(self) -> np.ndarray:
        """(N, 6) position [m] and rotation vector [rad] of the frame "grasp"."""
        return np.concatenate(
            [self.grasp_position, batched_rotation_vector(self.grasp_rotation)], axis=1
        )

    @lazy_property
    def jacobian(self) -> np.ndarray:
        """(N, 6, J) Jacobian of the frame "grasp"."""
        return batched_jacobian(*self._frames, self.grasp_position)

    @lazy_property
    def grasp_velocity(self) -> np.ndarray:
        """(N, 6) linear [m/s] and angular [rad/s] velocity of the frame "grasp"."""
        return (self.jacobian @ self.dq[..., None])[..., 0]

    @property
    def target_pose(self) -> np.ndarray:
        """(N, 6) the Cartesian controller's target: position [m], rotation vector [rad]."""
        return self.target[:, :6]

    @lazy_property
    def target_offset(self) -> np.ndarray:
        """(N, 6) the controller's target minus `grasp_pose` [m, rad]; joint targets are converted
        to a pose by forward kinematics."""
        if not self.joint_targets:
            return self.target_pose - self.grasp_pose
        robot = self.layout.robot
        frames = robot.chain.batched_joint_frames(self.target[:, : robot.num_joints])
        flange_position, flange_rotation = (array[:, -1] for array in frames)
        position = flange_position + flange_rotation @ self.layout.tool_offset
        rotation = batched_rotation_vector(flange_rotation @ self.layout.tool_rotation)
        return np.concatenate([position, rotation], axis=1) - self.grasp_pose

    @property
    def width_max(self) -> float:
        """Maximum opening of the gripper [m]."""
        return self.layout.robot.gripper.width_max

    @property
    def width(self) -> np.ndarray:
        """(N,) opening of the gripper [m]."""
        a, b = self.layout.qpos["finger_left"], self.layout.qpos["finger_right"]
        return self.qpos[:, a] + self.qpos[:, b]

    def joint(self, name: str) -> np.ndarray:
        """(N,) position of a hinge or slide joint [rad or m]."""
        return self.qpos[:, self.layout.qpos[name]]

    def joint_velocity(self, name: str) -> np.ndarray:
        """(N,) velocity of a hinge or slide joint [rad/s or m/s]."""
        return self.qvel[:, self.layout.qvel[name]]

    def position(self, name: str) -> np.ndarray:
        """(N, 3) position of the body with the free joint `name` [m]."""
        a = self.layout.qpos[name]
        return self.qpos[:, a : a + 3]

    def quaternion(self, name: str) -> np.ndarray:
        """(N, 4) orientation (wxyz) of the body with the free joint `name`."""
        a = self.layout.qpos[name] + 3
        return self.qpos[:, a : a + 4]

    def rotation(self, name: str) -> np.ndarray:
        """(N, 3, 3) axes of the body with the free joint `name`."""
        return rotation_of(self.quaternion(name))

    def velocity(self, name: str) -> np.ndarray:
        """(N, 6) linear [m/s] and angular [rad/s, body axes] velocity of the body with the free
        joint `name`."""
        a = self.layout.qvel[name]
        return self.qvel[:, a : a + 6]


def yaw_quaternion(yaw: float) -> np.ndarray:
    """(4,) quaternion (wxyz) of a rotation by `yaw` [rad] about the base's z."""
    return np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])
