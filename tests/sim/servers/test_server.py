"""Environments in another Python answer as those of this process, and their failures are errors that
say why."""

import os
import subprocess
import sys
import time
import venv
from pathlib import Path

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.interfaces import Step
from sim.make import EnvConfig, make_vec_env
from sim.processes.env_server import flatten_steps
from sim.servers import client, start
from sim.servers.config import ServerConfig
from sim.servers.vec_env import ServerVecEnv, make_server_env, own_place
from sim.vec_env import VecEnvConfig
from tests.sim.servers.failing import FAR_AWAY
from tests.sim.servers.light_python import light_python
from tests.sim.servers.served import served_walk
from tests.sim.walk import WalkEngine, make_walk

ROOT = Path(__file__).resolve().parents[3]
STILL = np.zeros((2, 1))
FAR = np.full((2, 1), FAR_AWAY)
LATE = 20.0
"""Time limit for a process to end [s]."""


def failing(failure: str, *, start_s: float = 60.0, response_s: float = 60.0) -> ServerVecEnv:
    return served_walk(
        2,
        {"failure": failure},
        engine="tests.sim.servers.failing",
        start_s=start_s,
        response_s=response_s,
    )


def gone(pid: int) -> bool:
    deadline = time.monotonic() + LATE
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def same(one: Step, two: Step) -> None:
    here, there = flatten_steps([one]), flatten_steps([two])
    assert here.keys() == there.keys()
    for name, array in here.items():
        np.testing.assert_array_equal(array, there[name])
        assert array.dtype == there[name].dtype


def test_the_other_python_has_numpy_and_msgpack_only():
    code = "import numpy, msgpack; import pydantic"
    answer = subprocess.run([light_python(), "-c", code], capture_output=True, check=False)
    assert b"No module named 'pydantic'" in answer.stderr


def test_the_server_imports_nothing_of_this_python_but_two_packages():
    # The folder of the tests is the root of all of them, so they are hidden from its search.
    with pytest.raises(HandoffError, match=r"failing walk: imports \['robots', 'sim'\]"):
        failing("imports")


@pytest.mark.parametrize("servers", [1, 2])
def test_served_environments_are_those_of_this_process(servers: int):
    here = make_walk(3, "reset", 5)
    there = served_walk(3, max_steps=5, servers=servers)
    rng = np.random.default_rng(0)
    try:
        seeds = [4, 5, 6]
        np.testing.assert_array_equal(here.reset(seeds)["place"], there.reset(seeds)["place"])
        for shape in [(3, 1)] * 7 + [(3, 4, 1)] * 3:
            action = rng.uniform(-1.0, 1.0, shape)
            same(here.step(action), there.step(action))
        state = there.save()
        assert {name: row.tolist() for name, row in state.items()} == {
            name: row.tolist() for name, row in here.save().items()
        }
        one, two = here.restore(state), there.restore(state)
        np.testing.assert_array_equal(one["place"], two["place"])
        one, two = here.reset([9], [1]), there.reset([9], [1])
        np.testing.assert_array_equal(one["place"], two["place"])
    finally:
        there.close()


def test_the_arms_tasks_on_a_server_are_those_of_this_process():
    here = make_vec_env(EnvConfig(task="reach", on_end="freeze"), 2)
    server = ServerConfig(python=sys.executable, engine="mujoco")
    config = EnvConfig(engine="server", task="reach", server=server, on_end="freeze", workers=2)
    there = make_vec_env(config, 2)
    try:
        assert dict(there.observation_spec) == dict(here.observation_spec)
        one, two = here.reset([1, 2]), there.reset([1, 2])
        for name, array in one.items():
            np.testing.assert_array_equal(array, two[name])
        action = np.random.default_rng(0).uniform(-1.0, 1.0, (2, 3, here.action_spec.size))
        same(here.step(action), there.step(action))
    finally:
        there.close()
        here.close()


def test_the_server_announces_its_specifications():
    env = served_walk(2)
    assert dict(env.observation_spec) == dict(WalkEngine.observation_spec)
    assert env.observation_spec["place"].unit == "m"
    assert env.action_spec == WalkEngine.action_spec
    assert (env.rate_hz, env.num_envs) == (20.0, 2)
    env.close()


def test_starts_are_used_in_order():
    # As fine-tuning sends them: seeds for environments that end.
    env = served_walk(2, on_end="freeze", max_steps=2)
    env.reset([1, 2])
    env.send([STILL, STILL], starts=[7, 8])
    result = env.receive()
    assert result.steps[-1].truncated.all()
    assert result.reset_observation is not None
    fresh = make_walk(2, "freeze", 2).reset([7, 8])
    np.testing.assert_array_equal(result.reset_observation["place"], fresh["place"])
    env.close()


def test_an_engine_that_cannot_save_is_named():
    env = served_walk(2, {"can_save": False})
    env.reset([1, 2])
    with pytest.raises(HandoffError, match="walk: cannot save"):
        env.save()
    env.step(STILL)
    env.close()


