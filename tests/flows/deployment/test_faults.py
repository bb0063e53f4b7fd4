"""A deployed episode that ends with a fault is recorded up to then, with the fault's message."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from flows.session.latency import FILE
from robots.episodes.metadata.episode_metadata import utc_now
from robots.episodes.running_episode import recover_interrupted
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError, SafetyError
from robots.interfaces import Label
from tests.flows.deployment.fake_tables import SEED, PushTable, SupervisedTable, Table, TaskTable
from tests.real.onnx_models import save_policy

ROOT = Path(__file__).resolve().parents[3]
AT = 0.9
"""Robot time of every fault [s]."""
TABLES = (SupervisedTable, PushTable, TaskTable)


def raises(error: BaseException) -> Callable[[], NoReturn]:
    def now() -> NoReturn:
        raise error

    return now


def in_the_robot(table: Table, error: BaseException) -> None:
    """Raised where the loop waits for robot time, and by every later call of the kind."""
    table.at(AT, raises(error))


def in_the_policy(table: Table, error: BaseException) -> None:
    table.at(AT - 0.2, lambda: setattr(table, "infer", raises(error)))


KINDS: dict[str, tuple[Callable[[Table, BaseException], None], BaseException]] = {
    "limit": (in_the_robot, SafetyError("arm: stopped")),
    "lost connection": (
        in_the_robot,
        HandoffError("arm at 172.16.0.2: connection lost (libfranka: UDP receive)"),
    ),
    "standing clock": (in_the_robot, HandoffError("robot clock: stands at 5.000 s for 1.0 s.")),
    "defect of the runtime": (in_the_policy, RuntimeError("ONNXRuntimeError: 6")),
    "Ctrl-C": (in_the_robot, KeyboardInterrupt()),
}
MESSAGES = {"defect of the runtime": "RuntimeError: ONNXRuntimeError: 6", "Ctrl-C": "interrupted"}


def make_table(kind: type[Table], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    table = kind(folder)
    monkeypatch.setattr("real.driver.driven_arm.DrivenArm", lambda *arguments: table.arm)
    return table


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table_of", TABLES)
def test_an_episode_is_stored_with_what_ended_it(
    table_of: type[Table], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, (place, error) = make_table(table_of, tmp_path, monkeypatch), KINDS[kind]
    place(table, error)
    if isinstance(error, SafetyError) and table_of is not SupervisedTable:
        # The stage recovers instead of a person, and continues with the next start.
        assert table.run().fault == "arm: stopped"
    else:
        with pytest.raises(type(error)) as caught:
            table.run()
        assert caught.value is error
    store = table.stored()
    assert store.num_episodes == 1
    about = store.metadata(0)
    assert (about["fault"], about["seed"], about["success"]) == (
        MESSAGES.get(kind, str(error)),
        SEED,
        False,
    )
    streamed, robot = (
        len(store.read(0, stream, [name])[name])
        for stream, name in (("reference", "asked"), ("robot", "q"))
    )
    assert robot == pytest.approx(streamed, abs=1)
    assert streamed / store.schema.streams["reference"].rate_hz == pytest.approx(AT, abs=0.25)
    assert table.arm.stopped == 1


@pytest.mark.parametrize("table_of", TABLES)
def test_an_episode_that_nothing_disturbs_has_no_fault(
    table_of: type[Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(table_of, tmp_path, monkeypatch)
    table.run()
    assert table.stored().metadata(0)["fault"] is None


def test_a_stored_episode_states_its_session_its_times_and_what_ended_it(tmp_path: Path) -> None:
    table = SupervisedTable(tmp_path)
    before = utc_now()
    table.run()
    about = table.stored().metadata(0)
    assert before <= about["began"] <= about["ended"] <= utc_now()
    assert (about["ended_by"], about["labelled_by"]) == ("time_limit", "task")
    assert (about["host"], about["policy_digest"]) == ("twin", "p" * 8)
    assert about.items() >= SupervisedTable.about.items()


@pytest.mark.parametrize("table_of", TABLES)
def test_an_arm_whose_context_cannot_be_left_loses_nothing(
    table_of: type[Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(table_of, tmp_path, monkeypatch)
    table.arm.leaving = HandoffError("arm: connection lost on leaving")
    with pytest.raises(HandoffError, match="lost on leaving"):
        table.run()
    store = table.stored()
    assert "lost on leaving" in store.metadata(0)["fault"]
    assert len(store.read(0, "policy", ["action"])["action"]) > 10


@pytest.mark.parametrize("table_of", TABLES)
def test_states_that_never_arrive_lose_nothing_but_themselves(
    table_of: type[Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(table_of, tmp_path, monkeypatch)
    table.arm.lost_from = AT
    with pytest.raises(HandoffError, match=r"state recorder: has states up to 0\.900 s"):
        table.run()
    store = table.stored()
    assert "state recorder" in store.metadata(0)["fault"]
    assert store.read(0, "robot", ["time"])["time"][-1] == pytest.approx(AT)


def test_an_arm_that_cannot_be_stopped_hides_nothing(tmp_path: Path) -> None:
    table = SupervisedTable(tmp_path)
    in_the_robot(table, KeyboardInterrupt())
    table.arm.stop_error = SafetyError("arm: the motion did not end within 4.0 s of robot time.")
    with pytest.raises(KeyboardInterrupt):
        table.run()
    fault = table.stored().metadata(0)["fault"]
    assert fault == f"interrupted. Stopping the arm failed: {table.arm.stop_error}"


@pytest.mark.parametrize("where", ["in the same tick", "in stopping"])
def test_a_label_that_counts_is_kept_with_the_fault_that_comes_with_it(
    where: str, tmp_path: Path
) -> None:
    table, lost = SupervisedTable(tmp_path), HandoffError("connection lost")
    table.at(AT, lambda: setattr(table.supervision, "label", Label.SUCCESS))
    if where == "in stopping":
        table.arm.stop_error = lost
    else:
        table.at(AT, raises(lost))
    with pytest.raises(HandoffError, match="connection lost"):
        table.run()
    about = table.stored().metadata(0)
    assert (about["label"], about["success"], about["fault"]) == (
        "success",
        True,
        "connection lost",
    )


def test_a_session_that_the_person_ends_stores_no_running_episode(tmp_path: Path) -> None:
    table = SupervisedTable(tmp_path)
    table.at(AT, lambda: setattr(table.supervision, "stopped", True))
    assert not table.run().recorded
    assert table.stored().num_episodes == 0


def test_an_episode_that_cannot_be_stored_is_reported_with_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SupervisedTable(tmp_path)
    table.at(AT, raises(HandoffError("connection lost.")))
    full = raises(HandoffError("store.zarr: no space left."))
    monkeypatch.setattr("robots.episodes.store.EpisodeStore.adopt", lambda *arguments: full())
    with pytest.raises(
        HandoffError,
        match=r"^connection lost\. The recorded episode could not be stored: .*no space left",
    ):
        table.run()


def test_ctrl_c_while_an_episode_is_written_waits_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt = EpisodeStore.adopt

    def interrupted(*arguments: Any) -> int:
        signal.raise_signal(signal.SIGINT)
        return adopt(*arguments)

    table = SupervisedTable(tmp_path)
    monkeypatch.setattr(EpisodeStore, "adopt", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.run()
    assert table.stored().metadata(0)["fault"] is None


def test_ctrl_c_while_rows_are_written_doubles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from robots.episodes.running_episode import RunningEpisode

    extend, calls = RunningEpisode.extend, []

    def interrupted(self: Any, stream: str, samples: Any) -> None:
        extend(self, stream, samples)
        calls.append(stream)
        if calls.count("robot") == 4 and stream == "robot":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunningEpisode, "extend", interrupted)
    table = SupervisedTable(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        table.run()
    store = table.stored()
    assert store.metadata(0)["ended_by"] == "fault"
    np.testing.assert_allclose(np.diff(store.read(0, "robot", ["time"])["time"]), 0.004)


def test_a_full_disk_ends_the_episode_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from robots.episodes.segments.episode_files import StreamFiles

    append = StreamFiles.append_rows

    def full(self: Any, rows: np.ndarray) -> None:
        if self.rows > 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, rows)

    monkeypatch.setattr(StreamFiles, "append_rows", full)
    table = SupervisedTable(tmp_path, steps=10_000)
    table.clock.on_tick.append(lambda: time.sleep(0.0005))
    with pytest.raises(HandoffError, match="the running episode cannot be written") as caught:
        table.run()
    assert str(caught.value).count("the running episode cannot be written") == 1
    assert table.arm.stopped == 1
    monkeypatch.undo()
    # What had been written before is an episode after the next start.
    with EpisodeStore.open(table.path, "a") as store:
        assert recover_interrupted(store, log=lambda line: None) == 1
        assert len(store.read(0, "reference", ["asked"])["asked"]) > 100


SESSION = """
import sys, time
from pathlib import Path
from flows.__main__ import main
from tests.flows.deployment.fake_tables import SupervisedTable

