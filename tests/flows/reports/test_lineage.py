"""Lineage as a page: every artifact once, with its provenance, and nothing from another machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.reports.explain import explain
from flows.reports.lineage import computation_differences, read_lineage, write_page
from flows.runner.artifact import MANIFEST_DIGEST, Artifact, json_digest
from flows.runner.stage import Stage, run_stage
from robots.interfaces import no_progress
from tests.flows.counting_stage import CountingConfig

MODULE = "tests.flows.counting_stage"


@pytest.fixture
def artifacts(tmp_path: Path) -> dict[str, Artifact]:
    """A diamond: `source` makes `left` and `right`, which make `total`."""

    def made(name: str, inputs: dict[str, Artifact], external: dict[str, str]) -> Artifact:
        stage = Stage(name, "number", MODULE, CountingConfig(value=1), external=external)
        stage = replace(stage, inputs=dict.fromkeys(inputs, stage))
        return run_stage(stage, inputs, tmp_path, no_progress, isolate=False).artifact

    source = made("source", {}, {"demonstrations": "d" * 64})
    left, right = made("left", {"part": source}, {}), made("right", {"part": source}, {})
    total = made("total", {"first": left, "second": right}, {})
    return {"source": source, "left": left, "right": right, "total": total}


def edit(artifact: Artifact, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes a manifest and its digest, as an older or another installation would have it."""
    file = artifact.path / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    del manifest[MANIFEST_DIGEST]
    file.write_text(json.dumps({**manifest, MANIFEST_DIGEST: json_digest(manifest)}))


def test_every_artifact_stands_once_the_demonstrations_first(
    artifacts: dict[str, Artifact],
) -> None:
    nodes = read_lineage(artifacts["total"].path / "result.txt")
    assert [(node.name, node.depth) for node in nodes] == [
        ("source", 2),
        ("left", 1),
        ("right", 1),
        ("total", 0),
    ]
    assert nodes[0].manifest["data"] == {"demonstrations": "d" * 64}


def test_the_page_shows_the_graph_and_loads_nothing(
    artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    page = write_page(artifacts["total"].path, tmp_path / "out" / "lineage.html").read_text()
    # Four boxes; an edge for each of the four inputs.
    assert (page.count("<rect"), page.count("<path")) == (4, 4)
    assert not re.search(r"https?:|src=|@import|<script|<link", page)
    for artifact in artifacts.values():
        assert artifact.digest in page
        assert f"href='#artifact-{artifact.path.name}'" in page
        assert f"id='artifact-{artifact.path.name}'" in page
    assert "d" * 64 in page
    assert "agree" in page


def test_the_page_names_what_differs_between_computations(
    artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    edit(artifacts["left"], lambda manifest: manifest["environment"].update(commit="0123abc"))
    page = write_page(artifacts["total"].path, tmp_path / "lineage.html").read_text()
    assert "commit 0123abc → " in page
    assert "agree" not in page


def test_differing_packages_are_named_with_their_versions() -> None:
    old = {"environment": {"python": "3.11.1"}, "lock": {"packages": "a==1 b==2 c==3"}}
    new = {"environment": {"python": "3.11.2"}, "lock": {"packages": "a==1 b==4 d==5"}}
    assert computation_differences(old, new) == [
        "python 3.11.1 → 3.11.2",
        "b 2 → 4",
        "c 3 → absent",
        "d absent → 5",
    ]


def test_explain_prints_seeds_person_and_packages(artifacts: dict[str, Artifact]) -> None:
    edit(artifacts["source"], lambda manifest: manifest.update(seeds={"training.seed": 7}))
    edit(artifacts["source"], lambda manifest: manifest.update(person="ada"))
    text = explain(artifacts["total"].path)
    assert "seeds training.seed 7" in text
    assert "person  ada" in text
    assert re.search(r"Python 3\.\d+\.\d+, \d+ packages \w{12}", text)


def test_manifests_of_older_versions_are_explained(
    artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    def make_older(manifest: dict[str, Any]) -> None:
        for key in ("person", "lock", "data", "peak_memory_bytes", "written_bytes"):
            del manifest[key]
        for key in ("dirty", "host", "system"):
            del manifest["environment"][key]

    for artifact in artifacts.values():
        edit(artifact, make_older)
    assert explain(artifacts["total"].path).count("person  not recorded") == 4
    page = write_page(artifacts["total"].path, tmp_path / "lineage.html").read_text()
    assert page.count("not recorded") > 4