def test_an_error_of_the_engine_ends_nothing():
    env = failing("refuse")
    env.reset([1, 2])
    with pytest.raises(HandoffError, match="failing walk: too far"):
        env.step(FAR)
    env.reset([1, 2])
    env.step(STILL)
    env.close()


def test_an_exception_of_the_engine_comes_with_its_traceback():
    env = failing("raise")
    env.reset([1, 2])
    with pytest.raises(HandoffError, match="engine failed: ZeroDivisionError: nothing") as raised:
        env.step(FAR)
    assert "failing.py" in raised.value.__notes__[0]
    with pytest.raises(HandoffError, match="ZeroDivisionError"):
        env.reset([1, 2])
    env.close()


def test_a_dead_server_is_an_error_with_its_last_output():
    env = failing("exit")
    env.reset([1, 2])
    with pytest.raises(HandoffError, match=r"exit code 7 .*last output: the last words"):
        env.step(FAR)
    with pytest.raises(HandoffError, match="exit code 7"):
        env.step(STILL)
    env.close()


def test_a_hanging_server_is_an_error_in_time_and_is_ended():
    env = failing("hang", response_s=0.5)
    env.reset([1, 2])
    (pid,) = env.pids
    assert pid is not None
    with pytest.raises(HandoffError, match=r"no answer to 'steps' within 0.5 s.*response_s"):
        env.step(FAR)
    assert gone(pid)
    env.close()


def test_a_server_that_does_not_start_in_time_is_ended():
    with pytest.raises(HandoffError, match=r"no answer to 'start' within 1.* s.*start_s"):
        failing("start", start_s=1.5)


def test_an_engine_that_cannot_be_made_is_an_error():
    with pytest.raises(HandoffError, match="engine failed: KeyError: 'no such thing'"):
        failing("unmade")


def test_what_an_engine_started_ends_with_its_server():
    with pytest.raises(HandoffError, match="failing walk: process") as raised:
        failing("process")
    assert gone(int(str(raised.value).split()[-1]))


def test_the_server_has_the_variables_of_the_configuration():
    config = ServerConfig(
        python=light_python(),
        engine="tests.sim.servers.failing",
        variables={"WALK": "slow"},
    )
    with pytest.raises(HandoffError, match="failing walk: slow 1"):
        make_server_env(config, "", VecEnvConfig(), {"failure": "variable"}, 1, 1)


@pytest.mark.parametrize("failure", ["none", "hang"])
def test_a_server_ends_with_its_killed_parent(failure: str):
    code = f"""
import numpy as np, threading
from tests.sim.servers.test_server import failing, FAR
env = failing({failure!r})
env.reset([1, 2])
print(env.pids[0], flush=True)
if {failure!r} == "hang":
    env.step(FAR)
threading.Event().wait()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    # The hanging engine has its action by then.
    time.sleep(0.5 if failure == "hang" else 0.0)
    assert Path(f"/proc/{pid}").exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(pid)


def test_closing_leaves_no_process_and_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    env = served_walk(2, servers=2)
    env.reset([1, 2])
    pids = env.pids
    env.close()
    env.close()
    assert all(pid is not None and gone(pid) for pid in pids)
    assert len(os.listdir("/proc/self/fd")) == before


def test_another_version_of_the_code_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "code_digest", lambda: "another")
    with pytest.raises(HandoffError, match="another version of Handoff"):
        served_walk(1)


def test_an_old_python_says_which_one_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(start.sys, "version_info", (3, 8, 2))
    with pytest.raises(SystemExit) as raised:
        start.check_version()
    assert raised.value.code == start.UNFIT
    assert "is Python 3.8, a server needs 3.11 or later." in capsys.readouterr().err


def test_a_python_without_numpy_says_what_to_install(tmp_path: Path):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    config = ServerConfig(python=str(tmp_path / "bare/bin/python"), engine="tests.sim.walk")
    with pytest.raises(HandoffError, match=r"cannot import numpy .*pip install numpy msgpack"):
        make_server_env(config, "", VecEnvConfig(), {}, 1, 1)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("walk", "not known, expected gym"),
        ("no.such.module", "there is no module no"),
        ("tests.sim.walk:missing", "has no function missing"),
    ],
)
def test_an_engine_that_does_not_exist_is_named(engine: str, message: str):
    with pytest.raises(HandoffError, match=message):
        served_walk(1, engine=engine)


def test_more_servers_than_environments_are_refused():
    with pytest.raises(HandoffError, match="3 for 2 environments"):
        served_walk(2, servers=3)


def test_the_folder_of_a_module_of_ones_own_is_searched_there_and_no_installed_one():
    assert own_place("tests.sim.walk") == str(ROOT)
    assert own_place("tests.sim.servers.isaac_cube:Handoff-Cube-Direct") == str(ROOT)
    assert own_place("pytest:main") == own_place("pytest:Test-v0") == ""
    assert own_place("sim.tasks.reach:task") == ""
    assert own_place("gym") == own_place("no.such.module") == ""
