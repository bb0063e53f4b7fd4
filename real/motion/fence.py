"""Keeps several points of the arm out of places: half-spaces and boxes that no point may enter.

The keep-in box of the governor bounds one point, the end effector's. Elbow, wrist and flange go
where the joints take them; here each of them, with a clearance around it, slows down in front of a
fence so that it can stop there, and the episode ends if one is found inside.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from real.franka.joint_limits import VelocityBounds
from robots.config import Metres, UnitComponent, config
from robots.errors import HandoffError, SafetyError
from robots.franka.robot import Robot

Clearance = Annotated[float, Field(ge=0.0, le=0.5)]
"""Radius of the sphere about a point that stays outside [m]."""
RETREAT = 10.0
"""Speed with which a point may always move away from a fence [m/s]."""
ENTERED = 0.01
"""Depth of a point's sphere inside a fence at which the episode ends [m]: the arm does not follow
its reference."""
ORTHOGONAL = 1e-3
"""Smallest length of a plane's normal."""


@config
class KeepOutPlane:
    """A wall, a ceiling or a table: no point lies on its far side."""

    name: str = "plane"
    """Name in messages."""
    normal: tuple[UnitComponent, UnitComponent, UnitComponent] = (0.0, 0.0, 1.0)
    """Direction towards the side of the arm, base frame; made a unit vector."""
    offset: Metres = 0.0
    """Distance of the plane from the origin of the base along the normal [m]."""

    def __post_init__(self) -> None:
        if not np.linalg.norm(self.normal) > ORTHOGONAL:
            raise HandoffError(
                f"fence: the normal of '{self.name}' is {self.normal}, a zero vector."
            )


@config
class KeepOutBox:
    """A box with edges along the axes of the base frame that no point enters."""

    name: str = "box"
    """Name in messages."""
    low: tuple[Metres, Metres, Metres] = (0.0, 0.0, 0.0)
    """Lower corner [m]."""
    high: tuple[Metres, Metres, Metres] = (0.0, 0.0, 0.0)
    """Upper corner [m]."""

    def __post_init__(self) -> None:
        if not (np.array(self.low) < np.array(self.high)).all():
            raise HandoffError(
                f"fence: box '{self.name}' from {self.low} to {self.high} m is empty."
            )


@config
class FenceConfig:
    """Places that the points of the arm keep out of; none by default."""

    planes: tuple[KeepOutPlane, ...] = ()
    """Planes, such as the table and walls."""
    boxes: tuple[KeepOutBox, ...] = ()
    """Boxes, such as camera stands and shelves."""
    elbow: Clearance = 0.09
    """Clearance about the elbow, the origin of joint 4 [m]."""
    wrist: Clearance = 0.08
    """Clearance about the wrist, the origin of joint 6 [m]."""
    flange: Clearance = 0.06
    """Clearance about the flange [m]."""
    tool: Clearance = 0.0
    """Clearance about the end effector's frame, between the fingertips [m]."""

    @property
    def empty(self) -> bool:
        """Whether nothing is kept out."""
        return not self.planes and not self.boxes


class PlacedPoint(NamedTuple):
    """A point of the arm that is kept out of a fence, in one pose."""

    name: str
    position: np.ndarray
    """(3,) [m]."""
    joints: int
    """Number of joints that move it."""
    clearance: float
    """Radius of the sphere about it that stays outside [m]."""


class Face(NamedTuple):
    """The face of a plane or a box that separates a position from what is kept out."""

    name: str
    normal: np.ndarray
    """(3,) unit vector away from what is kept out."""
    distance: float
    """Distance of the position along the normal [m]; negative inside."""


