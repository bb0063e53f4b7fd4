"""An index that was put back from a backup costs no episode; what a killed writer left is deleted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from robots.episodes.segments.recovery import RECORD
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from tests.robots.episodes.test_store import SCHEMA, assert_equal, episode

EPISODES = 5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.zarr"


def filled(path: Path) -> list[bytes]:
    """Writes episodes; returns the index before and after each of them."""
    with EpisodeStore.create(path, SCHEMA) as store:
        indices = [(path / "index.json").read_bytes()]
        for seed in range(EPISODES):
            store.append(episode(seed), {"seed": seed})
            indices.append((path / "index.json").read_bytes())
    return indices


def assert_whole(path: Path) -> None:
    store = EpisodeStore.open(path)
    assert store.num_episodes == EPISODES
    for seed in range(EPISODES):
        assert store.metadata(seed) == {"seed": seed}
        assert_equal(store, seed, episode(seed))


def segments(path: Path) -> list[str]:
    return sorted(folder.name for folder in (path / "segments").iterdir() if folder.is_dir())


@pytest.mark.parametrize("kept", range(EPISODES))
def test_the_next_writer_puts_committed_segments_back_and_says_so(
    path: Path, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    indices = filled(path)
    (path / "index.json").write_bytes(indices[kept])
    assert EpisodeStore.open(path).num_episodes == kept, "it can be read as it is"
    EpisodeStore.open(path, "a").close()
    assert_whole(path)
    assert (path / "index.json").read_bytes() == indices[-1]
    [said] = caplog.messages
    assert f"index.json named {kept} segments, but {EPISODES - kept} more are complete" in said
    assert "Was index.json put back from a backup, or a writer killed" in said


def test_an_episode_that_is_appended_after_the_backup_is_added_to_all_of_them(path: Path) -> None:
    indices = filled(path)
    (path / "index.json").write_bytes(indices[1])
    with EpisodeStore.open(path, "a") as store:
        assert store.append(episode(9), {"seed": 9}) == EPISODES
    store = EpisodeStore.open(path)
    assert [store.metadata(i)["seed"] for i in range(EPISODES + 1)] == [*range(EPISODES), 9]


def test_a_segment_that_was_not_committed_is_deleted(path: Path) -> None:
    """The disk after a kill between the last file of the segment and the index."""
    indices = filled(path)
    (path / "index.json").write_bytes(indices[-2])
    (path / "segments" / "000004" / RECORD).unlink()
    with EpisodeStore.open(path, "a") as store:
        assert store.num_episodes == EPISODES - 1
    assert segments(path) == [f"{number:06d}" for number in range(EPISODES - 1)]


def test_a_record_that_a_kill_prevented_is_written_by_the_next_writer(path: Path) -> None:
    indices = filled(path)
    record = path / "segments" / "000004" / RECORD
    content = record.read_bytes()
    record.unlink()
    EpisodeStore.open(path, "a").close()
    assert record.read_bytes() == content
    (path / "index.json").write_bytes(indices[1])
    EpisodeStore.open(path, "a").close()
    assert_whole(path)


def test_an_incomplete_segment_is_set_aside_with_a_message(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    indices = filled(path)
    (path / "index.json").write_bytes(indices[-2])
    shutil.rmtree(path / "segments" / "000004" / "robot" / "q")
    with EpisodeStore.open(path, "a") as store:
        assert store.num_episodes == EPISODES - 1
    assert ".set-aside-000004" in segments(path)
    assert "moved to .set-aside-000004: its files are incomplete" in caplog.text


def without_records(path: Path) -> list[bytes]:
    """A store as an older version wrote it."""
    indices = filled(path)
    for record in path.glob(f"segments/*/{RECORD}"):
        record.unlink()
    return indices


def test_of_a_store_without_records_nothing_is_deleted(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    indices = without_records(path)
    (path / "index.json").write_bytes(indices[-2])
    EpisodeStore.open(path, "a").close()
    assert ".set-aside-000004" in segments(path)
    assert "index.json does not name it, and it has no record" in caplog.text
    # As the documentation says.
    os.rename(path / "segments" / ".set-aside-000004", path / "segments" / "000004")
    (path / "index.json").write_bytes(indices[-1])
    EpisodeStore.open(path, "a").close()
    assert_whole(path)


def test_several_segments_without_records_are_refused(path: Path) -> None:
    indices = without_records(path)
    (path / "index.json").write_bytes(indices[1])
    with pytest.raises(HandoffError, match="names 1 segments, but 4 more are there"):
        EpisodeStore.open(path, "a")
    (path / "index.json").write_bytes(indices[-1])
    assert_whole(path)


def test_a_lost_index_is_made_again_from_the_records(path: Path) -> None:
    """As the documentation says."""
    indices = filled(path)
    (path / "index.json").write_text('{"segments": []}')
    EpisodeStore.open(path, "a").close()
    assert_whole(path)
    assert (path / "index.json").read_bytes() == indices[-1]
