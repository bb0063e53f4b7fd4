"""`handoff deploy` with a policy that observes a camera: a film in the camera's place, at a
simulated FR3."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from flows.deployment import session as deploying
from flows.deployment.cameras.pictures import ArmPictures
from flows.deployment.config import DeploySession
from real.cameras.calibration.calibration_file import add_to_file
from real.cameras.config import CameraConfig
from real.cameras.picture_size import resized
from real.console.server import ConsoleConfig
from real.deploy.loop import LoopConfig
from real.deploy.tracked_field import TrackerConfig
from real.franka.config import FrankaConfig
from real.motion.watchdog import WatchdogConfig
from robots.control.training_pictures import PICTURES_KEY, picture_statistics, to_json
from robots.episodes.metadata.camera_calibration import CameraCalibration
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec
from sim.twin.twin import TwinConfig
from tests.flows.console_session import (
    PATIENT,
    STARTS,
    Session,
    ended_by,
    labelled,
    sent_to,
    stepped,
)
from tests.flows.deployment.test_session import Lab, held_for, mode_of
from tests.real.console.pages import until
from tests.real.fakes import contract
from tests.real.onnx_models import save_seeing_policy

CONFIG = DeploySession(
    loop=LoopConfig(wait_for_policy=False, max_steps=600),
    # Beside other tests the film may be late.
    max_age=5.0,
)
GAIN = 0.02


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten seconds of 64 x 48 pictures that become brighter, with black borders."""
    path = tmp_path_factory.mktemp("film") / "film.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for number in range(300):
            grey = np.zeros((48, 64, 3), np.uint8)
            grey[:, 8:56] = 40 + number * 200 // 300
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode(None))
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that moves from where the pusher is by the brightness of its camera."""
    folder = tmp_path_factory.mktemp("bundle")
    camera = FieldSpec(shape=(24, 24, 3), dtype="uint8", unit="u8")
    seeing = contract(sensors={"image_front": camera}, n_action_steps=4)
    save_seeing_policy(folder / "policy.onnx", seeing, "image_front", GAIN)
    return folder


def pictures_of(film: Path) -> list[np.ndarray]:
    """The middle of the film's pictures, at the contract's size."""
    camera = CameraConfig(source=str(film), crop=(8, 0, 48, 48), height=24, width=24)
    with av.open(str(film)) as container:
        return [resized(frame, camera) for frame in container.decode(video=0)]


def comparing(folder: Path, film: Path, light: float) -> Path:
    """The same policy, whose training pictures were the film's in another light."""
    # Six episodes, each of a sixth of the film's pictures: every one of them is known.
    pictures = [(light * picture).astype(np.uint8) for picture in pictures_of(film)]
    shown = [picture for first in range(6) for picture in pictures[first::6]]
    ends = list(range(50, len(shown) + 1, 50))
    statistics = picture_statistics(lambda step: shown[step], ends)
    assert statistics is not None
    camera = FieldSpec(shape=(24, 24, 3), dtype="uint8", unit="u8")
    save_seeing_policy(
        folder / "policy.onnx",
        contract(sensors={"image_front": camera}, n_action_steps=4),
        "image_front",
        GAIN,
        {PICTURES_KEY: to_json({"image_front": statistics})},
    )
    return folder


def deployed(out: Path, bundle: Path, session: DeploySession, here: Any) -> None:
    deploying.deploy(session, bundle, out, PATIENT, say=sent_to(here))


def seeing(host: str, **camera: Any) -> DeploySession:
    """A session whose camera shows the middle of the film."""
    front = CameraConfig(**{"crop": (8, 0, 48, 48), "again": 0.05, **camera})
    return replace(CONFIG, cameras={"front": front}, twin=TwinConfig(host=host))


def check_seen(store: EpisodeStore) -> None:
    """The pictures of the contract's size are recorded with their capture times, and the policy
    acted on them."""
    steps = store.read(0, "policy")
    pictures, captured = steps["image_front"], steps["image_front_time"].ravel()
    assert pictures.shape[1:] == (24, 24, 3)
    assert pictures.min() > 30, "the black borders are cut off"
    assert len({picture.tobytes() for picture in pictures}) > len(pictures) // 3
    age = steps["step_time"].ravel() - captured
    assert (np.diff(captured) >= 0.0).all()
    assert (age >= 0.0).all()
    # Every action is that of the policy for one of the recorded steps before it.
    meant = steps["agent"] + GAIN * pictures.mean(axis=(1, 2, 3))[:, None] / 255.0
    chosen = steps["action_proposed"][6:]
    off = [np.abs(meant[: 7 + row] - action).max(axis=1).min() for row, action in enumerate(chosen)]
    assert max(off) < 1e-5
    assert np.abs(chosen - steps["agent"][6:]).max() > 1e-3


def test_the_policy_acts_on_pictures_of_the_contracts_size(
    film: Path, bundle: Path, tmp_path: Path
) -> None:
    known = CameraCalibration(
        width=64, height=48, focal_length=(60.0, 60.0), principal_point=(33.0, 24.0)
    )
    add_to_file(tmp_path / "cameras.json", "front", known, {})
    session = replace(
        seeing("127.0.82.1", source=str(film)), calibration=str(tmp_path / "cameras.json")
    )
    running = Session(deployed, tmp_path, bundle, session)
    page = running.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 12)
        labelled(page, "KeyS", 1)
        ended_by(page)
        running.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    check_seen(store)
    # Of the crop, at half its size.
    calibration = store.metadata(0)["calibration"]["image_front"]
    assert (calibration["width"], calibration["height"]) == (24, 24)
    assert calibration["focal_length"] == [30.0, 30.0]
    assert calibration["principal_point"] == [12.5, 12.0]


