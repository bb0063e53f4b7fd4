"""A task at another control rate."""

import numpy as np
import pytest

from robots.control.actions import CartesianDelta
from robots.errors import HandoffError
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.make import EnvConfig, find_task, make_vec_env
from sim.tasks.task import at_rate
from sim.vec_env import EngineVecEnv, VecEnvConfig


def test_half_the_rate_has_half_the_periods_steps_twice_as_long_and_a_leash_longer_by_the_root_of_two() -> (
    None
):
    task = find_task("pick_cube")
    slow = at_rate(task, 10.0)
    assert (task.rate_hz, task.max_steps, slow.rate_hz, slow.max_steps) == (20.0, 100, 10.0, 50)
    assert isinstance(slow.actions, CartesianDelta)
    assert (slow.actions.translation, slow.actions.rotation) == pytest.approx((0.04, 0.2))
    assert slow.actions.leash_translation == pytest.approx(0.03 * 2**0.5)
    assert slow.actions.leash_rotation == pytest.approx(0.2 * 2**0.5)


def test_its_own_rate_leaves_a_task_as_it_is() -> None:
    assert find_task("peg_insert", 20.0) is find_task("peg_insert")


@pytest.mark.parametrize("rate", [0.0, -5.0])
def test_a_rate_that_is_not_positive_is_refused(rate: float) -> None:
    with pytest.raises(HandoffError, match="rate_hz"):
        find_task("pick_cube", rate)


def test_actions_that_are_no_steps_have_no_other_rate() -> None:
    with pytest.raises(HandoffError, match="not Cartesian steps"):
        find_task("push_t", 20.0)


@pytest.mark.parametrize("name", ["pick_cube", "peg_insert"])
def test_the_expert_solves_a_task_at_10_hz(name: str) -> None:
    env = EngineVecEnv(MujocoEngine(find_task(name, 10.0), 20), VecEnvConfig(on_end="freeze"))
    env.reset(list(range(20)))
    solved = np.zeros(20, dtype=bool)
    for _ in range(env.max_steps):
        solved |= env.step(env.engine.expert_action()).info["success"]  # type: ignore[attr-defined]
    env.close()
    assert solved.mean() >= 0.95


def test_environments_are_made_at_the_rate_that_is_asked_for() -> None:
    env = make_vec_env(EnvConfig(task="pick_cube", rate_hz=10.0), 1)
    assert (env.rate_hz, env.max_steps) == (10.0, 50)  # type: ignore[attr-defined]
    env.close()


def test_the_controllers_target_equals_the_arms_pose_at_the_start_and_leads_by_one_step() -> None:
    engine = MujocoEngine(find_task("pick_cube"), 1)
    env = EngineVecEnv(engine, VecEnvConfig())
    start = env.reset([3])
    assert np.abs(start["target_offset"]).max() < 1e-6
    target = engine.view.target_pose[0, 0]
    action = np.array([[1.0, 0.0, 0.0, 0.0, 1.0]])
    after = env.step(action).observation
    assert engine.view.target_pose[0, 0] - target == pytest.approx(0.02)
    assert after["target_offset"][0, 0] == pytest.approx(
        target + 0.02 - after["grasp_pose"][0, 0], abs=1e-6
    )
    env.close()


def test_a_joint_target_is_observed_as_a_pose() -> None:
    from robots.control.actions import JointDelta

    engine = MujocoEngine(find_task("pick_cube"), 1, MujocoConfig(actions=JointDelta()))
    env = EngineVecEnv(engine, VecEnvConfig())
    assert np.abs(env.reset([3])["target_offset"]).max() < 1e-6
    ahead = env.step(np.array([[1.0, *[0.0] * 6, 1.0]])).observation["target_offset"][0]
    # The first joint rotates the gripper about the base's z.
    assert ahead[5] > 0.005
    assert abs(ahead[2]) < 2e-3
    env.close()
