"""`handoff deploy`: a person at the console beside an arm, the unmodified client, a simulated FR3
behind the FCI."""

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.server import serve

from flows.config.options import build_session
from flows.config.overrides import arm_overrides
from flows.deployment import session as deploying
from flows.deployment.config import DeploySession
from flows.deployment.release import released_bundle
from flows.deployment.session_tables.board import SimulatedSetup
from flows.runner.artifact import seal
from real.arm import ConnectionLostError
from real.clock import PacedClock
from real.console.server import ConsoleConfig
from real.deploy.loop import LoopConfig
from real.deploy.tracked_field import TrackerConfig
from real.franka.config import FrankaConfig
from real.franka.kept_faults import faults_file
from real.motion.watchdog import WatchdogConfig
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError, SafetyError
from robots.wire.policy import pack
from sim.tasks.push_t.geometry import initial_state
from sim.twin.push_t_world import PushTWorld
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
from tests.real.console.pages import logged, until
from tests.real.onnx_models import save_policy

CONFIG = DeploySession(loop=LoopConfig(wait_for_policy=False, max_steps=600))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that stays where the pusher is."""
    folder = tmp_path_factory.mktemp("bundle")
    save_policy(folder / "policy.onnx", scale=0.0)
    return folder


def _deploy(out: Path, bundle: Path, session: DeploySession, here: Any) -> None:
    deploying.deploy(session, bundle, out, PATIENT, say=sent_to(here))


def on(host: str) -> DeploySession:
    return replace(CONFIG, twin=TwinConfig(host=host))


def lead(page: Any) -> None:
    """Moves the arm ten steps forward, then labels the episode a success."""
    page.go()
    stepped(page, 5)
    state = stepped(page, 10, "ArrowUp")
    assert state["mode"] == "person"
    assert len(state["state"]["q"]) == 7
    page.keys()
    labelled(page, "KeyS", 1)


def check_led(store: EpisodeStore, robot: str) -> None:
    """Checks the recording after `lead`: the arm's motion, and the operator of every step."""
    about = store.metadata(0)
    assert (about["robot"], about["label"], about["success"], about["operator"]) == (
        robot,
        "success",
        True,
        "ada",
    )
    policy, arm = store.read(0, "policy"), store.read(0, "robot")
    mine = policy["intervention"].astype(bool).ravel()
    assert 9 <= mine.sum() < len(mine)
    assert about["takeovers"] == 1
    assert about["interventions"] == pytest.approx(mine.mean())
    assert set(policy["segment"].ravel()) == {-1, 0}
    # Forward from behind the arm is the board's -y, at 0.15 m/s less the ramp of the first moments.
    way = policy["agent"][mine][-1] - policy["agent"][mine][0]
    assert way[1] < -0.06
    assert abs(way[0]) < 0.01
    x = arm["base_T_ee"][:, 0, 3]
    assert x[-1] - x[0] > 0.06
    assert about["min_success_rate"] == 1.0
    np.testing.assert_allclose(policy["action"][~mine], policy["action_proposed"][~mine], atol=0.02)


def test_a_person_leads_the_simulated_arm_and_judges(tmp_path, bundle):
    session = Session(_deploy, tmp_path, bundle, on("127.0.79.1"))
    page = session.page()
    with contextlib.closing(page.socket):
        lead(page)
        page.go()
        stepped(page, 3)
        labelled(page, "KeyR", 2)
        page.go()
        stepped(page, 3)
        labelled(page, "KeyR", 3)
        page.go()
        stepped(page, 3)
        ended_by(page)
        session.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert store.num_episodes == 3, "the one that the end of the session cut off is not there"
    check_led(store, "fr3 twin")
    assert store.metadata(1)["discard_reason"] == "redo"
    assert [store.metadata(number)["seed"] for number in range(3)] == [0, 1, 1]
    assert {line["who"] for line in logged(tmp_path / "console", "took the arm over")} == {"ada"}


