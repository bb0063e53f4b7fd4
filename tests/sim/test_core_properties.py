"""What holds of the environments on the FR3 whatever the task, tried on random interleavings and on
broken environments."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from robots.config import validate
from robots.control.actions import CartesianDelta, JointDelta, JointTarget
from robots.control.impedance import ImpedanceGains, cartesian_torque
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import Step
from sim.engines.mujoco import MujocoConfig, MujocoEngine, build_model
from sim.make import TASKS, EnvConfig, find_task, make_vec_env
from sim.scene.cameras import CamerasConfig
from sim.scene.view import Layout, View
from sim.vec_env import EngineVecEnv, VecEnvConfig

FR3 = find_robot("fr3")

SMALL = CamerasConfig(names=("front",), height=24, width=32)


def make(config: MujocoConfig, n: int = 3, **episodes: Any) -> EngineVecEnv:
    return EngineVecEnv(MujocoEngine(find_task("pick_cube"), n, config), VecEnvConfig(**episodes))


def arrays(step: Step) -> dict[str, np.ndarray]:
    plain = {name: value for name, value in step._asdict().items() if not isinstance(value, dict)}
    for prefix, fields in (
        ("now ", step.observation),
        ("final ", step.final_observation),
        ("info ", step.info),
    ):
        plain |= {prefix + name: array for name, array in fields.items()}
    return plain


def drive(env: EngineVecEnv, seed: int, calls: int = 8) -> list[dict[str, np.ndarray]]:
    """Single actions, chunks of three and partial resets in an order that depends on `seed`
    alone."""
    rng, results = np.random.default_rng(seed), []
    for _ in range(calls):
        shape = [(env.num_envs,), (env.num_envs, 3)][int(rng.integers(2))]
        results.append(arrays(env.step(rng.uniform(-1, 1, (*shape, env.action_spec.size)))))
        if rng.random() < 0.3:
            env.reset([int(rng.integers(1000))], env_ids=[int(rng.integers(env.num_envs))])
    return results


@pytest.mark.parametrize("on_end", ["reset", "freeze"])
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(MujocoConfig(randomized=True), id="state"),
        pytest.param(
            MujocoConfig(randomized=True, cameras=SMALL),
            id="pictures",
            marks=pytest.mark.needs("opengl"),
        ),
    ],
)
def test_what_follows_a_saved_state_is_the_same_in_the_same_and_in_new_environments(
    config: MujocoConfig, on_end: str
) -> None:
    envs, others = (
        make(config, on_end=on_end, max_steps=9),
        make(config, on_end=on_end, max_steps=9),
    )
    envs.reset([1, 2, 3])
    drive(envs, 0, calls=4)
    state = envs.save()
    kept = {name: array.copy() for name, array in state.items()}
    expected = drive(envs, 1)
    for again in (envs, others):
        again.restore(state)
        for now, then in zip(drive(again, 1), expected, strict=True):
            for name, array in then.items():
                np.testing.assert_array_equal(now[name], array, err_msg=name)
    for name, array in kept.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)
    envs.close()
    others.close()


@pytest.mark.parametrize("name", TASKS)
def test_arrays_of_an_engine_are_not_views_of_its_state(name: str) -> None:
    engine = MujocoEngine(find_task(name), 1)
    engine.reset(np.zeros(1, dtype=int), np.zeros(1, dtype=int))
    reading, state = engine.read(), engine.save()
    outputs = [
        reading.reward,
        reading.terminated,
        reading.success,
        *reading.observation.values(),
        *reading.info.values(),
    ]
    for array in (*outputs, *state.values()):
        for own in (engine._state, engine._target, engine._goal, engine._ctrl, engine._draws):
            assert not np.shares_memory(array, own)


@pytest.mark.parametrize("name", TASKS)
def test_an_environment_drawn_often_has_the_model_of_one_drawn_once(name: str) -> None:
    engine = MujocoEngine(find_task(name), 2, MujocoConfig(randomized=True))
    for seed in (1, 2, 3, 9):
        engine.reset(np.zeros(1, dtype=int), np.array([seed]))
    engine.reset(np.ones(1, dtype=int), np.array([9]))
    often, once = engine._models
    for field in (
        "body_mass",
        "body_inertia",
        "geom_friction",
        "pair_friction",
        "actuator_gainprm",
        "actuator_biasprm",
    ):
        np.testing.assert_array_equal(getattr(often, field), getattr(once, field))
    for field in ("dof_damping", "dof_invweight0", "body_invweight0", "cam_pos", "light_diffuse"):
        np.testing.assert_array_equal(getattr(often, field), getattr(once, field))
    assert often.stat.meaninertia == once.stat.meaninertia


@pytest.mark.parametrize(("yaw", "tilt"), [(0.0, 0.4), (1.2, 0.0), (1.2, 0.4), (-1.6, -0.4)])
def test_the_engine_computes_the_cartesian_law_for_any_gripper_orientation(
    yaw: float, tilt: float
) -> None:
    model, rng = (
        build_model(find_task("reach"), find_task("reach").actions),
        np.random.default_rng(0),
    )
    data = mujoco.MjData(model)
    data.qpos[:7] = FR3.q_home + rng.normal(size=7) * 0.05 - [0, 0, 0, 0, 0, tilt, yaw]
    data.qvel[:7] = rng.normal(size=7) * 0.1
    mujoco.mj_forward(model, data)
    view = View(
        Layout(model, FR3),
        data.qpos[None].copy(),
        data.qvel[None].copy(),
        np.zeros((1, 7)),
        np.zeros((1, 3)),
    )
    error, hold = rng.normal(size=6) * 0.004, data.qpos[:7] + 0.01
    data.ctrl[:13] = [*(view.grasp_pose[0] + error), *hold]
    mujoco.mj_forward(model, data)
    law = cartesian_torque(
        ImpedanceGains(), view.jacobian[0], error, data.qpos[:7], data.qvel[:7], hold
    )
    np.testing.assert_allclose((data.qfrc_actuator - data.qfrc_gravcomp)[:7], law, atol=1e-9)


def test_a_turned_and_tilted_gripper_comes_to_rest_at_its_target() -> None:
    """The law's rotations are entries of a rotation vector, which at 1.2 rad of yaw are not angles
    about the axes."""
    space = CartesianDelta(axes=("x", "y", "z", "roll", "pitch", "yaw"))
    goal = np.array(
        [[0.45, 0.0, 0.3, *turn] for turn in ((0, 0, 1.2), (0.3, 0.3, 1.2), (-0.3, 0.3, -1.2))]
    )
    engine = MujocoEngine(find_task("reach"), 3, MujocoConfig(actions=space))
    engine.reset(np.arange(3), np.arange(3))
    for _ in range(60):
        step = (goal - engine.view.target_pose) / np.array([0.02] * 3 + [0.1] * 3)
        engine.step(step, np.ones(3, dtype=bool))
    np.testing.assert_allclose(engine.view.grasp_pose, goal, atol=2e-3)
    assert np.abs(engine.view.dq).max() < 0.02


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e4, 1e9])
def test_a_broken_environment_stops_the_run_and_troubles_neither_neighbours_nor_its_next_episode(
    broken: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MuJoCo logs its warnings where the process stands.
    monkeypatch.chdir(tmp_path)
    calm, hit = (make(MujocoConfig(randomized=True), dump_folder=str(tmp_path)) for _ in range(2))
    actions = np.random.default_rng(0).uniform(-1, 1, (8, 3, 5))
    for env in (calm, hit):
        env.reset([1, 2, 3])
        env.step(actions[0])
    state = hit.save()
    hit.engine.qvel[1, 9] = broken  # type: ignore[attr-defined]
    with pytest.raises(HandoffError, match=r"environment 1 \(seed 2, step 1\)"):
        hit.step(actions[1])
    hit.restore({name: array[[0, 2]] for name, array in state.items()}, env_ids=[0, 2])
    for env in (calm, hit):
        env.reset([77], env_ids=[1])
    for action in actions[1:]:
        one, two = arrays(calm.step(action)), arrays(hit.step(action))
        for name, array in one.items():
            np.testing.assert_array_equal(array, two[name], err_msg=name)


def test_an_environment_that_the_physics_left_within_its_period_has_no_reward() -> None:
    engine = MujocoEngine(find_task("reach"), 2)
    engine.reset(np.arange(2), np.arange(2))
    for _ in range(3):
        engine.step(np.zeros((2, 3)), np.ones(2, dtype=bool))
    engine._state[1, 0] -= find_task("reach").timestep
    assert np.isfinite(engine.read().reward).tolist() == [True, False]


def test_an_arm_in_its_way_is_not_thrown_when_joint_targets_are_far() -> None:
    space = JointTarget()
    held, far = FR3.q_home.copy(), FR3.q_home + 2.0
    target = FR3.q_home.copy()
    for _ in range(60):
        target = space.target(target, held, far, 0.05, FR3.limits)
    np.testing.assert_allclose(
        target, np.minimum(FR3.q_home + np.array(space.leash), FR3.limits.q_max - space.margin)
    )
    # Free, the leash does not slow it: behind a target at `speed` a joint lags by damping /
    # stiffness.
    gains = ImpedanceGains()
    lag = np.array(gains.joint_damping) / np.array(gains.joint_stiffness)
    assert (space.speed * FR3.limits.dq_max * (lag + 0.05) < np.array(space.leash)).all()


@pytest.mark.parametrize(
    "values",
    [
        {"engine": "gym", "task": "Pendulum-v1", "randomized": True},
        {"engine": "gym", "task": "Pendulum-v1", "cameras": {}},
        {"engine": "maniskill", "task": "PickCube-v1", "cameras": {}},
        {"engine": "maniskill", "task": "PickCube-v1", "reward": "sparse"},
        {"engine": "isaaclab", "task": "Any", "actions": {"step": 0.02}},
        {"engine": "warp", "threads": 2},
        {"engine": "mujoco", "device": "cuda"},
        {"engine": "mujoco", "gym": {"max_steps": 3}},
    ],
)
def test_a_setting_that_the_engine_does_not_read_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(HandoffError, match=rf"the engine {values['engine']} ignores"):
        make_vec_env(validate(EnvConfig, values), 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workers": 0}, "'workers' is 0"),
        ({"workers": -2}, "'workers' is -2"),
        ({"workers": 3}, "expected 1..2"),
        ({"threads": 0}, "'threads' is 0"),
        ({"max_steps": 0}, "'max_steps' is 0"),
        ({"actions": {"axes": []}}, "one or more distinct"),
        ({"actions": {"axes": ["x", "x"]}}, "one or more distinct"),
        ({"actions": {"low": [0.6, -0.3, 0.0], "high": [0.3, 0.3, 0.4]}}, "swapped"),
        ({"cameras": {"height": 0}}, "'cameras.height' is 0"),
        ({"cameras": {"width": 4000}}, "expected 1x1 to"),
        ({"cameras": {"names": []}}, "none named"),
    ],
)
def test_a_setting_without_sense_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        make_vec_env(validate(EnvConfig, values), 2)


def test_a_state_of_other_environments_is_refused() -> None:
    def saved(config: MujocoConfig) -> tuple[EngineVecEnv, dict[str, np.ndarray]]:
        env = make(config)
        env.reset([1, 2, 3])
        return env, env.save()

    kinds = [saved(MujocoConfig(actions=actions)) for actions in (None, JointDelta())]
    kinds.append(saved(MujocoConfig(randomized=True)))
    for env, own in kinds:
        for _, state in kinds:
            if state is not own:
                with pytest.raises(HandoffError, match="Was it saved"):
                    env.restore(state)
        with pytest.raises(HandoffError, match="lacks"):
            env.restore(
                {name: array for name, array in own.items() if not name.startswith("last ")}
            )


@pytest.mark.needs("opengl")
def test_images_rendered_in_another_thread_are_refused() -> None:
    env = make(MujocoConfig(cameras=SMALL))
    env.reset([1, 2, 3])
    with ThreadPoolExecutor(1) as pool, pytest.raises(HandoffError, match="another thread"):
        pool.submit(env.step, np.zeros((3, 5))).result()
    env.close()
