"""What can go wrong at an arm, at the twin behind the unmodified client: each fault has its cause
named and recorded, no limit is violated on the wire, and the arm comes to rest within a stated
distance.

Time passes in lockstep, so a busy computer changes nothing; a network that is late and a computer
that stands are commands that do not arrive. docs/results/deployment.md has the table of all faults.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
from websockets.sync.server import serve

from flows.deployment.cameras.pictures import ArmPictures
from flows.deployment.config import DeployTaskConfig
from flows.deployment.task_table import TaskTable
from flows.deployment.twin import TwinSetup, run_start
from real.cameras.camera import Picture
from real.clock import PacedClock, WallClock
from real.deploy.loop import LoopConfig
from real.deploy.object_tracker import RemoteTracker
from real.deploy.remote_policy import RemoteConfig, RemotePolicy
from real.deploy.tracked_field import TrackerConfig, board_field
from real.driver.driven_arm import DrivenArm
from real.driver.driver import Driver
from real.franka.config import FrankaConfig
from real.motion.watchdog import WatchdogConfig
from robots.contract import Contract
from robots.episodes.corrections import open_corrections
from robots.episodes.running_episode import recover_interrupted
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError, SafetyError
from robots.franka import find_robot
from robots.interfaces import no_progress
from robots.wire.policy import pack
from sim.twin import protocol
from sim.twin.task_world import TaskWorld
from sim.twin.twin import Twin, TwinConfig, start_twin
from tests.flows.deployment.test_task_table import contract_for
from tests.policies.served import TOKEN
from tests.real.onnx_models import save_linear_policy
from tests.sim.twin.loopback import address

pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")

FR3 = find_robot("fr3")
FAULT_AT = 0.8
"""Time of a fault since the objects were placed [s]; the hand then moves at 0.2 m/s."""
SPEED = 0.5
"""Action along x, of a largest step of 20 mm at 20 Hz."""
CONTRACT = contract_for("reach", ("grasp_pose", "target_offset"))
STEPS = 40
TORQUE_STEP = 1.0
"""Largest change of a torque command in one tick of 1 ms [Nm], published for FR3."""
Event = tuple[float, Callable[[], object]]


class Clock:
    """The twin, at whose times things happen."""

    def __init__(self, twin: Twin, events: list[Event], lag: Callable[[float], float]) -> None:
        self._twin = twin
        self._events = sorted(events, key=lambda event: event[0])
        self._lag = lag

    def __getattr__(self, name: str) -> Any:
        return getattr(self._twin, name)

    def advance(self, seconds: float) -> float:
        """Advances the twin by `seconds`, with the events that are due on the way."""
        end = round(self._twin.now() + seconds, 3)
        while self._events and self._events[0][0] <= end:
            at, happen = self._events.pop(0)
            self._twin.advance(round(max(at - self._twin.now(), 0.0), 3))
            happen()
        return self._lag(self._twin.advance(round(end - self._twin.now(), 3)))


class Policy:
    """Moves the hand forward, and does something else from a time on."""

    def __init__(self, then: Callable[[np.ndarray], np.ndarray] = lambda chunk: chunk) -> None:
        self.contract: Contract = CONTRACT
        self.calls = 0
        self._then = then

    def __call__(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        self.calls += 1
        chunk = np.zeros(noise.shape, np.float32)
        chunk[..., 0] = SPEED
        return self._then(chunk) if self.calls > FAULT_AT * self.contract.rate_hz else chunk


class Played(NamedTuple):
    """An episode with a fault."""

    stored: dict[str, Any]
    """Metadata of the recorded episode."""
    steps: int
    """Recorded steps of the policy."""
    stop_mm: float
    """Distance of the hand from where it was at the fault to where it rests [mm]."""
    lost: int
    """Lost commands."""


@pytest.fixture(scope="module")
def twin() -> Iterator[Twin]:
    settings = TwinConfig(host=address(97), log_seconds=6.0)
    with start_twin(settings, partial(TaskWorld, "reach")) as running:
        yield running


Play = Callable[..., Played]


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with Driver() as running:
        yield running


@pytest.fixture
def play(twin: Twin, driver: Driver, tmp_path: Path, request: pytest.FixtureRequest) -> Play:
    """Plays an episode in which something happens; checks the wire, and that the arm rests."""

    def played(
        *events: Event,
        policy: Any = None,
        observe: Callable[[], object] = lambda: None,
        lag: Callable[[float], float] = lambda now: now,
        loop: LoopConfig | None = None,
        wrap: Callable[[Clock], Any] = lambda clock: clock,
    ) -> Played:
        config = DeployTaskConfig(twin=TwinConfig(host=twin.host), max_steps=STEPS, videos=0)
        config = config if loop is None else replace(config, loop=loop)
        table = Table(config, observe)
        acting = policy or Policy()
        at: list[np.ndarray] = []
        noted = (FAULT_AT, lambda: at.append(tip(twin)))
        clock: Any = wrap(Clock(twin, [noted, *events], lag))
        before = twin.stats()
        with open_corrections(tmp_path / "store.zarr", table.schema(twin)) as store:
            setup = TwinSetup(config, acting, table, clock, store, driver)  # type: ignore[arg-type]
            # What is no limit and no stop of the arm ends the deployment, too.
            with contextlib.suppress(HandoffError):
                run_start(setup, 3, no_progress)
        after = twin.stats()
        check_wire(twin, int(after["motion_ticks"] - before["motion_ticks"]))
        twin.press_user_stop(False)
        twin.advance(1.5)
        rest = tip(twin)
        twin.advance(0.1)
        assert np.linalg.norm(tip(twin) - rest) < 1e-4, "the arm is at rest"
        read = EpisodeStore.open(tmp_path / "store.zarr", "r")
        stop = 1e3 * float(np.linalg.norm(rest - at[0])) if at else 0.0
        found = Played(
            dict(read.metadata(0)),
            len(read.read(0, "policy", ["action"])["action"]),
            stop,
            int(after["lost_packets"] - before["lost_packets"]),
        )
        note(request.node.name, found)
        return found

    return played


def note(name: str, found: Played) -> None:
    """Prints a row of the table, shown by `pytest -s`."""
    row = {"fault": name, "cause": found.stored["fault"], "stop_mm": round(found.stop_mm, 1)}
    sys.stdout.write(json.dumps({**row, "steps": found.steps, "lost": found.lost}) + "\n")


class Table(TaskTable):
    """The table of `reach`, whose every observation calls a function first."""

    def __init__(self, config: DeployTaskConfig, observe: Callable[[], object]) -> None:
        super().__init__(config, CONTRACT)
        self._before = observe

    def observe(self, state: Any) -> Any:
        self._before()
        return super().observe(state)

    def is_over(self) -> bool:
        """Goes on, wherever the goal is."""
        return False


def tip(twin: Twin | ArmOfItsOwn) -> np.ndarray:
    """(3,) position of the hand [m]."""
    qpos, _ = twin.call("scene")
    return FR3.chain.forward_kinematics(qpos[:7])[:3, 3]


def check_wire(twin: Twin, ticks: int) -> None:
    """Checks the limits in all states and commands of the last ticks of motion."""
    states = twin.recorded()[-ticks:]
    limits = FR3.limits
    assert (np.abs(states["tau_J_d"]) <= limits.tau_max + 1e-4).all()
    assert (np.abs(states["dq"]) <= limits.dq_max).all()
    assert ((limits.q_min < states["q"]) & (states["q"] < limits.q_max)).all()
    steps = np.abs(np.diff(states["tau_J_d"].astype(float), axis=0))
    assert (steps <= TORQUE_STEP + 1e-3).all(), "torques change by at most 1 Nm in a millisecond"


def at_step(then: Callable[[], object]) -> Callable[[], None]:
    """Calls `then` in every observation from the one at the fault on."""
    count = itertools.count()

    def observe() -> None:
        if next(count) >= FAULT_AT * CONTRACT.rate_hz:
            then()

    return observe


def check_ended(found: Played, cause: str, stop_mm: float) -> None:
    """Checks that a fault ended the episode: its cause, the record of it, the way of the stop."""
    assert cause in (found.stored["fault"] or "")
    assert not found.stored["success"]
    assert found.steps >= FAULT_AT * CONTRACT.rate_hz - 2, "nothing before the fault is lost"
    assert found.stop_mm <= stop_mm


def check_went_on(found: Played) -> None:
    """Checks that the episode took no harm."""
    assert found.stored["fault"] is None
    assert found.steps == STEPS


def test_nothing(play: Play) -> None:
    found = play()
    check_went_on(found)
    assert found.lost == 0


def test_drop_5_percent(twin: Twin, play: Play) -> None:
    found = play((FAULT_AT, lambda: twin.lose_packets(0.05)))
    twin.lose_packets(0.0)
    check_went_on(found)
    assert 10 < found.lost < 150


def test_delay_10_ms(twin: Twin, play: Play) -> None:
    """Commands that arrive after their millisecond are lost; the robot goes on for 20 of them."""
    found = play(
        (FAULT_AT, lambda: twin.lose_packets(1.0)),
        (FAULT_AT + 0.010, lambda: twin.lose_packets(0.0)),
    )
    check_went_on(found)
    assert 9 <= found.lost <= 11


def test_freeze_60_ms(twin: Twin, play: Play) -> None:
    found = play(
        (FAULT_AT, lambda: twin.lose_packets(1.0)),
        (FAULT_AT + 0.060, lambda: twin.lose_packets(0.0)),
    )
    twin.lose_packets(0.0)
    check_ended(found, "communication_constraints_violation", 30.0)


def test_jump_action(play: Play) -> None:
    """Actions from one corner of their range to the other in every step, and far beyond it."""
    sign = itertools.cycle((50.0, -50.0))
    found = play(policy=Policy(lambda chunk: np.full_like(chunk, next(sign))))
    check_went_on(found)


def test_nan(play: Play) -> None:
    found = play(policy=Policy(lambda chunk: chunk * np.nan))
    check_ended(found, "nan", 60.0)


def test_hung_policy(play: Play) -> None:
    released = threading.Event()

    def hang(chunk: np.ndarray) -> np.ndarray:
        released.wait(30.0)
        return chunk

    loop = replace(DeployTaskConfig().loop, wait_for_policy=False)
    found = play(policy=Policy(hang), loop=loop)
    released.set()
    check_ended(found, "watchdog: no valid action for", 60.0)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`handoff serve` with the policy that moves the hand forward, and its address."""
    weights = np.zeros((CONTRACT.observation_size + 1, CONTRACT.action.shape[0]))
    weights[-1, 0] = SPEED
    save_linear_policy(folder / "policy.onnx", CONTRACT, weights)
    root = Path(__file__).parents[3]
    code = f"""
import asyncio
from pathlib import Path
from policies.serve import PolicyServer, ServeConfig
from real.deploy.onnx_policy import OnnxPolicy

policy = OnnxPolicy(Path({str(folder / "policy.onnx")!r}))
server = PolicyServer(policy, policy.contract, ServeConfig(port=0), {TOKEN!r})
asyncio.run(server.run(lambda port: print(port, flush=True)))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdout is not None
        yield process, f"ws://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


def test_killed_policy(play: Play, tmp_path: Path) -> None:
    """A policy in a process of its own, at the other end of a connection, which is killed."""
    with serving(tmp_path) as (process, uri), RemotePolicy(RemoteConfig(uri=uri), TOKEN) as policy:
        found = play(policy=policy, observe=at_step(process.kill))
    check_ended(found, "the connection is closed", 60.0)


def test_user_stop(twin: Twin, play: Play) -> None:
    found = play((FAULT_AT, twin.press_user_stop))
    check_ended(found, "user stop", 30.0)


def test_reflex(twin: Twin, play: Play) -> None:
    """Something pushes harder than the collision thresholds allow."""
    found = play((FAULT_AT, lambda: twin.call("push", (-250.0, 0.0, 0.0), 0.1)))
    check_ended(found, "reflex", 60.0)


def test_stale_state(play: Play) -> None:
    """The robot's time stands: its states repeat."""

    class Standing:
        def __init__(self, clock: Clock) -> None:
            self._clock = clock
            self._frozen: float | None = None
            self._wall = WallClock(self.robot_time, patience=0.1)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._clock, name)

        def robot_time(self) -> float:
            assert self._frozen is not None
            return self._frozen

        def advance(self, seconds: float) -> float:
            now = self._clock.now()
            if now < FAULT_AT:
                return self._clock.advance(seconds)
            self._frozen = now if self._frozen is None else self._frozen
            return self._wall.advance(seconds)

    found = play(wrap=Standing)
    check_ended(found, "robot clock: stopped at", 60.0)


