import numpy as np

from robots.control.impedance import ImpedanceGains, cartesian_torque, joint_torque, posture_target
from robots.franka.fr3 import Q_HOME
from robots.franka.kinematics import jacobian

GAINS = ImpedanceGains()
STILL = np.zeros(7)


def test_at_the_target_and_at_rest_there_is_no_torque() -> None:
    torque = cartesian_torque(GAINS, jacobian(Q_HOME), np.zeros(6), Q_HOME, STILL, Q_HOME)
    np.testing.assert_array_equal(torque, 0.0)


def test_one_centimetre_of_height_error_pushes_with_twenty_newton() -> None:
    J = jacobian(Q_HOME)
    error = np.array([0, 0, 0.01, 0, 0, 0])
    torque = cartesian_torque(GAINS, J, error, Q_HOME, STILL, Q_HOME)
    np.testing.assert_allclose(torque, J[2] * 20.0, atol=1e-12)


def test_damping_takes_energy_out_of_every_motion() -> None:
    for dq in np.random.default_rng(0).normal(size=(20, 7)):
        torque = cartesian_torque(GAINS, jacobian(Q_HOME), np.zeros(6), Q_HOME, dq, Q_HOME)
        assert torque @ dq < 0.0


def test_the_posture_pulls_in_the_nullspace_only() -> None:
    J = jacobian(Q_HOME)
    posture = Q_HOME + np.array([0.3, -0.2, 0.1, 0.2, -0.4, 0.1, 0.5])
    pull = posture_target(J, Q_HOME, posture) - Q_HOME
    np.testing.assert_allclose(J @ pull, 0.0, atol=1e-4)
    assert np.linalg.norm(pull) > 0.05


def test_a_posture_reached_without_moving_the_pose_is_kept() -> None:
    J = jacobian(Q_HOME)
    null = np.linalg.svd(J)[2][6]
    held = posture_target(J, Q_HOME, Q_HOME + 0.2 * null)
    np.testing.assert_allclose(held, Q_HOME + 0.2 * null, atol=1e-6)


def test_joint_law_by_hand() -> None:
    torque = joint_torque(GAINS, Q_HOME + 0.1, Q_HOME, np.ones(7))
    np.testing.assert_allclose(torque, [10.0, 10.0, 10.0, 10.0, -5.0, -10.0, -10.0])
