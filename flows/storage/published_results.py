"""Publishes the results of a run on a storage: summary, resolved recipe, and the page, whose links
lead to the artifacts there."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.runner.artifact import json_digest, read_manifest
from flows.storage.objects import Objects

SUMMARY = "summary.json"


def publish_results(objects: Objects, run: Path, folder: Path) -> None:
    """Publishes the results of a run, unless the storage has those of the same artifacts.

    Args:
        objects: the storage.
        run: folder of the run's results.
        folder: folder of the runs; the place of `run` in it is that of the results in the storage.

    Raises:
        StorageError: the storage cannot be reached.
    """
    data = (run / SUMMARY).read_bytes()
    summary = json.loads(data)
    name = run.relative_to(folder)
    theirs = objects.read(f"{name}/{SUMMARY}")
    if theirs is not None and _digests(json.loads(theirs)) == _digests(summary):
        return
    up = "../" * len(name.parts)
    places = {
        stage: f"{up}{row['artifact']}/{files_folder(read_manifest(folder / row['artifact']))}"
        for stage, row in summary["stages"].items()
    }
    page = published_page((run / "report.html").read_text(), places)
    objects.write(f"{name}/report.html", page.encode())
    objects.write(f"{name}/recipe.yaml", (run / "recipe.yaml").read_bytes())
    objects.write(f"{name}/{SUMMARY}", data)


def published_page(page: str, places: Mapping[str, str]) -> str:
    """Returns the page of a run with the links of a storage, which has no links between folders.

    Args:
        page: the page.
        places: relative address of the files of every stage's artifact, by the stage's name.
    """
    for stage, place in places.items():
        for attribute in ("src='", "href='"):
            old = f"{attribute}{html.escape(stage)}/"
            page = page.replace(old, f"{attribute}{html.escape(place)}/")
    return page


def files_folder(manifest: Mapping[str, Any]) -> str:
    """Returns the name of the folder of an artifact's files in a storage: a digest of the manifest,
    so that artifacts of two computers never share a file."""
    return json_digest(manifest)[:12]


def _digests(summary: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {name: (row["artifact"], row["digest"]) for name, row in summary["stages"].items()}
