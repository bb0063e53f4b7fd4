"""The push-T table at the twin: frames, repeatability, faults."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.deployment.config import DeployConfig
from flows.deployment.push_t_table import PushTScene, PushTTable
from flows.deployment.twin import TwinSetup, fault_reason, run_start
from flows.reports.results import describe
from real.deploy.loop import LoopConfig
from real.driver.driver import Driver
from real.franka.joint_limits import JointGuardConfig
from real.motion.governor import GovernorConfig
from real.motion.planar_space import Plane, PlaneConfig
from robots.episodes.corrections import open_corrections
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.tasks.push_t import geometry
from sim.twin.twin import TwinConfig, start_twin
from tests.flows.recipe_stages import deployed
from tests.real.fakes import contract
from tests.real.onnx_models import save_policy

CONFIG = DeployConfig(starts=1, videos=0, loop=LoopConfig(max_steps=6))


def on(host: str, **changes: object) -> DeployConfig:
    return replace(CONFIG, twin=TwinConfig(host=host), **changes)  # type: ignore[arg-type]


def save_bundle(folder: Path, scale: float = 0.01) -> Path:
    bundle = folder / "bundle"
    bundle.mkdir()
    save_policy(bundle / "policy.onnx", scale=scale)
    return bundle


@pytest.mark.parametrize("xy", [(0.0, 0.0), (0.256, 0.256), (0.1, 0.4)])
def test_robot_and_world_agree_on_where_the_board_lies(xy: tuple[float, float]) -> None:
    pose = Plane(PlaneConfig()).pose(np.array(xy))
    expected = geometry.base_from_board(np.array(xy), geometry.PUSHER_CLEARANCE)
    np.testing.assert_allclose(pose[:3, 3], expected, atol=1e-12)
    np.testing.assert_allclose(pose[:3, :3], geometry.BASE_R_PUSHER, atol=1e-12)


def test_two_runs_give_bit_identical_robot_states(tmp_path: Path) -> None:
    bundle = save_bundle(tmp_path)
    recorded = []
    for name in ("one", "two"):
        out = tmp_path / name
        out.mkdir()
        metrics = deployed(on("127.0.78.1"), bundle, out)
        assert metrics["lost_packets"] == 0
        assert metrics["command_success_rate"] == 1.0
        recorded.append(EpisodeStore.open(out / "store.zarr").read(0, "robot"))
    one, two = recorded
    assert len(one["q"]) == 599, (
        "6 policy steps of 100 ms; the client's newest state is one tick behind the world"
    )
    assert {name: one[name].tobytes() == two[name].tobytes() for name in one} == dict.fromkeys(
        one, True
    )


def test_dead_twin_ends_the_run_in_one_clear_error_and_its_episode_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = save_bundle(tmp_path)
    update = PushTScene.update

    def kill_then_update(scene: PushTScene) -> np.ndarray:
        if scene.best > 0.0:
            process = scene.track.func.__self__._process  # type: ignore[attr-defined]
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        scene.best = 1e-9
        return update(scene)

    monkeypatch.setattr(PushTScene, "update", kill_then_update)
    with pytest.raises(
        HandoffError, match=r"twin 127.0.78.2: the process has died \(signal SIGKILL\)"
    ):
        deployed(on("127.0.78.2"), bundle, tmp_path)
    store = EpisodeStore.open(tmp_path / "store.zarr")
    assert "the process has died" in store.metadata(0)["fault"]
    assert len(store.read(0, "robot", ["q"])["q"]) > 90, "the one policy step before"


def test_nan_actions_never_reach_the_arm(tmp_path: Path) -> None:
    bundle = save_bundle(tmp_path, scale=float("nan"))
    metrics = deployed(on("127.0.78.3"), bundle, tmp_path)
    assert metrics["faults"] == metrics["starts"]
    assert "nan" in metrics["per_start"][0]["fault"]
    assert EpisodeStore.open(tmp_path / "store.zarr").num_episodes == 0


def test_a_start_that_the_robot_ends_is_recorded_and_the_next_goes_on(tmp_path: Path) -> None:
    bundle = save_bundle(tmp_path)
    # A reference that waits for the arm at every tick shakes it until it stops itself.
    hasty = GovernorConfig(max_lag=1e-5, blocked_seconds=0.1)
    config = on("127.0.78.5", starts=2, loop=replace(CONFIG.loop, governor=hasty))
    metrics = deployed(config, bundle, tmp_path)
    store = EpisodeStore.open(tmp_path / "store.zarr")
    assert metrics["faults"] == metrics["starts"] == store.num_episodes == 2
    for start, episode in zip(metrics["per_start"], range(2), strict=True):
        assert start["fault"]
        assert store.metadata(episode)["fault"] == start["fault"]
        assert len(store.read(episode, "robot", ["q"])["q"]) > 50
        assert not start["success"]
        assert start["tracking_max_m"] >= 0.0
    assert "over 2 starts, 2 ended by a fault (governor 2), " in describe("deploy", metrics)
    assert (tmp_path / "pushes.png").stat().st_size > 1000


def test_used_port_is_named(tmp_path: Path) -> None:
    import socket

    bundle = save_bundle(tmp_path)
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.78.4", 1337))
        squatter.listen()
        with pytest.raises(HandoffError, match=r"127\.0\.78\.4:1337"):
            deployed(on("127.0.78.4"), bundle, tmp_path)


def test_faults_are_counted_by_their_reasons() -> None:
    reflex = "arm: stopped at robot time 1.563 s in mode Reflex: joint_reflex. Find the cause, ..."
    assert fault_reason(reflex) == "joint_reflex"
    lag = "governor: the arm has been 0.0004 m behind its reference for 0.10 s, limit 0.1 s"
    assert fault_reason(lag) == "governor"


def test_what_a_fault_ends_is_not_solved_though_it_reached_its_goal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = save_bundle(tmp_path)
    monkeypatch.setattr(PushTTable, "success", property(lambda self: True))
    hasty = GovernorConfig(max_lag=1e-5, blocked_seconds=0.1)
    config = on("127.0.78.6", starts=1, loop=replace(CONFIG.loop, governor=hasty))
    metrics = deployed(config, bundle, tmp_path)
    assert metrics["faults"] == 1
    assert metrics["success"]["k"] == 0
    assert EpisodeStore.open(tmp_path / "store.zarr").metadata(0)["success"] is False


class Jumping:
    """A policy whose targets jump by 11 cm, there and back, every 0.2 s."""

    def __init__(self) -> None:
        self.contract = contract()
        self._steps = 0
        self._centre = np.zeros(2)

    def __call__(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        if self._steps == 0:
            self._centre = np.clip(np.asarray(observation).reshape(-1)[-2:], 0.1, 0.4)
        sides = 1.0 - 2.0 * (np.arange(self._steps, self._steps + noise.shape[-2]) // 2 % 2)
        self._steps += self.contract.n_action_steps
        chunk = self._centre + np.outer(sides, [0.05, 0.025])
        return np.broadcast_to(chunk, noise.shape).astype(np.float32)


@pytest.mark.parametrize("share", [JointGuardConfig().torque_rate_share, 1.0])
def test_targets_that_jump_do_not_make_the_arm_stop_itself(tmp_path: Path, share: float) -> None:
    """Unbounded, the torques that the jumps ask for lag behind them, until the arm swings."""
    loop = LoopConfig(max_steps=20, joints=JointGuardConfig(torque_rate_share=share))
    config = on("127.0.78.6", loop=loop)
    policy = Jumping()
    table = PushTTable(config, policy.contract)
    with (
        start_twin(config.twin, table.make_world) as twin,
        Driver() as driver,
        open_corrections(tmp_path / "store.zarr", table.schema(twin)) as store,
    ):
        setup = TwinSetup(config, policy, table, twin, store, driver)  # type: ignore[arg-type]
        fault = run_start(setup, 3, no_progress).fault
    if share < 1.0:
        assert fault is None
    else:
        assert "joint_velocity" in str(fault)
