"""Checks the way of a motion to joint positions against a fence before it begins, and the arm while
it moves.

The robot's own joint motions know no fence. Their joints start and end together, almost in
proportion: in sixteen motions at the twin the points of the arm were up to 4 mm beside the straight
line in joint space at a tenth of the limits, and up to 10 mm at half of them. So the line is
checked, with a margin.
"""

from __future__ import annotations

import math

import numpy as np

from real.motion.fence import ENTERED, FenceConfig, faces, placed_points
from robots.errors import SafetyError
from robots.franka.robot import Robot

SPACING = 0.005
"""Largest motion of a joint between two poses of a path that are checked [rad]; a point 1 m away
moves by 5 mm."""
MARGIN = 0.01
"""Distance that a point keeps besides its clearance on a path, as the arm does not follow the line
exactly [m]."""


def rooms(
    config: FenceConfig, robot: Robot, flange_T_ee: np.ndarray, q: np.ndarray
) -> dict[tuple[str, str], float]:
    """Distance of every point of the arm from everything that is kept out, beyond its clearance
    [m].

    Args:
        config: the fence.
        robot: the arm.
        flange_T_ee: (4, 4) end effector in the flange frame [m].
        q: (J,) joint positions [rad].

    Returns:
        The distances by the names of point and place; negative inside.

    Raises:
        SafetyError: a position is no finite number.
    """
    if not np.isfinite(q).all():
        raise SafetyError(
            f"fence: joint positions {np.asarray(q).tolist()} rad, expected finite numbers. Does the robot send states?"
        )
    frames = robot.chain.joint_frames(q)
    return {
        (point.name, face.name): face.distance - point.clearance
        for point in placed_points(config, frames, flange_T_ee)
        for face in faces(config, point.position)
    }


def check_path(
    config: FenceConfig,
    robot: Robot,
    flange_T_ee: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
) -> None:
    """Checks the straight line in joint space from `begin` to `end` (J,) [rad].

    A point that stands nearer than `MARGIN` to a fence at the beginning may go away from it, and
    one may come as near at the end.

    Args:
        config: the fence.
        robot: the arm.
        flange_T_ee: (4, 4) end effector in the flange frame [m].
        begin: where the arm is.
        end: where it is to go.

    Raises:
        SafetyError: a point would come too near; the message names point, place, depth and share of
            the way.
    """
    if config.empty:
        return
    first, last = (rooms(config, robot, flange_T_ee, q) for q in (begin, end))
    check_outside(first, "is")
    steps = max(1, math.ceil(float(np.abs(end - begin).max()) / SPACING))
    needed = {key: min(MARGIN, first[key], max(last[key], 0.0)) for key in first}
    worst: tuple[float, tuple[str, str], float] = (0.0, ("", ""), 0.0)
    for step in range(steps + 1):
        share = step / steps
        present = rooms(config, robot, flange_T_ee, begin + share * (end - begin))
        for key, room in present.items():
            worst = max(worst, (needed[key] - room, key, share))
    depth, (point, place), share = worst
    if depth > 1e-9:
        raise SafetyError(
            f"fence: on its way the {point} would come {depth:.3f} m too near to '{place}', after {share:.0%} of it. "
            "Guide the arm to another place first, choose another start, or check the fence."
        )


def check_outside(present: dict[tuple[str, str], float], verb: str) -> None:
    """Checks that no point is inside a fence.

    Args:
        present: distances, see `rooms`.
        verb: what the points do, for the message.

    Raises:
        SafetyError: one is.
    """
    (point, place), room = min(present.items(), key=lambda entry: entry[1])
    if room < -ENTERED:
        raise SafetyError(
            f"fence: the {point} {verb} {-room:.3f} m inside '{place}', with its clearance. Guide the arm away, or "
            "check the fence."
        )
