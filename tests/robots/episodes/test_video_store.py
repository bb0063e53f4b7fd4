"""Stores whose cameras are kept as video: appended, recorded, killed, ingested and copied."""

from pathlib import Path

import numpy as np
import pytest

from robots.episodes.ingest import IngestConfig, ingest
from robots.episodes.merge import MergeSource, copy_episodes
from robots.episodes.running_episode import RunningEpisode, recover_interrupted
from robots.episodes.schema import EpisodeSchema, StreamSpec, with_videos
from robots.episodes.segments.video_codec import Ffv1Config, H264Config
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.robots.episodes.segments.numbered_pictures import numbers_in, picture

FIELDS = {
    "q": FieldSpec(shape=(3,), role="observation"),
    "front": FieldSpec(shape=(45, 63, 3), dtype="uint8", unit="u8", role="observation"),
    "action": FieldSpec(shape=(3,), role="action"),
}
SCHEMA = EpisodeSchema(name="towel", streams={"policy": StreamSpec(rate_hz=10.0, fields=FIELDS)})
LOSSY = with_videos(SCHEMA, H264Config())
EXACT = with_videos(SCHEMA, Ffv1Config())


def episode(first: int, steps: int) -> dict[str, dict[str, np.ndarray]]:
    """Pictures numbered from `first`."""
    pictures = np.stack([picture(number) for number in range(first, first + steps)])
    q = np.arange(first, first + steps, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    return {"policy": {"q": q, "front": pictures, "action": q}}


def check(store: EpisodeStore, number: int, first: int) -> int:
    """Every picture is the one of its step; returns the number of steps."""
    read = store.read(number, "policy")
    assert numbers_in(read["front"]) == read["q"][:, 0].tolist()
    assert read["q"][0, 0] == first
    return len(read["q"])


def test_pictures_of_appended_episodes_are_read_by_their_step(tmp_path: Path) -> None:
    with EpisodeStore.create(tmp_path / "s.zarr", LOSSY) as store, store.writer() as writer:
        writer.append(episode(0, 13), {})
        writer.append(episode(13, 7), {})
    store = EpisodeStore.open(tmp_path / "s.zarr")
    assert store.schema == LOSSY
    assert [check(store, 0, 0), check(store, 1, 13)] == [13, 7]
    window = store.read(1, "policy", ["front"], slice(2, 5))["front"]
    assert numbers_in(window) == [15, 16, 17]
    assert store.column("policy", "front").shape == (20, 45, 63, 3)


@pytest.mark.parametrize("killed", [False, True])
def test_pictures_of_a_recording(tmp_path: Path, *, killed: bool) -> None:
    with EpisodeStore.create(tmp_path / "s.zarr", LOSSY) as store:
        recording = RunningEpisode(store)
        for step in range(30):
            row = {name: rows[0] for name, rows in episode(step, 1)["policy"].items()}
            recording.append("policy", row)
        if killed:
            recording._end()
            recording._files.close()
            assert recover_interrupted(store, log=lambda line: None) == 1
        else:
            recording.commit({})
    assert check(EpisodeStore.open(tmp_path / "s.zarr"), 0, 0) >= (26 if killed else 30)


def test_a_video_without_loss_and_its_copies_are_exact(tmp_path: Path) -> None:
    with EpisodeStore.create(tmp_path / "s.zarr", EXACT) as store:
        store.append(episode(0, 9), {})
    copy_episodes(MergeSource("s", tmp_path / "s.zarr", ""), tmp_path / "copy.zarr", [0])
    for name in ("s", "copy"):
        store = EpisodeStore.open(tmp_path / f"{name}.zarr")
        assert store.schema.videos == EXACT.videos
        read = store.read(0, "policy", ["front"])["front"]
        np.testing.assert_array_equal(read, episode(0, 9)["policy"]["front"])


def test_an_ingest_keeps_pictures_as_video(tmp_path: Path) -> None:
    with EpisodeStore.create(tmp_path / "s.zarr", SCHEMA) as store:
        store.append(episode(0, 40), {})
    (tmp_path / "out").mkdir()
    config = IngestConfig(data=str(tmp_path / "s.zarr"), video=H264Config(crf=23))
    ingest(config, tmp_path / "out", no_progress, tmp_path / "absent.zarr.zip")
    store = EpisodeStore.open(tmp_path / "out" / "store.zarr")
    assert store.schema.videos == {"policy/front": H264Config(crf=23)}
    assert check(store, 0, 0) == 40


def test_what_is_no_camera_is_refused(tmp_path: Path) -> None:
    schema = EpisodeSchema(name="towel", streams=SCHEMA.streams, videos={"policy/q": H264Config()})
    with pytest.raises(HandoffError, match="'policy/q' has float32 of the shape"):
        EpisodeStore.create(tmp_path / "s.zarr", schema)
    schema = EpisodeSchema(name="towel", streams=SCHEMA.streams, videos={"policy/x": H264Config()})
    with pytest.raises(HandoffError, match="'policy/x', which is no field"):
        EpisodeStore.create(tmp_path / "s.zarr", schema)


def test_a_damaged_video_is_named(tmp_path: Path) -> None:
    with EpisodeStore.create(tmp_path / "s.zarr", LOSSY) as store:
        store.append(episode(0, 9), {})
    video = next((tmp_path / "s.zarr").rglob("video.mp4"))
    data = bytearray(video.read_bytes())
    frame = np.load(video.with_name("packets.npy"))[4]
    data[frame["offset"] + frame["size"] // 2] ^= 0xFF
    video.write_bytes(data)
    with pytest.raises(HandoffError, match=r"front"):
        EpisodeStore.open(tmp_path / "s.zarr").read(0, "policy", ["front"])
    video.write_bytes(data[:-10])
    with pytest.raises(HandoffError, match=r"copied incompletely"):
        EpisodeStore.open(tmp_path / "s.zarr")
