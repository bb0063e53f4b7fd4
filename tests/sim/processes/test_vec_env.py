"""Environments in processes: they answer as those of this one, and leave nothing behind, however it
ends."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.interfaces import SplitVecEnv, Step
from sim.processes.process import _pack
from sim.processes.shared_memory import SharedBlock, layout_of, size_of
from sim.processes.vec_env import ProcessVecEnv
from tests.toy_envs.word_line import WordLine

NUM_ENVS, HORIZON = 6, 3
PLACES = pytest.mark.parametrize(("parts", "simulators"), [(1, 1), (2, 1), (1, 2), (2, 2), (3, 2)])
NAMES = Path("/dev/shm")


class Refusing(WordLine):
    """Breaks down at a step beyond 2, and dies of one beyond 4."""

    def step(self, action: np.ndarray) -> Step:
        if (np.abs(action) > 4.0).any():
            os._exit(7)
        if (np.abs(action) > 2.0).any():
            raise HandoffError("refusing: a step beyond 2.")
        return super().step(action)


def unmade(num_envs: int) -> WordLine:
    raise HandoffError(f"unmade: {num_envs} environments.")


def chunks(number: int, horizon: int = HORIZON) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1.0, 1.0, (number, NUM_ENVS, horizon, 2))


def shared_names() -> set[str]:
    return {path.name for path in NAMES.glob("psm_*")}


def same(one: Mapping[str, np.ndarray], other: Any) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])
        assert array.dtype == other[name].dtype


def same_step(one: Step, other: Step) -> None:
    for here, there in zip(one, other, strict=True):
        if isinstance(here, dict):
            same(here, there)
        else:
            np.testing.assert_array_equal(here, there)


def test_arrays_come_out_of_a_block_as_they_went_in():
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.normal(size=(3, 2)),
        "b": np.arange(5, dtype=np.uint8),
        "none": np.zeros((0, 4)),
        "c": np.ones(1),
    }
    arrays["a again"] = arrays["a"]
    layout = layout_of(arrays)
    here = SharedBlock.make(size_of(layout))
    there = SharedBlock.open(here.name)
    here.write(layout, arrays)
    copies = there.read(layout)
    there.close()
    here.close()
    same(arrays, copies)
    assert copies["a again"] is copies["a"], "one array is stored once"


def test_only_the_first_response_of_a_layout_goes_through_the_pipe():
    layouts: dict = {}
    arrays = {"a": np.zeros(100)}
    kind, payload, width = _pack(arrays, None, layouts)
    assert (kind, width) == ("arrays", 800)
    assert payload["a"] is arrays["a"]
    block = SharedBlock.make(width)
    assert [_pack(arrays, block, layouts)[0] for _ in range(3)] == ["layout", "known", "known"]
    block.close()


def test_memory_that_the_system_has_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = shared_names()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HandoffError, match=r"no room for 800 bytes in /dev/shm .*--shm-size"):
        SharedBlock.make(800)
    assert shared_names() <= before


@PLACES
def test_distributed_environments_equal_those_of_this_process(parts: int, simulators: int):
    here, there = WordLine(NUM_ENVS), ProcessVecEnv(WordLine, NUM_ENVS, parts, simulators)
    try:
        same(here.reset(range(NUM_ENVS)), there.reset(range(NUM_ENVS)))
        chunk = chunks(1)[0]
        for number, chunk in enumerate(chunks(8)):
            one = here.step(chunk)
            same_step(one, there.step(chunk))
            over = np.flatnonzero(one.terminated | one.truncated)
            if len(over):
                seeds = [100 * number + int(env_id) for env_id in over]
                same(here.reset(seeds, over.tolist()), there.reset(seeds, over.tolist()))
        same_step(here.step(chunk[:, 0]), there.step(chunk[:, 0]))
        state = here.save()
        same(state, there.save())
        there.step(chunk)
        same(here.restore(state), there.restore(state))
        some = {name: array[[4, 1]] for name, array in state.items()}
        same(here.restore(some, [0, 5]), there.restore(some, [0, 5]))
    finally:
        there.close()


def test_an_undivided_env_is_its_only_part():
    env = ProcessVecEnv(WordLine, NUM_ENVS, 2, 1)
    try:
        assert isinstance(env, SplitVecEnv)
        assert not isinstance(WordLine(NUM_ENVS), SplitVecEnv)
        assert [part.num_envs for part in env.parts] == [3, 3]
        assert [list(part.parts) for part in env.parts] == [[part] for part in env.parts]
    finally:
        env.close()


@PLACES
def test_parts_are_the_environments_in_their_order(parts: int, simulators: int):
    here, there = WordLine(NUM_ENVS), ProcessVecEnv(WordLine, NUM_ENVS, parts, simulators)
    try:
        here.reset(range(NUM_ENVS))
        there.reset(range(NUM_ENVS))
        for chunk in chunks(3):
            for part, actions in zip(there.parts, np.array_split(chunk, parts), strict=True):
                part.send([actions[:, :2], actions[:, 2:]])
            expected = [here.step(chunk[:, :2]), here.step(chunk[:, 2:])]
            results = [part.receive().steps for part in reversed(there.parts)][::-1]
            for number, one in enumerate(expected):
                place = np.concatenate([steps[number].observation["place"] for steps in results])
                np.testing.assert_array_equal(place, one.observation["place"])
    finally:
        there.close()


def test_environments_that_end_start_from_the_next_seeds_in_the_order_of_the_parts():
    there = ProcessVecEnv(WordLine, 4, 2, 1)
    right = np.tile([1.0, 0.0], (2, 1, 1)).repeat(3, axis=1)
    try:
        there.reset(range(4))
        starts = list(range(100, 108))
        for _ in range(2):
            for part in there.parts:
                part.send([right], starts)
            results = [part.receive() for part in there.parts]
            taken = sum(
                int(((part.steps[0].terminated) & (part.steps[0].executed > 0)).sum())
                for part in results
            )
            starts = starts[taken:] + list(range(starts[-1] + 1, starts[-1] + 1 + taken))
        alone = WordLine(4)
        alone.reset(range(4))
        upcoming = iter(range(100, 116))
        for _ in range(2):
            step = alone.step(np.concatenate([right, right]))
            over = np.flatnonzero((step.terminated | step.truncated) & (step.executed > 0))
            if len(over):
                alone.reset([next(upcoming) for _ in over], over.tolist())
        assert starts[0] == next(upcoming) > 101, (
            "both have begun as many episodes, and more than one"
        )
        np.testing.assert_array_equal(there.save()["place"], alone.place)
    finally:
        there.close()


def refuses_and_continues(env: ProcessVecEnv) -> None:
    """`Refusing` environments in two parts, over two simulators; closes them."""
    try:
        env.reset(range(NUM_ENVS))
        bad = chunks(1)[0]
        bad[5] = 3.0
        with pytest.raises(HandoffError, match="simulator 1: refusing: a step beyond 2"):
            env.step(bad)
        env.parts[0].send([chunks(1)[0][:3]])
        assert env.reset(range(NUM_ENVS))["place"].shape == (NUM_ENVS, 1), (
            "what was sent is forgotten"
        )
        env.step(chunks(1)[0])
    finally:
        env.close()


def test_what_an_environment_raises_is_raised_here_and_the_environments_continue():
    refuses_and_continues(ProcessVecEnv(Refusing, NUM_ENVS, 2, 2))


def test_a_simulator_that_dies_is_named_with_its_exit_code():
    env = ProcessVecEnv(Refusing, NUM_ENVS, 1, 2)
    try:
        env.reset(range(NUM_ENVS))
        bad = chunks(1)[0]
        bad[5] = 5.0
        with pytest.raises(
            HandoffError, match=r"simulator 1 \(environments 3\.\.5\) died with exit code 7"
        ):
            env.step(bad)
    finally:
        env.close()
    assert not multiprocessing.active_children(), "no zombies"


def test_a_killed_simulator_is_reported_at_the_next_step():
    env = ProcessVecEnv(WordLine, NUM_ENVS, 2, 1)
    try:
        env.reset(range(NUM_ENVS))
        os.kill(env.shards[0].simulator.process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        with pytest.raises(HandoffError, match=r"simulator 0 .* died with exit code -9"):
            env.step(chunks(1)[0])
        with pytest.raises(HandoffError, match="died"):
            env.reset(range(NUM_ENVS))
    finally:
        env.close()


def test_environments_that_cannot_be_made_say_why():
    with pytest.raises(HandoffError, match="simulator 0: unmade: 3 environments"):
        ProcessVecEnv(unmade, NUM_ENVS, 2, 1)
    assert not multiprocessing.active_children()


def test_memory_has_no_name_once_both_sides_have_it():
    before = shared_names()
    env = ProcessVecEnv(partial(WordLine), NUM_ENVS, 2, 2)
    try:
        env.reset(range(NUM_ENVS))
        for chunk in chunks(3):
            env.step(chunk)
        assert shared_names() == before
    finally:
        env.close()


@pytest.mark.parametrize("moment", ["between steps", "before the memory is shared"])
def test_a_parent_that_is_killed_leaves_neither_processes_nor_memory(moment: str):
    before = shared_names()
    code = f"""
