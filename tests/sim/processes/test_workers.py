"""Environments over worker processes answer as those of one process, and say which worker
failed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from robots.errors import HandoffError
from robots.interfaces import VecEnv
from sim.processes.vec_env import ProcessVecEnv, worker_vec_env
from sim.vec_env import EngineVecEnv, VecEnvConfig
from tests.sim.walk import WalkEngine, make_walk

MAKE = partial(make_walk, on_end="reset", max_steps=4)


class DiesAtSeed13(WalkEngine):
    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        if 13 in seeds:
            os._exit(7)
        super().reset(env_ids, seeds)


class BreaksAtReset(WalkEngine):
    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        raise ZeroDivisionError


class SavesAGrowingHistory(WalkEngine):
    def save(self) -> dict[str, np.ndarray]:
        return {**super().save(), "history": np.ones((self.num_envs, int(self.count.max())))}


def make_mortal(num_envs: int) -> VecEnv:
    return EngineVecEnv(DiesAtSeed13(num_envs))


def make_fragile(num_envs: int) -> VecEnv:
    return EngineVecEnv(BreaksAtReset(num_envs))


def make_historian(num_envs: int) -> VecEnv:
    return EngineVecEnv(SavesAGrowingHistory(num_envs), VecEnvConfig(max_steps=9))


def make_nothing(num_envs: int) -> VecEnv:
    raise HandoffError(f"no {num_envs} environments today.")


def fail_to_make(num_envs: int) -> VecEnv:
    raise ZeroDivisionError


def pids(env: ProcessVecEnv) -> list[int]:
    simulators: list[Any] = [shard.simulator for shard in env.shards]
    return [simulator.process.pid for simulator in simulators]


@contextmanager
def working(
    make: partial[VecEnv] | None = None, num_envs: int = 5, workers: int = 2
) -> Iterator[ProcessVecEnv]:
    env = worker_vec_env(make or MAKE, num_envs, workers)
    try:
        yield env
    finally:
        env.close()


def test_trajectories_are_the_same_for_any_number_of_workers() -> None:
    chunk_N3A = np.random.default_rng(0).uniform(-1.0, 1.0, (5, 3, 1))
    action_NA = chunk_N3A[:, 0]

    def trajectory(env: VecEnv) -> list[np.ndarray]:
        arrays = [env.reset(range(20, 25))["place"]]
        # Environment 3 alone starts anew on the way, and the limit of 4 steps ends the others
        # within the second chunk.
        for use in (action_NA, chunk_N3A, None, chunk_N3A, action_NA):
            if use is None:
                arrays.append(env.reset([99], env_ids=[3])["place"])
                continue
            step = env.step(use)
            arrays += [
                *step[1:4],
                step.executed,
                step.observation["place"],
                step.final_observation["place"],
            ]
            arrays += [step.info["success"], step.info["count"]]
        return arrays

    expected = trajectory(MAKE(5))
    for workers in (1, 2, 5):
        with working(workers=workers) as env:
            for one, two in zip(trajectory(env), expected, strict=True):
                assert one.dtype == two.dtype
                np.testing.assert_array_equal(one, two)


def test_specs_are_those_of_the_environments() -> None:
    with working() as env:
        here = MAKE(1)
        assert env.num_envs == 5
        assert (env.observation_spec, env.action_spec, env.rate_hz) == (
            here.observation_spec,
            here.action_spec,
            here.rate_hz,
        )


def test_states_move_between_workers() -> None:
    # Environments 0..2 live in worker 0, environments 3 and 4 in worker 1; environment 0's state
    # goes into environment 4 and back.
    with working() as env:
        env.reset(range(5))
        env.step(np.full((5, 1), 0.1))
        state = env.save()
        place = state["place"]
        env.restore({name: array[[0, 4]] for name, array in state.items()}, env_ids=[4, 0])
        swapped = env.save()["place"]
        np.testing.assert_array_equal(swapped, place[[4, 1, 2, 3, 0]])


def test_histories_of_different_length_are_filled_up() -> None:
    with working(partial(make_historian), num_envs=2) as env:
        env.reset([1, 2])
        env.step(np.zeros((2, 3, 1)))
        env.reset([3], env_ids=[1])
        env.step(np.zeros((2, 1)))
        assert env.save()["history"].tolist() == [[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]]


def test_an_error_names_its_worker_and_leaves_the_environments_usable() -> None:
    with working() as env:
        env.reset(range(5))
        action = np.zeros((5, 1))
        action[4] = np.nan
        with pytest.raises(
            HandoffError,
            match=r"worker 1 \(its environment 0 is environment 3 of all\): walk: action of environment 1",
        ):
            env.step(action)
        env.reset(range(5))
        assert env.step(np.zeros((5, 1))).executed.tolist() == [1] * 5


def test_a_dead_worker_is_named_with_its_exit_code() -> None:
    with working(partial(make_mortal)) as env:
        env.reset(range(5))
        with pytest.raises(
            HandoffError, match=r"worker 1 \(environments 3\.\.4\) died with exit code 7"
        ):
            env.reset([13], env_ids=[3])
        with pytest.raises(HandoffError, match="exit code 7"):
            env.step(np.zeros((5, 1)))


def test_an_error_while_making_environments_comes_back_as_it_is() -> None:
    with pytest.raises(HandoffError, match="no 1 environments today"):
        worker_vec_env(make_nothing, 2, 2)


def test_an_unexpected_failure_while_making_environments_is_a_dead_worker() -> None:
    with pytest.raises(HandoffError) as raised:
        worker_vec_env(fail_to_make, 2, 1)
    assert re.match(
        r"worker 0 \(environments 0\.\.1\) died with exit code 1 .*ZeroDivisionError: ",
        str(raised.value),
    )
    assert "in fail_to_make" in raised.value.__notes__[0]


def test_an_unexpected_failure_between_steps_is_raised_at_each_later_call() -> None:
    with working(partial(make_fragile)) as env:
        for _ in range(2):
            with pytest.raises(
                HandoffError, match=r"worker 0 \(environments 0\.\.2\) died .*ZeroDivisionError"
            ):
                env.reset(range(5))


@pytest.mark.parametrize("workers", [0, 3])
def test_more_workers_than_environments_and_none_are_refused(workers: int) -> None:
    with pytest.raises(HandoffError, match=rf"{workers} for 2 environments, expected 1\.\.2"):
        worker_vec_env(MAKE, 2, workers)


def test_closing_ends_the_processes() -> None:
    with working() as env:
        processes = [psutil.Process(pid) for pid in pids(env)]
        assert len(processes) == 2
        env.close()
        assert not any(process.is_running() for process in processes)


def test_workers_end_when_their_parent_is_killed() -> None:
    code = (
        "import time\nfrom tests.sim.processes.test_workers import MAKE, pids\n"
        "from sim.processes.vec_env import worker_vec_env\n"
        "if __name__ == '__main__':\n"
        "    env = worker_vec_env(MAKE, 2, 2)\n"
        "    print(*pids(env), flush=True)\n"
        "    time.sleep(600)\n"
    )
    root = Path(__file__).parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert parent.stdout is not None
    with parent:
        processes = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(processes) == 2
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert alive == []
