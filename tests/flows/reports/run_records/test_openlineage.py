"""Events of OpenLineage: a start and an end for the run and for each stage, and datasets whose
version is the digest of the artifact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.commands.app import main
from flows.reports.run_records.openlineage import events, write_events
from flows.reports.run_records.reading import read_run
from flows.reports.run_records.record import RunRecord
from flows.runner.artifact import read_manifest
from robots.errors import HandoffError
from tests.flows.reports.run_records.small_runs import record_of, run_sums


def of_job(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in found if event["job"]["name"] == name]


def datasets(entries: list[dict[str, Any]]) -> dict[str, str]:
    """Versions of datasets by name."""
    return {entry["name"]: entry["facets"]["version"]["datasetVersion"] for entry in entries}


def test_every_stage_starts_and_completes_inside_the_run(tmp_path: Path) -> None:
    found = events(read_run(run_sums(tmp_path)))
    assert [event["job"]["name"] for event in found[:1] + found[-1:]] == ["sums", "sums"]
    assert [event["eventTime"] for event in found] == sorted(e["eventTime"] for e in found)
    names = ["sums", "sums.numbers", "sums.left", "sums.right"]
    kinds = {name: [event["eventType"] for event in of_job(found, name)] for name in names}
    assert kinds == {name: ["START", "COMPLETE"] for name in names}
    assert len(found) == 8


def test_stages_are_joined_by_the_digests_of_their_artifacts(tmp_path: Path) -> None:
    folder = run_sums(tmp_path)
    digests = {name: entry["digest"] for name, entry in record_of(folder)["stages"].items()}
    found = events(read_run(folder))
    numbers, left = of_job(found, "sums.numbers")[1], of_job(found, "sums.left")[1]
    assert datasets(numbers["inputs"]) == {}
    assert datasets(numbers["outputs"]) == {"sums.numbers": digests["numbers"]}
    assert datasets(left["inputs"]) == {"sums.numbers": digests["numbers"]}
    assert datasets(left["outputs"]) == {"sums.left": digests["left"]}


def test_a_stage_has_the_run_as_parent_and_its_options_and_metrics(tmp_path: Path) -> None:
    folder = run_sums(tmp_path, ["numbers.count=4"])
    event = of_job(events(read_run(folder)), "sums.numbers")[0]
    facets = event["run"]["facets"]
    assert facets["parent"]["run"] == {"runId": record_of(folder)["id"]}
    assert facets["parent"]["job"] == {"namespace": "handoff", "name": "sums"}
    assert facets["handoff_stage"]["config"]["count"] == 4
    assert facets["handoff_stage"]["metrics"] == {"count": 4}
    assert facets["handoff_stage"]["cached"] is False


def test_the_location_of_the_code_has_the_commit_of_the_computation(tmp_path: Path) -> None:
    folder = run_sums(tmp_path)
    manifest = read_manifest(read_run(folder).artifacts["numbers"])
    commit = manifest["environment"]["commit"].removesuffix("-dirty")
    if " " in commit:
        pytest.skip("this is not a git checkout")
    facet = of_job(events(read_run(folder)), "sums.numbers")[0]["job"]["facets"]
    location = facet["sourceCodeLocation"]
    assert location["path"] == "tests/flows/reports/drawing_stages.py"
    assert location["version"].startswith(commit)
    assert location["url"] == f"swh:1:rev:{location['version']};path=/{location['path']}"


def test_a_failed_run_ends_with_its_reason(tmp_path: Path) -> None:
    folder = run_sums(tmp_path)
    entries = record_of(folder)
    (folder / "run.json").write_text(
        json.dumps({**entries, "state": "failed", "reason": "right: value 3, limit 2."})
    )
    last = events(read_run(folder))[-1]
    assert last["eventType"] == "FAIL"
    assert last["run"]["facets"]["errorMessage"]["message"] == "right: value 3, limit 2."


def test_a_run_of_an_older_version_has_the_times_of_its_computations(tmp_path: Path) -> None:
    folder = run_sums(tmp_path)
    (folder / "run.json").unlink()
    found = events(read_run(folder))
    assert len(found) == 8
    finished = read_manifest(read_run(folder).artifacts["left"])["finished"]
    ended = of_job(found, "sums.left")[1]["eventTime"]
    assert ended == finished.replace("Z", ".000000Z")
    # The same run has the same identity in every export.
    assert [e["run"]["runId"] for e in events(read_run(folder))] == [
        e["run"]["runId"] for e in found
    ]


def test_an_artifact_and_a_run_without_stages_are_refused(tmp_path: Path) -> None:
    folder = run_sums(tmp_path)
    with pytest.raises(HandoffError, match="is an artifact, expected a run"):
        write_events(folder / "left", tmp_path / "events.jsonl")
    with RunRecord(tmp_path / "runs", "none", {}):
        pass
    with pytest.raises(HandoffError, match="no stage has finished"):
        write_events(tmp_path / "runs" / "none", tmp_path / "events.jsonl")
    assert not (tmp_path / "events.jsonl").exists()


def test_the_command_writes_the_page_and_the_events_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page, file = run_sums(tmp_path), tmp_path / "run.html", tmp_path / "events.jsonl"
    assert main(["explain", str(folder), "--page", str(page), "--openlineage", str(file)]) == 0
    assert "Lineage of the run sums" in page.read_text()
    assert len(file.read_text().splitlines()) == 8
    assert f"events  {file}" in capsys.readouterr().out


@pytest.mark.needs("openlineage")
def test_events_are_those_of_the_official_client(tmp_path: Path) -> None:
    """The client's classes are generated from the schema: they refuse entries that it does not
    have, lack of those that it demands, times that are none, and identities that are no UUIDs."""
    from openlineage.client.generated import base

    file = write_events(run_sums(tmp_path), tmp_path / "events.jsonl")
    lines = file.read_text().splitlines()
    assert len(lines) == 8
    for line in lines:
        event = json.loads(line)
        assert event.pop("schemaURL") == base.RunEvent._get_schema()
        event["run"] = base.Run(**{**event["run"], "facets": facets(event["run"]["facets"])})
        event["job"] = base.Job(**{**event["job"], "facets": facets(event["job"]["facets"])})
        event["inputs"] = [dataset(base.InputDataset, entry) for entry in event.get("inputs", [])]
        event["outputs"] = [
            dataset(base.OutputDataset, entry) for entry in event.get("outputs", [])
        ]
        event["eventType"] = base.EventType(event["eventType"])
        base.RunEvent(**event)


def dataset(kind: Any, entry: dict[str, Any]) -> Any:
    read = {
        key: facets(value) if key.lower().endswith("facets") else value
        for key, value in entry.items()
    }
    return kind(**read)


def facets(entries: dict[str, Any]) -> dict[str, Any]:
    """Facets as objects of the client's classes; those of Handoff's own have the base's schema."""
    return {name: facet(entry) for name, entry in entries.items()}


def facet(entry: dict[str, Any]) -> Any:
    from openlineage.client import facet_v2
    from openlineage.client.generated import base

    values = dict(entry)
    schema = values.pop("_schemaURL")
    kind = schema.rpartition("/")[2]
    modules = [base, *vars(facet_v2).values()]
    (cls,) = {vars(module)[kind] for module in modules if kind in getattr(module, "__dict__", {})}
    assert schema == cls._get_schema()
    if cls is base.RunFacet:
        # The constructor has the entry without its underscore, and no entries of Handoff's own.
        values = {"_producer": values["_producer"]}
    return cls(**{key.removeprefix("_"): value for key, value in values.items()})
