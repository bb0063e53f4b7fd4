"""Environments on a second machine, a network namespace of its own, whose link is cut and slowed
down."""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.interfaces import Observation, VecEnv, no_progress
from robots.wire.policy import TOKEN_VARIABLE
from sim.evaluation.agent import Agent, RandomAgent
from sim.evaluation.evaluate import EvaluateConfig, evaluate, make_env
from sim.evaluation.protocol import Protocol
from tests.second_machine import SecondMachine, second_machine
from tests.sim.servers.light_python import light_python
from tests.sim.servers.served import served_walk
from tests.sim.servers.test_server import same
from tests.sim.walk import make_walk

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "a-token-of-some-length"
PORT = 8770
NOTICED = 10.0
"""Time within which a cut link must be noticed [s]."""

pytestmark = pytest.mark.needs("second machine")


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecondMachine]:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with second_machine() as machine:
        yield machine


@pytest.fixture
def address(there: SecondMachine) -> Iterator[str]:
    process = listening(there)
    yield f"{there.there}:{PORT}"
    process.terminate()
    process.wait(20.0)


def listening(machine: SecondMachine, python: str = "") -> subprocess.Popen[str]:
    """A listener on a machine, whose Python has NumPy and msgpack only by default."""
    process = machine.start(
        [python or light_python(), "-m", "sim.servers.listen", f"{machine.there}:{PORT}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline()
    return process


def actions(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).uniform(-1.0, 1.0, (count, 4, 1)))


def test_another_token_is_refused_across_the_link(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "another-token-of-some-length")
    with pytest.raises(HandoffError, match="another token"):
        served_walk(1, address=address)


def test_a_cut_link_is_an_error_within_ten_seconds(there: SecondMachine, address: str) -> None:
    env = served_walk(4, address=address, restarts=0)
    env.reset(range(4))
    there.cut()
    cut = time.monotonic()
    with pytest.raises(HandoffError, match=r"Is the link or the machine down\?"):
        env.step(actions(1)[0])
    assert time.monotonic() - cut < NOTICED
    env.close()


def test_a_link_that_is_cut_while_the_engine_computes_is_noticed(
    there: SecondMachine, address: str
) -> None:
    # Nothing is on its way: only the probes of the connection find out.
    env = served_walk(
        2, {"failure": "hang"}, engine="tests.sim.servers.failing", address=address, restarts=0
    )
    env.reset([1, 2])
    env.send([np.full((2, 1), 2.0)])
    time.sleep(0.5)
    there.cut()
    cut = time.monotonic()
    with pytest.raises(HandoffError, match=r"Is the link or the machine down\?"):
        env.receive()
    assert time.monotonic() - cut < NOTICED
    env.close()


def test_a_link_that_comes_back_changes_no_result(
    there: SecondMachine, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    here, remote = make_walk(4, "reset", 5), served_walk(4, max_steps=5, address=address)
    try:
        same_start = here.reset(range(4)), remote.reset(range(4))
        np.testing.assert_array_equal(same_start[0]["place"], same_start[1]["place"])
        with caplog.at_level(logging.WARNING):
            for number, action in enumerate(actions(12)):
                if number == 6:
                    there.cut()
                    there.mend(after_s=12.0)
                same(here.step(action), remote.step(action))
        assert "continue in a new server" in caplog.text
    finally:
        remote.close()


def test_a_lost_machine_is_replaced_by_another_one(there: SecondMachine, address: str) -> None:
    with second_machine(1) as third:
        process = listening(third)
        both = f"{address},{third.there}:{PORT}"
        here, remote = (
            make_walk(4, "reset", 5),
            served_walk(4, max_steps=5, servers=2, address=both),
        )
        try:
            here.reset(range(4))
            remote.reset(range(4))
            for number, action in enumerate(actions(12)):
                if number == 6:
                    there.cut()
                same(here.step(action), remote.step(action))
        finally:
            remote.close()
            process.terminate()
            process.wait(20.0)


def test_a_machine_that_stays_away_is_an_error_in_time(there: SecondMachine, address: str) -> None:
    env = served_walk(4, address=address, patience_s=0.5)
    env.reset(range(4))
    there.cut()
    with pytest.raises(HandoffError, match=f"{address}: cannot be reached .*restarted"):
        env.step(actions(1)[0])
    with pytest.raises(HandoffError, match="cannot be reached"):
        env.reset(range(4))
    env.close()


def test_a_slow_link_changes_time_and_no_result(there: SecondMachine, address: str) -> None:
    here, remote = make_walk(512, "reset", 5), served_walk(512, max_steps=5, address=address)
    there.limit(4.0)
    try:
        here.reset(range(512))
        remote.reset(range(512))
        before, begun = there.received_bytes(), time.monotonic()
        for action in np.random.default_rng(0).uniform(-1.0, 1.0, (20, 512, 1)):
            same(here.step(action), remote.step(action))
        rate = 8e-6 * (there.received_bytes() - before) / (time.monotonic() - begun)
        # A burst may exceed the limit.
        assert 1.0 < rate < 5.0, "Mbit/s, of which the limit is 4"
    finally:
        remote.close()


def test_an_evaluation_is_the_same_on_two_machines_of_which_one_is_lost(
    there: SecondMachine, tmp_path: Path
) -> None:
    here = Protocol(name="here", engine="mujoco", task="reach", episodes=6, max_steps=10)
    with second_machine(1) as third:
        started = [listening(machine, sys.executable) for machine in (there, third)]
        both = f"{there.there}:{PORT},{third.there}:{PORT}"
        server = {"address": both, "engine": "mujoco"}
        apart = replace(here, engine="server", options={"server": server, "workers": 2})
        try:
            found = [evaluated(here, tmp_path / "here", lambda done: None)]
            found.append(evaluated(apart, tmp_path / "apart", lambda done: done or there.cut()))
        finally:
            for process in started:
                process.terminate()
                process.wait(20.0)
    assert found[0] == found[1]


def evaluated(
    protocol: Protocol, out: Path, act: Callable[[int], object]
) -> list[dict[str, object]]:
    """Episodes of random actions; `act` is called with the number of steps before each."""
    out.mkdir()

    class Acting(RandomAgent):
        steps = 0

        def act(self, observation: Observation, running: np.ndarray) -> np.ndarray:
            act(self.steps)
            self.steps += 1
            return super().act(observation, running)

    def made(env: VecEnv) -> Agent:
        return Acting(env.action_spec)

    evaluate(
        protocol,
        EvaluateConfig(batch=4, videos=0),
        lambda: made,
        partial(make_env, protocol),
        out,
        no_progress,
        {},
    )
    return json.loads((out / "episodes.json").read_text())["episodes"]
