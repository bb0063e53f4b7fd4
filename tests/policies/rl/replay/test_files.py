"""Tests that saved replays survive crashes and reloads."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from policies.rl.replay import files
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from robots.errors import HandoffError
from robots.wire.steps import concatenate_steps, select_steps
from tests.forked_process import forked_process_context
from tests.policies.rl.replays import assert_same, episode, random_config, replay_of
from tests.policies.rl.slow_replay import SlowReplay, random_batches


@pytest.mark.parametrize("seed", range(10))
def test_a_loaded_replay_goes_on_like_the_one_that_was_saved(seed, tmp_path):
    rng = np.random.default_rng([seed, 1])
    config = random_config(rng)
    replay, slow = Replay(config, 2, 1), SlowReplay(config)
    for number, steps in enumerate(random_batches(rng, 20, int(rng.choice([1, 10, 100])))):
        replay.append(steps)
        slow.append(steps)
        if number % 3 == 0:
            replay.save(tmp_path)
        if number % 6 == 0:
            replay = Replay(config, 2, 1)
            replay.load(tmp_path)
            assert_same(replay, slow)
        if number % 7 == 5:
            state, replay = replay.state_dict(), Replay(config, 2, 1)
            replay.load_state_dict(state)
            replay_files_removed(tmp_path)
            assert_same(replay, slow)


def replay_files_removed(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def test_samples_of_a_loaded_replay_are_those_of_the_saved_one(tmp_path):
    replay = replay_of(
        *[episode([1.0, 2.0, 3.0], number=i) for i in range(9)], capacity=20, n_step=2
    )
    replay.save(tmp_path)
    loaded = replay_of(capacity=20, n_step=2)
    loaded.load(tmp_path)
    first, second = (one.sample(64, np.random.default_rng(3)) for one in (replay, loaded))
    assert first.reward_B.tolist() == second.reward_B.tolist()
    assert first.obs.vector_BO.tolist() == second.obs.vector_BO.tolist()


def test_a_save_writes_only_what_is_new(tmp_path, monkeypatch):
    written: list[int] = []
    write = files._write_all

    def counted(to: int, data: bytes, at: int) -> None:
        written.append(len(data))
        write(to, data, at)

    monkeypatch.setattr(files, "_write_all", counted)
    replay = replay_of(*[episode([1.0] * 50, number=i) for i in range(100)], capacity=4000)
    replay.save(tmp_path)
    all_of_it = sum(written)
    written.clear()
    replay.append(episode([1.0] * 3, number=1000))
    replay.save(tmp_path)
    replay.save(tmp_path)
    assert all_of_it / 4000 == sum(written) / 3


class DeadError(Exception):
    """Stands for the death of the process."""


def test_dying_at_any_write_leaves_the_state_before_or_after(tmp_path, monkeypatch):
    config = ReplayConfig(capacity=150, n_step=3, mc_return=True)
    batches = random_batches(np.random.default_rng(5), 40, 40)
    left, write, commit = [10**9], files._write_all, files.write_atomically

    def die_in_the_middle(to: int, data: bytes, at: int) -> None:
        left[0] -= 1
        write(to, data[: len(data) // 2] if left[0] == 0 else data, at)
        if left[0] == 0:
            raise DeadError

    def die_before_the_commit(path: Path, data: bytes) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise DeadError
        commit(path, data)

    monkeypatch.setattr(files, "_write_all", die_in_the_middle)
    monkeypatch.setattr(files, "write_atomically", die_before_the_commit)
    replay, saved, deaths = Replay(config, 2, 1), 0, 0
    rng = np.random.default_rng(0)
    for number, steps in enumerate(batches):
        replay.append(steps)
        left[0] = int(rng.integers(1, 5)) if number else 10**9
        try:
            replay.save(tmp_path)
            saved = replay.added
        except DeadError:
            deaths += 1
        left[0] = 10**9
        again, slow = Replay(config, 2, 1), SlowReplay(config)
        again.load(tmp_path)
        assert again.added == saved
        for earlier in batches:
            slow.append(earlier)
        slow.steps = slow.steps[:saved]
        assert_same(again, slow)
        replay = again
        lost = [row for earlier in batches[: number + 1] for row in range(earlier.rows)][saved:]
        if lost:
            replay.append(
                select_steps(
                    concatenate_steps(batches[: number + 1]), np.arange(saved, saved + len(lost))
                )
            )
    assert deaths > 8
    assert replay.added > 3 * config.capacity


def test_dying_within_a_save_larger_than_the_spare_room_hurts_no_saved_step(tmp_path, monkeypatch):
    replay, write, left = replay_of(capacity=4000), files._write_all, [3]

    def die_at_the_third(to: int, data: bytes, at: int) -> None:
        left[0] -= 1
        write(to, data if left[0] else data[: len(data) // 2], at)
        if not left[0]:
            raise DeadError

    replay.append(episode([float(i) for i in range(6000)], end="running"))
    replay.save(tmp_path)
    monkeypatch.setattr(files, "_write_all", die_at_the_third)
    replay.append(episode([float(i) for i in range(6000, 9000)], end="running", first=6000))
    with pytest.raises(DeadError):
        replay.save(tmp_path)
    loaded = replay_of(capacity=4000)
    loaded.load(tmp_path)
    assert 6000 <= loaded.added < 9000
    assert len(loaded) == 4000
    assert (loaded.columns["reward"] == loaded.columns["serial"]).all()


def save_repeatedly(folder: Path, counts: Path) -> None:
    """Steps count up; after every save the number of steps is appended to `counts`."""
    replay = replay_of(capacity=300)
    while True:
        first = replay.added
        replay.append(
            episode([float(i) for i in range(first, first + 40)], end="running", first=first)
        )
        replay.save(folder)
        with counts.open("a") as file:
            file.write(f"{replay.added}\n")


def test_a_killed_process_leaves_all_that_it_had_saved(tmp_path):
    folder, counts = tmp_path / "replay", tmp_path / "counts"
    process = forked_process_context().Process(target=save_repeatedly, args=(folder, counts))
    process.start()
    while not counts.exists() or len(counts.read_text().splitlines()) < 12:
        assert process.is_alive()
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    replay = replay_of(capacity=300)
    replay.load(folder)
    assert replay.added - int(counts.read_text().splitlines()[-1]) in (0, 40)
    serial = replay.columns["serial"][np.argsort(replay.columns["serial"])]
    assert serial.tolist() == list(range(replay.added - 300, replay.added))
    assert (replay.columns["reward"] == replay.columns["serial"]).all()


def test_another_capacity_keeps_the_newest_steps(tmp_path):
    replay = replay_of(*[episode([float(i)], number=i) for i in range(60)], capacity=50)
    replay.save(tmp_path)
    for capacity, expected in ((20, 20), (80, 50)):
        other = replay_of(capacity=capacity)
        other.load(tmp_path)
        assert len(other) == expected
        newest = other.transitions(other.drawable()).reward_B.numpy()
        assert sorted(newest.tolist()) == list(range(60 - expected, 60))
    other.append(episode([60.0], number=60))
    other.save(tmp_path)
    again = replay_of(capacity=80)
    again.load(tmp_path)
    assert again.columns["reward"][:51].tolist() == list(range(10, 61))


def test_a_replay_that_was_not_loaded_does_not_overwrite_a_saved_one(tmp_path):
    replay_of(episode([1])).save(tmp_path)
    with pytest.raises(HandoffError, match="Load it first"):
        replay_of(episode([2])).save(tmp_path)


def test_damaged_missing_and_foreign_files_are_named(tmp_path):
    with pytest.raises(HandoffError, match=r"no saved replay"):
        replay_of().load(tmp_path)
    replay_of(episode([1, 2, 4])).save(tmp_path)
    with pytest.raises(HandoffError, match="Is it the replay of another task"):
        Replay(ReplayConfig(capacity=100), 3, 1).load(tmp_path)
    records = tmp_path / "steps-0.bin"
    records.write_bytes(records.read_bytes()[:-1])
    with pytest.raises(HandoffError, match="Was it copied"):
        replay_of().load(tmp_path)
    head = json.loads((tmp_path / "replay.json").read_text())
    (tmp_path / "replay.json").write_text(json.dumps({**head, "columns": 3}))
    with pytest.raises(HandoffError, match="is damaged"):
        replay_of().load(tmp_path)
