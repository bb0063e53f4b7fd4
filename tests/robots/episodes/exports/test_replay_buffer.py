import json
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.exports import replay_buffer
from robots.episodes.exports.replay_buffer import write_replay_buffer
from robots.episodes.formats.replay_buffer import open_source
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.episodes.write_episodes import write_episodes
from robots.errors import HandoffError
from robots.spec import FieldSpec

LENGTHS = (4, 6, 3)


def episodes(seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "robot/position": rng.normal(size=(length, 6)),
            "camera": rng.integers(0, 256, (length, 8, 10, 3)).astype(np.uint8),
            "contact": np.zeros((length, 2), np.bool_),
            "action": rng.normal(size=(length, 7)).astype(np.float32),
        }
        for length in LENGTHS
    ]


def make_store(path: Path) -> EpisodeStore:
    return write_episodes(path, episodes(), task="pour", rate_hz=20.0, instructions=["pour"] * 3)


@pytest.mark.parametrize("chunk_bytes", [1, 500, 2 * 10**6])
def test_the_reader_gives_back_every_array_bit_for_bit(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr(replay_buffer, "CHUNK_BYTES", chunk_bytes)
    write_replay_buffer(make_store(tmp_path / "s.zarr"), tmp_path / "d.zarr")
    with open_source(tmp_path / "d.zarr", True) as source:
        read = list(source.episodes(0, 3))
        assert source.schema.fields["action"].role == "action"
        assert source.schema.fields["camera"].unit == "u8"
    for episode, given in zip(read, episodes(), strict=True):
        assert episode.arrays.keys() == given.keys()
        for name, array in given.items():
            np.testing.assert_array_equal(episode.arrays[name], array)
            assert episode.arrays[name].dtype == array.dtype


def test_the_result_says_what_was_written_and_left_out(tmp_path):
    calls = []
    result = write_replay_buffer(
        make_store(tmp_path / "s.zarr"),
        tmp_path / "d.zarr",
        progress=lambda done, total, note="": calls.append((done, total)),
    )
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert (result["episodes"], result["steps"]) == (3, 13)
    assert result["fields"] == ["robot/position", "camera", "contact", "action"]
    assert result["left_out"][-1] == "the metadata instruction"


def test_the_folder_is_zarr_v2_with_chunks_along_time_only(tmp_path):
    write_replay_buffer(make_store(tmp_path / "s.zarr"), tmp_path / "d.zarr")
    metadata = json.loads((tmp_path / "d.zarr/data/camera/.zarray").read_text())
    assert metadata["zarr_format"] == 2
    assert metadata["chunks"][1:] == [8, 10, 3]
    assert metadata["compressor"]["id"] == "blosc"
    assert json.loads((tmp_path / "d.zarr/meta/episode_ends/.zarray").read_text())["shape"] == [3]


def test_an_existing_folder_is_not_overwritten(tmp_path):
    (tmp_path / "d.zarr").mkdir()
    with pytest.raises(HandoffError, match="already exists"):
        write_replay_buffer(make_store(tmp_path / "s.zarr"), tmp_path / "d.zarr")


def test_an_empty_store_is_refused(tmp_path):
    fields = {"action": FieldSpec(shape=(2,))}
    schema = EpisodeSchema(name="pour", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)})
    with (
        EpisodeStore.create(tmp_path / "s.zarr", schema) as store,
        pytest.raises(HandoffError, match="holds no episode"),
    ):
        write_replay_buffer(store, tmp_path / "d.zarr")


def test_nothing_is_left_after_an_error(tmp_path):
    def stop(done: int, total: int, note: str = "") -> None:
        raise KeyboardInterrupt

    store = make_store(tmp_path / "s.zarr")
    with pytest.raises(KeyboardInterrupt):
        write_replay_buffer(store, tmp_path / "out/d.zarr", progress=stop)
    assert list((tmp_path / "out").iterdir()) == []
