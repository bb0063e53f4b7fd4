"""Tests the learner process without kills: messages, publication, checkpoints and resuming."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.typing import Origin

from policies.rl.actor_export import sac_actor
from policies.rl.hil.config import LearnerConfig, RlifConfig
from policies.rl.hil.learner import LearnerTraining, run_learner
from policies.rl.hil.message_log import SequenceTracker
from policies.rl.hil.rlif import InterventionReward
from robots.errors import HandoffError
from robots.wire.learner import (
    Acknowledgement,
    Hello,
    JournalEntry,
    Message,
    Parameters,
    Pause,
    decode,
    encode,
)
from robots.wire.steps import plain_steps
from tests.policies.rl.training import LONG, ONLINE, TOKEN, Serving, buffers, loaded, sac

JOURNAL = "00000000000000aa"


def entry(number: int, rows: int = 3, journal: str = JOURNAL) -> JournalEntry:
    """Steps number 3 n to 3 n + 2 of episodes of 12; a person acts at every fourth."""
    step = np.arange(rows * number, rows * number + rows)
    observation = np.random.default_rng(number).uniform(-0.5, 0.5, (rows, 7))
    last, persons = step % 12 == 11, step % 4 == 3
    still, none = np.zeros((rows, 3)), np.zeros(rows)
    steps = plain_steps(
        step // 12,
        step % 12,
        observation,
        still,
        last,
        observation + 0.01,
        last,
        none,
        intervention=persons,
    )
    return JournalEntry(journal, number, steps)


def ask(connection: Connection, message: Message | bytes | str) -> Message | str:
    """Next answer other than parameters and pauses."""
    connection.send(message if isinstance(message, bytes | str) else encode(message))
    while True:
        frame = connection.recv(timeout=LONG)
        if isinstance(frame, str):
            return frame
        answer = decode(frame)
        if not isinstance(answer, Parameters | Pause):
            return answer


def connected(serving: Serving, token: str = TOKEN) -> Connection:
    headers = {"Authorization": f"Api-Key {token}"}
    return connect(
        f"ws://127.0.0.1:{serving.port}", additional_headers=headers, compression=None, proxy=None
    )


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path / "learner") as running:
        yield running


def test_resent_entries_are_applied_once_and_entries_after_a_gap_are_refused(
    serving: Serving,
) -> None:
    with connected(serving) as connection:
        assert ask(connection, Hello(JOURNAL, 0)) == Acknowledgement(-1)
        for number, taken in ((0, 0), (1, 1), (1, 1), (0, 1), (2, 2), (2, 2)):
            assert ask(connection, entry(number)) == Acknowledgement(taken)
        assert (
            ask(connection, entry(4))
            == "steps: entry 4 of journal 00000000000000aa, expected 3. Were entries dropped?"
        )
    with connected(serving) as again:
        assert ask(again, Hello(JOURNAL, 0)) == Acknowledgement(2)
        for number, taken in ((3, 3), (2, 3), (4, 4)):
            assert ask(again, entry(number)) == Acknowledgement(taken)
    serving.stop()
    replay = loaded(serving.folder)
    assert (12 * replay["episode"] + replay["number"]).tolist() == list(range(15))


def test_what_is_acknowledged_is_in_the_log_already(serving: Serving) -> None:
    with connected(serving) as connection:
        ask(connection, Hello(JOURNAL, 0))
        frame = encode(entry(0))
        assert ask(connection, frame) == Acknowledgement(0)
        assert frame in b"".join(
            file.read_bytes() for file in (serving.folder / "received").glob("*.log")
        )


def test_a_client_without_the_token_is_refused(serving: Serving) -> None:
    for token in ("token-of-the-testt", "", "x" * 5000):
        with pytest.raises(InvalidStatus, match="401"):
            connected(serving, token)
    with pytest.raises(InvalidStatus, match="401"):
        connect(f"ws://127.0.0.1:{serving.port}", compression=None, proxy=None)


def test_a_page_of_another_site_is_refused_even_with_the_token(serving: Serving) -> None:
    headers = {"Authorization": f"Api-Key {TOKEN}"}
    with pytest.raises(InvalidStatus, match="403"):
        connect(
            f"ws://127.0.0.1:{serving.port}",
            additional_headers=headers,
            origin=Origin("https://evil.example"),
            proxy=None,
        )


def test_garbage_is_answered_in_text_and_the_server_continues(serving: Serving) -> None:
    rng = np.random.default_rng(0)
    sound = [
        encode(Hello(JOURNAL, 0)),
        encode(entry(0)),
        encode(Acknowledgement(3)),
        encode(Pause(True)),
    ]
    complaints = 0
    with connected(serving) as connection:
        assert isinstance(ask(connection, "text"), str)
        for _ in range(300):
            frame = bytearray(sound[rng.integers(len(sound))])
            begin = rng.integers(len(frame))
            frame[begin : begin + 4] = rng.bytes(int(rng.integers(0, 9)))
            complaints += isinstance(ask(connection, bytes(frame)), str)
        assert complaints > 200
        assert ask(connection, Hello("00000000000000bb", 0)) == Acknowledgement(-1)
        assert ask(connection, entry(0, journal="00000000000000bb")) == Acknowledgement(0)


def test_steps_of_another_task_are_refused(serving: Serving) -> None:
    none, four = np.zeros(1), np.zeros((1, 4))
    other = plain_steps(none, none, four, four, none, four, none, none)
    with connected(serving) as connection:
        ask(connection, Hello(JOURNAL, 0))
        answer = ask(connection, JournalEntry(JOURNAL, 0, other))
    assert answer == (
        "steps: 4 observation entries, 4 action entries and images (), expected 7, 3 and (). Does this "
        "actor run another task?"
    )


def test_an_actor_is_sent_the_newest_parameters_and_pauses(tmp_path: Path) -> None:
    with (
        Serving(tmp_path, pause=lambda counters: counters.steps >= 3) as serving,
        connected(serving) as connection,
    ):
        connection.send(encode(Hello(JOURNAL, 0)))
        assert decode(connection.recv(timeout=LONG)) == Acknowledgement(-1)
        first = decode(connection.recv(timeout=LONG))
        assert isinstance(first, Parameters)
        assert first.version == 10**9
        expected = sac_actor(sac())[1]
        assert first.arrays.keys() == expected.keys()
        assert all(np.array_equal(first.arrays[name], expected[name]) for name in expected)
        for number in range(6):
            connection.send(encode(entry(number)))
        # 18 steps, of which 10 come before the first update, allow 16 updates; published are every
        # fifth.
        received: list[Message] = []
        while not (
            received and isinstance(received[-1], Parameters) and received[-1].version == 10**9 + 15
        ):
            received.append(decode(connection.recv(timeout=LONG)))
        while Pause(True) not in received:
            received.append(decode(connection.recv(timeout=LONG)))
    versions = [one.version - 10**9 for one in received if isinstance(one, Parameters)]
    assert versions == sorted(versions)
    assert set(versions) <= {5, 10, 15}


DEFAULTS = LearnerConfig()


def training(folder: Path, config: LearnerConfig = DEFAULTS, **options) -> LearnerTraining:
    replay, demos = buffers()
    arguments = {"seed": 0, "publish": sac_actor, "relabel": None, **options}
    return LearnerTraining(folder, sac(), replay, demos, ONLINE, config, **arguments)


def give(one: LearnerTraining, *numbers: int) -> None:
    if JOURNAL not in one.message_log._sequences.taken:
        one.message_log.put(encode(Hello(JOURNAL, 0)), Hello(JOURNAL, 0))
    for number in numbers:
        one.message_log.put(encode(entry(number)), entry(number))
    one.receive()


def weights(one: LearnerTraining) -> dict[str, np.ndarray]:
    state = one.learner.state_dict()["networks"]
    return {name: tensor.numpy().copy() for name, tensor in state.items()}


def columns(one: LearnerTraining, name: str = "replay") -> dict[str, list]:
    buffer = one.buffers[name]
    return {name: column[: len(buffer)].tolist() for name, column in buffer.columns.items()}


def test_a_resumed_training_continues_bit_for_bit(tmp_path: Path) -> None:
    whole, broken = (training(tmp_path / name) for name in ("whole", "broken"))
    for one in (whole, broken):
        give(one, 0, 1, 2, 3, 4)
        for _ in range(3):
            one.update()
    broken.checkpoint()
    broken.update()  # lost, and repeated
    broken.message_log.close()
    resumed = training(tmp_path / "broken")
    assert (resumed.updates, resumed.starts) == (3, 2)
    for one in (whole, resumed):
        give(one, 5)
        for _ in range(3):
            one.update()
        one.message_log.close()
    assert resumed.counters == whole.counters
    assert columns(resumed) == columns(whole)
    assert columns(resumed, "demos") == columns(whole, "demos")
    expected, got = weights(whole), weights(resumed)
    assert all(np.array_equal(got[name], expected[name]) for name in expected)


def test_the_metrics_go_to_the_loggers_once_at_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = LearnerConfig(loggers=("tensorboard",))
    for number in range(2):
        one = training(tmp_path, config)
        give(one, *range(5 * number, 5 * number + 5))
        for _ in range(2):
            one.log_metrics(one.update())
        one.checkpoint()
        one.log_metrics(one.update())  # lost, and repeated
        one.log.close()
        one.message_log.close()
        # TensorBoard reads the files of one second in the order of a number without leading zeros.
        time.sleep(1.0)
    kept = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = EventAccumulator(str(tmp_path / "logs" / "tensorboard")).Reload().Scalars("steps")
    assert [one.step for one in logged] == [line["step"] for line in kept] == [1, 2, 3, 4]
    assert [one.value for one in logged] == [line["steps"] for line in kept]


@pytest.mark.parametrize("saved", [(), ("replay",), ("replay", "demos")])
def test_a_crash_between_the_parts_of_a_checkpoint_duplicates_no_steps(
    tmp_path: Path, saved: tuple[str, ...]
) -> None:
    first = training(tmp_path)
    give(first, 0, 1)
    first.checkpoint()
    give(first, 2, 3, 4)
    for name in saved:
        first.buffers[name].save(tmp_path / name)
    first.message_log.close()
    second = training(tmp_path)
    assert columns(second) == columns(first)
    assert columns(second, "demos") == columns(first, "demos")
    assert second.counters == first.counters
    give(second, 5)
    assert columns(second)["number"] == [*range(12), *range(6)]
    second.message_log.close()


def test_a_crash_before_the_first_checkpoint_loses_nothing(tmp_path: Path) -> None:
    first = training(tmp_path)
    give(first, 0, 1)
    first.message_log.close()
    second = training(tmp_path)
    assert columns(second) == columns(first)
    assert len(second.buffers["demos"]) == len(first.buffers["demos"])
    second.message_log.close()


def test_a_checkpoint_truncates_the_log_and_its_numbers_continue(tmp_path: Path) -> None:
    one = training(tmp_path, LearnerConfig(log_bytes=1))
    give(one, 0, 1, 2)
    assert len(list((tmp_path / "received").glob("*.log"))) == 4
    one.checkpoint()
    assert [file.name for file in (tmp_path / "received").glob("*.log")] == [f"{3:020d}.log"]
    one.message_log.close()
    again = training(tmp_path)
    assert again.message_log.put(encode(entry(2)), entry(2)) == 2
    assert again.message_log.put(encode(entry(3)), entry(3)) == 3
    again.receive()
    assert columns(again)["number"] == list(range(12))
    again.message_log.close()


def test_rewards_of_rlif_survive_a_crash(tmp_path: Path) -> None:
    """A person steps in at every fourth step, so the steps before them have reward -1; the last one
    waits."""
    first = training(tmp_path, relabel=InterventionReward(RlifConfig()))
    give(first, 0)
    first.checkpoint()
    give(first, 1)
    first.message_log.close()
    second = training(tmp_path, relabel=InterventionReward(RlifConfig()))
    give(second, 2)
    assert columns(second)["reward"] == [0, 0, -1, 0, 0, 0, -1, 0]
    second.message_log.close()


def test_episodes_of_two_actors_are_kept_apart(tmp_path: Path) -> None:
    one = training(tmp_path)
    other = "00000000000000bb"
    for journal in (JOURNAL, other):
        for message in (Hello(journal, 0), entry(0, journal=journal)):
            one.message_log.put(encode(message), message)
    one.receive()
    assert columns(one)["episode"] == [0, 0, 0, 2**48, 2**48, 2**48]
    one.message_log.close()


def test_another_trainings_folder_is_refused(tmp_path: Path) -> None:
    training(tmp_path).message_log.close()
    with pytest.raises(HandoffError, match="is of another training"):
        training(tmp_path, seed=1)


def test_received_demonstrations_are_not_counted_as_steps(tmp_path: Path) -> None:
    one = training(tmp_path)
    before = len(one.buffers["demos"])
    sent = entry(0)._replace(steps=entry(0).steps._replace(demo=np.ones(3, bool)))
    for message in (Hello(JOURNAL, 0), sent):
        one.message_log.put(encode(message), message)
    one.receive()
    assert (one.counters.steps, len(one.buffers["replay"]), len(one.buffers["demos"])) == (
        0,
        0,
        before + 3,
    )
    one.message_log.close()


def test_metrics_and_picture_are_written_at_the_end(tmp_path: Path) -> None:
    serving = Serving(tmp_path)
    with serving, connected(serving) as connection:
        ask(connection, Hello(JOURNAL, 0))
        for number in range(8):
            ask(connection, entry(number))
        while True:
            message = decode(connection.recv(timeout=LONG))
            if isinstance(message, Parameters) and message.version >= 10**9 + 20:
                break
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert '"step": 5,' in lines[0]
    assert '"recent_success": 1.0' in lines[-1]
    assert (tmp_path / "training.png").stat().st_size > 1000


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with (
        Serving(tmp_path / "a") as serving,
        pytest.raises(HandoffError, match="Does another learner run there"),
    ):
        run_learner(
            tmp_path / "b", sac(), *buffers(), ONLINE, LearnerConfig(port=serving.port), TOKEN
        )


def test_the_tracker_counts_entries_lost_by_an_older_learner_state() -> None:
    sequences = SequenceTracker({JOURNAL: 4})
    assert not sequences.is_new(Hello(JOURNAL, 5))
    assert sequences.is_new(Hello(JOURNAL, 8))
    sequences.take(Hello(JOURNAL, 8))
    assert (sequences.lost, sequences.taken[JOURNAL]) == (3, 7)
    assert sequences.is_new(entry(8))
    assert not sequences.is_new(entry(7))
    with pytest.raises(HandoffError, match="has sent no hello"):
        sequences.is_new(entry(0, journal="00000000000000bb"))
