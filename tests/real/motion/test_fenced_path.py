"""The way of a joint motion is checked against the fence before it begins."""

from __future__ import annotations

import numpy as np
import pytest

from real.motion.fence import FenceConfig, KeepOutBox, KeepOutPlane
from real.motion.fenced_path import MARGIN, check_path, rooms
from robots.errors import SafetyError
from robots.franka import find_robot

FR3 = find_robot("fr3")
FLANGE_T_EE = np.eye(4)
FLANGE_T_EE[2, 3] = 0.1034
HOME = FR3.q_home
LEFT = HOME + np.array([0.9, 0, 0, 0, 0, 0, 0])
RIGHT = HOME - np.array([0.9, 0, 0, 0, 0, 0, 0])


def tool(q: np.ndarray) -> np.ndarray:
    return (FR3.chain.forward_kinematics(q) @ FLANGE_T_EE)[:3, 3]


def stand(half: float = 0.05) -> FenceConfig:
    """A box about the tool's place at home, half-way from left to right."""
    middle = tool(HOME)
    low, high = (middle - half).tolist(), (middle + half).tolist()
    box = KeepOutBox(name="camera stand", low=tuple(low), high=tuple(high))
    return FenceConfig(boxes=(box,), elbow=0.0, wrist=0.0, flange=0.0)


def test_a_way_through_a_box_is_refused_with_point_place_depth_and_share() -> None:
    fence = stand()
    for q in (LEFT, RIGHT):
        assert min(rooms(fence, FR3, FLANGE_T_EE, q).values()) > 0.15, "both ends are free"
    # The middle of the box, 0.05 m inside, and the margin.
    with pytest.raises(
        SafetyError, match=r"the tool would come 0\.060 m too near to 'camera stand', after 50%"
    ):
        check_path(fence, FR3, FLANGE_T_EE, LEFT, RIGHT)


def test_a_way_beside_it_is_taken_and_by_way_of_a_free_pose_too() -> None:
    above = HOME.copy()
    above[3] += 0.9
    fence = stand()
    assert tool(above)[2] > tool(HOME)[2] + 0.15
    for begin, end in ((LEFT, LEFT + above - HOME), (LEFT + above - HOME, RIGHT + above - HOME)):
        check_path(fence, FR3, FLANGE_T_EE, begin, end)
    check_path(FenceConfig(), FR3, FLANGE_T_EE, LEFT, RIGHT)


def test_the_elbow_counts_where_the_tool_is_free() -> None:
    raised = HOME + np.array([0, -0.6, 0, 0, 0, 0, 0])
    elbow = FR3.chain.joint_frames(raised)[3, :3, 3]
    wall = KeepOutPlane(name="wall", normal=(1.0, 0.0, 0.0), offset=float(elbow[0]) - 0.05)
    fence = FenceConfig(planes=(wall,))
    with pytest.raises(SafetyError, match=r"the elbow would come 0\.0[45]0 m too near to 'wall'"):
        check_path(fence, FR3, FLANGE_T_EE, HOME, raised)


def at_wall(room: float) -> FenceConfig:
    """A plane below the tool at home, with `room` left [m]."""
    table = KeepOutPlane(name="table", offset=float(tool(HOME)[2]) - room)
    return FenceConfig(planes=(table,), elbow=0.0, wrist=0.0, flange=0.0)


def test_a_point_that_stands_at_the_fence_may_go_away_but_not_on() -> None:
    up, down = (HOME + np.array([0, 0, 0, turn, 0, 0, 0]) for turn in (0.2, -0.2))
    assert tool(up)[2] > tool(HOME)[2] > tool(down)[2]
    for room in (0.5 * MARGIN, 0.0, -0.5 * MARGIN):
        fence = at_wall(room)
        check_path(fence, FR3, FLANGE_T_EE, HOME, up)
        with pytest.raises(SafetyError, match="too near to 'table', after 100%"):
            check_path(fence, FR3, FLANGE_T_EE, HOME, down)
    with pytest.raises(SafetyError, match=r"the tool is 0\.030 m inside 'table'"):
        check_path(at_wall(-0.03), FR3, FLANGE_T_EE, HOME, up)


def test_a_goal_may_be_at_the_fence_but_not_behind_it() -> None:
    up = HOME + np.array([0, 0, 0, 0.2, 0, 0, 0])
    check_path(at_wall(0.002), FR3, FLANGE_T_EE, up, HOME)
    with pytest.raises(SafetyError, match=r"would come 0\.004 m too near to 'table'"):
        check_path(at_wall(-0.004), FR3, FLANGE_T_EE, up, HOME)
