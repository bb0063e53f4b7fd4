"""PPO and FastTD3 from scratch in environments that stay on a device, here a CPU: the stage, the
same steps as through the host, and transfers from the device."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.checkpoint import read_card
from policies.networks.images.picture_features import DevicePictureEncoder, PictureEncoder
from policies.rl.collection.collector import Collector
from policies.rl.collection.seeds import CountedSeeds
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.actor_critic import StateActorCritic
from policies.rl.from_scratch.device_env import DeviceStateEnv
from policies.rl.from_scratch.experience.device import DeviceExperience
from policies.rl.from_scratch.rollout_env import StateRolloutEnv
from policies.rl.off_policy.config import OnlineConfig
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Sizes
from robots.errors import HandoffError
from tests.flows.recipe_stages import declared, options, run_all
from tests.sim.stays import Stays

if not os.environ.get("HANDOFF_REQUIRE_ENGINES"):
    pytest.importorskip("mujoco_warp", reason="the extra [warp] is not installed")
import warp

from sim.evaluation.evaluate import device_env, training_env

pytestmark = pytest.mark.usefixtures("unoptimised_kernels")

N = 3
RESIDENT = "teacher.protocol={uses: reach, engine: warp, max_steps: 6, options: {resident: true}}"
TINY = [
    RESIDENT,
    f"teacher.num_envs={N}",
    "teacher.algorithm.rollouts=2",
    "teacher.algorithm.rollout_steps=8",
    "teacher.algorithm.save_every=1",
    "teacher.algorithm.batch_size=12",
    "scores.protocol={uses: reach, episodes: 2, max_steps: 6}",
    "scores.evaluate.videos=0",
]
CAMERA = "cameras: {names: [front], height: 48, width: 48}"
SEEING = [
    f"shared.protocol={{uses: reach, options: {{{CAMERA}}}}}",
    f"scores.protocol={{uses: reach, episodes: 2, max_steps: 6, options: {{{CAMERA}}}}}",
    RESIDENT.replace("options: {", f"options: {{{CAMERA}, "),
    "teacher.image_fields=[image_front]",
    "teacher.image_features={stride: 16, cells: [2, 2]}",
]
TINY_REPLAY = [
    RESIDENT,
    f"teacher.num_envs={N}",
    "teacher.algorithm.collections=40",
    "teacher.algorithm.batch_size=12",
    "teacher.algorithm.capacity=30",
    "teacher.algorithm.save_every=20",
]


def through_host(config: Any, device: str = "cpu") -> StateRolloutEnv:
    protocol = config.protocol
    options = {**protocol.options, "device": device, "resident": False}
    host = type(protocol)(
        name=protocol.name,
        engine="warp",
        task=protocol.task,
        packages=protocol.packages,
        max_steps=protocol.max_steps,
        options=options,
    )
    env = training_env(host, N)
    seen = None
    if config.image_fields:
        seen = PictureEncoder(config.image_features, config.image_fields, env.observation_spec)
    state_env = StateEnv(env, config.fields, CountedSeeds(10), config.reward, seen)
    state_env.begin()
    return StateRolloutEnv(state_env, config.algorithm.discount, None)


def on_device(config: Any) -> DeviceStateEnv:
    env = device_env(config.protocol, config.num_envs)
    seen = None
    if config.image_fields:
        seen = DevicePictureEncoder(
            config.image_features, config.image_fields, env.observation_spec, env.device
        )
    return DeviceStateEnv(
        env, config.fields, CountedSeeds(10), config.reward, config.algorithm.discount, seen
    )


def collector_of(env: DeviceStateEnv, config: Any) -> Collector:
    sizes = Sizes(observation=env.entries, action=env.env.action_spec.size)
    model = StateActorCritic(config.algorithm, sizes, 1, seed=0).to(env.device)
    return Collector(env, model.actor, model.critic, config.algorithm.discount)


def experience_of(env: DeviceStateEnv, config: Any) -> DeviceExperience:
    algorithm = config.algorithm
    replay = ReplayConfig(capacity=algorithm.capacity * N, discount=algorithm.discount)
    online = OnlineConfig(batch_size=algorithm.batch_size)
    return DeviceExperience(algorithm, env, online, replay, seed=0)


def test_a_policy_is_trained_on_the_device_and_evaluated_on_the_host(tmp_path: Path) -> None:
    artifacts = run_all("reach_ppo", TINY, tmp_path, only=("teacher", "scores"))
    metrics = artifacts["teacher"].manifest["metrics"]
    assert (metrics["rollouts"], metrics["steps"]) == (2, 2 * 8 * N)
    # 16 steps hold two whole episodes of 6 steps.
    assert metrics["episodes"] >= 2 * N
    card = read_card(artifacts["teacher"].path)
    assert tuple(card.observation) == options("reach_ppo", TINY)["teacher"].fields
    assert artifacts["scores"].manifest["metrics"]["success"]["n"] == 2


def test_a_policy_that_sees_is_trained_on_the_device_and_evaluated_on_the_host(
    tmp_path: Path,
) -> None:
    artifacts = run_all("reach_ppo", [*TINY, *SEEING], tmp_path, only=("teacher", "scores"))
    card = read_card(artifacts["teacher"].path)
    assert tuple(card.sensors) == ("image_front",)
    assert artifacts["scores"].manifest["metrics"]["success"]["n"] == 2


def test_fast_td3_sees_on_the_device(tmp_path: Path) -> None:
    artifacts = run_all("reach_fast_td3", [*TINY_REPLAY, *SEEING], tmp_path, only=("teacher",))
    assert artifacts["teacher"].manifest["metrics"]["updates"] > 0
    assert tuple(read_card(artifacts["teacher"].path).sensors) == ("image_front",)


@pytest.mark.parametrize("extra", [[], SEEING], ids=["vectors", "pictures"])
def test_steps_are_those_through_the_host_and_leave_nothing_there(
    extra: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = options("reach_ppo", [*TINY, *extra])["teacher"]
    through, resident = through_host(config), on_device(config)
    resident.begin()
    draws = np.random.default_rng(0)
    ended = 0
    for _ in range(14):
        np.testing.assert_allclose(resident.observation(), through.observation(), atol=2e-4)
        action = torch.from_numpy(draws.uniform(-1.5, 1.5, (N, resident.env.action_spec.size)))
        here, there = resident.step(action.float()), through.step(action.float())
        np.testing.assert_allclose(here.reward_N, there.reward_N, atol=2e-4)
        np.testing.assert_allclose(here.final_obs, there.final_obs, atol=2e-4)
        for name in ("terminated_N", "truncated_N", "success_N"):
            assert getattr(here, name).tolist() == getattr(there, name).tolist(), name
        ended += int((here.terminated_N | here.truncated_N).sum())
    assert ended >= 2 * N, "episodes ended and began anew"
    resident.check()
    # A rollout of the same environments.
    collector = collector_of(resident, config)
    collector.begin()
    collector.rollout(1)
    resident.prepare()
    monkeypatch.setattr(DeviceStateEnv, "prepare", lambda self: None)
    copied: list[str] = []
    for kind in (torch.Tensor, warp.array):
        monkeypatch.setattr(kind, "numpy", lambda self, *rest: copied.append("numpy"))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: copied.append("tolist"))
    with Stays() as watched:
        collector.rollout(7)
    assert (watched.left, copied) == ([], [])


def test_fast_td3_trains_a_policy_on_the_device(tmp_path: Path) -> None:
    artifacts = run_all("reach_fast_td3", TINY_REPLAY, tmp_path, only=("teacher",))
    metrics = artifacts["teacher"].manifest["metrics"]
    # 30 collections after the start, with two critic updates each.
    assert (metrics["collections"], metrics["steps"], metrics["updates"]) == (40, 40 * N, 60)
    # 40 steps hold six whole episodes of 6 steps.
    assert metrics["episodes"] >= 6 * N
    card = read_card(artifacts["teacher"].path)
    assert tuple(card.observation) == options("reach_fast_td3", TINY_REPLAY)["teacher"].fields


def test_fast_td3_stores_the_steps_of_its_environments_and_reads_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config: Any = options("reach_fast_td3", TINY_REPLAY)["teacher"]
    made = experience_of(on_device(config), config)
    made.begin()
    made.collect(0)
    made.update(0)
    monkeypatch.setattr(DeviceStateEnv, "prepare", lambda self: None)
    copied: list[str] = []
    for kind in (torch.Tensor, warp.array):
        monkeypatch.setattr(kind, "numpy", lambda self, *rest: copied.append("numpy"))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: copied.append("tolist"))
    with Stays() as watched:
        for number in range(1, 14):
            made.collect(number * N)
            made.update(number)
    monkeypatch.undo()
    assert (watched.left, copied) == ([], [])
    made.look()
    columns = made.replay.rows(0)
    # Episodes of 6 steps that nothing ends before: each step begins where the one before it ended.
    number_TN = columns["number"].reshape(14, N)
    assert number_TN[:, 0].tolist() == [step % 6 for step in range(14)]
    assert np.array_equal(columns["truncated"].reshape(14, N), number_TN == 5)
    before = columns["observation"].reshape(14, N, -1)
    after = columns["next_observation"].reshape(14, N, -1)
    goes_on = ~columns["truncated"].reshape(14, N)[:-1]
    assert np.array_equal(before[1:][goes_on], after[:-1][goes_on])
    assert not np.array_equal(before[1:][~goes_on], after[:-1][~goes_on])
    assert np.abs(columns["action"]).max() > 0.05


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("ppo_lagrangian", "not ppo_lagrangian: such environments report no cost"),
        ("sac", "ppo, fast_td3 and pql, not sac: it acts on the host, where its replay buffer is"),
        ("stream_ac", "not stream_ac: it learns on the host, from one environment"),
    ],
)
def test_other_algorithms_are_refused_before_anything_runs(algorithm: str, message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        declared(
            "reach_fast_td3",
            (RESIDENT, "teacher.num_envs=1", f"teacher.algorithm={{kind: {algorithm}}}"),
        )


@pytest.mark.parametrize("kind", ["fast_td3", "pql"])
def test_those_with_a_replay_buffer_on_the_device_are_accepted(kind: str) -> None:
    stage = declared("reach_fast_td3", (RESIDENT, f"teacher.algorithm={{kind: {kind}}}"))["teacher"]
    assert stage.config.algorithm.kind == kind


@pytest.mark.gpu
def test_a_gpu_never_waits_for_the_host_in_a_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = RESIDENT.replace("resident", "device: cuda, resident")
    config: Any = options("reach_ppo", [*TINY, cuda, "teacher.num_envs=64"])["teacher"]
    env = on_device(config)
    collector = collector_of(env, config)
    collector.begin()
    # Graphs are captured and terms compiled in the first rollout.
    collector.rollout(2)
    env.prepare()
    monkeypatch.setattr(DeviceStateEnv, "prepare", lambda self: None)
    torch.cuda.set_sync_debug_mode("error")
    try:
        collector.rollout(8)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    env.check()


@pytest.mark.gpu
def test_a_gpu_never_waits_for_the_host_in_collections_and_updates_of_fast_td3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = RESIDENT.replace("resident", "device: cuda, resident")
    config: Any = options("reach_fast_td3", [*TINY_REPLAY, cuda])["teacher"]
    made = experience_of(on_device(config), config)
    made.begin()
    # Graphs are captured and terms compiled in the first collections.
    for number in range(2):
        made.collect(number * N)
        made.update(number)
    monkeypatch.setattr(DeviceStateEnv, "prepare", lambda self: None)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(2, 20):
            made.collect(number * N)
            made.update(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    monkeypatch.undo()
    made.look()