import os, signal
import numpy as np
from sim.processes.vec_env import ProcessVecEnv
from tests.toy_envs.word_line import WordLine
if __name__ == "__main__":
    environments = ProcessVecEnv(WordLine, 6, 2, 2)
    environments.reset(range(6))
    chunk = np.zeros((6, 3, 2))
    environments.send([chunk])
    if {moment == "between steps"}:
        environments.receive()
        environments.step(chunk)
    print(*sorted({{shard.simulator.process.pid for shard in environments.shards}}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline and (any(map(alive, pids)) or shared_names() - before):
        time.sleep(0.05)
    assert not any(map(alive, pids))
    assert shared_names() <= before


@pytest.mark.parametrize(
    ("call", "about"),
    [
        (lambda env_ids: env_ids.reset([1], [0]), "the first reset must start all 6"),
        (lambda env_ids: env_ids.reset([1]), "1 seeds for 6 environments"),
        (lambda env_ids: env_ids.reset([1], [9]), "different numbers in 0..5"),
        (
            lambda env_ids: env_ids.step(np.zeros((2, 2))),
            r"action of shape \(2, 2\), expected \(6, 2\)",
        ),
        (lambda env_ids: env_ids.parts[0].receive(), "no pending request"),
    ],
)
def test_wrong_calls_are_refused_in_words(call, about: str):
    env = ProcessVecEnv(WordLine, NUM_ENVS, 2, 1)
    try:
        with pytest.raises(HandoffError, match=about):
            call(env)
    finally:
        env.close()


def test_more_parts_than_environments_are_refused():
    with pytest.raises(HandoffError, match="4 parts over 2 simulators of 6 environments"):
        ProcessVecEnv(WordLine, NUM_ENVS, 4, 2)


def test_closed_environments_say_so():
    env = ProcessVecEnv(WordLine, NUM_ENVS)
    env.close()
    env.close()
    with pytest.raises(HandoffError, match="closed"):
        env.reset(range(NUM_ENVS))


def alive(pid: int) -> bool:
    """Whether it runs; a zombie, which its parent has not reaped, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
