"""Artifacts: unchanged ones are accepted, changed ones are refused with a one-line error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.runner.artifact import (
    Artifact,
    load_artifact,
    read_manifest,
    seal,
    verify_artifact,
    verify_files,
)
from robots.errors import HandoffError
from robots.storage.durable import temporary_beside

RECORD: dict[str, Any] = {
    "stage": "count",
    "inputs": {"demos": "a" * 64},
    "metrics": {"rate": 0.1, 3: (1, 2)},
}


def sealed(folder: Path, record: dict[str, Any] = RECORD) -> Artifact:
    """An artifact of two files, one of them named like a manifest."""
    partial = folder / "count.partial"
    (partial / "inner").mkdir(parents=True)
    (partial / "result.txt").write_text("7")
    (partial / "inner" / "artifact.json").write_text("{}")
    return seal(partial, folder / "count", "number", record)


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Edits a manifest by hand."""
    manifest = json.loads((path / "artifact.json").read_text())
    change(manifest)
    (path / "artifact.json").write_text(json.dumps(manifest))


def test_what_was_sealed_is_verified(tmp_path: Path) -> None:
    artifact = sealed(tmp_path)
    manifest = verify_artifact(artifact.path)
    assert manifest == artifact.manifest
    assert manifest["digest"] == artifact.digest == load_artifact(artifact.path).digest
    assert set(manifest["files"]) == {"result.txt", "inner/artifact.json"}


def test_what_a_killed_attempt_left_of_a_file_is_not_sealed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    left = temporary_beside(tmp_path / "two" / "count.partial" / "inner" / "result.txt")
    left.parent.mkdir(parents=True)
    left.write_text("half of it")
    (left.parent / "artifact.json").write_text("{}")
    (left.parent.parent / "result.txt").write_text("7")
    resumed = seal(left.parent.parent, tmp_path / "two" / "count", "number", RECORD)
    assert resumed.digest == sealed(tmp_path / "one").digest


def test_the_digest_covers_the_files_and_their_names(tmp_path: Path) -> None:
    path = sealed(tmp_path).path
    rewrite(path, lambda manifest: manifest["files"].pop("inner/artifact.json"))
    with pytest.raises(HandoffError, match=r"'digest' in artifact.json is \w{12}, computed"):
        load_artifact(path)


@pytest.mark.parametrize("key", ["kind", "stage", "inputs", "metrics"])
def test_no_entry_of_the_manifest_can_be_edited(tmp_path: Path, key: str) -> None:
    path = sealed(tmp_path).path
    other: Any = "gate" if key in ("kind", "stage") else {"passed": True}
    rewrite(path, lambda manifest: manifest.update({key: other}))
    for check in (load_artifact, verify_artifact):
        with pytest.raises(HandoffError, match=r"'manifest_digest' in artifact.json is"):
            check(path)


@pytest.mark.parametrize("name", ["added.bin", "inner/added.bin", "inner/deep/artifact.json"])
def test_a_file_that_is_not_listed_is_refused(tmp_path: Path, name: str) -> None:
    path = sealed(tmp_path).path
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("")
    for check in (load_artifact, verify_artifact):
        with pytest.raises(HandoffError, match=f"1 files are not in its manifest, e.g. {name}"):
            check(path)


def test_a_link_is_refused_even_to_the_same_content(tmp_path: Path) -> None:
    path = sealed(tmp_path).path
    (path / "result.txt").rename(tmp_path / "elsewhere.txt")
    (path / "result.txt").symlink_to(tmp_path / "elsewhere.txt")
    for check in (load_artifact, verify_artifact):
        with pytest.raises(
            HandoffError, match=r"result.txt is a link, expected files and folders only"
        ):
            check(path)


def test_a_link_that_a_stage_left_is_not_sealed(tmp_path: Path) -> None:
    partial = tmp_path / "count.partial"
    partial.mkdir()
    (partial / "data").symlink_to(tmp_path)
    with pytest.raises(HandoffError, match="data is a link"):
        seal(partial, tmp_path / "count", "number", RECORD)
    assert not (tmp_path / "count").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = sealed(tmp_path).path
    (path / "result.txt").unlink()
    for check in (load_artifact, verify_artifact):
        with pytest.raises(HandoffError, match=r"result.txt is missing, the manifest says 1 bytes"):
            check(path)


def test_an_artifact_of_an_older_version_is_a_cache_but_not_verified(tmp_path: Path) -> None:
    artifact = sealed(tmp_path)
    rewrite(artifact.path, lambda manifest: manifest.pop("manifest_digest"))
    assert load_artifact(artifact.path) == artifact
    assert verify_files(artifact.path)["digest"] == artifact.digest
    with pytest.raises(
        HandoffError, match=r"an older version of Handoff made it.* run the recipe again"
    ):
        verify_artifact(artifact.path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "artifact.json holds a list, expected a map"),
        (b"{}", "'kind' is missing in artifact.json, expected a str"),
        (b"\xff\xfe", "artifact.json is not UTF-8"),
        (b"{", "artifact.json is not JSON"),
        ({"files": None}, "'files' is None in artifact.json, expected a dict"),
        ({"files": {"result.txt": 3}}, "the entry of file result.txt is 3 in artifact.json"),
        ({"files": {"result.txt": {"size": "1", "sha256": ""}}}, "the entry of file result.txt is"),
        ({"metrics": []}, r"'metrics' is \[\] in artifact.json, expected a dict"),
    ],
)
def test_a_broken_manifest_is_one_clear_line(tmp_path: Path, content: Any, message: str) -> None:
    path = sealed(tmp_path).path
    if isinstance(content, bytes):
        (path / "artifact.json").write_bytes(content)
    else:
        rewrite(path, lambda manifest: manifest.update(content))
    for use in (read_manifest, load_artifact, verify_artifact):
        with pytest.raises(HandoffError, match=message) as caught:
            use(path)
        assert "\n" not in str(caught.value)
