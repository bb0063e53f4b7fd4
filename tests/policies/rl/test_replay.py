import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from policies.rl import replay_files
from policies.rl.online import Batches, OnlineConfig, store
from policies.rl.replay import Replay, ReplayConfig, sizes_of
from policies.rl.rlif import RlifReplay
from robots.errors import HandoffError
from robots.steps import Steps, chosen, plain_steps
from tests.policies.rl.slow_replay import SlowReplay, random_batches


def episode(rewards: list[float], number: int = 0, end: str = "terminated", first: int = 0) -> Steps:
    """Steps `first`, `first` + 1, ... of one episode; step i observes i, then i + 1, and acts 0.1 i."""
    n = len(rewards)
    index = first + np.arange(n)
    last = index == first + n - 1
    return plain_steps(
        np.full(n, number),
        index,
        index[:, None],
        0.1 * index[:, None],
        np.array(rewards),
        index[:, None] + 1,
        last & (end == "terminated"),
        last & (end == "truncated"),
    )


def replay_of(*several: Steps, **options) -> Replay:
    replay = Replay(ReplayConfig(**{"capacity": 100, "discount": 0.5, **options}), 1, 1)
    for steps in several:
        replay.append(steps)
    return replay


def assert_same(replay: Replay, slow: SlowReplay) -> None:
    """Every stored step's transition, and which of them may be drawn."""
    slots = np.array([serial % replay.config.capacity for serial in slow.stored()])
    got = replay.transitions(slots)
    wanted = [slow.transition(serial) for serial in slow.stored()]
    columns = {
        "observation": got.seen.vector_BO,
        "action": got.action_BA,
        "reward": got.reward_B,
        "toggles": got.toggles_B,
        "discount": got.discount_B,
        "next_observation": got.next_seen.vector_BO,
        "demo": got.demo_B,
        "intervention": got.intervention_B,
        "mc_return": got.extra["mc_return"],
    }
    if replay.config.horizon > 1:
        columns["valid"] = got.extra["valid_BH"]
    for name, column in columns.items():
        expected = np.stack([row[name] for row in wanted])
        np.testing.assert_allclose(column.numpy(), expected, rtol=1e-5, atol=1e-5, err_msg=name)
    whole = [slot for slot, row in zip(slots, wanted, strict=True) if row["whole"]]
    assert replay.drawable().tolist() == sorted(whole)


def random_config(rng: np.random.Generator) -> ReplayConfig:
    return ReplayConfig(
        capacity=int(rng.choice([1, 2, 7, 20, 64])),
        n_step=int(rng.integers(1, 5)),
        horizon=int(rng.choice([1, 1, 2, 3, 6])),
        discount=float(rng.choice([0.0, 0.5, 0.9])),
        timeouts_end=bool(rng.integers(2)),
        mc_return=True,
        mc_tail=float(rng.choice([0.0, -1.0])),
    )


@pytest.mark.parametrize("seed", range(25))
def test_agrees_with_a_slow_replay_on_random_interleaved_episodes(seed):
    rng = np.random.default_rng(seed)
    config = random_config(rng)
    replay, slow = Replay(config, 2, 1), SlowReplay(config)
    for steps in random_batches(rng, 8, int(rng.choice([1, 4, 30]))):
        replay.append(steps)
        slow.append(steps)
        assert_same(replay, slow)


def test_n_step_sums_shrink_to_the_steps_left_before_a_terminal():
    batch = replay_of(episode([1, 2, 4, 8]), n_step=3).transitions(np.arange(4))
    assert batch.reward_B.tolist() == [1 + 1 + 1, 2 + 2 + 2, 4 + 4, 8]
    assert batch.discount_B.tolist() == [0.125, 0.0, 0.0, 0.0]
    assert batch.next_seen.vector_BO[:, 0].tolist() == [3, 4, 4, 4]


