"""Lineage as a page: every artifact once, with its provenance, and nothing from another machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.reports.explain import explain, find_artifact
from flows.reports.lineage import computation_differences, read_lineage, write_page
from flows.reports.run_records.reading import read_run
from flows.reports.run_records.record import RunRecord
from flows.runner.artifact import MANIFEST_DIGEST, Artifact, json_digest
from flows.runner.stage import Stage, run_stage
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.flows.counting_stage import CountingConfig
from tests.flows.reports.run_records.small_runs import run_sums

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
    file = artifact.path / "artifact.json"
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


def test_a_run_is_explained_with_all_of_its_artifacts(tmp_path: Path) -> None:
    folder = run_sums(tmp_path, ["numbers.operator.person=ada"])
    text = explain(Path("sums"), runs=tmp_path / "runs")
    for given in (folder, folder / "run.json", folder / "summary.json"):
        assert explain(given) == text
    # Neither sum is on the chain of the other; both stand there, and the numbers once.
    for name, digest in ((n, p.name) for n, p in read_run(folder).artifacts.items()):
        assert text.count(f"path    {folder.parent / 'artifacts' / digest}") == 1, name
    assert re.search(r"^run      sums, finished 2\d{3}-", text, re.MULTILINE)
    assert re.search(r"^command  .+", text, re.MULTILINE)
    assert re.search(r"^people   ada", text, re.MULTILINE)
    assert "left (tests.flows.reports.drawing_stages:add)" in text
    assert explain(folder, verify=True).count("  verified") == 3


def test_an_earlier_run_is_explained_from_its_record(tmp_path: Path) -> None:
    folder = run_sums(tmp_path, ["numbers.count=4"])
    run_sums(tmp_path, ["numbers.count=5"])
    (file,) = read_run(folder).earlier
    assert "numbers.count=4" in explain(file)
    assert "numbers.count=5" in explain(folder)
    assert f"earlier  1 run in {folder / 'history'}" in explain(folder)


def test_a_run_that_failed_before_any_artifact_is_explained_and_has_no_page(tmp_path: Path) -> None:
    stage = Stage("left", "number", MODULE, CountingConfig(), uses="count")
    with (
        pytest.raises(HandoffError, match="limit 2"),
        RunRecord(tmp_path, "sums", {}, [stage]),
    ):
        raise HandoffError("left: value 3, limit 2.")
    text = explain(tmp_path / "sums")
    assert re.search(r"sums, failed \S+: left: value 3, limit 2\.", text)
    assert "left (count)" in text
    assert "not finished" in text
    with pytest.raises(HandoffError, match="it has no artifacts"):
        write_page(tmp_path / "sums", tmp_path / "page.html")


def test_a_deleted_artifact_is_named_in_the_stages_of_its_run(tmp_path: Path) -> None:
    import shutil

    folder = run_sums(tmp_path)
    shutil.rmtree(read_run(folder).artifacts["left"])
    text = explain(folder)
    assert text.count("its artifact was deleted") == 1
    assert "right (evaluation)" in text


def test_the_page_of_a_run_has_the_whole_graph(tmp_path: Path) -> None:
    folder = run_sums(tmp_path)
    page = write_page(folder, tmp_path / "lineage.html").read_text()
    # Three boxes; an edge from the numbers to each sum.
    assert (page.count("<rect"), page.count("<path")) == (3, 2)
    assert "Lineage of the run sums" in page
    assert not re.search(r"https?:|src=|@import|<script|<link", page)
    for path in read_run(folder).artifacts.values():
        assert f"id='artifact-{path.name}'" in page


def test_an_evaluation_shows_the_digest_of_its_protocol(
    artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    scores = {"protocol": {"name": "push_t"}, "protocol_digest": "f" * 64}
    edit(artifacts["total"], lambda manifest: manifest["metrics"].update(scores))
    line = f"under   protocol push_t sha256 {'f' * 64}"
    assert line in explain(artifacts["total"].path)
    assert explain(artifacts["total"].path).count("protocol") == 1
    page = write_page(artifacts["total"].path, tmp_path / "lineage.html").read_text()
    assert f"push_t sha256 {'f' * 64}" in page


def test_neither_a_run_nor_an_artifact_is_named(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match=r"no_such does not exist\. .*a run is a folder"):
        explain(tmp_path / "no_such")


def test_a_stage_of_a_matrix_is_explained_by_the_name_of_a_copy(tmp_path: Path) -> None:
    for seed in (0, 1):
        (tmp_path / f"twin@seed={seed}").mkdir()
    expected = r"twin has several copies: .*twin@seed=0, .*twin@seed=1\.$"
    with pytest.raises(HandoffError, match=expected):
        explain(tmp_path / "twin")


def test_a_run_in_the_place_of_an_artifact_is_answered_with_its_artifacts(tmp_path: Path) -> None:
    run = tmp_path / "demo"
    for stage in ("gate", "twin"):
        made = tmp_path / "artifacts" / f"{stage}-0123"
        made.mkdir(parents=True)
        (made / "artifact.json").write_text("{}")
        run.mkdir(exist_ok=True)
        (run / stage).symlink_to(made)
    with pytest.raises(HandoffError, match=r"in it or above it\.$"):
        find_artifact(run)
    (run / "summary.json").write_text("{}")
    expected = rf"It is a run; name one of its artifacts: {run}/gate, {run}/twin\.$"
    with pytest.raises(HandoffError, match=expected):
        find_artifact(run)