def placed_points(
    config: FenceConfig, frames: np.ndarray, flange_T_ee: np.ndarray
) -> tuple[PlacedPoint, ...]:
    """The points of the arm.

    Args:
        config: their clearances.
        frames: (J + 1, 4, 4) frames of the joints and the flange [m], base frame.
        flange_T_ee: (4, 4) end effector in the flange frame [m].
    """
    joints = len(frames) - 1
    tool = (frames[-1] @ flange_T_ee)[:3, 3]
    return (
        PlacedPoint("elbow", frames[3, :3, 3], 3, config.elbow),
        PlacedPoint("wrist", frames[5, :3, 3], 5, config.wrist),
        PlacedPoint("flange", frames[-1, :3, 3], joints, config.flange),
        PlacedPoint("tool", tool, joints, config.tool),
    )


def faces(config: FenceConfig, position: np.ndarray) -> list[Face]:
    """The separating face of every plane and box, seen from a position (3,) [m]."""
    found: list[Face] = []
    for plane in config.planes:
        normal = np.array(plane.normal) / np.linalg.norm(plane.normal)
        found.append(Face(plane.name, normal, float(normal @ position) - plane.offset))
    for box in config.boxes:
        below, above = np.array(box.low) - position, position - np.array(box.high)
        gaps = np.concatenate([below, above])
        axis = int(np.argmax(gaps))
        normal = np.zeros(3)
        normal[axis % 3] = -1.0 if axis < 3 else 1.0
        found.append(Face(box.name, normal, float(gaps[axis])))
    return found


class _Point(NamedTuple):
    """A point of the arm, and how the reference moves it."""

    placed: PlacedPoint
    per_speed: np.ndarray
    """(3, D) velocity per velocity of the reference along the coordinates."""


class Fence:
    """The fence of one arm.

    Args:
        config: what is kept out.
        robot: the arm.
        flange_T_ee: (4, 4) end effector in the flange frame [m].
        braking: deceleration of the reference along each coordinate [m/s^2]; half of it is counted
            on.
    """

    def __init__(
        self, config: FenceConfig, robot: Robot, flange_T_ee: np.ndarray, braking: float
    ) -> None:
        self._config = config
        self._robot = robot
        self._flange_T_ee = flange_T_ee
        self._braking = braking / 2.0
        self._points: list[_Point] = []

    def renew(self, q: np.ndarray, dq_per_speed: np.ndarray) -> None:
        """Computes the points in the pose `q` (J,) [rad].

        Args:
            q: joint positions.
            dq_per_speed: (J, D) joint velocity [rad/s] per velocity of the reference [m/s].
        """
        frames = self._robot.chain.joint_frames(q)
        self._points = []
        for point in placed_points(self._config, frames, self._flange_T_ee):
            moving = point.joints
            axes, origins = frames[:moving, :3, 2], frames[:moving, :3, 3]
            jacobian = np.cross(axes, point.position - origins).T
            self._points.append(_Point(point, jacobian @ dq_per_speed[:moving]))

    def bounds(self, lead: np.ndarray) -> VelocityBounds:
        """Bounds on the reference's velocity with which every point can still stop outside.

        Args:
            lead: (D,) distance of the reference ahead of the arm [m], with that which it covers
                until the bounds take effect.

        Raises:
            SafetyError: a point is inside.
        """
        rows: list[np.ndarray] = []
        offsets: list[float] = []
        for placed, per_speed in self._points:
            for name, normal, distance in faces(self._config, placed.position):
                room = distance - placed.clearance
                if room < -ENTERED:
                    raise SafetyError(
                        f"fence: the {placed.name} is {-room:.3f} m inside '{name}', with its clearance of "
                        f"{placed.clearance} m. Move the arm away, or check the fence."
                    )
                away = normal @ per_speed
                # The reference may already be nearer than the arm that follows it.
                room += min(0.0, float(away @ lead))
                braking = self._braking * float(np.linalg.norm(away))
                fastest = float(np.sqrt(2.0 * braking * max(room, 0.0)))
                # -fastest <= away . v <= RETREAT
                half = (RETREAT + fastest) / 2.0
                rows.append(away / half)
                offsets.append(-(RETREAT - fastest) / (2.0 * half))
        size = 0 if not self._points else self._points[0].per_speed.shape[1]
        return VelocityBounds(np.array(rows).reshape(-1, size), np.array(offsets))