folder = Path(sys.argv[1])

def deploy(*arguments, **options):
    table = SupervisedTable(folder, steps=10_000)
    stop = table.arm.stop

    def stop_after(seconds):
        print("stopping", flush=True)
        time.sleep(seconds)
        stop()

    if len(sys.argv) > 2:
        table.arm.stop = lambda: stop_after(float(sys.argv[2]))
    table.arm.events = lambda event: (folder / event).touch()
    table.clock.on_tick.append(lambda: time.sleep(0.002))
    table.at(0.5, lambda: print("running", flush=True))
    table.run()

import flows.deployment.session
flows.deployment.session.deploy_command = deploy
sys.exit(main(["deploy", "gate", "--out", str(folder)]))
"""
"""A session in a process of its own: its folder, and the time that its arm takes to stop [s]."""
STOPPING = "stopping: the arm comes to rest, and an episode that runs is stored"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_session_that_a_signal_ends_stops_the_arm_and_keeps_its_episode(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", SESSION, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == "running\n"
        session.send_signal(number)
        _, said = session.communicate(timeout=60.0)
    assert (tmp_path / "stopped").exists(), said
    assert (tmp_path / "left").exists()
    reason = "interrupted" if number is signal.SIGINT else f"ended by {number.name}"
    assert session.returncode == 128 + number, said
    first, second = said.splitlines()
    assert first == STOPPING
    assert second == f"handoff: {reason}. The episodes so far are in {tmp_path / 'store.zarr'}."
    table = SupervisedTable(tmp_path)
    store = table.stored()
    assert store.num_episodes == 1
    assert store.metadata(0)["fault"] == reason
    assert np.all(store.read(0, "policy", ["step_time"])["step_time"] >= 0.0)


def test_a_session_says_that_it_ends_before_its_arm_has_stopped(tmp_path: Path) -> None:
    """Its stop takes three seconds, during which signals are delayed."""
    command = [sys.executable, "-c", SESSION, str(tmp_path), "3.0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as session:
        assert session.stdout is not None
        assert session.stderr is not None
        assert session.stdout.readline() == "running\n"
        session.send_signal(signal.SIGINT)
        assert session.stderr.readline() == f"{STOPPING}\n"
        assert not (tmp_path / "left").exists()
        session.communicate(timeout=60.0)
    assert (tmp_path / "left").exists()


def test_a_second_ctrl_c_does_not_interrupt_the_stop_of_the_arm(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SESSION, str(tmp_path), "0.5"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == "running\n"
        session.send_signal(signal.SIGINT)
        assert session.stdout.readline() == "stopping\n"
        session.send_signal(signal.SIGINT)
        _, said = session.communicate(timeout=60.0)
    assert (tmp_path / "stopped").exists(), said
    assert session.returncode == 130, said
    assert SupervisedTable(tmp_path).stored().metadata(0)["fault"].startswith("interrupted")


CLOSED = """
import sys
from pathlib import Path
import flows.deployment.session as deploying
from flows.__main__ import main
from flows.deployment.session_tables import supervised_run
from flows.deployment.session_tables.board import SimulatedSetup
from flows.deployment.config import DeploySession
from real.console.server import ConsoleConfig
from real.deploy.loop import LoopConfig
from real.deploy.supervision import Supervision
from sim.twin.twin import TwinConfig

