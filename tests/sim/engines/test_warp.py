"""mujoco-warp against MuJoCo on the CPU. Its kernels are compiled at first use; without
optimisation, to save time."""

import os
from dataclasses import replace

import numpy as np
import pytest

from robots.errors import HandoffError
from sim.engine import Engine
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.engines.warp import WarpConfig, WarpEngine
from sim.make import EnvConfig, find_task, make_vec_env
from sim.scene.randomize import Range
from sim.tasks.task import Capacity
from sim.vec_env import EngineVecEnv, VecEnvConfig

if not os.environ.get("HANDOFF_REQUIRE_ENGINES"):
    pytest.importorskip("mujoco_warp", reason="the extra [warp] is not installed")
import warp

pytestmark = pytest.mark.usefixtures("unoptimised_kernels")

N = 3
EVERYONE = np.ones(N, dtype=bool)
ROWS = np.arange(N)


@pytest.fixture(scope="module")
def shared() -> WarpEngine:
    return WarpEngine(find_task("reach"), N)


@pytest.fixture
def engine(shared: WarpEngine) -> WarpEngine:
    shared.reset(ROWS, ROWS)
    return shared


def actions(engine: Engine, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (20, N, engine.action_spec.size))


def assert_alike(first: Engine, second: Engine) -> None:
    assert isinstance(first, WarpEngine)
    assert isinstance(second, MujocoEngine)
    for k, action in enumerate(actions(first)):
        first.step(action, EVERYONE)
        second.step(action, EVERYONE)
        if k in (0, 19):
            np.testing.assert_allclose(first.qpos, second.qpos, atol=1e-5)
            np.testing.assert_allclose(first.qvel, second.qvel, atol=1e-4)


def test_equal_starts_and_actions_give_mujocos_positions_for_a_second(engine: WarpEngine) -> None:
    other = MujocoEngine(find_task("reach"), N)
    other.reset(ROWS, ROWS)
    np.testing.assert_array_equal(engine.qpos, other.qpos)
    assert_alike(engine, other)


def test_randomised_environments_are_those_of_the_cpu_engine() -> None:
    plain = MujocoEngine(find_task("reach"), N)
    first = WarpEngine(find_task("reach"), N, WarpConfig(randomized=True))
    second = MujocoEngine(find_task("reach"), N, MujocoConfig(randomized=True))
    for each in (plain, first, second):
        each.reset(ROWS, ROWS)
    assert_alike(first, second)
    for action in actions(plain):
        plain.step(action, EVERYONE)
    # The draws matter: without them the arm ends elsewhere.
    assert np.abs(plain.qpos - second.qpos)[:, :7].max() > 1e-3


def test_ranges_of_one_s_own_are_those_of_the_cpu_engine() -> None:
    ranges = (Range(what="gain", names=("impedance_*",), low=0.3, high=0.6),)
    first = WarpEngine(find_task("reach"), N, WarpConfig(ranges=ranges))
    second = MujocoEngine(find_task("reach"), N, MujocoConfig(ranges=ranges))
    for each in (first, second):
        each.reset(ROWS, ROWS)
    assert_alike(first, second)


def test_a_frozen_environment_stays_where_it_is(engine: WarpEngine) -> None:
    before = engine.qpos.copy()
    engine.step(actions(engine)[0], np.array([True, False, True]))
    np.testing.assert_array_equal(engine.qpos[1], before[1])
    assert np.abs(engine.qpos - before)[[0, 2]].max() > 1e-3


def test_a_reset_of_one_environment_leaves_the_others(engine: WarpEngine) -> None:
    start = engine.qpos.copy()
    engine.step(actions(engine)[0], EVERYONE)
    after = engine.qpos.copy()
    engine.reset(np.array([1]), np.array([1]))
    np.testing.assert_array_equal(engine.qpos[1], start[1])
    np.testing.assert_array_equal(engine.qpos[[0, 2]], after[[0, 2]])


def test_a_restored_state_has_the_same_future_in_any_environment(engine: WarpEngine) -> None:
    for action in actions(engine)[:3]:
        engine.step(action, EVERYONE)
    state = engine.save()
    action = actions(engine)[3]
    engine.step(action, EVERYONE)
    expected = engine.qpos.copy()
    turned = np.array([2, 0, 1])
    engine.restore(ROWS, {name: array[turned] for name, array in state.items()})
    engine.step(action[turned], EVERYONE)
    np.testing.assert_array_equal(engine.qpos, expected[turned])


def test_a_missing_cuda_device_is_an_error() -> None:
    if warp.is_cuda_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(HandoffError, match="no CUDA device"):
        WarpEngine(find_task("reach"), N, WarpConfig(device="cuda"))


@pytest.mark.gpu
def test_a_gpu_steps_like_a_cpu() -> None:
    if not warp.is_cuda_available():
        pytest.skip("no CUDA device")
    first, second = (
        WarpEngine(find_task("reach"), N, WarpConfig(device="cuda")),
        MujocoEngine(find_task("reach"), N),
    )
    first.reset(ROWS, ROWS)
    second.reset(ROWS, ROWS)
    assert_alike(first, second)


@pytest.mark.nightly
def test_the_expert_grasps_as_well_as_on_the_cpu_engine() -> None:
    steps = []
    for engine in (MujocoEngine(find_task("pick_cube"), N), WarpEngine(find_task("pick_cube"), N)):
        env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze"))
        env.reset(range(N))
        step = env.step(engine.expert_action())
        while not (step.terminated | step.truncated).all():
            step = env.step(engine.expert_action())
        assert step.info["success"].all()
        steps.append(env.steps)
    np.testing.assert_allclose(steps[0], steps[1], atol=5)


@pytest.mark.parametrize("capacity", [Capacity(contacts=1), Capacity(constraints=4)])
def test_too_little_room_is_an_error(capacity: Capacity) -> None:
    small = WarpEngine(replace(find_task("pick_cube"), capacity=capacity), N)
    small.reset(ROWS, ROWS)
    with pytest.raises(HandoffError, match=r"exceeded .* contacts"):
        small.step(actions(small)[0], EVERYONE)


def test_environments_are_made_from_a_configuration() -> None:
    env = make_vec_env(EnvConfig(engine="warp", task="reach"), N)
    observation = env.reset(range(N))
    assert observation["q"].shape == (N, 7)
    env.close()
