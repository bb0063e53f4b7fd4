"""A file that was cut short is called that, and not a file of an unknown format."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from robots.episodes.demonstrations import identify
from robots.errors import HandoffError


def refused(path: Path) -> str:
    with pytest.raises(HandoffError) as caught:
        identify(path)
    return str(caught.value)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def hdf5(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["numbers"] = np.arange(10_000)
    return path


def npz(path: Path) -> Path:
    np.savez(path, q=np.zeros((5, 3)), action=np.zeros((5, 3)), episode_ends=np.array([5]))
    return path


def test_hdf5_that_was_cut_short_states_both_sizes(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "d.hdf5")
    whole = path.stat().st_size
    cut(path, 4096)
    assert f"{path}: has 4,096 of the {whole:,} bytes that it states" in refused(path)


@pytest.mark.parametrize("name", ["d.hdf5", "d.h5", "d.npz", "d.pkl", "d.mcap", "d.bag"])
def test_an_empty_file_is_called_empty(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert f"{name}: is empty (0 bytes)" in refused(tmp_path / name)


def test_an_archive_that_was_cut_short_has_no_list_of_its_files(tmp_path: Path) -> None:
    path = npz(tmp_path / "d.npz")
    cut(path, 200)
    assert "the list of files at the end of the archive cannot be read" in refused(path)
    assert "has 200 bytes. Was it cut short?" in refused(path)


@pytest.mark.parametrize(("name", "kind"), [("d.hdf5", "HDF5 file"), ("d.npz", "zip archive")])
def test_text_with_the_name_of_arrays_is_told_from_damage(
    tmp_path: Path, name: str, kind: str
) -> None:
    (tmp_path / name).write_text("404 Not Found")
    assert f"{name}: is no {kind}, as its name says; its 13 bytes begin with" in refused(
        tmp_path / name
    )


def test_a_file_inside_a_folder_is_named(tmp_path: Path) -> None:
    cut(hdf5(tmp_path / "episode_0.hdf5"), 4096)
    assert "episode_0.hdf5: has 4,096 of the" in refused(tmp_path)


def test_whole_hdf5_of_an_unknown_format_is_no_damage(tmp_path: Path) -> None:
    assert "no format of demonstrations that is known" in refused(hdf5(tmp_path / "d.hdf5"))


def test_a_pickle_that_was_cut_short_is_called_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from robots.episodes.formats.hil_serl import open_source

    monkeypatch.chdir(tmp_path)
    Path("d.pkl").write_bytes(b"\x80\x04\x95\xff\x00\x00\x00\x00\x00\x00\x00")
    with (
        pytest.raises(HandoffError, match=r"^d\.pkl: the file cannot be read"),
        open_source(Path("d.pkl"), False),
    ):
        pass