def test_n_step_sums_bootstrap_behind_a_time_limit_with_the_effective_number_of_steps():
    batch = replay_of(episode([1, 2, 4, 8], end="truncated"), n_step=3).transitions(np.arange(4))
    assert batch.reward_B.tolist() == [3, 6, 8, 8]
    assert batch.discount_B.tolist() == [0.125, 0.125, 0.25, 0.5]


def test_a_time_limit_ends_the_task_if_asked():
    batch = replay_of(episode([1, 2], end="truncated"), timeouts_end=True).transitions(np.arange(2))
    assert batch.discount_B.tolist() == [0.5, 0.0]


def test_n_step_sums_of_a_running_episode_bootstrap_from_its_newest_observation():
    batch = replay_of(episode([1, 2], end="running"), n_step=3).transitions(np.arange(2))
    assert batch.reward_B.tolist() == [2, 2]
    assert batch.discount_B.tolist() == [0.25, 0.5]
    assert batch.next_seen.vector_BO[:, 0].tolist() == [2, 2]


def test_a_chunk_past_the_end_is_whole_with_zeros_for_what_was_not_executed():
    replay = replay_of(episode([1, 2, 4, 8], end="truncated"), horizon=3)
    assert replay.drawable().tolist() == [0, 1, 2, 3]
    batch = replay.transitions(np.arange(4))
    expected = np.array([[0, 0.1, 0.2], [0.1, 0.2, 0.3], [0.2, 0.3, 0], [0.3, 0, 0]], np.float32)
    np.testing.assert_allclose(batch.action_BA.numpy(), expected)
    assert batch.extra["valid_BH"].tolist() == [[True] * 3, [True] * 3, [True, True, False], [True, False, False]]
    assert batch.reward_B.tolist() == [3, 6, 8, 8]
    assert batch.discount_B.tolist() == [0.125, 0.125, 0.25, 0.5]


def test_chunks_that_the_running_end_cuts_off_are_not_drawn_until_they_are_whole():
    replay = replay_of(episode([1, 2, 4, 8], end="running"), horizon=3)
    assert replay.drawable().tolist() == [0, 1]
    drawn = replay.sample(200, np.random.default_rng(0))
    assert set(drawn.seen.vector_BO[:, 0].tolist()) == {0.0, 1.0}
    replay.append(episode([16], first=4, end="running"))
    assert replay.drawable().tolist() == [0, 1, 2]
    replay.append(episode([32], first=5))
    assert replay.drawable().tolist() == [0, 1, 2, 3, 4, 5]


def test_corrections_with_a_gap_between_them_are_not_linked():
    replay = replay_of(episode([1, 2, 4], end="running"), episode([8, 16], first=5), n_step=10)
    batch = replay.transitions(np.arange(5))
    assert batch.reward_B.tolist() == [3, 4, 4, 16, 16]
    assert batch.next_seen.vector_BO[:, 0].tolist() == [3, 3, 3, 7, 7]


def test_nothing_follows_an_end_whatever_its_number_and_its_batch():
    steps = episode([1, 2, 4, 8], end="running")._replace(truncated=np.array([False, True, False, False]))
    together = replay_of(steps, n_step=4)
    apart = replay_of(*[chosen(steps, np.array([row])) for row in range(4)], n_step=4)
    for replay in (together, apart):
        assert replay.transitions(np.arange(4)).reward_B.tolist() == [2, 2, 8, 8]


def test_a_chunk_cut_off_by_the_end_of_a_takeover_is_not_drawn():
    replay = replay_of(episode([1, 2, 4], end="running"), episode([8, 16], first=5), horizon=2)
    assert replay.drawable().tolist() == [0, 1, 3, 4]


def test_no_whole_chunk_is_an_error_that_names_the_horizon():
    replay = replay_of(episode([1, 2], end="running"), horizon=3)
    with pytest.raises(HandoffError, match=r"2 steps are stored.*3 actions"):
        replay.sample(1, np.random.default_rng(0))


