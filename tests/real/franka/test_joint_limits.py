import numpy as np
import pytest

from real.franka.joint_limits import (
    JointGuardConfig,
    check_joints,
    joint_velocity,
    tool_jacobian,
    velocity_rows,
)
from robots.errors import SafetyError
from robots.franka import find_robot

FR3 = find_robot("fr3")

FLANGE_T_EE = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.12], [0, 0, 0, 1]])


def test_tool_jacobian_is_the_derivative_of_the_tip():
    step = 1e-6
    numeric = np.empty((3, 7))
    for i in range(7):
        ends = [
            (FR3.chain.forward_kinematics(FR3.q_home + sign * step * np.eye(7)[i]) @ FLANGE_T_EE)[
                :3, 3
            ]
            for sign in (1, -1)
        ]
        numeric[:, i] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(
        tool_jacobian(FR3.chain, FR3.q_home, FLANGE_T_EE)[:3], numeric, atol=1e-8
    )


def test_joint_velocity_gives_the_wanted_twist():
    twist = np.array([0.3, -0.1, 0.0, 0.0, 0.0, 0.2])
    dq = joint_velocity(FR3.chain, FR3.q_home, twist, FLANGE_T_EE)
    np.testing.assert_allclose(
        tool_jacobian(FR3.chain, FR3.q_home, FLANGE_T_EE) @ dq, twist, atol=1e-4
    )


def test_home_at_rest_passes():
    check_joints(JointGuardConfig(), FR3, FR3.q_home, np.zeros(7))


def test_joint_within_the_margin_of_its_limit_is_refused():
    q = FR3.q_home.copy()
    q[3] = FR3.limits.q_max[3] - 0.04
    with pytest.raises(
        SafetyError, match=r"joint4 is at -0\.157 rad, outside \[-3\.027, -0\.167\]"
    ):
        check_joints(JointGuardConfig(), FR3, q, np.zeros(7))


def test_velocity_beyond_the_fault_share_is_refused():
    # 0.95 of 2.62 rad/s, far from the limits.
    check_joints(JointGuardConfig(), FR3, FR3.q_home, np.array([2.48, 0, 0, 0, 0, 0, 0]))
    with pytest.raises(
        SafetyError, match=r"joint1 would move at 2\.500 rad/s, allowed \[-2\.489, 2\.489\]"
    ):
        check_joints(JointGuardConfig(), FR3, FR3.q_home, np.array([2.5, 0, 0, 0, 0, 0, 0]))


def test_bound_is_one_where_a_joint_moves_at_its_share():
    # Joint 1 alone, 2 rad per metre: 0.7 of 2.62 rad/s is reached at 0.917 m/s.
    bounds = velocity_rows(
        JointGuardConfig(), FR3.limits, FR3.q_home, np.array([[2.0], [0], [0], [0], [0], [0], [0]])
    )
    assert bounds[:, 0] @ np.ones(7) * 0.917 == pytest.approx(1.0, rel=1e-4)


def test_nan_is_refused():
    with pytest.raises(SafetyError, match="joint1"):
        check_joints(JointGuardConfig(), FR3, np.full(7, np.nan), np.zeros(7))
    with pytest.raises(SafetyError, match="joint1"):
        check_joints(JointGuardConfig(), FR3, FR3.q_home, np.full(7, np.nan))


def test_limits_are_those_of_the_robot_at_hand():
    panda = find_robot("panda")
    # Within the limits of an FR3, beyond those of a Panda.
    q = FR3.q_home.copy()
    q[1] = 1.75
    check_joints(JointGuardConfig(), FR3, q, np.zeros(7))
    with pytest.raises(SafetyError, match=r"panda: joint2 is at 1\.750 rad, outside"):
        check_joints(JointGuardConfig(), panda, q, np.zeros(7))
    fast = np.array([2.3, 0, 0, 0, 0, 0, 0])
    check_joints(JointGuardConfig(), FR3, FR3.q_home, fast)
    with pytest.raises(SafetyError, match=r"panda: joint1 would move at 2\.300 rad/s"):
        check_joints(JointGuardConfig(), panda, panda.q_home, fast)
    dq_per_speed = np.array([[2.0], [0], [0], [0], [0], [0], [0]])
    of_fr3, of_panda = (
        velocity_rows(JointGuardConfig(), robot.limits, robot.q_home, dq_per_speed)[0, 0]
        for robot in (FR3, panda)
    )
    assert of_panda / of_fr3 == pytest.approx(2.62 / 2.175)
