"""Copies of stores whose cameras are kept as video: the coded frames stay as they are."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from robots.episodes.curation.edit import Edits, write_edited
from robots.episodes.ingest import IngestConfig, ingest
from robots.episodes.merge import MergeSource, copy_episodes, merge_stores
from robots.episodes.schema import EpisodeSchema, with_videos
from robots.episodes.segments.video import VideoWriter
from robots.episodes.segments.video_codec import Av1Config, Ffv1Config, H264Config, VideoConfig
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.robots.episodes.test_video_store import EXACT, LOSSY, SCHEMA, episode

LENGTHS = (13, 8, 5)
"""Episodes of an odd number of steps, so that groups of two frames cross their ends."""


def write(path: Path, schema: EpisodeSchema, first: int = 0) -> MergeSource:
    with EpisodeStore.create(path, schema) as store, store.writer() as writer:
        for length in LENGTHS:
            writer.append(episode(first, length), {})
            first += length
    return MergeSource(path.stem, path, "")


def front(path: Path, number: int) -> np.ndarray:
    return EpisodeStore.open(path).read(number, "policy", ["front"])["front"]


def videos(path: Path) -> dict[str, VideoConfig]:
    return EpisodeStore.open(path).schema.videos


def coded(path: Path) -> list[list[int]]:
    """Checksum of every coded frame, by segment."""
    files = sorted(path.rglob("packets.npy"))
    return [np.load(file)["checksum"].tolist() for file in files]


def video_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.mp4"))


@pytest.mark.parametrize("codec", [H264Config(gop=7), Av1Config(gop=7), Ffv1Config()])
def test_copied_episodes_keep_their_coded_frames(tmp_path: Path, codec: VideoConfig):
    source = write(tmp_path / "s.zarr", with_videos(SCHEMA, codec))
    copy_episodes(source, tmp_path / "copy.zarr", [2, 0])
    assert videos(tmp_path / "copy.zarr") == {"policy/front": codec}
    ((*frames,),) = coded(source.path)
    assert coded(tmp_path / "copy.zarr") == [frames[21:] + frames[:13]]
    for copied, number in enumerate((2, 0)):
        np.testing.assert_array_equal(
            front(tmp_path / "copy.zarr", copied), front(source.path, number)
        )


def test_a_copy_of_all_episodes_has_the_size_of_the_source(tmp_path: Path):
    source = write(tmp_path / "s.zarr", LOSSY)
    copy_episodes(source, tmp_path / "copy.zarr", [0, 1, 2])
    assert video_bytes(tmp_path / "copy.zarr") == pytest.approx(video_bytes(source.path), rel=0.1)


def test_frames_of_a_copy_have_the_times_of_their_steps(tmp_path: Path):
    source = write(tmp_path / "s.zarr", LOSSY)
    copy_episodes(source, tmp_path / "copy.zarr", [1])
    (video,) = (tmp_path / "copy.zarr").rglob("*.mp4")
    with av.open(str(video)) as container:
        assert container.streams.video[0].time_base == Fraction(1, 10)
        assert [frame.pts for frame in container.decode(video=0)] == list(range(8))


def test_a_merge_keeps_videos_of_different_settings(tmp_path: Path):
    coarse = write(tmp_path / "a.zarr", with_videos(SCHEMA, H264Config(crf=35)))
    fine = write(tmp_path / "b.zarr", LOSSY, first=26)
    merge_stores([coarse, fine], tmp_path / "m.zarr")
    assert coded(tmp_path / "m.zarr") == coded(coarse.path) + coded(fine.path)
    for number in range(6):
        expected = front((coarse, fine)[number // 3].path, number % 3)
        np.testing.assert_array_equal(front(tmp_path / "m.zarr", number), expected)


def test_a_merge_with_arrays_keeps_pictures_as_they_are_decoded(tmp_path: Path):
    lossy, arrays = write(tmp_path / "a.zarr", LOSSY), write(tmp_path / "b.zarr", SCHEMA, 26)
    merge_stores([lossy, arrays], tmp_path / "m.zarr")
    assert videos(tmp_path / "m.zarr") == {}
    np.testing.assert_array_equal(front(tmp_path / "m.zarr", 1), front(lossy.path, 1))
    np.testing.assert_array_equal(front(tmp_path / "m.zarr", 5), front(arrays.path, 2))


def test_relabelled_episodes_keep_their_videos_and_trimmed_ones_their_pictures(tmp_path: Path):
    source = write(tmp_path / "s.zarr", LOSSY)
    labels = Edits(labels={0: {"success": True}}, delete=(1,))
    relabelled = write_edited(source.path, tmp_path / "labels.zarr", labels)
    trimmed = write_edited(source.path, tmp_path / "trim.zarr", Edits(trim={0: (3, 9)}))
    assert not relabelled["notes"]
    assert "policy/front: a shortened episode" in trimmed["notes"][0]
    assert videos(tmp_path / "labels.zarr") == LOSSY.videos
    assert videos(tmp_path / "trim.zarr") == {}
    np.testing.assert_array_equal(front(tmp_path / "labels.zarr", 1), front(source.path, 2))
    np.testing.assert_array_equal(front(tmp_path / "trim.zarr", 0), front(source.path, 0)[3:9])


def test_an_exact_video_stays_one_beside_a_trimmed_episode(tmp_path: Path):
    source = write(tmp_path / "s.zarr", EXACT)
    write_edited(source.path, tmp_path / "trim.zarr", Edits(trim={0: (3, 9)}))
    assert videos(tmp_path / "trim.zarr") == EXACT.videos
    np.testing.assert_array_equal(front(tmp_path / "trim.zarr", 0), front(source.path, 0)[3:9])
    np.testing.assert_array_equal(front(tmp_path / "trim.zarr", 2), front(source.path, 2))


def test_an_ingest_of_a_store_keeps_its_videos(tmp_path: Path):
    source = write(tmp_path / "s.zarr", LOSSY)
    (tmp_path / "out").mkdir()
    config = IngestConfig(data=str(source.path))
    ingest(config, tmp_path / "out", no_progress, tmp_path / "absent.zarr.zip")
    assert coded(tmp_path / "out" / "store.zarr") == coded(source.path)


def test_episodes_that_begin_within_a_group_become_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = VideoWriter.append

    def without_keys(writer: VideoWriter, frame: np.ndarray, **_: Any) -> None:
        plain(writer, frame)

    with monkeypatch.context() as patched:
        patched.setattr(VideoWriter, "append", without_keys)
        source = write(tmp_path / "s.zarr", LOSSY)
    copy_episodes(source, tmp_path / "copy.zarr", [0, 1])
    assert videos(tmp_path / "copy.zarr") == {}
    np.testing.assert_array_equal(front(tmp_path / "copy.zarr", 1), front(source.path, 1))
    copy_episodes(source, tmp_path / "first.zarr", [0])
    assert videos(tmp_path / "first.zarr") == LOSSY.videos


def test_a_damaged_frame_is_not_copied(tmp_path: Path):
    source = write(tmp_path / "s.zarr", LOSSY)
    (video,) = source.path.rglob("*.mp4")
    data = bytearray(video.read_bytes())
    data[np.load(video.with_name("packets.npy"))[4]["offset"] + 5] ^= 0xFF
    video.write_bytes(data)
    with pytest.raises(HandoffError, match="frame 4 have changed"):
        copy_episodes(source, tmp_path / "copy.zarr", [0])


def test_coded_frames_are_refused_by_a_store_without_that_video(tmp_path: Path):
    source = EpisodeStore.open(write(tmp_path / "s.zarr", LOSSY).path)
    values = {**source.read(0, "policy"), "front": source.coded(0, "policy", "front")}
    with (
        EpisodeStore.create(tmp_path / "t.zarr", replace(LOSSY, videos={})) as store,
        pytest.raises(HandoffError, match="policy/front: is not kept as video"),
    ):
        store.append({"policy": values}, {})
