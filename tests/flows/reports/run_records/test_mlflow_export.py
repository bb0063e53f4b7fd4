"""A run in MLflow: a parent with a child per stage, read back by MLflow's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from flows.commands.app import main
from flows.reports.run_records.mlflow_export import write_mlflow
from flows.reports.run_records.reading import read_run
from robots.errors import HandoffError
from tests.flows.reports.run_records.small_runs import record_of, run_sums


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # MLflow keeps the files of a database's runs below it
        yield f"sqlite:///{folder / 'mlflow.db'}"


@pytest.fixture(scope="module")
def written(address: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run with a training curve, and the run's identity in MLflow."""
    folder = run_sums(tmp_path_factory.mktemp("runs"), ["numbers.count=4"])
    numbers = read_run(folder).artifacts["numbers"]
    lines = [{"step": 100, "loss": 0.5, "seconds": 1.0}, {"step": 200, "loss": 0.25}]
    numbers.chmod(0o755)
    (numbers / "loss.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    experiment, identity = write_mlflow(folder, address).split()
    assert experiment == "handoff/sums"
    return folder, identity


def children(address: str, parent: str) -> Mapping[str, Any]:
    """The runs below a run by their names."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=address)
    found = client.get_run(parent)
    below = client.search_runs(
        [found.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'"
    )
    return {str(run.info.run_name): run for run in below}


def test_every_stage_is_a_run_below_that_of_the_recipe(
    address: str, written: tuple[Path, str]
) -> None:
    folder, identity = written
    found = children(address, identity)
    assert set(found) == {"numbers", "left", "right"}
    entries = record_of(folder)["stages"]
    for name, run in found.items():
        assert run.info.status == "FINISHED"
        assert run.data.tags["handoff.digest"] == entries[name]["digest"]
    assert found["left"].data.tags["handoff.input.demos"] == entries["numbers"]["digest"]


def test_options_metrics_and_the_training_curve_are_there(
    address: str, written: tuple[Path, str]
) -> None:
    from mlflow import MlflowClient

    run = children(address, written[1])["numbers"]
    assert run.data.params["count"] == "4"
    assert run.data.metrics["count"] == 4.0
    curve = MlflowClient(tracking_uri=address).get_metric_history(run.info.run_id, "curve.loss")
    assert [(point.step, point.value) for point in curve] == [(100, 0.5), (200, 0.25)]
    started = datetime.fromisoformat(record_of(written[0])["stages"]["numbers"]["started"])
    assert run.info.start_time == int(started.timestamp() * 1000)


def test_the_parent_has_the_command_the_commit_and_the_people(
    address: str, written: tuple[Path, str]
) -> None:
    from mlflow import MlflowClient

    tags = MlflowClient(tracking_uri=address).get_run(written[1]).data.tags
    record = record_of(written[0])
    assert tags["handoff.run"] == record["id"]
    assert tags["handoff.people"] == ", ".join(record["people"])
    assert tags["handoff.commit"].startswith(record["checkout"]["commit"])
    assert json.loads(tags["handoff.overrides"])[-1] == "numbers.count=4"


def test_a_run_is_written_once(
    address: str, written: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(written[0]), "--mlflow", address]) == 0
    assert f"{written[1]} (written before)" in capsys.readouterr().out


def test_an_artifact_is_no_run(address: str, written: tuple[Path, str]) -> None:
    with pytest.raises(HandoffError, match="is an artifact, expected a run"):
        write_mlflow(read_run(written[0]).artifacts["left"], address)


def test_an_address_that_nothing_serves_is_one_line(written: tuple[Path, str]) -> None:
    with pytest.raises(HandoffError, match="mlflow: nonsense://x cannot be used"):
        write_mlflow(written[0], "nonsense://x")