def test_interleaved_episodes_follow_their_own_steps():
    a, b = episode([1, 2, 4], number=5), episode([10, 20, 40], number=9)
    replay = replay_of(*[chosen(one, np.array([row])) for row in range(3) for one in (a, b)], n_step=3)
    assert replay.transitions(np.arange(2)).reward_B.tolist() == [3, 30]


def test_the_oldest_steps_are_overwritten():
    replay = replay_of(*[episode([float(i)], number=i) for i in range(7)], capacity=4)
    assert len(replay) == 4
    assert sorted(replay.columns["reward"].tolist()) == [3, 4, 5, 6]


def test_monte_carlo_returns_are_known_when_the_episode_ends():
    replay = replay_of(episode([1, 2], end="running"), mc_return=True)
    assert replay.transitions(np.arange(2)).extra["mc_return"].tolist() == [-np.inf, -np.inf]
    replay.append(episode([4], first=2))
    assert replay.transitions(np.arange(3)).extra["mc_return"].tolist() == [1 + 1 + 1, 2 + 2, 4]


def test_never_arriving_is_worth_the_endless_sum_with_a_tail():
    # r / (1 - g) = -1 / 0.5 from every step of an episode that the time limit cut off.
    replay = replay_of(episode([-1, -1, -1], end="truncated"), mc_return=True, mc_tail=-1.0)
    assert replay.transitions(np.arange(3)).extra["mc_return"].tolist() == [-2, -2, -2]


def test_executed_action_proposal_and_policy_version_are_stored():
    steps = plain_steps(
        *(np.zeros(1), np.zeros(1), np.zeros((1, 1)), np.full((1, 1), 0.5), np.zeros(1), np.zeros((1, 1))),
        *(np.zeros(1, bool), np.zeros(1, bool)),
        intervention=np.ones(1, bool),
        proposed=np.full((1, 1), -0.5),
        policy_version=12,
    )
    replay = replay_of(steps)
    assert replay.transitions(np.array([0])).action_BA.tolist() == [[0.5]]
    assert replay.columns["proposed"][0].tolist() == [-0.5]
    assert replay.columns["policy_version"][0] == 12


# Invariant (g) 22: what a person did is stored as the action, and goes into both buffers.
def test_corrections_go_into_both_buffers_as_executed():
    steps = episode([0, 0, 0], end="running")
    executed = np.array([[0.7], [0.8], [0.9]], np.float32)
    steps = steps._replace(action=executed, intervention=np.array([False, True, True]))
    replay, demos = replay_of(), replay_of()
    store(steps, replay, demos)
    assert replay.columns["action"][:3].tolist() == executed.tolist()
    assert len(demos) == 2
    assert demos.columns["action"][:2].tolist() == executed[1:].tolist()
    np.testing.assert_allclose(demos.columns["proposed"][:2], [[0.1], [0.2]], rtol=1e-6)


# Invariant (g) 22, last part: of a takeover that begins at step 2, step 1 is punished.
def test_rlif_punishes_the_step_before_a_takeover():
    steps = episode([0, 0, 0, 0])._replace(intervention=np.array([False, False, True, True]))
    replay = RlifReplay(ReplayConfig(capacity=10), 1, 1)
    replay.append(steps)
    assert replay.columns["reward"][:4].tolist() == [0, -1, 0, 0]


# Invariant (g) 23.
@pytest.mark.parametrize("size", [2, 64, 256])
def test_exactly_half_of_every_batch_is_of_the_demonstrations(size):
    replay, demos = replay_of(episode([0.0] * 9)), replay_of(episode([1.0] * 3))
    batches = Batches(OnlineConfig(batch_size=size), replay, demos)
    for seed in range(20):
        batch = batches(np.random.default_rng(seed))
        assert batch.rows == size
        assert int(batch.demo_B.sum()) == size // 2
        assert batch.demo_B.tolist() == (batch.reward_B == 1.0).tolist()


