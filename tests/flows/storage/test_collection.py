"""Garbage of a working copy: what the storage has, and nothing else."""

from __future__ import annotations

from pathlib import Path

from flows.garbage import collect
from flows.runner.artifact import load_artifact
from tests.flows.storage.conftest import Computer


def test_an_artifact_that_is_not_published_yet_is_no_garbage(
    computers: tuple[Computer, Computer],
) -> None:
    one, _ = computers
    first = one.run()
    second = one.run("demos.count=5")
    artifacts = one.folder / "artifacts"
    folder = artifacts / Path(first["total"]["artifact"]).name
    (artifacts / f".{folder.name}.published").unlink()
    lines: list[str] = []
    collect(one.folder, lines.append, older_than=0.0)
    # Of the first run, which the second one replaced, its other artifact alone goes; it can be
    # fetched again.
    assert [line.split()[1] for line in lines[:-1]] == [Path(first["demos"]["artifact"]).name]
    assert folder.is_dir()
    load_artifact(one.folder / second["total"]["artifact"])
    rows = one.run()
    assert all(row["cached"] for row in rows.values())
