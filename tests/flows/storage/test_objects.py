"""Objects of a storage: complete or absent, never replaced where they are created."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.storage import objects as client
from flows.storage.address import StorageAddress
from flows.storage.objects import Objects, StorageError
from tests.flows.storage.conftest import Storage


def test_of_two_creations_the_first_is_kept(storage: Storage) -> None:
    opened = storage.objects
    assert opened.create("artifact.json", b"first")
    assert not opened.create("artifact.json", b"second")
    assert opened.read("artifact.json") == b"first"
    assert opened.read("other.json") is None


def test_a_large_object_is_read_in_parts(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PART_BYTES", 1000)
    data = bytes(range(256)) * 9
    (tmp_path / "file").write_bytes(data)
    sizes: list[int] = []
    storage.objects.upload({"a/file": tmp_path / "file"}, sizes.append)
    storage.objects.download({"a/file": tmp_path / "new" / "copy"}, sizes.append)
    assert (tmp_path / "new" / "copy").read_bytes() == data
    assert sizes == [2304, 2304]
    assert storage.objects.sizes("a") == {"file": 2304}


def test_only_folders_directly_below_a_prefix_are_listed(storage: Storage) -> None:
    for key in ("a/x/1", "a/y/z/2", "a/3", "ab/4/5"):
        storage.objects.write(key, b"")
    assert sorted(storage.objects.folders("a")) == ["x", "y"]
    assert storage.objects.sizes("a") == {"3": 0, "x/1": 0, "y/z/2": 0}


def test_a_missing_object_is_named(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a/file is missing\. Was it deleted\?"):
        storage.objects.download({"a/file": tmp_path / "file"}, lambda size: None)


def test_a_password_in_the_endpoint_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://ada:a-password@127.0.0.1:9")
    with pytest.raises(StorageError, match=r"at http://127\.0\.0\.1:9: ") as caught:
        Objects(StorageAddress("lab", "x")).read("a")
    assert "a-password" not in str(caught.value)


def test_a_client_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    from robots.errors import describe

    monkeypatch.setitem(sys.modules, "obstore.store", None)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        Objects(StorageAddress("lab", "x"))
    assert describe(caught.value).startswith("obstore is not installed")