def test_a_held_arm_stands_still_under_control_and_goes_on(tmp_path, bundle):
    session = Session(_deploy, tmp_path, bundle, on("127.0.79.2"))
    page = session.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 5, "ArrowUp")
        page.keys("Escape")
        begun = time.monotonic()
        # On a busy machine robot time passes slowly, and the arm needs 0.3 s of it to rest.
        while time.monotonic() < begun + 6.0:
            page.keys()
            assert page.state()["mode"] == "hold"
        page.go()
        stepped(page, 3)
        labelled(page, "KeyQ", 1)
        ended_by(page)
        session.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    about, times = store.metadata(0), store.read(0, "policy", ["step_time"])["step_time"].ravel()
    assert not about["success"]
    # On a busy machine the simulated robot is slower than the wall, by much.
    assert about["held_seconds"] > 0.15
    gap = int(np.argmax(np.diff(times)))
    robot = store.read(0, "robot", ["time", "dq"])
    standing = (robot["time"] > times[gap + 1] - 0.1) & (robot["time"] < times[gap + 1])
    assert standing.sum() > 90
    assert np.abs(robot["dq"][standing]).max() < 0.005


def held_for(page: Any) -> str:
    page.keys()
    return page.state()["why"]


class Lab:
    """A table with an arm that runs in real time, and a tracker of the T.

    A thread advances the arm's time in step with the client: on a busy machine it is slow instead
    of losing packets.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.pose = np.zeros(3)
        self.user_stop = False
        """Whether the user stop is to be pressed."""

    @contextlib.contextmanager
    def open(self) -> Iterator[str]:
        with start_twin(TwinConfig(host=self.host), PushTWorld) as twin:
            twin.call("reset", *initial_state(3))
            self.pose, closing = twin.call("tee_pose"), threading.Event()
            passing = threading.Thread(target=self._pass, args=(twin, closing))
            passing.start()
            with serve(self._track, "127.0.0.1", 0, compression=None) as server:
                threading.Thread(target=server.serve_forever, daemon=True).start()
                yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
                server.shutdown()
            closing.set()
            passing.join()

    def _pass(self, twin: Twin, closing: threading.Event) -> None:
        clock, pressed = PacedClock(twin), False
        while not closing.is_set():
            if self.user_stop != pressed:
                pressed = self.user_stop
                twin.press_user_stop(pressed)
            clock.advance(0.004)

    def _track(self, connection: Any) -> None:
        with contextlib.suppress(Exception):
            for frame in itertools.count():
                connection.send(pack({"pose": self.pose, "frame": frame}))
                time.sleep(0.02)


def at(host: str, tracker: str) -> DeploySession:
    """An arm at an address, which waits for nobody: on a busy machine policy and tracker may be
    late, as a page may."""
    return replace(
        CONFIG,
        host=host,
        arm=FrankaConfig(host=host, realtime="ignore", move_dynamics=0.5),
        loop=replace(CONFIG.loop, watchdog=WatchdogConfig(fault_seconds=10.0)),
        tracker=TrackerConfig(uri=tracker, max_age=10.0),
    )


def test_an_arm_at_an_address_goes_the_same_way(tmp_path, bundle):
    """The path of a real arm: its own clock, a move to the start, a tracker; all but the real-time
    kernel."""
    lab = Lab("127.0.79.3")
    with lab.open() as tracker:
        session = Session(_deploy, tmp_path, bundle, at(lab.host, tracker))
        page = session.page()
        with contextlib.closing(page.socket):
            lead(page)
            until(lambda: "Put the objects back" in held_for(page))
            ended_by(page)
            session.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    check_led(store, f"fr3 at {lab.host}")
    np.testing.assert_allclose(
        store.read(0, "policy", ["agent"])["agent"][0], CONFIG.start, atol=0.005
    )


def recover(page: Any, cause: str = "") -> None:
    """Waits for a fault, and recovers the arm; returns once the arm can be started."""
    until(lambda: mode_of(page) == "fault", STARTS)
    page.say(kind="recover", cause=cause)
    until(lambda: mode_of(page) == "hold" and not page.newest()["trouble"], STARTS)


def mode_of(page: Any) -> str:
    page.keys()
    return page.state()["mode"]


def _deploy_with_a_tracker_that_loses_the_tee(
    out: Path, bundle: Path, session: DeploySession, here: Any
) -> None:
    pose, calls = SimulatedSetup.pose, itertools.count()

    def lost(self: Any) -> np.ndarray:
        if next(calls) == 12:
            raise SafetyError("tracker: newest pose is 0.300 s old, limit 0.25 s.")
        return pose(self)

    SimulatedSetup.pose = lost  # type: ignore[method-assign]
    _deploy(out, bundle, session, here)


def test_a_fault_ends_the_episode_and_the_session_goes_on(tmp_path, bundle):
    """A tracker that loses the T: the steps before are in the store, with the reason."""
    deployed = _deploy_with_a_tracker_that_loses_the_tee
    session = Session(deployed, tmp_path, bundle, on("127.0.79.4"))
    page = session.page()
    with contextlib.closing(page.socket):
        page.go()
        recover(page)
        page.go()
        stepped(page, 3)
        labelled(page, "KeyQ", 2)
        ended_by(page)
        session.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert store.num_episodes == 2
    lost, after = store.metadata(0), store.metadata(1)
    assert "newest pose is" in lost["fault"]
    assert (lost["ended_by"], lost["success"]) == ("fault", False)
    assert (after["fault"], after["label"]) == (None, "failure")
    faults = logged(tmp_path / "console", "fault")
    assert [line["why"] for line in faults] == [
        "tracker: newest pose is 0.300 s old, limit 0.25 s."
    ]


def test_the_user_stop_of_an_arm_is_recovered_with_its_cause(tmp_path, bundle, monkeypatch):
    """Recovery is refused while the stop is pressed; the kept fault is cleared by a name and a
    cause."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    lab = Lab("127.0.79.6")
    with lab.open() as tracker:
        config = at(lab.host, tracker)
        session = Session(_deploy, tmp_path, bundle, config)
        page = session.page()
        with contextlib.closing(page.socket):
            page.go()
            stepped(page, 3)
            lab.user_stop = True
            until(lambda: mode_of(page) == "fault", STARTS)
            assert "the user stop was pressed" in page.newest()["why"]
            assert page.newest()["asks_cause"]
            page.say(kind="recover", cause="A hand in the way")
            until(lambda: "recovery refused" in held_for(page), STARTS)
            lab.user_stop = False
            recover(page, "A hand in the way")
            until(lambda: "Put the objects back" in held_for(page), STARTS)
            page.go()
            stepped(page, 3)
            labelled(page, "KeyS", 2)
            ended_by(page)
            session.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert [store.metadata(number)["ended_by"] for number in range(2)] == ["fault", "label"]
    kept, cleared = map(json.loads, faults_file(lab.host).read_text().splitlines())
    assert kept["what"] == "fault"
    assert (cleared["who"], cleared["cause"]) == ("ada", "A hand in the way")


