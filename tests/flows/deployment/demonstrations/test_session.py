"""`handoff record TASK --arm twin`: a person at the console demonstrates at a simulated FR3 behind
the FCI, with a camera beside it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from flows.deployment.config import ResetConfig
from flows.deployment.demonstrations.config import DemonstrationSession
from flows.deployment.demonstrations.session import record_at_arm
from real.arm import ConnectionLostError
from real.cameras.calibration.calibration_file import add_to_file
from real.cameras.config import CameraConfig
from real.clock import PacedClock
from real.console.server import ConsoleConfig
from real.franka.config import flange_T_tool
from real.motion.step_spaces import start_within
from real.motion.watchdog import WatchdogConfig
from robots.control.actions import CartesianDelta
from robots.episodes.demonstrations import open_any_source
from robots.episodes.metadata.camera_calibration import CameraCalibration
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.franka import find_robot
from sim.twin.task_world import TaskWorld
from sim.twin.twin import Twin, TwinConfig, start_twin
from tests.flows.console_session import (
    PATIENT,
    STARTS,
    Session,
    ended_by,
    labelled,
    sent_to,
    stepped,
)
from tests.real.console.pages import logged

FR3 = find_robot("fr3")
STEPS = CartesianDelta(axes=("x", "y", "z"), translation=0.01)
TOOL = flange_T_tool(DemonstrationSession().arm, FR3)
START = tuple(start_within(STEPS, FR3, TOOL, FR3.q_home + 0.1).tolist())
"""A start inside the workspace of the steps, away from the robot's home."""


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten seconds of 64 x 48 pictures that become brighter."""
    path = tmp_path_factory.mktemp("film") / "film.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for number in range(300):
            grey = np.full((48, 64, 3), number * 250 // 300, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def options(film: Path, host: str) -> DemonstrationSession:
    return DemonstrationSession(
        steps=STEPS,
        instruction="lift the cube",
        cameras={"front": CameraConfig(source=str(film), height=48, again=0.05)},
        # Beside other tests the film may be late.
        max_age=5.0,
        twin=TwinConfig(host=host),
    )


def record(out: Path, session: DemonstrationSession, episodes: int, here: Any) -> None:
    say = sent_to(here)
    record_at_arm(session, "pick_cube", out, PATIENT, episodes=episodes, say=say)


@contextlib.contextmanager
def lab(host: str) -> Iterator[list[Callable[[Twin], Any]]]:
    """The table of a task with an arm whose time passes by itself, in step with its client; yields
    a list of what is to be done with it next."""
    with start_twin(TwinConfig(host=host), partial(TaskWorld, "pick_cube")) as twin:
        twin.reset(0)
        closing, clock = threading.Event(), PacedClock(twin)
        due: list[Callable[[Twin], Any]] = []

        def run() -> None:
            while not closing.is_set():
                if due:
                    due.pop(0)(twin)
                clock.advance(0.005)

        passing = threading.Thread(target=run)
        passing.start()
        try:
            yield due
        finally:
            closing.set()
            passing.join()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, film: Path) -> Path:
    """A session of two attempts: one that the person discards, and one that counts."""
    out = tmp_path_factory.mktemp("recorded")
    known = CameraCalibration(
        width=640, height=480, focal_length=(600.0, 600.0), principal_point=(320.0, 240.0)
    )
    add_to_file(out / "cameras.json", "front", known, {})
    settings = replace(options(film, "127.0.81.1"), calibration=str(out / "cameras.json"))
    session = Session(record, out, settings, 1)
    page = session.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 5)
        labelled(page, "KeyD", 1)
        page.go()
        stepped(page, 3)
        stepped(page, 10, "ArrowUp")
        stepped(page, 5, "KeyC")
        page.keys()
        labelled(page, "KeyS", 2)
        session.ended()
    return out


def test_what_the_person_calls_a_success_is_a_demonstration(recorded: Path) -> None:
    demos = EpisodeStore.open(recorded / "demos.zarr", "r")
    dropped = EpisodeStore.open(recorded / "dropped.zarr", "r")
    assert (demos.num_episodes, dropped.num_episodes) == (1, 1)
    about = demos.metadata(0)
    assert (about["success"], about["ended_by"], about["labelled_by"]) == (True, "label", "ada")
    assert (about["host"], about["robot"], about["source"]) == (
        "twin",
        "fr3 twin",
        "demonstration",
    )
    assert about["instruction"] == "lift the cube"
    assert about["calibration"]["image_front"]["focal_length"] == [60.0, 60.0]
    assert dropped.metadata(0)["discard_reason"] == "discard"


def test_whoever_had_control_is_recorded_where_nobody_moved_the_arm(recorded: Path) -> None:
    about = EpisodeStore.open(recorded / "dropped.zarr", "r").metadata(0)
    assert (about["operator"], about["labelled_by"]) == ("ada", "ada")


def test_demonstrations_of_a_simulated_arm_are_none_of_a_real_one(
    recorded: Path, film: Path
) -> None:
    real = replace(options(film, "127.0.81.7"), host="127.0.81.8")
    with pytest.raises(HandoffError, match=r"episode 0 is of a simulated arm, .*--out"):
        record_at_arm(real, "pick_cube", recorded, ConsoleConfig(port=0), episodes=2)


def test_a_store_with_enough_demonstrations_says_so(recorded: Path, film: Path) -> None:
    texts: list[str] = []
    session = options(film, "127.0.81.7")
    console = ConsoleConfig(port=0)
    path = record_at_arm(session, "pick_cube", recorded, console, episodes=1, say=texts.append)
    assert path == recorded / "demos.zarr"
    assert len(texts) == 1
    assert texts[0].startswith("1 demonstration of 1 are there already")


def test_an_arm_that_does_not_answer_is_named_before_a_person_is_asked(
    film: Path, tmp_path: Path
) -> None:
    texts: list[str] = []
    session = replace(options(film, "127.0.81.7"), host="127.0.81.9")
    with pytest.raises(ConnectionLostError, match=r"no robot answers at 127.0.81.9:1337"):
        record_at_arm(
            session, "cube", tmp_path / "out", ConsoleConfig(port=0), episodes=1, say=texts.append
        )
    assert texts == []
    assert not (tmp_path / "out").exists()


def test_the_arm_follows_the_steps_of_the_person(recorded: Path) -> None:
    demos = EpisodeStore.open(recorded / "demos.zarr", "r")
    steps = demos.read(0, "policy")
    action, mine = steps["action"], steps["intervention"].astype(bool)
    assert action.shape[1:] == (4,), "x, y, z and the gripper"
    forward = action[:, 0] > 0.5
    assert forward.sum() >= 5
    assert (mine[forward]).all()
    x = steps["grasp_pose"][:, 0]
    assert x[-1] - x[0] > 0.5 * STEPS.translation * forward.sum()
    assert (np.abs(action[~mine][:, :3]) == 0.0).all(), "nobody else moves the arm"
    # The key that closes the gripper.
    assert steps["width"][-1] < steps["width"][0] - 0.005
    spec = demos.schema.stream("policy").fields["action"]
    assert (spec.interface, spec.names) == ("cartesian_delta", (("x", "y", "z", "gripper"),))


def test_every_step_has_the_newest_picture_and_the_time_of_its_capture(recorded: Path) -> None:
    demos = EpisodeStore.open(recorded / "demos.zarr", "r")
    steps = demos.read(0, "policy")
    pictures, captured = steps["image_front"], steps["image_front_time"].ravel()
    assert pictures.shape[1:] == (48, 64, 3)
    assert len({picture.tobytes() for picture in pictures}) > len(pictures) // 3
    age = steps["step_time"].ravel() - captured
    assert (np.diff(captured) >= 0.0).all()
    assert (age >= 0.0).all()
    assert np.median(age) < 0.5


def test_it_is_a_data_set_whose_action_has_a_meaning(recorded: Path) -> None:
    with open_any_source(recorded / "demos.zarr", images=True) as source:
        fields = source.schema.fields
    roles = {name: spec.role for name, spec in fields.items()}
    assert roles["action"] == "action"
    seen = {name for name, role in roles.items() if role == "observation"}
    assert seen == {
        "q",
        "dq",
        "grasp_pose",
        "target_offset",
        "width",
        "width_target",
        "image_front",
    }


@pytest.mark.nightly
def test_a_camera_that_falls_silent_ends_the_episode(film: Path, tmp_path: Path) -> None:
    session = options(film, "127.0.81.2")
    # The film ends after ten seconds and is not there again for an hour.
    silent = replace(session.cameras["front"], again=3600.0)
    session = replace(session, cameras={"front": silent}, max_age=1.0)
    running = Session(record, tmp_path, session, 1)
    page = running.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 3)
        while page.state()["mode"] != "fault":
            page.keys("ArrowLeft")
        ended_by(page)
        running.ended()
    dropped = EpisodeStore.open(tmp_path / "dropped.zarr", "r")
    about = dropped.metadata(0)
    assert about["ended_by"] == "fault"
    assert "camera front: its newest picture is" in about["fault"]


@pytest.mark.nightly
def test_an_arm_at_an_address_goes_the_same_way(film: Path, tmp_path: Path) -> None:
    """The path of a real arm: its own clock, the rise and the move to the start; all but the
    real-time kernel."""
    host, start = "127.0.81.3", START
    usual = options(film, "127.0.81.4")
    session = replace(
        usual,
        host=host,
        start=start,
        arm=replace(usual.arm, realtime="ignore", move_dynamics=0.5),
        # This arm waits for nobody, and a page on a busy machine may be late.
        loop=replace(usual.loop, watchdog=WatchdogConfig(fault_seconds=10.0)),
    )
    with lab(host):
        running = Session(record, tmp_path, session, 1)
        page = running.page()
        with contextlib.closing(page.socket):
            page.go()
            stepped(page, 3)
            stepped(page, 10, "ArrowUp")
            page.keys()
            labelled(page, "KeyS", 1)
            running.ended()
    demos = EpisodeStore.open(tmp_path / "demos.zarr", "r")
    assert demos.num_episodes == 1
    assert demos.metadata(0)["robot"] == f"fr3 at {host}"
    steps = demos.read(0, "policy")
    np.testing.assert_allclose(steps["q"][0], start, atol=0.01)
    assert steps["width"][0] == pytest.approx(FR3.gripper.width_max, abs=0.005)
    x = steps["grasp_pose"][:, 0]
    assert x[-1] - x[0] > 0.03


@pytest.mark.nightly
def test_between_two_episodes_the_arm_yields_to_a_hand_and_drives_home(
    film: Path, tmp_path: Path
) -> None:
    host, sentence = "127.0.81.11", "Put the cube back on its mark."
    start = START
    usual = options(film, "127.0.81.12")
    session = replace(
        usual,
        host=host,
        start=start,
        # The film is shorter than this test.
        cameras={},
        arm=replace(usual.arm, realtime="ignore", move_dynamics=0.05),
        loop=replace(usual.loop, watchdog=WatchdogConfig(fault_seconds=10.0)),
        reset=ResetConfig(sentence=sentence),
    )
    with lab(host) as due:
        running = Session(record, tmp_path, session, 2)
        page = running.page()
        with contextlib.closing(page.socket):
            page.go()
            stepped(page, 3)
            labelled(page, "KeyS", 1)
            shows(page, lambda state: sentence in state["why"])
            # The arm yields to a push that would not move it otherwise.
            q = [np.zeros(7)]

            def joints(twin: Twin) -> None:
                q.append(twin.call("scene")[0][:7])

            due.append(joints)
            tapped(page, "KeyF", "limp")
            shows(page, lambda state: state["mode"] == "limp", 1.5)
            due.append(lambda twin: twin.call("push", (12.0, 0.0, 0.0), 0.5))
            shows(page, lambda state: state["mode"] == "limp", 2.0)
            tapped(page, "Enter", "hold")
            due.append(joints)
            # It drives home; a page that says nothing any more holds it on the way.
            tapped(page, "KeyH", "home")
            shows(page, lambda state: (state["progress"] or 0.0) > 0.1)
            time.sleep(2.5)
            shows(page, lambda state: "was silent for" in state["why"])
            due.append(joints)
            tapped(page, "KeyH", "home")
            shows(page, lambda state: "The arm is at its start." in state["why"])
            due.append(joints)
            page.go()
            stepped(page, 3)
            labelled(page, "KeyS", 2)
            running.ended()
    _, begun, guided, held, home = q
    assert np.abs(guided - begun).max() > 0.15
    assert np.abs(held - home).max() > 0.02
    np.testing.assert_allclose(home, start, atol=0.01)
    counts = [len(logged(tmp_path / "console", f"began {mode}")) for mode in ("limp", "home")]
    assert counts == [1, 2]


def tapped(page: Any, key: str, mode: str) -> None:
    """Presses a key, and waits for the mode that follows."""
    page.keys(key)
    page.keys()
    shows(page, lambda state: state["mode"] == mode)


def shows(page: Any, wanted: Callable[[dict[str, Any]], bool], seconds: float = 0.0) -> None:
    """Sends what a page sends until it shows what is wanted, and for some time longer [s]."""
    limit, since = time.monotonic() + STARTS, None
    while since is None or time.monotonic() < since + seconds:
        page.keys()
        state = page.newest()
        if wanted(state):
            since = since or time.monotonic()
        assert time.monotonic() < limit, state
        time.sleep(0.02)


def test_a_killed_session_is_gone_on_with_and_its_episode_is_kept(
    film: Path, tmp_path: Path
) -> None:
    session = options(film, "127.0.81.5")
    running = Session(record, tmp_path, session, 2)
    page = running.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 3)
        labelled(page, "KeyS", 1)
        stepped(page, 15, "ArrowUp")
        running.process.kill()
        running.process.join()
    again = Session(record, tmp_path, replace(session, twin=TwinConfig(host="127.0.81.6")), 2)
    page = again.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 3)
        labelled(page, "KeyS", 1)
        again.ended()
    demos = EpisodeStore.open(tmp_path / "demos.zarr", "r")
    dropped = EpisodeStore.open(tmp_path / "dropped.zarr", "r")
    assert demos.num_episodes == 2
    about = dropped.metadata(0)
    assert (about["discard_reason"], about["instruction"]) == ("interrupted", "lift the cube")
    assert len(dropped.read(0, "policy", ["q"])["q"]) >= 10


def test_a_task_that_does_not_exist_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="'fold_towel' is not known"):
        record_at_arm(
            DemonstrationSession(), "fold_towel", tmp_path / "r", ConsoleConfig(), episodes=1
        )
    assert not (tmp_path / "r").exists()


def test_a_port_that_is_taken_leaves_nothing(tmp_path: Path) -> None:
    options = DemonstrationSession(twin=TwinConfig(host="127.0.81.9"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        console = ConsoleConfig(port=taken.getsockname()[1])
        with pytest.raises(HandoffError, match=r"cannot listen at .* has port"):
            record_at_arm(options, "pick_cube", tmp_path / "r", console, episodes=1)
    assert not (tmp_path / "r").exists()
