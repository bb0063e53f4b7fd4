"""Two policies of a recipe under displaced cameras, other light and distractors."""

from __future__ import annotations

import json

import pytest

from flows.orchestration.stage_report import stage_page
from flows.reports.results import describe
from flows.runner.artifact import Artifact
from robots.errors import HandoffError
from tests.flows.recipe_stages import declared, run_all

SHORT = (
    *(
        override
        for demos in ("demos", "varied_demos")
        for override in (
            f"{demos}.episodes=1",
            f"{demos}.demonstrate.mujoco.cameras.height=32",
            f"{demos}.demonstrate.mujoco.cameras.width=32",
        )
    ),
    *(
        override
        for policy in ("plain", "varied")
        for override in (
            f"{policy}.training.steps=2",
            f"{policy}.training.batch_size=4",
            f"{policy}.training.preflight_seconds=0",
            f"{policy}.validation_fraction=0.0",
        )
    ),
    "shared.protocol.episodes=2",
    "shared.protocol.max_steps=4",
    "shared.protocol.options.cameras.height=32",
    "shared.protocol.options.cameras.width=32",
    "robustness.sweep.camera_shift=[0,0.02]",
    "robustness.sweep.light=[]",
)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return run_all("pick_cube_robust", SHORT, tmp_path_factory.mktemp("runs"))


@pytest.mark.needs("opengl")
def test_all_policies_play_the_same_episodes_under_all_conditions(
    artifacts: dict[str, Artifact],
) -> None:
    folder = artifacts["robustness"].path
    found = json.loads((folder / "robustness.json").read_text())
    assert found["agents"] == ["plain", "varied"]
    assert found["seeds"] == [100000, 100001]
    for by_condition in found["solved"].values():
        assert {name: len(solved) for name, solved in by_condition.items()} == {
            "nominal": 2,
            "camera_shift=0.02": 2,
            "clutter=4": 2,
        }
    assert not (folder / ".episodes").exists()
    assert (folder / "robustness.png").stat().st_size > 1000


@pytest.mark.needs("opengl")
def test_the_result_is_told_in_a_phrase(artifacts: dict[str, Artifact]) -> None:
    manifest = artifacts["robustness"].manifest
    told = describe("robustness", manifest["metrics"])
    # Its conditions are other ones than those of a gate.
    assert told in stage_page("robustness", artifacts["robustness"].path, manifest)
    assert told.startswith("plain 0.00 nominal, lowest 0.00 (nominal); varied 0.00")


def test_environments_without_cameras_are_refused_by_plan() -> None:
    with pytest.raises(HandoffError, match=r"robustness needs the engine mujoco"):
        declared("pick_cube_robust", ["robustness.protocol=pick_cube"])
