"""`handoff deploy --mode replay`: recorded actions in the policy's place."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.deployment import session as deploying
from flows.deployment.config import DeployTaskSession
from flows.deployment.session_tables.replayed_run import (
    RecordedActions,
    RecordedSession,
    replay_contract,
)
from real.console.server import ConsoleConfig
from real.deploy.onnx_policy import OnnxPolicy
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec
from tests.flows.console_session import Session, ended_by, ended_episodes
from tests.flows.deployment.session_tables.test_gripper_session import deployed, on, reaching
from tests.flows.deployment.test_task_table import contract_for


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reaching(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def recorded(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of two episodes, each of which reaches its goal."""
    out = tmp_path_factory.mktemp("recorded")
    played(out, bundle, on("127.0.84.1", first_seed=5), episodes=2)
    return out


def played(out: Path, bundle: Path, session: DeployTaskSession, episodes: int) -> EpisodeStore:
    running = Session(deployed, out, bundle, session)
    page = running.page()
    with contextlib.closing(page.socket):
        page.go()
        ended_episodes(page, episodes)
        if not session.recording:
            ended_by(page)
        running.ended()
    return EpisodeStore.open(out / "store.zarr", "r")


def test_recorded_episodes_are_repeated_and_compared(
    recorded: Path, bundle: Path, tmp_path: Path
) -> None:
    """From the recorded starts, as many episodes as there are."""
    replayed = played(tmp_path, bundle, on("127.0.84.2", recording=str(recorded)), episodes=2)
    assert replayed.num_episodes == 2
    source = EpisodeStore.open(recorded / "store.zarr", "r")
    for number in range(2):
        about, original = replayed.metadata(number), source.metadata(number)
        assert (about["mode"], about["seed"]) == ("replay", original["seed"])
        assert about["success"]
        assert about["replay"]["episode"] == number
        assert about["replay"]["max_mm"] < 1.0, "the twin repeats itself"
        again, before = (store.read(number, "policy")["action"] for store in (replayed, source))
        np.testing.assert_allclose(again, before[: len(again)], atol=1e-6)


def test_another_arm_is_led_to_the_recorded_start(
    recorded: Path, bundle: Path, tmp_path: Path
) -> None:
    """The recording began where the simulated arm does not: it goes there, and ends as far away."""
    moved = tmp_path / "moved"
    source = EpisodeStore.open(recorded / "store.zarr", "r")
    q = source.read(0, "robot", ["q"])["q"]
    with_start = on("127.0.84.3", recording=str(moved))
    turned = q[0] + np.array([0.15, 0, 0, 0, 0, 0, 0])
    copy_with_start(recorded / "store.zarr", moved, turned)
    replayed = played(tmp_path / "out", bundle, with_start, episodes=1)
    begun = replayed.read(0, "robot", ["q"])["q"][0]
    np.testing.assert_allclose(begun, turned, atol=0.012)


def copy_with_start(source: Path, target: Path, q_start: np.ndarray) -> None:
    """Copies the first episode of a store, with another first joint position."""
    store = EpisodeStore.open(source, "r")
    streams = {name: store.read(0, name) for name in store.schema.streams}
    streams["robot"]["q"] = np.concatenate([q_start[None], streams["robot"]["q"][1:]])
    copy = EpisodeStore.create(target, store.schema)
    copy.append(streams, store.metadata(0))


def test_a_recording_of_other_actions_is_refused(recorded: Path, bundle: Path) -> None:
    stated = OnnxPolicy(bundle / "policy.onnx").contract
    other = replace(stated, action=FieldSpec(shape=(4,), unit="m"))
    with pytest.raises(HandoffError, match=r"actions of .* are .* those of the policy"):
        RecordedSession(recorded, other)
    with pytest.raises(HandoffError, match="20 actions per second, the policy 10"):
        RecordedSession(recorded, replace(stated, rate_hz=10.0))
    with pytest.raises(HandoffError):
        RecordedSession(recorded / "nowhere", stated)


def test_a_shadow_cannot_repeat(recorded: Path, bundle: Path, tmp_path: Path) -> None:
    session = on("127.0.84.4", recording=str(recorded), shadow=True)
    with pytest.raises(HandoffError, match="exclude each other"):
        deploying.deploy(session, bundle, tmp_path, ConsoleConfig(port=0))


@pytest.mark.parametrize(("mode", "recording"), [("replay", None), ("live", Path("there"))])
def test_the_mode_and_its_recording_belong_together(
    mode: deploying.Mode, recording: Path | None, tmp_path: Path
) -> None:
    with pytest.raises(HandoffError, match="belong together"):
        deploying.deploy_command(
            tmp_path,
            [],
            tmp_path,
            ConsoleConfig(port=0),
            arm=None,
            trackers=(),
            cameras=(),
            instruction=None,
            mode=mode,
            recording=recording,
            person="",
            episodes=None,
        )


def test_recorded_actions_come_one_by_one_and_end_with_the_last() -> None:
    policy = RecordedActions(np.arange(3.0)[:, None])
    noise = np.zeros((1, 1, 1), np.float32)
    assert [float(policy(None, noise)[0, 0, 0]) for _ in range(5)] == [0.0, 1.0, 2.0, 2.0, 2.0]


def test_the_contract_of_recorded_actions_observes_no_picture() -> None:
    stated = replace(
        contract_for("reach", ("grasp_pose", "goal")),
        sensors={"image_front": FieldSpec(shape=(8, 8, 3), dtype="uint8", unit="u8")},
        horizon=16,
        n_action_steps=8,
        prefix=4,
        instruction=True,
    )
    acting = replay_contract(stated, ["goal"])
    assert list(acting.observation) == ["grasp_pose"]
    assert (acting.sensors, acting.horizon, acting.n_action_steps) == ({}, 1, 1)
    assert (acting.instruction, acting.prefix) == (False, 0)
