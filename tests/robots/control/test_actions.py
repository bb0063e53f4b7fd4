import numpy as np
import pytest

from robots.control.actions import PD_TARGET, AgentDynamics, agent_dynamics
from robots.control.agent_reference import AgentReference
from robots.errors import HandoffError, SafetyError
from sim.engines.opencv_substitute import importable_opencv

PERIOD = 0.1


def test_first_two_knots_match_hand_computed_recursion():
    reference = AgentReference(np.zeros(1), AgentDynamics())
    reference.push(np.ones(1))
    reference.sample(0.01)
    assert reference.velocity[0] == pytest.approx(1.0)
    assert reference.position[0] == pytest.approx(0.01)
    reference.sample(0.02)
    assert reference.velocity[0] == pytest.approx(1.0 + (99.0 - 20.0) * 0.01)
    assert reference.position[0] == pytest.approx(0.01 + 0.0179)


def test_agrees_with_gym_pusht_at_every_policy_step():
    with importable_opencv():
        gym_pusht = pytest.importorskip("gym_pusht.envs.pusht")
    env = gym_pusht.PushTEnv(obs_type="state")
    env.reset(seed=1)
    env.space.remove(*env.block.shapes, env.block)
    reference = AgentReference(np.array(env.agent.position) / 1000.0, agent_dynamics(PD_TARGET))
    generator = np.random.default_rng(3)
    for step in range(40):
        target = generator.uniform(50.0, 450.0, size=2)
        env.step(target)
        reference.push(target / 1000.0)
        motion = reference.sample((step + 1) * PERIOD)
        np.testing.assert_allclose(
            motion.position, np.array(env.agent.position) / 1000.0, atol=1e-9
        )
        np.testing.assert_allclose(
            reference.velocity, np.array(env.agent.velocity) / 1000.0, atol=1e-9
        )


def test_position_and_velocity_are_continuous_across_knots_and_targets():
    reference = AgentReference(np.zeros(2), AgentDynamics())
    generator = np.random.default_rng(0)
    before = reference.sample(0.0)
    for tick in range(1, 2000):
        if tick % 400 == 1:
            reference.push(generator.uniform(-0.1, 0.1, size=2))
        motion = reference.sample(tick * 0.00025)
        assert np.abs(motion.position - before.position).max() < 0.00025 * 0.6
        # A step of 0.2 m asks for 20 m/s^2; the segment after it, its first tangent being fixed,
        # for three times that.
        assert np.abs(motion.velocity - before.velocity).max() < 0.00025 * 65.0
        before = motion


def test_velocity_is_the_derivative_of_position_between_knots():
    reference = AgentReference(np.zeros(1), AgentDynamics())
    reference.push(np.array([0.05]))
    reference.sample(0.03)
    early, middle, late = (reference.sample(0.03 + 0.0033 + offset) for offset in (0.0, 1e-5, 2e-5))
    assert middle.velocity[0] == pytest.approx(
        (late.position[0] - early.position[0]) / 2e-5, rel=1e-6
    )
    assert middle.acceleration[0] == pytest.approx(
        (late.velocity[0] - early.velocity[0]) / 2e-5, rel=1e-6
    )


def test_agent_without_new_targets_settles_on_the_last_one():
    reference = AgentReference(np.zeros(2), AgentDynamics())
    reference.push(np.array([0.1, -0.05]))
    motion = reference.sample(3.0)
    np.testing.assert_allclose(motion.position, [0.1, -0.05], atol=1e-6)
    np.testing.assert_allclose(motion.velocity, 0.0, atol=1e-6)


@pytest.mark.parametrize("target", [np.array([np.nan, 0.0]), np.array([np.inf, 0.0]), np.zeros(3)])
def test_bad_target_is_refused_and_the_old_one_kept(target):
    reference = AgentReference(np.full(2, 0.2), AgentDynamics())
    with pytest.raises(SafetyError, match="expected 2 finite numbers"):
        reference.push(target)
    np.testing.assert_array_equal(reference.target, [0.2, 0.2])


def test_time_before_the_running_segment_is_refused():
    reference = AgentReference(np.zeros(2), AgentDynamics())
    reference.sample(0.5)
    with pytest.raises(HandoffError, match="jump back"):
        reference.sample(0.4)


def test_unknown_interface_names_the_known_one():
    with pytest.raises(
        HandoffError, match="'delta_pose' is not known, this build knows 'pd_target'"
    ):
        agent_dynamics("delta_pose")