def gate_artifact(folder: Path, bundle_kind: str = "bundle", passed: bool = True) -> Path:
    """A bundle and the gate that it passed, as the pipeline leaves them."""
    partial = folder / "bundle.partial"
    partial.mkdir()
    save_policy(partial / "policy.onnx")
    record = {"stage": "export", "metrics": {}, "inputs": {}, "input_paths": {}}
    bundle = seal(partial, folder / "bundle", bundle_kind, record)
    partial = folder / "gate.partial"
    partial.mkdir()
    (partial / "gate.json").write_text("{}")
    inputs = {"inputs": {"bundle": bundle.digest}, "input_paths": {"bundle": "../bundle"}}
    return seal(
        partial, folder / "gate", "gate", {"stage": "gate", "metrics": {"passed": passed}, **inputs}
    ).path


def test_what_passed_the_gate_may_be_deployed(tmp_path):
    assert released_bundle(gate_artifact(tmp_path)) == (tmp_path / "bundle").resolve()


def test_nothing_that_did_not_pass_a_gate_is_deployed(tmp_path):
    gate = gate_artifact(tmp_path, passed=False)
    with pytest.raises(
        HandoffError, match="is the artifact of stage 'export', expected that of a passed gate"
    ):
        released_bundle(tmp_path / "bundle")
    with pytest.raises(HandoffError, match="expected that of a passed gate"):
        released_bundle(gate)


