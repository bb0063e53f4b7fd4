"""Reading a data set from outside runs no code, and takes no more memory or disk than its size
promises."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from robots.episodes.demonstrations import open_demonstrations
from robots.episodes.formats.containers.zarr_v2 import LARGEST_CHUNK
from robots.episodes.pack import unpack_store
from robots.errors import HandoffError
from tests.robots.episodes.replay_buffer import arrays, write_folder

PICKLE = {"id": "pickle", "protocol": 5}


class Attack:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.file, "run")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data.zarr", arrays())


def change(data: Path, **entries: Any) -> None:
    """Changes the metadata of the actions."""
    file = data / "data" / "action" / ".zarray"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def zipped(data: Path) -> Path:
    out = data.with_suffix(".zip")
    with zipfile.ZipFile(out, "w") as archive:
        for file in sorted(data.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(data).as_posix())
    return out


def read(path: Path) -> None:
    with open_demonstrations(path, images=False) as demonstrations:
        list(demonstrations.episodes(0, demonstrations.num_episodes))


@pytest.mark.parametrize("pack", [lambda path: path, zipped])
def test_pickled_objects_are_refused_before_they_are_read(
    data: Path, tmp_path: Path, pack: Any
) -> None:
    attack = pickle.dumps([Attack(tmp_path / "run")])
    for chunk in (data / "data" / "action").glob("[0-9]*"):
        chunk.write_bytes(attack)
    change(data, dtype="|O", filters=[{"id": "vlen-utf8"}, PICKLE], compressor=None)
    with pytest.raises(HandoffError, match=r"data/action has dtype '\|O', expected numbers"):
        read(pack(data))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"filters": [PICKLE]}, r"encoded by \[\{'id': 'pickle'"),
        ({"compressor": PICKLE}, r"encoded by \{'id': 'pickle'"),
        ({"compressor": {"id": "mine"}}, "expected no filters and one of blosc"),
        ({"compressor": {}}, "cannot be read"),
        ({"dtype": [["a", "<f4"], ["b", "|O"]]}, "expected numbers"),
        ({"dtype": "<U8"}, "expected numbers"),
        ({"chunks": [LARGEST_CHUNK, 2]}, "the limit is 268 MB each"),
        ({"chunks": [True, None]}, "the limit is 268 MB each"),
        ({"chunks": [-5, 2]}, "the limit is 268 MB each"),
    ],
)
def test_other_codecs_types_and_sizes_are_refused(
    data: Path, entries: dict[str, Any], message: str
) -> None:
    change(data, **entries)
    with pytest.raises(HandoffError, match=message):
        read(data)


def test_metadata_that_is_not_json_is_one_clear_line(data: Path) -> None:
    (data / "data" / "action" / ".zarray").write_bytes(b"\xff[")
    with pytest.raises(HandoffError, match=r"data/action: its \.zarray cannot be read"):
        read(data)


def test_consolidated_metadata_do_not_replace_those_that_were_checked(
    data: Path, tmp_path: Path
) -> None:
    names = (".zgroup", "data/.zgroup", "meta/.zgroup")
    metadata: dict[str, dict[str, Any]] = {name: {"zarr_format": 2} for name in names}
    for file in data.rglob(".zarray"):
        metadata[file.relative_to(data).as_posix()] = json.loads(file.read_text())
    metadata["data/action/.zarray"] |= {"dtype": "|O", "filters": [PICKLE], "compressor": None}
    (data / ".zmetadata").write_text(
        json.dumps({"metadata": metadata, "zarr_consolidated_format": 1})
    )
    read(data)


def test_a_zip_that_grows_beyond_its_size_is_refused(data: Path, tmp_path: Path) -> None:
    bomb = zipped(data)
    with zipfile.ZipFile(bomb, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/zeros", bytes(2**28))
    assert bomb.stat().st_size < 3e6
    with pytest.raises(HandoffError, match="times its own size, the limit is 100 times"):
        read(bomb)
    with pytest.raises(HandoffError, match="times its own size, the limit is 100 times"):
        unpack_store(bomb, tmp_path / "out.zarr")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []
