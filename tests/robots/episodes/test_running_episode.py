"""Episodes that are written while they are recorded."""

import errno
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.running_episode import MemoryRecording, RunningEpisode, recover_interrupted
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.segments.chunks import ChunkWriter
from robots.episodes.segments.episode_files import StreamFiles, unfinished
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec
from tests.robots.episodes.killed_writers import Forker, killed_before

STATE = {
    "q": FieldSpec(shape=(7,), dtype="float64", unit="rad"),
    "width": FieldSpec(shape=(), unit="m"),
}
CAMERA = {
    # Of 400 x 400 pixels every picture is a chunk, of 60 x 60 sixteen are.
    "front": FieldSpec(shape=(400, 400, 3), dtype="uint8", unit="u8"),
    "wrist/depth": FieldSpec(shape=(60, 60), dtype="uint16", unit="mm"),
}
SCHEMA = EpisodeSchema(
    name="towel",
    streams={
        "policy": StreamSpec(rate_hz=10.0, fields={**STATE, **CAMERA}),
        "final": StreamSpec(rate_hz=10.0, fields={"q": STATE["q"], **CAMERA}),
        "robot": StreamSpec(rate_hz=1000.0, fields=STATE),
    },
)
SMALL = EpisodeSchema(
    name="small",
    streams={
        "policy": StreamSpec(rate_hz=10.0, fields={"q": STATE["q"], "depth": CAMERA["wrist/depth"]})
    },
)
DONE = 7
"""Exit status of a recorder that was not killed."""


def sample(number: int, fields: dict[str, FieldSpec]) -> dict[str, np.ndarray]:
    """Sample `number`, which tells its number in every value."""
    values = {}
    for name, field in fields.items():
        rng = np.random.default_rng([number, len(name)])
        noise = rng.integers(0, 3, field.shape)
        values[name] = np.asarray((noise + number) % 251, field.dtype)
    return values


def record(recording, steps: int) -> None:
    for number in range(steps):
        recording.append("policy", sample(number, SCHEMA.streams["policy"].fields))
        many = [sample(10 * number + tick, STATE) for tick in range(10)]
        recording.extend("robot", {name: np.stack([row[name] for row in many]) for name in STATE})


def end(recording, steps: int) -> None:
    recording.append("final", sample(steps, SCHEMA.streams["final"].fields))


def check(store: EpisodeStore, episode: int) -> dict[str, int]:
    """Every sample of every stream is the one with its number; returns the lengths."""
    lengths = {}
    for stream, spec in SCHEMA.streams.items():
        read = store.read(episode, stream)
        lengths[stream] = len(read["q"])
        for row in range(lengths[stream]):
            number = lengths["policy"] if stream == "final" else row
            for name, expected in sample(number, spec.fields).items():
                if stream != "final" or lengths["policy"]:
                    np.testing.assert_array_equal(read[name][row], expected, f"{stream}/{name}")
    return lengths


@pytest.fixture
def store(tmp_path):
    with EpisodeStore.create(tmp_path / "store.zarr", SCHEMA) as store:
        yield store


@pytest.mark.parametrize("steps", [1, 16, 37])
def test_an_episode_has_what_was_recorded(store, steps):
    episode = RunningEpisode(store)
    record(episode, steps)
    end(episode, steps)
    assert episode.commit({"success": True}) == 0
    opened = EpisodeStore.open(store.path)
    assert opened.metadata(0) == {"success": True}
    assert check(opened, 0) == {"policy": steps, "final": 1, "robot": 10 * steps}


def test_an_episode_longer_than_a_shard(tmp_path):
    fields = {"front": FieldSpec(shape=(60, 60), dtype="uint16", unit="mm")}
    schema = EpisodeSchema(name="long", streams={"policy": StreamSpec(rate_hz=30.0, fields=fields)})
    frames = np.random.default_rng(0).integers(0, 2000, (3333, 60, 60)).astype(np.uint16)
    with EpisodeStore.create(tmp_path / "long.zarr", schema) as store:
        episode = RunningEpisode(store)
        episode.extend("policy", {"front": frames})
        episode.commit({})
    read = EpisodeStore.open(tmp_path / "long.zarr").read(0, "policy")["front"]
    np.testing.assert_array_equal(read, frames)


