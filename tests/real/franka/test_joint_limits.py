import numpy as np
import pytest

from real.franka.joint_limits import (
    JointGuardConfig,
    check_joints,
    joint_velocity,
    tool_jacobian,
    velocity_bounds,
)
from robots.errors import SafetyError
from robots.franka.fr3 import Q_HOME, Q_MAX
from robots.franka.kinematics import forward_kinematics

FLANGE_T_EE = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.12], [0, 0, 0, 1]])


def test_tool_jacobian_is_the_derivative_of_the_tip():
    step = 1e-6
    numeric = np.empty((3, 7))
    for i in range(7):
        ends = [
            (forward_kinematics(Q_HOME + sign * step * np.eye(7)[i]) @ FLANGE_T_EE)[:3, 3]
            for sign in (1, -1)
        ]
        numeric[:, i] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(tool_jacobian(Q_HOME, FLANGE_T_EE)[:3], numeric, atol=1e-8)


def test_joint_velocity_gives_the_wanted_twist():
    twist = np.array([0.3, -0.1, 0.0, 0.0, 0.0, 0.2])
    dq = joint_velocity(Q_HOME, twist, FLANGE_T_EE)
    np.testing.assert_allclose(tool_jacobian(Q_HOME, FLANGE_T_EE) @ dq, twist, atol=1e-4)


def test_home_at_rest_passes():
    check_joints(JointGuardConfig(), Q_HOME, np.zeros(7))


def test_joint_within_the_margin_of_its_limit_is_refused():
    q = Q_HOME.copy()
    q[3] = Q_MAX[3] - 0.04
    with pytest.raises(
        SafetyError, match=r"joint4 is at -0\.157 rad, outside \[-3\.027, -0\.167\]"
    ):
        check_joints(JointGuardConfig(), q, np.zeros(7))


def test_velocity_beyond_the_fault_share_is_refused():
    # 0.95 of 2.62 rad/s, far from the limits.
    check_joints(JointGuardConfig(), Q_HOME, np.array([2.48, 0, 0, 0, 0, 0, 0]))
    with pytest.raises(
        SafetyError, match=r"joint1 would move at 2\.500 rad/s, allowed \[-2\.489, 2\.489\]"
    ):
        check_joints(JointGuardConfig(), Q_HOME, np.array([2.5, 0, 0, 0, 0, 0, 0]))


def test_bound_is_one_where_a_joint_moves_at_its_share():
    # Joint 1 alone, 2 rad per metre: 0.7 of 2.62 rad/s is reached at 0.917 m/s.
    bounds = velocity_bounds(
        JointGuardConfig(), Q_HOME, np.array([[2.0], [0], [0], [0], [0], [0], [0]])
    )
    assert bounds[:, 0] @ np.ones(7) * 0.917 == pytest.approx(1.0, rel=1e-4)


def test_nan_is_refused():
    with pytest.raises(SafetyError, match="joint1"):
        check_joints(JointGuardConfig(), np.full(7, np.nan), np.zeros(7))
    with pytest.raises(SafetyError, match="joint1"):
        check_joints(JointGuardConfig(), Q_HOME, np.full(7, np.nan))