def test_clock_jump(play: Play) -> None:
    """Robot time jumps by a second, as after a pause of the robot's computer."""
    found = play(lag=lambda now: now + (1.0 if now > FAULT_AT else 0.0))
    check_ended(found, "watchdog: no valid action for", 60.0)


def test_wrong_payload(twin: Twin, driver: Driver) -> None:
    """The hand is heavier than the robot knows."""
    twin.reset(3)
    settings = FrankaConfig(host=twin.host, realtime="ignore", latch="connection", tool_length=None)
    with DrivenArm(driver, settings, twin, twin.wait_for_motion) as arm:
        twin.call("push", (0.0, 0.0, -15.0), 1.0)
        twin.advance(0.5)
        with pytest.raises(SafetyError, match=r"Nm at rest, limit .* tool's mass configured"):
            arm.preflight()
    twin.advance(1.0)


def test_wrong_version(driver: Driver) -> None:
    """A robot whose network protocol is another one."""
    with socket.create_server((address(96), protocol.PORT)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                request = connection.recv(1024)
                command, command_id, _ = struct.unpack_from("<III", request)
                # Status 1, incompatible, and the robot's version.
                connection.sendall(struct.pack("<IIIBH", command, command_id, 15, 1, 7))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(HandoffError, match="version"):
            DrivenArm(driver, FrankaConfig(host=address(96), realtime="ignore")).__enter__()
        thread.join(5.0)


def test_camera_dead(play: Play) -> None:
    class Dead:
        """A camera whose last picture stays the newest."""

        fault = None

        def __init__(self) -> None:
            self.picture = Picture(np.zeros((4, 4, 3), np.uint8), time.monotonic())

        def read(self) -> Picture:
            return self.picture

    camera = Dead()
    pictures = ArmPictures({"front": camera}, {"front": 0.2})
    state: Any = SimpleNamespace(time=0.0)
    look = partial(pictures.observe, state, 0.0)

    def observe() -> None:
        time.sleep(0.25)
        look()

    found = play(observe=at_step(observe))
    check_ended(found, "camera front: its newest picture is", 60.0)


def test_tracker_frozen(play: Play) -> None:
    """A tracker that goes on sending the same picture."""

    def send(connection: Any) -> None:
        while True:
            connection.send(pack({"pose": np.array([0.2, 0.2, 0.0]), "frame": 1}))
            time.sleep(0.02)

    with serve(send, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        config = TrackerConfig(uri=uri, max_age=0.1)
        with RemoteTracker(config, [board_field(config)]) as tracker:

            def observe() -> None:
                time.sleep(0.15)
                tracker.read("pose")

            found = play(observe=at_step(observe))
        server.shutdown()
    check_ended(found, "newest pose is", 60.0)


def signalled(driver: Driver, number: signal.Signals) -> Callable[[], None]:
    """Sends a signal to the process that drives the arm, once."""
    pid = driver.pid

    def send() -> None:
        if driver.pid == pid and pid is not None:
            os.kill(pid, number)
            time.sleep(0.3)

    return send


def test_killed_driver(twin: Twin, driver: Driver, play: Play) -> None:
    """The process that drives the arm is killed: its connection closes, and the robot brakes."""
    with connected(driver, twin):
        kill = signalled(driver, signal.SIGKILL)
    found = play(observe=at_step(kill))
    check_ended(found, "driver of the arm: was killed by SIGKILL", 60.0)
    assert not driver.running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signalled_driver(twin: Twin, driver: Driver, play: Play, number: signal.Signals) -> None:
    """A signal that ends the driver has it bring the arm to rest first."""
    with connected(driver, twin):
        end = signalled(driver, number)
    found = play(observe=at_step(end))
    cause = "interrupted" if number is signal.SIGINT else f"ended by {number.name}"
    check_ended(found, f"driver of the arm: {cause}. The arm was brought to rest", 60.0)


@contextlib.contextmanager
def connected(driver: Driver, twin: Twin) -> Iterator[DrivenArm]:
    """The twin's arm, connected; the driver runs afterwards."""
    twin.reset(3)
    settings = FrankaConfig(host=twin.host, realtime="ignore", latch="connection", tool_length=None)
    with DrivenArm(driver, settings, twin, twin.wait_for_motion) as arm:
        yield arm


SESSION = """
import signal, sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from flows.deployment.config import DeployTaskSession
from real.deploy.episode_recorder import deploy_schema
from real.deploy.loop import run_episode
from real.deploy.recording import EpisodeRecording
from real.driver.driven_arm import DrivenArm
from real.driver.driver import Driver
from real.motion.action_space import CartesianSteps
from robots.episodes.corrections import open_corrections
from robots.signals import raising_signals
from tests.flows.deployment.test_fault_matrix import CONTRACT, FR3, Policy

def main():
    session = DeployTaskSession()
    settings = replace(session.arm, host=sys.argv[1], realtime="ignore", latch="kept")
    schema = deploy_schema(CONTRACT, {}, session.loop, FR3, "base",
                           coordinates=len(CONTRACT.steps.axes))
    with raising_signals(), Driver() as driver, open_corrections(Path(sys.argv[2]), schema) as store:
        recording = EpisodeRecording(store, lambda: {"seed": 0}, lambda: {"seed": 0})
        with recording, DrivenArm(driver, settings) as arm:
            space = CartesianSteps(CONTRACT, arm.preflight().base_T_ee, FR3)
            governor = space.governed(session.loop.governor)
            loop = replace(session.loop, governor=governor, max_steps=400)
            calls = []

            def observe(state):
                calls.append(0)
                if len(calls) == 12:
                    print("moving", driver.pid, flush=True)
                return {}

            with recording.of(arm):
                run_episode(arm, arm.clock, Policy(), CONTRACT, observe, loop, space=space,
                            seed=0, record=recording.record)

if __name__ == "__main__":
    main()
"""


class Session:
    """A session in a process of its own, at an arm whose time is its own."""

    def __init__(self, folder: Path, twin: ArmOfItsOwn) -> None:
        root = Path(__file__).parents[3]
        script = folder / "session.py"
        script.write_text(SESSION)
        self.store = folder / "store.zarr"
        self.twin = twin
        self.process = subprocess.Popen(
            [sys.executable, str(script), twin.host, str(self.store)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "XDG_STATE_HOME": str(folder)},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("moving "), self.process.communicate(timeout=30.0)[1]
        self.driver = int(line.split()[1])
        self.at = tip(twin)

    def close(self) -> None:
        """Kills what is left of it."""
        self.process.kill()
        self.process.communicate(timeout=30.0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.driver, signal.SIGKILL)

    def rest(self, most: float) -> None:
        """Checks that the arm comes to rest at most so far from where it was [m], within seconds of
        its own time."""
        rest = tip(self.twin)
        for _ in range(10):
            self.twin.wait(0.3)
            here = tip(self.twin)
            if np.linalg.norm(here - rest) < 1e-4:
                break
            rest = here
        else:
            raise AssertionError("the arm does not come to rest")
        gone = float(np.linalg.norm(rest - self.at))
        sys.stdout.write(json.dumps({"stop_mm": round(1e3 * gone, 1)}) + "\n")
        assert gone < most

    def gone(self, pid: int) -> None:
        """Waits until a process has ended."""
        deadline = time.monotonic() + 10.0
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "a process outlives its session"
            time.sleep(0.05)

    def recovered(self) -> dict[str, Any]:
        """Metadata of the episode, which the next session finds on the disk."""
        with EpisodeStore.open(self.store, "a") as store:
            recover_interrupted(store, log=lambda line: None)
            assert len(store.read(0, "policy", ["action"])["action"]) >= 8, "nothing is lost"
            assert len(store.read(0, "robot", ["q"])["q"]) >= 300
            return dict(store.metadata(0))


class ArmOfItsOwn:
    """The twin as an arm whose time its client does not grant; on a busy computer it passes more
    slowly, so that no command is late for that alone."""

    def __init__(self, twin: Twin) -> None:
        self.host = twin.host
        self._twin = twin
        self._one = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._pass)
        self._thread.start()

    def call(self, name: str) -> Any:
        """See `Twin.call`."""
        with self._one:
            return self._twin.call(name)

    def wait(self, seconds: float) -> None:
        """Waits until so much of the arm's time has passed [s]."""
        end, deadline = self._twin.now() + seconds, time.monotonic() + 60.0
        while self._twin.now() < end:
            assert time.monotonic() < deadline, "the arm's time stands"
            time.sleep(0.01)

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _pass(self) -> None:
        clock = PacedClock(self._twin)
        while not self._over.is_set():
            with self._one:
                clock.advance(0.004)


@pytest.fixture
def session(real_time: ArmOfItsOwn, tmp_path: Path) -> Iterator[Session]:
    with contextlib.closing(Session(tmp_path, real_time)) as running:
        yield running


@pytest.fixture
def real_time() -> Iterator[ArmOfItsOwn]:
    with start_twin(TwinConfig(host=address(95)), partial(TaskWorld, "reach")) as twin:
        twin.reset(3)
        with contextlib.closing(ArmOfItsOwn(twin)) as arm:
            yield arm


def faults_of(folder: Path, twin: ArmOfItsOwn) -> str:
    """The faults that are kept of an arm."""
    file = folder / "handoff" / "faults" / f"{twin.host}.jsonl"
    return file.read_text() if file.exists() else ""


def test_killed_session(session: Session, tmp_path: Path) -> None:
    """The process of the policy is killed: the pipe to the driver closes, which brings the arm to
    rest, keeps the fault, and ends."""
    session.process.kill()
    session.rest(0.06)
    session.gone(session.driver)
    session.process.wait()
    assert "the process of its policy ended while the arm moved" in faults_of(
        tmp_path, session.twin
    )
    assert session.recovered()["discard_reason"] == "interrupted"


def test_hung_session(session: Session, tmp_path: Path) -> None:
    """The process of the policy stands still, also for the driver: its last action grows old."""
    os.kill(session.process.pid, signal.SIGSTOP)
    session.rest(0.10)
    os.kill(session.process.pid, signal.SIGCONT)
    said = session.process.communicate(timeout=30.0)[1]
    assert "watchdog: no valid action for" in said
    with EpisodeStore.open(session.store, "r") as store:
        assert "watchdog: no valid action for" in store.metadata(0)["fault"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signalled_session(session: Session, tmp_path: Path, number: signal.Signals) -> None:
    session.process.send_signal(number)
    session.rest(0.06)
    session.process.communicate(timeout=30.0)
    session.gone(session.driver)
    with EpisodeStore.open(session.store, "r") as store:
        fault = store.metadata(0)["fault"]
    assert fault in ("interrupted", f"ended by {number.name}")
    assert faults_of(tmp_path, session.twin) == "", "a person ended it"


def test_killed_driver_of_a_session(session: Session, tmp_path: Path) -> None:
    """In real time: the robot brakes, the session names the cause, keeps it and records it."""
    os.kill(session.driver, signal.SIGKILL)
    session.rest(0.06)
    said = session.process.communicate(timeout=30.0)[1]
    assert "driver of the arm: was killed by SIGKILL" in said
    assert "was killed by SIGKILL" in faults_of(tmp_path, session.twin)
    with EpisodeStore.open(session.store, "r") as store:
        assert "was killed by SIGKILL" in store.metadata(0)["fault"]
        assert len(store.read(0, "policy", ["action"])["action"]) >= 8


def test_the_watchdog_of_the_matrix_is_the_default() -> None:
    assert DeployTaskConfig().loop.watchdog == WatchdogConfig()