tracked_pose, calls = SimulatedSetup.pose, []

def pose(self):
    calls.append(0)
    if len(calls) == 13:
        print("running", flush=True)
    return tracked_pose(self)

SimulatedSetup.pose = pose
supervised_run.wait_for_resume = lambda supervision: True
Supervision.poll = lambda self: setattr(self, "paused", False)
session = DeploySession(loop=LoopConfig(max_steps=10_000), twin=TwinConfig(host="127.0.79.21"))
folder = Path(sys.argv[1])
deploying.deploy_command = lambda *arguments, **options: deploying.deploy(
    session, folder, folder, ConsoleConfig(port=0)
)
sys.exit(main(["deploy", "gate"]))
"""


def test_a_terminal_that_is_closed_leaves_the_robot_to_be_stopped(tmp_path: Path) -> None:
    """SIGHUP reaches every process of the terminal, the simulated robot's as well, which goes on
    until it is ended."""
    save_policy(tmp_path / "policy.onnx", scale=0.0)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", CLOSED, str(tmp_path)],
        cwd=ROOT,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    ) as session:
        assert session.stdout is not None
        line = session.stdout.readline()
        os.killpg(session.pid, signal.SIGHUP)
        _, said = session.communicate(timeout=60.0)
    assert line == "running\n", said
    assert session.returncode == 128 + signal.SIGHUP, said
    store = EpisodeStore.open(tmp_path / "store.zarr")
    assert store.metadata(0)["fault"] == "ended by SIGHUP"
    assert len(store.read(0, "robot", ["q"])["q"]) > 900
    assert json.loads((tmp_path / FILE).read_text())["episodes"] == 1
