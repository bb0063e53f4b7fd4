"""The camera above the push-T board at the twin: its pictures, their age, and what a policy that
sees is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.deployment.cameras.twin_cameras import TwinCameras, open_board_camera
from flows.deployment.config import DeployConfig
from flows.deployment.push_t_table import PushTScene
from real.arm import ArmState
from real.deploy.loop import LoopConfig
from real.deploy.onnx_policy import OnnxPolicy
from robots.contract import Contract
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import PolicyInput
from robots.spec import FieldSpec
from sim.rendering.board_picture import BoardPicture
from sim.rendering.camera_clock import CameraClockConfig
from sim.tasks.push_t.geometry import initial_state
from sim.twin.push_t_world import PushTWorld
from sim.twin.twin import Twin, TwinConfig, start_twin
from tests.flows.recipe_stages import deployed
from tests.real.fakes import contract
from tests.real.onnx_models import save_seeing_policy
from tests.sim.twin.loopback import address

PICTURE = FieldSpec(shape=(96, 96, 3), dtype="uint8", unit="u8")
CONFIG = DeployConfig(starts=1, videos=0, loop=LoopConfig(max_steps=12))


class SlidingWorld(PushTWorld):
    """A table whose T can jump."""

    def jump(self, metres: float) -> None:
        """Moves the T along the base's y."""
        self.data.qpos[self._tee_qpos.start + 1] += metres


@contextmanager
def table(config: CameraClockConfig, number: int) -> Iterator[tuple[Twin, TwinCameras]]:
    with (
        start_twin(TwinConfig(host=address(number)), SlidingWorld) as twin,
        open_board_camera({"image": PICTURE}, twin, config) as cameras,
    ):
        yield twin, cameras


def state(twin: Twin) -> ArmState:
    none = np.zeros(0)
    return ArmState(twin.now(), none, none, np.eye(4), none, none, np.zeros(6), 1.0, "Idle", ())


def seeing(folder: Path) -> Path:
    """The bundle of a policy that observes pictures and the pusher's own position."""
    bundle = folder / "bundle"
    bundle.mkdir()
    agent = contract().observation["agent"]
    save_seeing_policy(bundle / "policy.onnx", seeing_contract(agent), "image", 0.02)
    return bundle


def seeing_contract(agent: FieldSpec) -> Contract:
    return contract(observation={"agent": agent}, sensors={"image": PICTURE}, n_action_steps=4)


def on(number: int, **changes: object) -> DeployConfig:
    return replace(CONFIG, twin=TwinConfig(host=address(number)), **changes)  # type: ignore[arg-type]


def test_a_picture_shows_the_board_at_its_capture_time() -> None:
    config = CameraClockConfig(rate_hz=20.0, latency=0.2)
    agent, pose = initial_state(100_000)
    with table(config, 41) as (twin, cameras):
        twin.reset(agent, pose)
        cameras.begin(7)
        first = cameras.observe(state(twin))
        # The T jumps; the pictures show it once the latency is over.
        twin.call("jump", 0.05)
        twin.advance(0.15)
        still = cameras.observe(state(twin))
        twin.advance(0.2)
        moved = cameras.observe(state(twin))
        agent_now, pose_now = twin.call("agent_position"), twin.call("tee_pose")
    np.testing.assert_array_equal(first["image"], still["image"])
    np.testing.assert_array_equal(first["image"], BoardPicture(96, 96).draw(agent, pose))
    np.testing.assert_array_equal(moved["image"], BoardPicture(96, 96).draw(agent_now, pose_now))
    assert np.mean(first["image"] != moved["image"]) > 1e-3
    assert 0.1 - 1e-3 <= moved["image_time"] <= 0.15 + 1e-3


def test_nothing_but_pictures_and_the_pushers_own_position_reaches_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[PolicyInput] = []
    act = OnnxPolicy.__call__

    def watched(self: OnnxPolicy, observation: PolicyInput, noise: np.ndarray) -> np.ndarray:
        given.append(observation)
        return act(self, observation, noise)

    monkeypatch.setattr(OnnxPolicy, "__call__", watched)
    deployed(on(42), seeing(tmp_path), tmp_path)
    steps = EpisodeStore.open(tmp_path / "store.zarr").read(0, "policy")
    # The T's pose is recorded beside the policy's observation; its key points are not.
    assert set(steps) == {
        "agent",
        "image",
        "image_time",
        "block_pose",
        "action",
        "action_proposed",
    }
    assert len(given) == 3, "a chunk of 4 actions for each of 3 x 4 steps"
    for number, observation in enumerate(given):
        newest = 4 * number
        assert observation.vector.shape[-2:] == (2, 2)
        np.testing.assert_array_equal(observation.vector.reshape(2, 2)[-1], steps["agent"][newest])
        assert set(observation.sensors) == {"image"}
        pictures = observation.sensors["image"].reshape(2, 96, 96, 3)
        np.testing.assert_array_equal(pictures[-1], steps["image"][newest])


def test_a_wrong_tracker_does_not_change_what_a_policy_that_sees_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = seeing(tmp_path)
    actions = []
    track = PushTScene.update
    for name in ("tracked", "wrong"):
        out = tmp_path / name
        out.mkdir()
        if name == "wrong":
            monkeypatch.setattr(PushTScene, "update", lambda scene: track(scene) + 0.05)
        deployed(on(43), bundle, out)
        steps = EpisodeStore.open(out / "store.zarr").read(0, "policy")
        actions.append((steps["action"], steps["image"], steps["block_pose"]))
    np.testing.assert_array_equal(actions[0][0], actions[1][0])
    np.testing.assert_array_equal(actions[0][1], actions[1][1])
    assert np.abs(actions[0][2] - actions[1][2]).max() > 0.04


def test_pictures_have_an_age_which_is_a_metric_and_repeat_bit_for_bit(tmp_path: Path) -> None:
    bundle = seeing(tmp_path)
    clock = CameraClockConfig(latency=0.05, jitter=0.02, drop=0.2)
    recorded = []
    for name in ("one", "two"):
        out = tmp_path / name
        out.mkdir()
        metrics = deployed(on(44, cameras=clock), bundle, out)
        assert 0.05 <= metrics["picture_age_p95_s"] <= 0.25
        assert metrics["faults"] == 0
        recorded.append(EpisodeStore.open(out / "store.zarr").read(0, "policy"))
    one, two = recorded
    assert {name: one[name].tobytes() == two[name].tobytes() for name in one} == dict.fromkeys(
        one, True
    )
    age = np.arange(len(one["image_time"])) / 10.0 - one["image_time"]
    assert age.min() >= 0.05 - 2e-3


def test_a_camera_that_falls_silent_is_a_fault_of_its_start(tmp_path: Path) -> None:
    silent = CameraClockConfig(drop=0.98, max_age=0.2)
    metrics = deployed(on(45, cameras=silent), seeing(tmp_path), tmp_path)
    assert metrics["faults"] == 1
    assert "camera image: its newest picture is" in metrics["per_start"][0]["fault"]


def test_a_camera_that_the_table_lacks_is_refused(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    wrist = replace(
        seeing_contract(contract().observation["agent"]), sensors={"image_wrist": PICTURE}
    )
    save_seeing_policy(bundle / "policy.onnx", wrist, "image_wrist")
    with pytest.raises(HandoffError, match=r"sensors \['image_wrist'\].*one camera, 'image'"):
        deployed(on(46), bundle, tmp_path)