def test_a_recording_in_memory_has_the_same_samples(store):
    episode = MemoryRecording(store, SCHEMA)
    record(episode, 3)
    end(episode, 3)
    episode.commit({})
    assert check(store, 0) == {"policy": 3, "final": 1, "robot": 30}


def test_nobody_sees_it_before_its_commit(store):
    record(RunningEpisode(store), 3)
    assert EpisodeStore.open(store.path).num_episodes == 0


def test_a_discarded_one_leaves_nothing(store):
    episode = RunningEpisode(store)
    record(episode, 3)
    episode.discard()
    assert list((store.path / "segments").glob(".*")) == []


def test_one_that_is_committed_into_another_store(store, tmp_path):
    with EpisodeStore.create(tmp_path / "dropped.zarr", SCHEMA) as dropped:
        episode = RunningEpisode(store)
        record(episode, 2)
        end(episode, 2)
        episode.commit({}, into=dropped)
        assert (store.num_episodes, dropped.num_episodes) == (0, 1)
    check(EpisodeStore.open(tmp_path / "dropped.zarr"), 0)


def test_a_sample_that_does_not_fit_is_refused_and_not_recorded(store):
    episode = RunningEpisode(store)
    record(episode, 2)
    wrong = sample(2, SCHEMA.streams["policy"].fields)
    with pytest.raises(HandoffError, match=r"policy/q: shape"):
        episode.append("policy", {**wrong, "q": np.zeros(6)})
    with pytest.raises(HandoffError, match="missing"):
        episode.append("policy", {"q": np.zeros(7)})
    record_end = SCHEMA.streams["final"].fields
    episode.append("final", sample(2, record_end))
    episode.commit({})
    assert check(EpisodeStore.open(store.path), 0)["policy"] == 2


def test_a_stream_without_a_sample_is_refused_and_the_recording_goes_on(store):
    episode = RunningEpisode(store)
    record(episode, 2)
    with pytest.raises(HandoffError, match="final: 0 samples"):
        episode.commit({})
    end(episode, 2)
    assert episode.commit({}) == 0


def test_the_caller_may_write_into_its_arrays_again(store):
    episode = RunningEpisode(store)
    fields = SCHEMA.streams["policy"].fields
    kept = sample(0, fields)
    episode.append("policy", kept)
    for array in kept.values():
        array[...] = 9
    episode.extend("robot", {name: np.zeros((1, *field.shape)) for name, field in STATE.items()})
    end(episode, 1)
    episode.commit({})
    read = EpisodeStore.open(store.path).read(0, "policy")
    for name, expected in sample(0, fields).items():
        np.testing.assert_array_equal(read[name][0], expected)


def test_a_full_disk_is_named_and_earlier_episodes_are_safe(store, monkeypatch):
    def record_and_commit(episode):
        record(episode, 1)
        end(episode, 1)
        episode.commit({})

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    record_and_commit(RunningEpisode(store))
    monkeypatch.setattr(ChunkWriter, "append", full)
    episode = RunningEpisode(store)
    with pytest.raises(HandoffError, match=r"\); the episodes before it are safe.*full"):
        record_and_commit(episode)
    episode.discard()
    check(EpisodeStore.open(store.path), 0)


def test_a_store_for_reading_records_nothing(store):
    with pytest.raises(HandoffError, match="open for reading only"):
        RunningEpisode(EpisodeStore.open(store.path))


@pytest.fixture(scope="module")
def forker():
    forker = Forker()
    yield forker
    forker.close()


def record_for_ever(path: Path, note: Path) -> None:
    """Notes a byte before the first sample and after every step."""
    store = EpisodeStore.open(path, "a")
    episode = RunningEpisode(store, {"person": "ada"})
    with note.open("ab", buffering=0) as file:
        file.write(b"o")
        for number in range(10**6):
            episode.append("policy", sample(number, SCHEMA.streams["policy"].fields))
            rows = sample(number, STATE)
            episode.extend("robot", {name: row[None] for name, row in rows.items()})
            file.write(b"s")
            time.sleep(0.002)


