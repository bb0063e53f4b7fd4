"""Addresses of runs: a folder, a storage, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.commands.app import main
from flows.storage.address import StorageAddress, runs_folder, storage_address
from robots.errors import HandoffError


@pytest.mark.parametrize("runs", ["runs", "/data/runs", "../a:b", "s3", "C:runs"])
def test_a_path_is_a_local_folder(runs: str) -> None:
    assert storage_address(runs) is None
    assert runs_folder(runs) == Path(runs)


def test_an_address_of_a_storage_has_a_bucket_and_a_prefix() -> None:
    assert storage_address("s3://lab-runs/push_t/2026/") == StorageAddress(
        "lab-runs", "push_t/2026"
    )
    assert str(storage_address("s3://lab-runs")) == "s3://lab-runs"


def test_working_copies_of_two_storages_are_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one:9000")
    one, other = runs_folder("s3://lab/a-b"), runs_folder("s3://lab-a/b")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://two:9000")
    folders = {one, other, runs_folder("s3://lab/a-b")}
    assert len(folders) == 3
    assert {folder.parent for folder in folders} == {tmp_path / "handoff" / "storage"}


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    "runs", ["gs://lab/runs", "ftp://lab/runs", "s3:/lab/runs", "s3://", "s3:lab", "s3://lab/../x"]
)
def test_another_scheme_is_refused_and_makes_no_folder(
    command: str,
    runs: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "smoke", f"runs={runs}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"handoff: runs is '{runs}', expected a folder or s3://BUCKET/PREFIX")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(HandoffError, match="begins with 's3:'") as caught:
        storage_address("s3://key:a-secret@lab/runs")
    assert "a-secret" not in str(caught.value)