def test_draws_are_uniform():
    drawn = replay_of(episode([float(i) for i in range(10)])).sample(20_000, np.random.default_rng(0))
    counts = np.bincount(drawn.seen.vector_BO[:, 0].numpy().astype(int), minlength=10)
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000)


def test_probability_zero_is_never_drawn():
    replay = replay_of(episode([float(i) for i in range(10)]))
    probability = np.zeros(10)
    probability[[2, 7]] = 1.0, 3.0
    drawn = replay.sample(8000, np.random.default_rng(0), probability).seen.vector_BO[:, 0].numpy()
    assert set(drawn.tolist()) == {2.0, 7.0}
    assert (drawn == 7.0).mean() == pytest.approx(0.75, abs=0.02)


def test_chunks_that_are_not_whole_have_no_probability():
    replay = replay_of(episode([1, 2, 4], end="running"), horizon=2)
    drawn = replay.sample(500, np.random.default_rng(0), np.array([0.0, 0.5, 0.5]))
    assert set(drawn.seen.vector_BO[:, 0].tolist()) == {1.0}


@pytest.mark.parametrize(
    ("probability", "message"),
    [
        (np.ones(3), "3 probabilities for 2 steps"),
        (np.zeros(2), "sum up to 0.0"),
        (np.full(2, np.nan), "sum up to nan"),
    ],
)
def test_wrong_probabilities_are_refused(probability, message):
    with pytest.raises(HandoffError, match=message):
        replay_of(episode([1, 2])).sample(1, np.random.default_rng(0), probability)


def test_other_sizes_and_options_are_refused():
    with pytest.raises(HandoffError, match="expected 2 and 1 entries"):
        Replay(ReplayConfig(capacity=3), 2, 1).append(episode([1]))
    with pytest.raises(HandoffError, match="horizon 0"):
        Replay(ReplayConfig(horizon=0), 1, 1)
    with pytest.raises(HandoffError, match="mc_tail"):
        Replay(ReplayConfig(discount=1.0, mc_tail=-1.0), 1, 1)
    with pytest.raises(HandoffError, match="none of which can be drawn"):
        replay_of().sample(1, np.random.default_rng(0))


def test_running_episodes_that_were_overwritten_are_forgotten():
    replay = replay_of(capacity=10)
    for number in range(3000):
        replay.append(episode([1.0], number=number, end="running"))
    assert len(replay._open) < 2000


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
    replay = replay_of(*[episode([1.0, 2.0, 3.0], number=i) for i in range(9)], capacity=20, n_step=2)
    replay.save(tmp_path)
    loaded = replay_of(capacity=20, n_step=2)
    loaded.load(tmp_path)
    first, second = (one.sample(64, np.random.default_rng(3)) for one in (replay, loaded))
    assert first.reward_B.tolist() == second.reward_B.tolist()
    assert first.seen.vector_BO.tolist() == second.seen.vector_BO.tolist()


def test_a_save_writes_only_what_is_new(tmp_path, monkeypatch):
    written: list[int] = []
    write = replay_files._write_all

    def counted(to: int, data: bytes, at: int) -> None:
        written.append(len(data))
        write(to, data, at)

    monkeypatch.setattr(replay_files, "_write_all", counted)
    replay = replay_of(*[episode([1.0] * 50, number=i) for i in range(100)], capacity=4000)
    replay.save(tmp_path)
    all_of_it = sum(written)
    written.clear()
    replay.append(episode([1.0] * 3, number=1000))
    replay.save(tmp_path)
    replay.save(tmp_path)
    assert all_of_it / 4000 == sum(written) / 3


class DeadError(Exception):
    """The process, in tests."""


