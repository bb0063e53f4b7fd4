"""The fence: elbow, wrist, flange and tool stop in front of what they keep out of."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from real.arm import Arm, ArmState, PoseTarget, TorqueResponse
from real.franka.joint_limits import JointGuardConfig, tool_jacobian
from real.motion.action_space import CartesianSteps
from real.motion.fence import FenceConfig, KeepOutBox, KeepOutPlane
from real.motion.governor import GovernorConfig
from real.motion.stream import ReferenceStream, StreamConfig
from robots.control.actions import CartesianDelta
from robots.errors import HandoffError, SafetyError
from robots.franka import find_robot
from robots.interfaces import Clock
from robots.spec import FieldSpec
from tests.real.fakes import contract

FR3 = find_robot("fr3")
FLANGE_T_EE = np.eye(4)
FLANGE_T_EE[2, 3] = 0.1034
STEPS = GovernorConfig(max_speed=0.8, max_acceleration=30.0, max_jerk=12_000.0)
SPEC = CartesianDelta(low=(0.2, -0.5, 0.0), high=(0.75, 0.5, 0.7))


class FollowingArm:
    """An arm whose joints follow its reference with the least motion, without forces."""

    robot = FR3

    def __init__(self) -> None:
        self.q = FR3.q_home.copy()
        self.target = self.pose

    @property
    def pose(self) -> np.ndarray:
        return FR3.chain.forward_kinematics(self.q) @ FLANGE_T_EE

    def state(self) -> ArmState:
        zero = np.zeros(7)
        return ArmState(
            0.0, self.q.copy(), zero, self.pose, zero, zero, np.zeros(6), 1.0, "Move", ()
        )

    def torque_response(self, q: np.ndarray, axes: np.ndarray, along: np.ndarray) -> TorqueResponse:
        none = np.zeros((7, axes.shape[1]))
        return TorqueResponse(none, none, none, np.zeros((7, 7)), np.zeros((7, 7)))

    def set_target(self, target: PoseTarget) -> None:
        self.target = target.base_T_ee

    def advance(self, seconds: float) -> float:
        for _ in range(3):
            J = tool_jacobian(FR3.chain, self.q, FLANGE_T_EE)
            turn = self.target[:3, :3] @ self.pose[:3, :3].T
            angle = 0.5 * np.array(
                [turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]]
            )
            error = np.concatenate([self.target[:3, 3] - self.pose[:3, 3], angle])
            self.q = self.q + J.T @ np.linalg.solve(J @ J.T + 1e-6 * np.eye(6), error)
        return 0.0

    def now(self) -> float:
        return 0.0


def stream_of(arm: FollowingArm, fence: FenceConfig) -> ReferenceStream:
    steps = contract(
        task="reach",
        action=FieldSpec(shape=(3,), frame="base"),
        action_interface="cartesian_delta",
        rate_hz=20.0,
        steps=CartesianDelta(axes=("x", "y", "z"), low=SPEC.low, high=SPEC.high),
        robot="fr3",
    )
    space = CartesianSteps(steps, arm.pose, FR3)
    return ReferenceStream(
        cast(Arm, arm),
        cast(Clock, arm),
        space,
        StreamConfig(
            stream_hz=200.0,
            governor=space.governed(STEPS),
            joints=JointGuardConfig(position_margin=0.0, velocity_share=0.94),
            fence=fence,
        ),
        FLANGE_T_EE,
    )


def wander(fence: FenceConfig, seed: int, ticks: int) -> dict[str, np.ndarray]:
    """Positions (T, 3) of the points while targets jump about."""
    rng = np.random.default_rng(seed)
    arm = FollowingArm()
    stream = stream_of(arm, fence)
    points: dict[str, list[np.ndarray]] = {"elbow": [], "wrist": [], "flange": [], "tool": []}
    goal = np.zeros(3)
    for tick in range(ticks):
        if tick % 60 == 0:
            goal = rng.uniform(SPEC.low, SPEC.high)
        if tick % 10 == 0:
            ahead = np.clip(goal - stream.last.measured, -0.03, 0.03)
            stream.set_target(stream.last.measured + ahead)
        try:
            stream.send()
        except SafetyError as error:
            if "fence" in str(error):
                raise
            # At the edge of the joints' range: begin again.
            arm.q = FR3.q_home.copy()
            stream = stream_of(arm, fence)
            continue
        stream.pass_tick()
        frames = FR3.chain.joint_frames(arm.q)
        for name, frame in (("elbow", 3), ("wrist", 5), ("flange", 7)):
            points[name].append(frames[frame, :3, 3])
        points["tool"].append(arm.pose[:3, 3])
    return {name: np.array(path) for name, path in points.items()}


PLANES = FenceConfig(
    planes=(
        KeepOutPlane(name="table", normal=(0.0, 0.0, 1.0), offset=0.15),
        KeepOutPlane(name="wall", normal=(0.0, -1.0, 0.0), offset=-0.25),
    ),
    elbow=0.09,
    tool=0.02,
)
BOX = FenceConfig(
    boxes=(KeepOutBox(name="stand", low=(0.5, -0.5, 0.0), high=(0.9, -0.15, 0.45)),), tool=0.02
)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_point_passes_a_plane(seed: int) -> None:
    points = wander(PLANES, seed, 4000)
    clearances = {"elbow": 0.09, "wrist": 0.08, "flange": 0.06, "tool": 0.02}
    for name, path in points.items():
        assert (path[:, 2] >= 0.15 + clearances[name] - 1e-3).all(), name
        assert (path[:, 1] <= 0.25 - clearances[name] + 1e-3).all(), name
    free = wander(FenceConfig(), seed, 4000)
    assert free["tool"][:, 2].min() < 0.1, "the control goes there"
    assert free["tool"][:, 1].max() > 0.25


@pytest.mark.parametrize("seed", [0, 1])
def test_no_point_enters_a_box(seed: int) -> None:
    stand = BOX.boxes[0]

    def inside(path: np.ndarray, clearance: float) -> Any:
        low, high = np.array(stand.low) - clearance, np.array(stand.high) + clearance
        return ((path > low + 1e-3) & (path < high - 1e-3)).all(axis=1)

    points = wander(BOX, seed, 4000)
    assert not inside(points["tool"], 0.02).any()
    assert not inside(points["flange"], 0.06).any()
    assert inside(wander(FenceConfig(), seed, 4000)["tool"], 0.02).any(), "the control goes there"


def test_a_point_inside_ends_the_episode_with_its_name() -> None:
    arm = FollowingArm()
    high = FenceConfig(planes=(KeepOutPlane(name="shelf", normal=(0.0, 0.0, -1.0), offset=-0.5),))
    stream = stream_of(arm, high)
    with pytest.raises(
        SafetyError, match=r"the elbow is 0\.\d+ m inside 'shelf', with its clearance"
    ):
        stream.send()


def test_far_from_everything_the_reference_is_as_without_a_fence() -> None:
    far = FenceConfig(planes=(KeepOutPlane(name="far", normal=(0.0, 0.0, 1.0), offset=-2.0),))
    fenced, free = wander(far, 3, 600), wander(FenceConfig(), 3, 600)
    np.testing.assert_array_equal(fenced["tool"], free["tool"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KeepOutPlane(name="p", normal=(0.0, 0.0, 0.0)), "normal of 'p' is"),
        (lambda: KeepOutBox(name="b", low=(0.0, 0.0, 0.0), high=(1.0, 0.0, 1.0)), "box 'b' from"),
    ],
)
def test_fences_that_keep_nothing_out_are_refused(make, message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        make()


def test_the_elbow_keeps_out_where_the_tool_is_far_away() -> None:
    shelf = KeepOutBox(name="shelf", low=(0.08, -0.30, 0.45), high=(0.20, 0.30, 0.60))
    none = FenceConfig(boxes=(shelf,), elbow=0.05, wrist=0.0, flange=0.0)
    kept, free = wander(none, 0, 4000)["elbow"], wander(FenceConfig(), 0, 4000)["elbow"]
    # The elbow's way is predicted from one pose, so it enters the clearance of 50 mm by up to 2 mm.
    low, high = np.array(shelf.low) - 0.047, np.array(shelf.high) + 0.047
    assert not ((kept > low) & (kept < high)).all(axis=1).any()
    assert ((free > low) & (free < high)).all(axis=1).any(), "the control goes there"
