"""Free disk and memory against their limits, and a cache folder that cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.doctor.capacity import cache, disk, existing, memory, temporary_disk


@pytest.mark.parametrize(("free", "status"), [(5.0e9, "ok"), (4.9e9, "warning"), (0.9e9, "failed")])
def test_free_disk_is_rated(free: float, status: str, tmp_path: Path) -> None:
    check = disk("disk: runs", tmp_path, free)
    assert check.status == status
    assert check.found == f"{free / 1e9:.1f} GB free for {tmp_path}"


def test_the_disk_of_a_folder_that_does_not_exist_is_that_of_its_parent(tmp_path: Path) -> None:
    assert existing(tmp_path / "runs" / "deep") == tmp_path
    assert "GB free" in disk("disk: runs", tmp_path / "runs" / "deep").found


def test_the_disk_of_temporary_files_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert temporary_disk().found.endswith(f" GB free for {tmp_path}")


@pytest.mark.parametrize(
    ("available", "status"), [(2.0e9, "ok"), (1.9e9, "warning"), (0.4e9, "failed")]
)
def test_available_memory_is_rated(available: float, status: str) -> None:
    check = memory(available, 8e9)
    assert check.status == status
    assert check.found == f"{available / 1e9:.1f} of 8.0 GB available"


def test_memory_is_asked_from_the_system() -> None:
    assert "GB available" in memory().found


def test_a_cache_folder_that_does_not_exist_yet_is_ok_and_is_not_made(tmp_path: Path) -> None:
    assert cache(tmp_path / "handoff").status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_cache_folder_below_a_file_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check = cache(tmp_path / "file" / "handoff")
    assert check.status == "warning"
    assert "$XDG_CACHE_HOME" in check.advice
