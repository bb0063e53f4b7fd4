"""Maps board coordinates of a planar task to poses of an upright pusher and back."""

from __future__ import annotations

import itertools
from typing import Annotated

import numpy as np
from pydantic import Field

from real.arm import ArmState, PoseTarget
from real.motion.governor import Coordinate, GovernorConfig
from robots.config import UnitComponent, config
from robots.control.actions import PD_TARGET, Motion, agent_dynamics
from robots.control.agent_reference import AgentReference
from robots.errors import HandoffError
from robots.franka.robot import Robot
from robots.interfaces import Observation


@config
class PlaneConfig:
    """Pose of the board and orientation of the pusher; the defaults are those of the push-T
    table."""

    origin: tuple[Coordinate, Coordinate, Coordinate] = (0.776, 0.256, 0.0)
    """Origin of the board in the base frame [m]."""
    x_axis: tuple[UnitComponent, UnitComponent, UnitComponent] = (0.0, -1.0, 0.0)
    """Unit vector of board x in the base frame."""
    y_axis: tuple[UnitComponent, UnitComponent, UnitComponent] = (-1.0, 0.0, 0.0)
    """Unit vector of board y in the base frame."""
    height: Annotated[float, Field(ge=0.0, le=0.2)] = 0.004
    """Height of the pusher's tip above the board [m]."""
    tool_x_axis: tuple[UnitComponent, UnitComponent, UnitComponent] = (1.0, 0.0, 0.0)
    """Unit vector of the end effector's x in the base frame; its z points into the board."""


class Plane:
    """Implements `real.motion.action_space.Space` for the interface `pd_target`, whose actions are
    targets on the board; a rigid mapping between the board and the base frame.

    Args:
        config: pose of the board and orientation of the pusher.

    Raises:
        HandoffError: the axes are not orthonormal, or the tool's x axis does not lie in the board.
    """

    interface = PD_TARGET
    feeds_velocity = True

    def __init__(self, config: PlaneConfig) -> None:
        x, y = np.array(config.x_axis), np.array(config.y_axis)
        down = np.cross(x, y)
        tool_x = np.array(config.tool_x_axis)
        for name, frame in (
            ("board", np.stack([x, y, down])),
            ("tool", np.stack([tool_x, np.cross(down, tool_x), down])),
        ):
            if not np.allclose(frame @ frame.T, np.eye(3), atol=1e-6):
                raise HandoffError(
                    f"plane: the {name} axes {frame[:2].tolist()} are not orthonormal."
                )
        self._axes = np.stack([x, y])
        self._origin = np.array(config.origin)
        self._pose = np.eye(4)
        self._pose[:3, :3] = np.stack([tool_x, np.cross(down, tool_x), down], axis=1)
        self._up = -down
        self._height = config.height

    def pose(self, xy: np.ndarray, lift: float = 0.0) -> np.ndarray:
        """(4, 4) base_T_ee [m] of the upright pusher at `xy` (2,) on the board [m], lifted by
        `lift` [m]."""
        pose = self._pose.copy()
        pose[:3, 3] = self._origin + (self._height + lift) * self._up + np.asarray(xy) @ self._axes
        return pose

    def check_reach(self, box: GovernorConfig, robot: Robot) -> None:
        """Checks that the robot reaches every corner of the governor's keep-in box.

        Raises:
            HandoffError: the box has not two coordinates, or a corner lies beyond the reach.
        """
        if len(box.low) != 2:
            raise HandoffError(
                f"governor: keep-in box {box.low} to {box.high} m, expected 2 coordinates, those of the board."
            )
        for corner in itertools.product(*zip(box.low, box.high, strict=True)):
            distance = float(np.linalg.norm(self.pose(np.array(corner))[:2, 3]))
            if distance > robot.reach:
                raise HandoffError(
                    f"governor: corner {list(corner)} m of the keep-in box is {distance:.3f} m from the base, "
                    f"{robot.name} reaches {robot.reach} m. Is the origin of the board right?"
                )

    def target(self, motion: Motion) -> PoseTarget:
        """Target of the impedance law for a motion on the board."""
        twist, acceleration = np.zeros(6), np.zeros(6)
        twist[:3] = motion.velocity @ self._axes
        acceleration[:3] = motion.acceleration @ self._axes
        return PoseTarget(self.pose(motion.position), twist, acceleration)

    def measured(self, state: ArmState) -> np.ndarray:
        """See `Space`."""
        return self.position(state.base_T_ee)

    def velocity_axes(self, q: np.ndarray | None = None) -> np.ndarray:
        """(6, 2) twists in the base frame of unit velocities along board x and y, the same for all
        joint positions."""
        return np.concatenate([self._axes.T, np.zeros((3, 2))])

    def joint_map(self) -> None:
        """See `Space`: none."""

    def position(self, base_T_ee: np.ndarray) -> np.ndarray:
        """(2,) position on the board [m] of the end effector at `base_T_ee` (4, 4)."""
        return self._axes @ (base_T_ee[:3, 3] - self._origin)

    def reference(self, position: np.ndarray, time: float = 0.0) -> AgentReference:
        """See `Space`."""
        return AgentReference(position, agent_dynamics(self.interface), time)

    def next_target(
        self, action: np.ndarray, target: np.ndarray, measured: np.ndarray
    ) -> np.ndarray:
        """See `Space`: the action is the target."""
        return action

    def executed_action(self, action: np.ndarray | None, target: np.ndarray) -> np.ndarray:
        """See `Space`: the target is the action."""
        return target

    def proprioception(self, state: ArmState, target: np.ndarray) -> Observation:
        """See `Space`: empty, because the observation of the board contains the pusher."""
        return {}
