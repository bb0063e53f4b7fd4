"""N worlds of one MuJoCo model as arrays with names: what a task's terms read, whatever engine
stepped them.

Everything is computed from generalised positions and velocities, so it belongs to the present state
exactly (a sensor of the engine is one physics step old).
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import numpy as np

from robots.franka.kinematics import batched_jacobian, batched_rotation_vector
from robots.franka.robot import Robot

if TYPE_CHECKING:
    import mujoco

FREE_JOINT = 7
"""Generalised positions of a free joint: position (3) and quaternion (4)."""

Read = TypeVar("Read")


class once(Generic[Read]):  # noqa: N801 - a decorator
    """A property that is worked out when it is first read, as `functools.cached_property`, whose
    lock torch.compile cannot trace (`sim.device.arm` does)."""

    def __init__(self, read: Callable[[Any], Read]) -> None:
        self._read = read
        self._name = read.__name__
        self.__doc__ = read.__doc__

    def __get__(self, view: Any, kind: type | None = None) -> Read:
        found = view.found
        if self._name not in found:
            found[self._name] = self._read(view)
        return found[self._name]


Asked = ParamSpec("Asked")


def once_each(
    read: Callable[Concatenate[View, Asked], Read],
) -> Callable[Concatenate[View, Asked], Read]:
    """A reading of a view that is worked out when it is first asked for with these arguments, which
    can be hashed: several of a task's terms ask for the same."""

    name = f"{read.__module__}.{read.__qualname__}"

    @wraps(read)
    def told(view: View, *asked: Asked.args, **named: Asked.kwargs) -> Read:
        key = (name, asked, tuple(named.items()))
        if key not in view.found:
            view.found[key] = read(view, *asked, **named)
        return view.found[key]

    return told


class Layout:
    """Where the joints of a model stand in its vectors. The arm's joints come first in all of
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
            model: its first joints are the arm's.
            robot: the arm.
            tool_offset: (3,) origin of the frame "grasp" from the flange [m], flange axes; None
                takes that of the robot's gripper.
            tool_rotation: (3, 3) its axes in the flange's; None takes those of the robot's gripper.
        """
        self.robot = robot
        self.nq, self.nv = model.nq, model.nv
        names = [model.joint(i).name for i in range(model.njnt)]
        self.qpos = {name: int(model.jnt_qposadr[i]) for i, name in enumerate(names)}
        self.qvel = {name: int(model.jnt_dofadr[i]) for i, name in enumerate(names)}
        self.has_hand = "finger_left" in self.qpos
        gripper = robot.gripper
        self.tool_offset = (
            np.array([0.0, 0.0, gripper.tcp_offset]) if tool_offset is None else tool_offset
        )
        self.tool_rotation = gripper.flange_R_grasp if tool_rotation is None else tool_rotation


class View:
    """The present of N worlds. Arrays are in base axes unless said otherwise, and must not be
    written to."""

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
            layout: of the model.
            qpos: (N, nq).
            qvel: (N, nv).
            target: (N, C) the controller's targets: the arm's (6 of a pose or J of joints), the
                agent's velocity (2) where actions are `PdTarget`, then the hand's opening [m].
            goal: (N, G) the task's own variables, as its `reset` wrote them.
            joint_targets: whether the arm's targets are joint positions [rad].
        """
        self.layout = layout
        self.qpos = qpos
        self.qvel = qvel
        self.target = target
        self.goal = goal
        self.joint_targets = joint_targets
        self.found: dict[Any, Any] = {}
        """What has been worked out so far, by name, and by arguments where there are any."""

    @property
    def n(self) -> int:
        """N."""
        return len(self.qpos)

    @property
    def q(self) -> np.ndarray:
        """(N, J) joint positions [rad]."""
        return self.qpos[:, : self.layout.robot.num_joints]

    @property
    def dq(self) -> np.ndarray:
        """(N, J) joint velocities [rad/s]."""
        return self.qvel[:, : self.layout.robot.num_joints]

    @once
    def _frames(self) -> tuple[np.ndarray, np.ndarray]:
        return self.layout.robot.chain.batched_joint_frames(self.q)

    @once
    def grasp_position(self) -> np.ndarray:
        """(N, 3) origin of the frame "grasp" [m]: the point between the fingertips, or the tool's
        tip."""
        positions, rotations = self._frames
        return positions[:, -1] + rotations[:, -1] @ self.layout.tool_offset

    @once
    def grasp_rotation(self) -> np.ndarray:
        """(N, 3, 3) axes of the frame "grasp"; the identity when the hand points straight down."""
        return self._frames[1][:, -1] @ self.layout.tool_rotation

    @once
    def grasp_pose(self) -> np.ndarray:
        """(N, 6) position [m] and rotation vector [rad] of the frame "grasp"."""
        return np.concatenate(
            [self.grasp_position, batched_rotation_vector(self.grasp_rotation)], axis=1
        )

    @once
    def jacobian(self) -> np.ndarray:
        """(N, 6, J) of the frame "grasp"."""
        return batched_jacobian(*self._frames, self.grasp_position)

    @once
    def grasp_velocity(self) -> np.ndarray:
        """(N, 6) linear [m/s] and angular [rad/s]."""
        return (self.jacobian @ self.dq[..., None])[..., 0]

    @property
    def target_pose(self) -> np.ndarray:
        """(N, 6) the Cartesian controller's target: position [m], rotation vector [rad]."""
        return self.target[:, :6]

    @once
    def target_offset(self) -> np.ndarray:
        """(N, 6) the controller's target less `grasp_pose` [m, rad]; of joint targets the pose that
        they would make."""
        if not self.joint_targets:
            return self.target_pose - self.grasp_pose
        robot = self.layout.robot
        frames = robot.chain.batched_joint_frames(self.target[:, : robot.num_joints])
        position, rotation = (part[:, -1] for part in frames)
        place = position + rotation @ self.layout.tool_offset
        turned = batched_rotation_vector(rotation @ self.layout.tool_rotation)
        return np.concatenate([place, turned], axis=1) - self.grasp_pose

    @property
    def width_max(self) -> float:
        """Largest opening of the hand [m]."""
        return self.layout.robot.gripper.width_max

    @property
    def width(self) -> np.ndarray:
        """(N,) opening of the hand [m]."""
        a, b = self.layout.qpos["finger_left"], self.layout.qpos["finger_right"]
        return self.qpos[:, a] + self.qpos[:, b]

    def joint(self, name: str) -> np.ndarray:
        """(N,) position of a hinge or slide joint [rad or m]."""
        return self.qpos[:, self.layout.qpos[name]]

    def joint_velocity(self, name: str) -> np.ndarray:
        """(N,) velocity of a hinge or slide joint [rad/s or m/s]."""
        return self.qvel[:, self.layout.qvel[name]]

    def position(self, name: str) -> np.ndarray:
        """(N, 3) of the body with the free joint `name` [m]."""
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
        """(N, 6) linear [m/s], angular [rad/s, the body's own axes] of the body with the free joint
        `name`."""
        a = self.layout.qvel[name]
        return self.qvel[:, a : a + 6]


def rotation_of(quaternion: np.ndarray) -> np.ndarray:
    """(..., 3, 3) rotation matrices of unit quaternions (..., 4), wxyz."""
    w, x, y, z = np.moveaxis(quaternion, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def yaw_quaternion(yaw: float) -> np.ndarray:
    """(4,) quaternion (wxyz) of a turn by `yaw` [rad] about the base's z."""
    return np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])
