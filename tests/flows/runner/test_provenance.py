"""Provenance: every seed by its path, the person, and the lock of the installed packages."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from flows.runner import provenance
from flows.runner.isolate import run_isolated
from flows.runner.lock import write_lock
from flows.runner.provenance import environment, nested_seeds, package_lock, person_of
from flows.runner.stage import Stage, run_stage
from flows.runner.stage_code import StageCode
from robots.code_version import code_version
from robots.interfaces import Progress, no_progress
from tests.flows.counting_stage import CountingConfig

LARGE = 300_000_000


def test_seeds_at_any_depth_are_named_by_their_path() -> None:
    options = {
        "first_seed": 3,
        "seeded": 1,
        "training": {"seed": 7, "steps": 10},
        "sources": [{"seed": 1}, {"seed": 2}],
        "protocol": {"name": "seed", "first_seed": 100},
    }
    assert nested_seeds(options) == {
        "first_seed": 3,
        "training.seed": 7,
        "sources.0.seed": 1,
        "sources.1.seed": 2,
        "protocol.first_seed": 100,
    }


def test_the_operator_of_a_stage_is_its_person() -> None:
    assert person_of({"operator": {"kind": "console", "person": "ada"}}) == "ada"


def test_without_a_named_operator_the_login_is_the_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "grace")
    assert person_of({"operator": {"kind": "simulated", "person": ""}}) == "grace"
    assert person_of({"steps": 3}) == "grace"


def test_the_lock_has_every_package_with_its_version() -> None:
    entries = package_lock()["packages"].split()
    assert f"numpy=={version('numpy')}" in entries
    names = [entry.partition("==")[0] for entry in entries]
    assert names == sorted(set(names))


def test_an_edited_checkout_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    for commit, dirty in (("0a16e41b2c3d", False), ("0a16e41b2c3d-dirty", True)):
        monkeypatch.setattr(provenance, "_commit", lambda commit=commit: commit)
        assert (environment()["commit"], environment()["dirty"]) == (commit, dirty)


def test_the_manifest_has_memory_size_person_and_packages(tmp_path: Path) -> None:
    stage = Stage(
        "count", "number", "tests.flows.counting_stage", CountingConfig(), external={"data": "a"}
    )
    artifact = run_stage(stage, {}, tmp_path, no_progress).artifact
    manifest = artifact.manifest
    files = [file for file in artifact.path.iterdir() if file.name != "artifact.json"]
    assert manifest["written_bytes"] == sum(os.path.getsize(file) for file in files)
    assert manifest["data"] == {"data": "a"}
    assert manifest["lock"] == package_lock()
    assert manifest["person"] == provenance.login()
    assert manifest["peak_memory_bytes"] > 10_000_000


def test_the_peak_memory_is_that_of_the_stage_and_not_of_the_run(tmp_path: Path) -> None:
    here = bytearray(2 * LARGE)
    here[::4096] = b"x" * len(here[::4096])
    peaks = {}
    for size in (0, LARGE):
        with write_lock(tmp_path / str(size), no_progress) as lock:
            code = StageCode({__name__: code_version(__name__)}, tmp_path / "imports")
            _, peaks[size] = run_isolated("fill", fill, (size,), no_progress, lock, code)
    assert peaks[0] < LARGE
    assert LARGE < peaks[LARGE] < peaks[0] + 2 * LARGE


def fill(size: int, progress: Progress) -> dict[str, int]:
    """Touches `size` bytes."""
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])
    return {"size": len(block)}
