"""A stage that counts what it records goes on from the artifact that has less, or from what a
person has recorded before."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.artifact import Artifact, load_artifact, verify_artifact
from flows.runner.stage import Stage, run_stage
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.flows import recording_stage
from tests.flows.recording_stage import OperatorConfig, RecordingConfig

MODULE = "tests.flows.recording_stage"


def recorded(
    root: Path, episodes: int, kind: str = "keyboard", grows: str = "episodes", redo: bool = False
) -> Artifact:
    """The artifact of so many episodes."""
    config = RecordingConfig(episodes=episodes, operator=OperatorConfig(kind=kind))
    stage = Stage("demos", "episodes", MODULE, config, grows=grows)
    return run_stage(stage, {}, root, no_progress, isolate=False, redo=redo).artifact


def begun(artifact: Artifact) -> int:
    """Number of episodes with which the stage began."""
    return artifact.manifest["metrics"]["begun"]


def number(artifact: Artifact) -> int:
    return artifact.manifest["metrics"]["episodes"]


def test_more_episodes_are_added_to_a_copy_of_the_earlier_ones(tmp_path: Path) -> None:
    first = recorded(tmp_path, 2)
    second = recorded(tmp_path, 5)
    assert (begun(second), number(second)) == (2, 5)
    verify_artifact(first.path)
    verify_artifact(second.path)


def test_a_stage_that_does_not_grow_begins_anew(tmp_path: Path) -> None:
    recorded(tmp_path, 2, grows="")
    assert begun(recorded(tmp_path, 5, grows="")) == 0


def test_redo_records_anew(tmp_path: Path) -> None:
    recorded(tmp_path, 2)
    assert begun(recorded(tmp_path, 5, redo=True)) == 0


def test_other_options_begin_another_recording(tmp_path: Path) -> None:
    recorded(tmp_path, 2)
    assert begun(recorded(tmp_path, 5, "console")) == 0


def test_fewer_episodes_keep_all_that_a_person_recorded(tmp_path: Path) -> None:
    recorded(tmp_path, 5)
    assert number(recorded(tmp_path, 2)) == 5


def test_fewer_simulated_episodes_are_those_of_a_new_run(tmp_path: Path) -> None:
    recorded(tmp_path, 5, "simulated")
    assert number(recorded(tmp_path, 2, "simulated")) == 2


def test_an_interrupted_recording_goes_on_with_another_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(recording_stage, "STOP_AT", [3])
        with pytest.raises(HandoffError, match="stopped by the person"):
            recorded(tmp_path, 5)
    artifact = recorded(tmp_path, 7)
    assert (begun(artifact), number(artifact)) == (3, 7)
    assert [path.name for path in (tmp_path / "artifacts").glob("*.partial")] == []
    assert list((tmp_path / "artifacts").glob(".*.person")) == []
    load_artifact(artifact.path)


def test_what_a_person_recorded_is_kept_after_an_edit_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, 3)
    monkeypatch.setattr("flows.runner.stage.code_version", lambda module: "edited")
    monkeypatch.setattr("flows.runner.stage.changes", lambda manifest: iter(["code changed"]))
    assert begun(recorded(tmp_path, 3)) == 3


def test_simulated_episodes_are_computed_anew_after_an_edit_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, 2, "simulated")
    monkeypatch.setattr("flows.runner.stage.code_version", lambda module: "edited")
    monkeypatch.setattr("flows.runner.stage.changes", lambda manifest: iter(["code changed"]))
    assert begun(recorded(tmp_path, 3, "simulated")) == 0


def test_demonstrations_are_declared_to_grow() -> None:
    (stage,) = stages(read_recipe("hil/record"))
    assert (stage.grows, stage.uses) == ("episodes", "demonstrate")