def record_killed_at(path: Path, steps: int, change: int) -> None:
    """Records an episode, and dies just before the `change`-th change to the disk of its commit."""
    store = EpisodeStore.open(path, "a")
    episode = RunningEpisode(store, {})
    for number in range(steps):
        episode.append("policy", sample(number, SMALL.streams["policy"].fields))
    episode._end()
    killed_before(change)
    episode.commit({})
    os._exit(DONE)


def test_a_killed_recording_is_recovered_but_for_its_last_moment(store, forker, tmp_path):
    store.close()
    chance = random.Random(0)
    for kill in range(4):
        note = tmp_path / f"note{kill}"
        note.write_bytes(b"")
        recorder = forker.start(record_for_ever, store.path, note)
        while note.stat().st_size < 2:
            assert not forker.ended(0.001), "the recorder died by itself"
        time.sleep(chance.uniform(0.0, 0.5))
        os.kill(recorder, signal.SIGKILL)
        assert forker.wait() == -signal.SIGKILL
        appended = note.stat().st_size - 1
        said: list[str] = []
        with EpisodeStore.open(store.path, "a") as opened:
            assert opened.num_episodes == kill
            assert recover_interrupted(opened, log=said.append) == 1
            assert list(unfinished(opened.path)) == []
        assert "interrupted recording is now episode" in said[0]
        reader = EpisodeStore.open(store.path)
        about = {"person": "ada", "success": False, "discard_reason": "interrupted"}
        assert about.items() <= reader.metadata(kill).items()
        assert reader.metadata(kill)["ended_by"] == "interrupted"
        lengths = check(reader, kill)
        # The last step is the observation at the end.
        assert appended - 60 <= lengths["policy"] + 1 <= appended + 1


@pytest.mark.parametrize("steps", [1, 19])
def test_a_kill_before_any_change_to_the_disk_of_a_commit_loses_nothing(tmp_path, forker, steps):
    path = tmp_path / "small.zarr"
    EpisodeStore.create(path, SMALL).close()
    change, status, committed = 0, -signal.SIGKILL, 0
    while status == -signal.SIGKILL:
        change += 1
        forker.start(record_killed_at, path, steps, change)
        status = forker.wait()
        with EpisodeStore.open(path, "a") as opened:
            recover_interrupted(opened, log=lambda line: None)
            assert list(unfinished(path)) == []
        committed += 1
        store = EpisodeStore.open(path)
        assert store.num_episodes == committed, f"change {change}"
        read = store.read(committed - 1, "policy")
        for name, field in SMALL.streams["policy"].fields.items():
            expected = [sample(row, {name: field})[name] for row in range(steps)]
            np.testing.assert_array_equal(read[name], expected)
    assert status == DONE
    assert change > 20


def test_a_recording_without_a_step_is_deleted(store):
    episode = RunningEpisode(store)
    record(episode, 1)
    episode._end()
    said: list[str] = []
    assert recover_interrupted(store, log=said.append) == 0
    assert "no complete sample of the stream 'final'" in said[0]
    assert list(unfinished(store.path)) == []


def test_pictures_that_were_cut_or_spoilt_end_the_recovered_episode(store):
    episode = RunningEpisode(store)
    record(episode, 20)
    end(episode, 20)
    episode._end()
    (folder,) = unfinished(store.path)
    shard = folder / "segment/policy/front/c.0.0.0.0"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 0xFF
    shard.write_bytes(data)
    assert recover_interrupted(store, log=lambda line: None) == 1
    read = EpisodeStore.open(store.path)
    length = int(read.ends("policy")[0])
    assert 8 <= length <= 11
    front = read.read(0, "policy", ["front"])["front"]
    for row in range(length):
        expected = sample(row, SCHEMA.streams["policy"].fields)["front"]
        np.testing.assert_array_equal(front[row], expected)


def test_small_fields_are_flushed_while_samples_come_if_that_is_asked_for(store, monkeypatch):
    flushed: list[int] = []
    monkeypatch.setattr(StreamFiles, "sync", lambda files: flushed.append(files.rows))
    for seconds, expected in ((None, []), (60.0, []), (0.0, [1, 2, 3])):
        episode = RunningEpisode(store, {}, sync_seconds=seconds)
        for number in range(3):
            episode.append("robot", sample(number, STATE))
        episode.discard()
        assert flushed == expected, seconds
