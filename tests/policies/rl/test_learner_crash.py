"""Actor and learner as processes that die by SIGKILL: no committed step is lost, none is taken
twice."""

from __future__ import annotations

import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np

from policies.rl.hil.learner import STATE
from real.hil.actor import Actor, ActorStep
from real.hil.journal import Journal
from real.hil.learner_client import LearnerClient
from tests.forked_process import forked_process_context
from tests.policies.rl.training import (
    LONG,
    TOKEN,
    Counted,
    Serving,
    act,
    buffers,
    learn,
    link_config,
    loaded,
)
from tests.toy_envs.point_reach import PointReach
from tests.toy_envs.vec_env import ExpertOperator, ToyActions, ToyVecEnv

FORKED = forked_process_context()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class LearnerProcess:
    def __init__(self, folder: Path, port: int) -> None:
        self._told, end = FORKED.Pipe(duplex=False)
        self.process = FORKED.Process(target=learn, args=(folder, port, end))
        self.process.start()
        end.close()
        assert self.next_word() == port

    def next_word(self) -> int:
        assert self._told.poll(LONG)
        return self._told.recv()

    def until(self, updates: int) -> int:
        """Waits until it stands at that many updates or more; returns where it was first seen."""
        first = reached = self.next_word()
        while reached < updates:
            reached = self.next_word()
        return first

    def end(self, number: signal.Signals) -> int | None:
        assert self.process.pid is not None
        self.process.kill() if number == signal.SIGKILL else self.process.terminate()
        self.process.join(LONG)
        return self.process.exitcode


def wait_for(condition, what: str) -> None:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < LONG, what
        time.sleep(0.01)


def test_a_killed_learner_loses_and_doubles_nothing_and_the_actor_never_waits_for_it(
    tmp_path: Path,
) -> None:
    folder, port = tmp_path / "learner", free_port()
    learner = LearnerProcess(folder, port)
    acted: list[ActorStep] = []
    env = ToyVecEnv(PointReach)
    with (
        Journal(tmp_path / "journal") as journal,
        LearnerClient(journal, link_config(port), TOKEN, tmp_path) as link,
    ):
        actor = Actor(
            env,
            ExpertOperator(env.toy_env, 10, 3),
            journal,
            link,
            actions=ToyActions(env.toy_env),
            clock=Counted(0.01),
            watch=acted.append,
        )
        thread = threading.Thread(target=actor.run)
        thread.start()
        learner.until(30)
        then = time.time_ns()
        saved = folder / STATE
        wait_for(
            lambda: saved.exists() and saved.stat().st_mtime_ns > then,
            "no checkpoint after 30 updates",
        )
        assert learner.end(signal.SIGKILL) == -signal.SIGKILL
        made = len(acted)
        wait_for(lambda: len(acted) >= made + 100, "the actor stands still without its learner")
        assert link.state.waiting > 0
        learner = LearnerProcess(folder, port)
        resumed = learner.until(60)
        assert resumed > 30
        actor.stop()
        thread.join(LONG)
        assert link.flush(LONG)
        assert link.state.waiting == 0
        second = link.state.version
    assert learner.end(signal.SIGTERM) == 0
    assert second // 10**9 == 2
    replay = loaded(folder)
    assert replay["number"].tolist() == [int(one.steps.number[0]) for one in acted]
    assert replay["episode"].tolist() == [int(one.steps.episode[0]) for one in acted]
    assert np.array_equal(
        replay["observation"], np.concatenate([one.steps.observation for one in acted])
    )
    assert np.array_equal(replay["action"], np.concatenate([one.steps.action for one in acted]))
    corrections = np.concatenate([one.steps.observation[one.steps.intervention] for one in acted])
    _, demos = buffers()
    before = len(demos)
    demos.load(folder / "demos")
    assert np.array_equal(demos.columns["observation"][before : len(demos)], corrections)
    assert 0.2 < len(corrections) / len(acted) < 0.4


def test_an_actor_killed_while_it_writes_loses_no_committed_step_and_uses_no_episode_number_twice(
    tmp_path: Path,
) -> None:
    record = tmp_path / "record"
    with Serving(tmp_path / "learner") as serving:
        for die_at in (35, 0, 61):
            options = {"record": record, "die_at": die_at}
            process = FORKED.Process(
                target=act, args=(tmp_path / "journal", serving.port, 200), kwargs=options
            )
            process.start()
            process.join(LONG)
            assert process.exitcode == -signal.SIGKILL
        act(tmp_path / "journal", serving.port, 20, record=record)
    committed = np.fromfile(record, np.int64).reshape(-1, 2)
    assert len(committed) == 35 + 0 + 61 + 20
    replay = loaded(tmp_path / "learner")
    assert replay["episode"].tolist() == committed[:, 0].tolist()
    assert replay["number"].tolist() == committed[:, 1].tolist()
    starts = [int(episode) >> 24 for episode in committed[:, 0]]
    assert starts == [1] * 35 + [3] * 61 + [4] * 20
    # The step at which an actor died is followed by nothing, and its value goes on.
    assert replay["successor"][34] == -1
    assert not replay["terminated"][34]


def test_with_several_steps_per_entry_a_crash_loses_only_the_entry_that_was_open(
    tmp_path: Path,
) -> None:
    record = tmp_path / "record"
    with Serving(tmp_path / "learner") as serving:
        # Entries of four: the eighth is torn.
        options = {"record": record, "die_at": 31, "commit_every": 4}
        process = FORKED.Process(
            target=act, args=(tmp_path / "journal", serving.port, 200), kwargs=options
        )
        process.start()
        process.join(LONG)
        assert process.exitcode == -signal.SIGKILL
        act(tmp_path / "journal", serving.port, 10, record=record, commit_every=4)
    assert len(np.fromfile(record, np.int64)) == 2 * (31 + 10)
    replay = loaded(tmp_path / "learner")
    assert replay["number"].tolist() == [*range(28), *range(10)]
    assert (replay["episode"] >> 24).tolist() == [1] * 28 + [2] * 10