def test_dying_at_any_write_leaves_the_state_before_or_after(tmp_path, monkeypatch):
    config = ReplayConfig(capacity=150, n_step=3, mc_return=True)
    batches = random_batches(np.random.default_rng(5), 40, 40)
    left, write, commit = [10**9], replay_files._write_all, replay_files.write_atomically

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

    monkeypatch.setattr(replay_files, "_write_all", die_in_the_middle)
    monkeypatch.setattr(replay_files, "write_atomically", die_before_the_commit)
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
        lost = [row for several in batches[: number + 1] for row in range(several.rows)][saved:]
        if lost:
            replay.append(chosen(joined(batches[: number + 1]), np.arange(saved, saved + len(lost))))
    assert deaths > 8
    assert replay.added > 3 * config.capacity


def test_dying_within_a_save_larger_than_the_spare_room_hurts_no_saved_step(tmp_path, monkeypatch):
    replay, write, left = replay_of(capacity=4000), replay_files._write_all, [3]

    def die_at_the_third(to: int, data: bytes, at: int) -> None:
        left[0] -= 1
        write(to, data if left[0] else data[: len(data) // 2], at)
        if not left[0]:
            raise DeadError

    replay.append(episode([float(i) for i in range(6000)], end="running"))
    replay.save(tmp_path)
    monkeypatch.setattr(replay_files, "_write_all", die_at_the_third)
    replay.append(episode([float(i) for i in range(6000, 9000)], end="running", first=6000))
    with pytest.raises(DeadError):
        replay.save(tmp_path)
    loaded = replay_of(capacity=4000)
    loaded.load(tmp_path)
    assert 6000 <= loaded.added < 9000
    assert len(loaded) == 4000
    assert (loaded.columns["reward"] == loaded.columns["serial"]).all()


def joined(batches: list[Steps]) -> Steps:
    names = [name for name, value in batches[0]._asdict().items() if isinstance(value, np.ndarray)]
    return batches[0]._replace(**{name: np.concatenate([getattr(one, name) for one in batches]) for name in names})


def save_for_ever(folder: Path, told: Path) -> None:
    """Steps count up; after every save the number of steps is written to `told`."""
    replay = replay_of(capacity=300)
    while True:
        first = replay.added
        replay.append(episode([float(i) for i in range(first, first + 40)], end="running", first=first))
        replay.save(folder)
        with told.open("a") as file:
            file.write(f"{replay.added}\n")


def test_a_killed_process_leaves_all_that_it_had_saved(tmp_path):
    folder, told = tmp_path / "replay", tmp_path / "told"
    process = multiprocessing.get_context("spawn").Process(target=save_for_ever, args=(folder, told))
    process.start()
    while not told.exists() or len(told.read_text().splitlines()) < 12:
        assert process.is_alive()
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    replay = replay_of(capacity=300)
    replay.load(folder)
    assert replay.added - int(told.read_text().splitlines()[-1]) in (0, 40)
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
    with pytest.raises(HandoffError, match="Another task"):
        Replay(ReplayConfig(capacity=100), 3, 1).load(tmp_path)
    records = tmp_path / "steps-0.bin"
    records.write_bytes(records.read_bytes()[:-1])
    with pytest.raises(HandoffError, match="Was it copied"):
        replay_of().load(tmp_path)
    head = json.loads((tmp_path / "replay.json").read_text())
    (tmp_path / "replay.json").write_text(json.dumps({**head, "columns": 3}))
    with pytest.raises(HandoffError, match="is damaged"):
        replay_of().load(tmp_path)


def test_state_of_another_task_is_refused():
    state = replay_of(episode([1])).state_dict()
    with pytest.raises(HandoffError, match="observation"):
        Replay(ReplayConfig(capacity=9), 4, 1).load_state_dict(state)


def test_sizes_come_from_the_columns():
    assert sizes_of(Replay(ReplayConfig(capacity=2), 5, 3)).observation == 5
    assert sizes_of(Replay(ReplayConfig(capacity=2), 5, 3)).action == 3
