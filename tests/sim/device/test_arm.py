"""Environments that stay on a device, here a CPU: against environments that pass through the host,
and by what leaves it."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from robots.errors import HandoffError
from sim.engines.warp import WarpConfig, WarpEngine
from sim.make import find_task
from sim.scene.cameras import CamerasConfig
from sim.tasks.task import Task
from sim.vec_env import EngineVecEnv, VecEnvConfig
from tests.nightly import in_every_run
from tests.sim.stays import Operators, Stays

if not os.environ.get("HANDOFF_REQUIRE_ENGINES"):
    pytest.importorskip("mujoco_warp", reason="the extra [warp] is not installed")
import warp

from sim.device.arm import DeviceArmEnv

pytestmark = pytest.mark.usefixtures("unoptimised_kernels")

N, LIMIT = 3, 12
CAMERAS = CamerasConfig(names=("wrist", "front"), height=24, width=32, latency=0.045)
SEEING = WarpConfig(cameras=CAMERAS)


@pytest.fixture(
    scope="module",
    params=in_every_run(
        map(find_task, ("reach_by_name", "pick_by_name")), find_task("reach_by_name")
    ),
    ids=lambda task: task.name,
)
def task(request: pytest.FixtureRequest) -> Task:
    return request.param


@pytest.fixture(scope="module")
def resident(task: Task) -> DeviceArmEnv:
    return DeviceArmEnv(task, N, SEEING, max_steps=LIMIT, starts=8)


@pytest.fixture
def begun(resident: DeviceArmEnv) -> DeviceArmEnv:
    resident._host.drawn, resident._next = 0, torch.zeros((), dtype=torch.int64)
    resident.refill(range(8))
    resident.begin()
    return resident


def assert_same(here: Mapping[str, torch.Tensor], there: Mapping[str, np.ndarray]) -> None:
    """Observations of a device and of the host are the same but for rounding, which moves an edge
    in a picture at most."""
    assert here.keys() == there.keys()
    for name, array in here.items():
        if name.startswith("image_"):
            error = np.abs(array.numpy().astype(float) - there[name])
            assert error.mean() < 0.05, name
        else:
            np.testing.assert_allclose(array.numpy(), there[name], atol=2e-4, err_msg=name)


def chunks(env: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (4, N, 4, env.action_spec.size))


def test_they_are_the_environments_that_pass_through_the_host(
    begun: DeviceArmEnv, task: Task
) -> None:
    host = EngineVecEnv(WarpEngine(task, N, SEEING), VecEnvConfig(on_end="freeze", max_steps=LIMIT))
    assert_same(begun.observation(), host.reset(range(N)))
    for actions in chunks(host):
        there, here = host.step(actions), begun.step(torch.from_numpy(actions))
        assert_same(here.observation, there.observation)
        np.testing.assert_allclose(here.reward_NH.numpy(), there.reward, atol=1e-4)
        assert here.executed_N.tolist() == there.executed.tolist()
        assert here.success_N.tolist() == there.info["success"].tolist()
        ended = there.executed > 0
        assert here.terminated_N.tolist() == (there.terminated & ended).tolist()
        assert here.truncated_N.tolist() == (there.truncated & ended).tolist()
    assert begun._ended.all(), "all have ended by their time limit"
    begun.check()


def test_nothing_leaves_the_device_while_they_are_stepped(begun: DeviceArmEnv, monkeypatch) -> None:
    begun.step(torch.from_numpy(chunks(begun)[0]))
    copied: list[str] = []
    for kind in (torch.Tensor, warp.array):
        monkeypatch.setattr(kind, "numpy", lambda self, *rest: copied.append("numpy"))
    with Stays() as watched:
        for actions in torch.from_numpy(chunks(begun, 1)):
            led = begun.step(actions)
            begun.reset_ended(led.terminated_N | led.truncated_N)
            begun.observation()
    assert (watched.left, copied) == ([], [])


def test_randomised_environments_are_those_that_pass_through_the_host(task: Task) -> None:
    """Also after an environment has started another episode, with the next draws, on the device;
    cameras and lights are among them."""
    config = WarpConfig(randomized=True, cameras=CAMERAS)
    env = DeviceArmEnv(task, N, config, max_steps=LIMIT, starts=8)
    env.refill(range(8))
    host = EngineVecEnv(WarpEngine(task, N, config), VecEnvConfig(on_end="freeze", max_steps=LIMIT))
    plain = EngineVecEnv(
        WarpEngine(task, N, SEEING), VecEnvConfig(on_end="freeze", max_steps=LIMIT)
    )

    def same(actions: np.ndarray) -> tuple[Any, Any]:
        there, here = host.step(actions), env.step(torch.from_numpy(actions))
        assert_same(here.observation, there.observation)
        return here, there

    env.begin()
    for each in (host, plain):
        each.reset(range(N))
    moves = chunks(host)
    _, there = same(moves[0])
    undrawn = plain.step(moves[0]).observation
    for fields in (("q", "dq"), ("image_front",), ("image_wrist",)):
        assert any(
            np.abs(undrawn[name].astype(float) - there.observation[name]).max() > 1e-3
            for name in fields
        ), "the draws matter"
    copied = Stays()
    with copied:
        env.reset_ended(torch.tensor([True, False, True]))
    assert not copied.left
    host.reset([3, 4], [0, 2])
    for actions in moves[1:]:
        same(actions)
    env.check()


def test_a_period_copies_no_state_but_its_own(
    begun: DeviceArmEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    physics = begun._physics
    monkeypatch.setattr(physics, "_restored", lambda shared: pytest.fail("a copy of the state"))
    before = begun._shared.qpos.clone()
    with Operators() as watched:
        physics.period()
    assert watched.names == []
    assert not torch.equal(before, begun._shared.qpos)


@pytest.mark.gpu
@pytest.mark.parametrize("randomized", [False, True])
def test_a_gpu_never_waits_for_the_host_while_they_are_stepped(
    task: Task, randomized: bool
) -> None:
    env = DeviceArmEnv(
        task, 64, WarpConfig(device="cuda", randomized=randomized, cameras=CAMERAS), max_steps=LIMIT
    )
    env.refill(range(env.waiting))
    env.begin()
    size = (6, 64, 4, env.action_spec.size)
    actions = torch.rand(size, device="cuda", dtype=torch.float64) * 2.0 - 1.0
    # Graphs are captured and terms compiled in the first step.
    env.reset_ended(env.step(actions[0]).truncated_N)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for chunk in actions[1:]:
            step = env.step(chunk)
            env.reset_ended(step.terminated_N | step.truncated_N)
            env.observation()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    env.check()


def test_the_watch_sees_what_leaves() -> None:
    with Stays() as watched:
        bool(torch.ones(3).sum() > 1.0)
        torch.nonzero(torch.ones(3))
    assert watched.left == ["aten::_local_scalar_dense", "aten::nonzero"]


def test_environments_that_end_take_the_next_starts_in_their_order(
    begun: DeviceArmEnv, task: Task
) -> None:
    starts = EngineVecEnv(WarpEngine(task, 8))
    shown = starts.reset(range(8))["grasp_pose"]
    begun.reset_ended(torch.tensor([True, False, True]))
    now = begun.observation()["grasp_pose"].numpy()
    np.testing.assert_allclose(now, shown[[3, 1, 4]], atol=1e-6)
    assert begun.taken() == 5
    fresh = begun.refill(range(20, 25))
    np.testing.assert_allclose(
        fresh["grasp_pose"], EngineVecEnv(WarpEngine(task, 5)).reset(range(20, 25))["grasp_pose"]
    )
    assert begun.taken() == 0


def test_the_figures_of_the_robot_stay_read_only(resident: DeviceArmEnv) -> None:
    """torch.compile alone leaves them writable, for every environment of the process."""
    robot = resident.task.robot
    assert not robot.q_home.flags.writeable
    assert not robot.chain.parent_T_joint.flags.writeable


def test_saved_worlds_go_on_in_new_environments_to_the_last_bit(
    begun: DeviceArmEnv, task: Task
) -> None:
    """With their time limits and the starts that wait; another state goes on otherwise."""
    first, *later = [torch.from_numpy(one) for one in chunks(begun)]
    begun.step(first)
    begun.reset_ended(torch.tensor([True, False, False]))
    state = begun.save()
    assert state is not None

    def future(env: DeviceArmEnv) -> list[torch.Tensor]:
        seen = []
        for actions in later:
            result = env.step(actions)
            seen += [*result.observation.values(), result.reward_NH, result.executed_N]
            env.reset_ended(result.terminated_N | result.truncated_N)
        env.refill(range(30, 30 + env.taken()))
        env.begin()
        return [*seen, *env.observation().values()]

    expected = future(begun)
    other = DeviceArmEnv(task, N, SEEING, max_steps=LIMIT, starts=8)
    other.restore(state)
    restored = future(other)
    assert all(torch.equal(*pair) for pair in zip(expected, restored, strict=True))
    moved = {**state, "tensors": {**state["tensors"]}}
    moved["tensors"]["physics/qpos"] = state["tensors"]["physics/qpos"] + 1e-3
    other.restore(moved)
    assert not all(torch.equal(*pair) for pair in zip(expected, future(other), strict=True))
    with pytest.raises(HandoffError, match="another number of environments or initial states"):
        DeviceArmEnv(task, N, SEEING, max_steps=LIMIT, starts=9).restore(state)


def test_groups_begin_side_by_side_from_one_start(begun: DeviceArmEnv) -> None:
    begun.begin(size=3)
    now = begun.observation()["grasp_pose"]
    assert torch.equal(now[0], now[1])
    assert torch.equal(now[0], now[2])
    assert begun.taken() == 4


def test_an_action_that_is_not_finite_is_reported_by_check(begun: DeviceArmEnv) -> None:
    actions = torch.zeros(N, 1, begun.action_spec.size)
    actions[1] = torch.nan
    begun.step(actions)
    with pytest.raises(HandoffError, match=r"environments \[1\] had actions, rewards or speeds"):
        begun.check()
    begun.check()


def test_what_is_not_for_the_device_is_refused() -> None:
    with pytest.raises(HandoffError, match="PdTarget actions cannot be simulated on the device"):
        DeviceArmEnv(find_task("push_t"), 1, WarpConfig())
    with pytest.raises(HandoffError, match="2 initial states for 3 environments"):
        DeviceArmEnv(find_task("reach_by_name"), 3, WarpConfig(), starts=2)
    with pytest.raises(HandoffError, match="3 seeds for 4 initial states"):
        DeviceArmEnv(find_task("reach_by_name"), 1, WarpConfig()).refill(range(3))
