"""The cost of unwanted contacts: by hand, against MuJoCo's own contact forces, and in an engine."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest

from robots.errors import HandoffError
from sim.engines.mujoco import MujocoEngine, build_model
from sim.make import TASKS, EnvConfig, find_task, make_vec_env
from sim.scene.contact_cost import contact_columns, contact_impulse
from sim.vec_env import EngineVecEnv, VecEnvConfig

THRESHOLD = 5.0


def engine(task: str = "flip_switch", num_envs: int = 4, threshold: float | None = THRESHOLD):
    return MujocoEngine(find_task(task), num_envs, contact_threshold=threshold)


def pressing(env: EngineVecEnv, steps: int) -> list[np.ndarray]:
    """Actions that lower the gripper onto what is below it."""
    rng = np.random.default_rng(3)
    actions = [rng.uniform(-1.0, 1.0, (env.num_envs, env.action_spec.size)) for _ in range(steps)]
    for action in actions:
        action[:, 2] = -0.7
    return actions


def test_the_force_above_the_threshold_is_integrated_over_the_physics_steps():
    # One environment, two physics steps, one column of another sensor and two contacts: 3 and 4 N,
    # then 1 and 2 N. (3 + 4 - 5) 5 ms = 0.01 N s; the second step stays below the threshold.
    sensors = np.array([[[9.0, 3.0, 7.0, 7.0, 4.0, 7.0, 7.0], [9.0, 1.0, 7, 7, 2.0, 7, 7]]])
    cost = contact_impulse(sensors, slice(1, 7), threshold=5.0, timestep=0.005)
    np.testing.assert_allclose(cost, [0.01])
    free = contact_impulse(sensors, slice(1, 7), threshold=0.0, timestep=0.005)
    np.testing.assert_allclose(free, [(7.0 + 3.0) * 0.005])


def test_the_cost_is_that_of_mujocos_contact_forces():
    """Against a loop over the contacts of single physics steps, with the same targets."""
    with_cost = engine(num_envs=1)
    env = EngineVecEnv(with_cost, VecEnvConfig(on_end="freeze"))
    env.reset([3])
    model = with_cost.model
    robot_geoms = {
        i
        for i in range(model.ngeom)
        if model.body(model.geom_bodyid[i]).name.startswith(("fr3_", "hand", "finger_"))
    }
    pads = {model.geom(f"finger_{side}_pad").id for side in ("left", "right")}
    lever = {i for i in range(model.ngeom) if model.body(model.geom_bodyid[i]).name == "lever"}
    total = 0.0
    for action in pressing(env, 70):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = with_cost.qpos[0], with_cost.qvel[0]
        start = with_cost._ctrl[0].copy()
        cost = float(env.step(action).info["cost"][0])
        end = with_cost._ctrl[0]
        expected = 0.0
        for step in range(with_cost.substeps):
            data.ctrl[:] = start + (step + 1) / with_cost.substeps * (end - start)
            mujoco.mj_step(model, data)
            normal = 0.0
            for number, contact in enumerate(data.contact):
                pair = {int(contact.geom1), int(contact.geom2)}
                if pair & robot_geoms and not (pair & pads and pair & lever):
                    force = np.zeros(6)
                    mujoco.mj_contactForce(model, data, number, force)
                    normal += force[0]
            expected += max(0.0, normal - THRESHOLD) * model.opt.timestep
        np.testing.assert_allclose(data.qpos, with_cost.qpos[0], atol=1e-9)
        assert cost == pytest.approx(expected, rel=1e-5, abs=1e-8)
        total += cost
    assert total > 1.0


def test_without_a_threshold_nothing_is_measured_and_the_physics_is_the_same():
    plain, measured = (EngineVecEnv(engine(threshold=value)) for value in (None, THRESHOLD))
    for env in (plain, measured):
        env.reset(range(4))
    for action in pressing(plain, 30):
        first, second = plain.step(action), measured.step(action)
        for name in first.observation:
            np.testing.assert_array_equal(first.observation[name], second.observation[name])
        np.testing.assert_array_equal(first.reward, second.reward)
        assert "cost" not in first.info
        assert second.info["cost"].shape == (4,)


def test_fingers_may_press_what_the_task_handles():
    """The scripted expert flips the lever with its fingers: costly only if nothing is handled."""
    task = find_task("flip_switch")
    costs = []
    for handled in (("lever",), ()):
        expert = MujocoEngine(replace(task, handled=handled), 4, contact_threshold=0.0)
        env = EngineVecEnv(expert, VecEnvConfig(on_end="freeze"))
        env.reset(range(4))
        cost, solved = np.zeros(4), np.zeros(4, bool)
        for _ in range(task.max_steps):
            step = env.step(expert.expert_action())
            cost += step.info["cost"]
            solved |= step.info["success"]
        assert solved.all()
        costs.append(cost)
    assert (costs[0] < 0.2 * costs[1]).all()
    assert (costs[1] > 0.1).all()


@pytest.mark.parametrize("name", TASKS)
def test_every_task_names_bodies_that_its_scene_has(name: str):
    task = find_task(name)
    columns = contact_columns(build_model(task, task.actions, contact_sensors=True))
    assert columns.stop > columns.start


def test_the_cost_of_a_chunk_is_the_sum_over_its_actions():
    single, chunked = (EngineVecEnv(engine(), VecEnvConfig(on_end="freeze")) for _ in range(2))
    for env in (single, chunked):
        env.reset(range(4))
    actions = pressing(single, 60)
    costs = np.sum([single.step(action).info["cost"] for action in actions], axis=0)
    step = chunked.step(np.stack(actions, axis=1))
    np.testing.assert_allclose(step.info["cost"], costs, rtol=1e-12)
    assert costs.max() > 0.0


def down(env: EngineVecEnv) -> np.ndarray:
    """Lowers the closed gripper straight down, until it stands on the table."""
    action = np.zeros((env.num_envs, env.action_spec.size))
    action[:, [2, -1]] = -1.0
    return action


def test_a_frozen_environment_has_no_cost():
    env = EngineVecEnv(
        engine("stack_cube", threshold=0.0), VecEnvConfig(on_end="freeze", max_steps=60)
    )
    env.reset(range(4))
    costs = [env.step(down(env)).info["cost"] for _ in range(61)]
    assert costs[59].min() > 0.0
    assert not np.any(costs[60])


def test_a_restored_environment_reports_the_cost_that_it_had():
    env = EngineVecEnv(engine("stack_cube", threshold=0.0))
    env.reset(range(4))
    cost = [env.step(down(env)).info["cost"] for _ in range(60)][-1]
    assert cost.min() > 0.0
    state = env.save()
    env.reset(range(4))
    assert not np.any(env.engine.read().info["cost"])
    env.restore(state)
    np.testing.assert_array_equal(env.engine.read().info["cost"], cost)


def test_impossible_settings_are_refused():
    with pytest.raises(HandoffError, match=r"contact_threshold is -1\.0 N, expected at least 0"):
        engine(threshold=-1.0)
    with pytest.raises(HandoffError, match=r"no bodies \['leber'\]"):
        MujocoEngine(
            replace(find_task("flip_switch"), handled=("leber",)), 1, contact_threshold=1.0
        )
    with pytest.raises(HandoffError, match=r"warp ignores \['contact_threshold'\]"):
        make_vec_env(EnvConfig(engine="warp", contact_threshold=1.0), 1)