@pytest.mark.nightly  # In every run a session without cameras connects to an address.
def test_an_arm_at_an_address_goes_the_same_way(film: Path, bundle: Path, tmp_path: Path) -> None:
    lab = Lab("127.0.82.2")
    with lab.open() as tracker:
        session = replace(
            seeing("127.0.82.3", source=str(film)),
            host=lab.host,
            arm=FrankaConfig(realtime="ignore", move_dynamics=0.5),
            loop=replace(CONFIG.loop, watchdog=WatchdogConfig(fault_seconds=10.0)),
            tracker=TrackerConfig(uri=tracker, max_age=10.0),
        )
        running = Session(deployed, tmp_path, bundle, session)
        page = running.page()
        with contextlib.closing(page.socket):
            page.go()
            stepped(page, 12)
            labelled(page, "KeyS", 1)
            ended_by(page)
            running.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert store.metadata(0)["robot"] == f"fr3 at {lab.host}"
    check_seen(store)


def test_a_camera_that_falls_silent_ends_the_episode(
    film: Path, bundle: Path, tmp_path: Path
) -> None:
    # The film ends after ten seconds and is not there again for an hour.
    session = seeing("127.0.82.4", source=str(film), again=3600.0, max_age=1.0)
    running = Session(deployed, tmp_path, bundle, session)
    page = running.page()
    with contextlib.closing(page.socket):
        page.go()
        until(lambda: mode_of(page) == "fault", STARTS)
        ended_by(page)
        running.ended()
    about = EpisodeStore.open(tmp_path / "store.zarr", "r").metadata(0)
    assert about["ended_by"] == "fault"
    assert "camera front: its newest picture is" in about["fault"]
    assert "limit max_age=1 s" in about["fault"]


def test_a_person_is_asked_about_a_picture_unlike_the_training_data(
    film: Path, tmp_path: Path
) -> None:
    bundle = comparing(tmp_path, film, light=0.05)
    running = Session(deployed, tmp_path, bundle, seeing("127.0.82.7", source=str(film)))
    page = running.page()
    with contextlib.closing(page.socket):
        page.go()
        until(lambda: "front: " in held_for(page))
        why = held_for(page)
        assert "of 1.0 (limit): looks unlike the training data" in why
        assert why.endswith("Resume nevertheless?")
        # A person reads for longer than the session needs to see the hold.
        for _ in range(20):
            page.keys()
            time.sleep(0.05)
        page.go()
        stepped(page, 3)
        labelled(page, "KeyS", 1)
        ended_by(page)
        running.ended()
    about = EpisodeStore.open(tmp_path / "store.zarr", "r").metadata(0)
    assert about["picture_distance"]["front"] > 1.0


def test_nobody_is_asked_about_pictures_like_those_of_the_training(
    film: Path, tmp_path: Path
) -> None:
    bundle = comparing(tmp_path, film, light=1.0)
    running = Session(deployed, tmp_path, bundle, seeing("127.0.82.8", source=str(film)))
    page = running.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 3)
        labelled(page, "KeyS", 1)
        ended_by(page)
        running.ended()
    about = EpisodeStore.open(tmp_path / "store.zarr", "r").metadata(0)
    assert about["picture_distance"]["front"] <= 1.0


def test_distorted_pictures_are_refused_before_the_arm_is_opened(
    film: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploying, "open_table", lambda *arguments: pytest.fail("opened"))
    session = seeing("127.0.82.5", source=str(film), crop=None)
    with pytest.raises(
        HandoffError, match=r"64 x 48 px cannot be resized to 24 x 24 px.*crop=\[8,0,48,48\]"
    ):
        deploying.deploy(session, bundle, tmp_path, ConsoleConfig(port=0))


def test_a_calibration_without_the_camera_is_refused(
    film: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploying, "open_table", lambda *arguments: pytest.fail("opened"))
    known = CameraCalibration(
        width=64, height=48, focal_length=(60.0, 60.0), principal_point=(33.0, 24.0)
    )
    add_to_file(tmp_path / "cameras.json", "wrist", known, {})
    session = replace(
        seeing("127.0.82.6", source=str(film)), calibration=str(tmp_path / "cameras.json")
    )
    with pytest.raises(HandoffError, match="has no camera 'front', there are wrist"):
        deploying.deploy(session, bundle, tmp_path, ConsoleConfig(port=0))


def test_a_calibration_without_any_camera_is_refused() -> None:
    with pytest.raises(HandoffError, match="no camera is observed or recorded"):
        ArmPictures({}, {}).calibrations("cameras.json", {})


def test_a_policy_whose_camera_has_no_source_leaves_nothing(bundle: Path, tmp_path: Path) -> None:
    tracker = TrackerConfig(uri="ws://127.0.82.9:1")
    session = replace(CONFIG, host="127.0.82.9", tracker=tracker)
    with pytest.raises(HandoffError, match="no source is given for camera front"):
        deploying.deploy(session, bundle, tmp_path / "out", ConsoleConfig(port=0))
    assert not (tmp_path / "out").exists()