def test_a_bundle_that_changed_behind_its_gate_is_refused(tmp_path):
    gate = gate_artifact(tmp_path)
    policy = tmp_path / "bundle" / "policy.onnx"
    policy.write_bytes(policy.read_bytes()[:-1] + b"!")
    with pytest.raises(HandoffError, match="Was it edited after it was built"):
        released_bundle(gate)


def test_an_arm_without_a_tracker_is_refused(tmp_path, bundle):
    with pytest.raises(HandoffError, match="a real arm needs a tracker of the T"):
        deploying.deploy(
            replace(CONFIG, host="127.0.79.9"), bundle, tmp_path, ConsoleConfig(port=0)
        )


def test_a_tracker_that_is_no_websocket_is_refused(tmp_path: Path, bundle: Path) -> None:
    session = at("127.0.79.8", "http://127.0.0.1:9")
    with pytest.raises(HandoffError, match=r"tracker: uri is 'http://127\.0\.0\.1:9', expected"):
        deploying.deploy(session, bundle, tmp_path / "out", ConsoleConfig(port=0))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arm", ["", " "])
def test_an_empty_address_starts_no_simulated_arm(arm: str) -> None:
    with pytest.raises(
        HandoffError, match=r"--arm is empty, .* Is a variable of the shell not set"
    ):
        arm_overrides(arm)
    assert arm_overrides(None) == []
    assert arm_overrides("172.16.0.2") == ["host='172.16.0.2'"]


def test_an_address_at_which_nothing_answers_is_refused_before_a_person_is_asked(
    tmp_path: Path, bundle: Path
) -> None:
    said: list[str] = []
    with pytest.raises(ConnectionLostError, match=r"no robot answers at 127\.0\.79\.8:1337"):
        deploying.deploy(
            at("127.0.79.8", "ws://127.0.0.1:9"),
            bundle,
            tmp_path / "out",
            ConsoleConfig(port=0),
            say=said.append,
        )
    assert not any(line.startswith("console") for line in said)
    assert not (tmp_path / "out").exists()


def test_a_policy_of_another_action_interface_is_refused(tmp_path):
    save_policy(tmp_path / "policy.onnx", action_interface="cartesian_delta")
    with pytest.raises(HandoffError, match="actions of the policy are 'cartesian_delta'"):
        deploying.deploy(CONFIG, tmp_path, tmp_path / "out", ConsoleConfig(port=0))
    assert not (tmp_path / "out").exists()


def test_a_policy_of_another_task_is_refused(tmp_path):
    save_policy(tmp_path / "policy.onnx", task="reach")
    with pytest.raises(HandoffError, match="are those of push_t, the policy's task is 'reach'"):
        deploying.deploy(CONFIG, tmp_path, tmp_path, ConsoleConfig(port=0))


def test_a_policy_of_another_robot_is_refused(tmp_path):
    save_policy(tmp_path / "policy.onnx", robot="panda")
    with pytest.raises(
        HandoffError,
        match=r"trained with the robot 'panda', the arm is 'fr3'\. Set arm\.robot=panda",
    ):
        deploying.deploy(CONFIG, tmp_path, tmp_path, ConsoleConfig(port=0))


def test_settings_come_from_the_command_line():
    session = build_session(
        DeploySession,
        "push_t",
        ["host='172.16.0.2'", "supervision.speed=0.05", "loop.max_steps=100"],
    )
    assert (session.host, session.supervision.speed, session.loop.max_steps) == (
        "172.16.0.2",
        0.05,
        100,
    )
    assert not session.loop.wait_for_policy
    with pytest.raises(HandoffError, match=r"supervision\.sped"):
        build_session(DeploySession, "push_t", ["supervision.sped=0.05"])
