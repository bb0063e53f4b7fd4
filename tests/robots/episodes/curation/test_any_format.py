"""Episodes of a data set that is no store are read as those of a store."""

from pathlib import Path

import numpy as np
import pytest

from robots.episodes.curation.any_format import open_readable
from robots.episodes.pack import pack_store
from robots.episodes.store import EpisodeStore
from robots.episodes.write_episodes import write_episodes
from robots.errors import HandoffError


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    rng = np.random.default_rng(0)
    episodes = [
        {
            "q": rng.normal(size=(length, 2)),
            "front": rng.integers(256, size=(length, 8, 10, 3), dtype=np.uint8),
            "action": rng.normal(size=(length, 2)),
        }
        for length in (4, 7, 5)
    ]
    metadata = [{"success": number > 0} for number in range(3)]
    return write_episodes(tmp_path / "s.zarr", episodes, task="fold", rate_hz=10, metadata=metadata)


def test_a_packed_store_is_read_by_number_field_and_window(
    store: EpisodeStore, tmp_path: Path
) -> None:
    pack_store(store.path, tmp_path / "s.zarr.zip")
    with open_readable(tmp_path / "s.zarr.zip") as packed:
        assert packed.schema == store.schema
        assert packed.num_episodes == 3
        assert packed.ends("policy").tolist() == [4, 11, 16]
        assert [packed.metadata(number)["success"] for number in range(3)] == [False, True, True]
        for number, window in ((1, slice(None)), (0, slice(1, 3)), (2, slice(2, 9))):
            expected = store.read(number, "policy", steps=window)
            read = packed.read(number, "policy", steps=window)
            assert read.keys() == expected.keys()
            for name, values in expected.items():
                np.testing.assert_array_equal(read[name], values)
        assert list(packed.read(0, "policy", ["front"])) == ["front"]


def test_the_folder_of_a_store_is_the_store_itself(store: EpisodeStore) -> None:
    with open_readable(store.path) as opened:
        assert isinstance(opened, EpisodeStore)


def test_a_data_set_that_does_not_state_its_rate_is_imported_first(tmp_path: Path) -> None:
    arrays = {"q": np.zeros((4, 2)), "action": np.zeros((4, 2)), "episode_ends": np.array([4])}
    np.savez(tmp_path / "d.npz", **arrays)
    with (
        pytest.raises(
            HandoffError, match=r"does not state the rate\. Import it .*d\.npz OUT --map"
        ),
        open_readable(tmp_path / "d.npz"),
    ):
        pass
