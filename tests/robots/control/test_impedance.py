import numpy as np

from robots.control.impedance import ImpedanceGains, cartesian_torque, joint_torque, posture_target
from robots.franka import find_robot

FR3 = find_robot("fr3")

GAINS = ImpedanceGains()
STILL = np.zeros(7)


def test_at_the_target_and_at_rest_there_is_no_torque() -> None:
    torque = cartesian_torque(
        GAINS, FR3.chain.jacobian(FR3.q_home), np.zeros(6), FR3.q_home, STILL, FR3.q_home
    )
    np.testing.assert_array_equal(torque, 0.0)


def test_one_centimetre_of_height_error_pushes_with_twenty_newton() -> None:
    J = FR3.chain.jacobian(FR3.q_home)
    error = np.array([0, 0, 0.01, 0, 0, 0])
    torque = cartesian_torque(GAINS, J, error, FR3.q_home, STILL, FR3.q_home)
    np.testing.assert_allclose(torque, J[2] * 20.0, atol=1e-12)


def test_damping_takes_energy_out_of_every_motion() -> None:
    for dq in np.random.default_rng(0).normal(size=(20, 7)):
        torque = cartesian_torque(
            GAINS, FR3.chain.jacobian(FR3.q_home), np.zeros(6), FR3.q_home, dq, FR3.q_home
        )
        assert torque @ dq < 0.0


def test_the_posture_pulls_in_the_nullspace_only() -> None:
    J = FR3.chain.jacobian(FR3.q_home)
    posture = FR3.q_home + np.array([0.3, -0.2, 0.1, 0.2, -0.4, 0.1, 0.5])
    pull = posture_target(J, FR3.q_home, posture) - FR3.q_home
    np.testing.assert_allclose(J @ pull, 0.0, atol=1e-4)
    assert np.linalg.norm(pull) > 0.05


def test_a_posture_reached_without_moving_the_pose_is_kept() -> None:
    J = FR3.chain.jacobian(FR3.q_home)
    null = np.linalg.svd(J)[2][6]
    held = posture_target(J, FR3.q_home, FR3.q_home + 0.2 * null)
    np.testing.assert_allclose(held, FR3.q_home + 0.2 * null, atol=1e-6)


def test_joint_law_by_hand() -> None:
    torque = joint_torque(GAINS, FR3.q_home + 0.1, FR3.q_home, np.ones(7))
    np.testing.assert_allclose(torque, [10.0, 10.0, 10.0, 10.0, -5.0, -10.0, -10.0])
