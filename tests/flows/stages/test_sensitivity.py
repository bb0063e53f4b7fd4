"""Two policies of a recipe at single values of several factors and over a design."""

from __future__ import annotations

import json

import pytest

from flows.orchestration.stage_report import stage_page
from flows.reports.results import describe
from flows.runner.artifact import Artifact
from robots.errors import HandoffError
from tests.flows.recipe_stages import declared, run_all

SHORT = (
    *(f"{demos}.episodes=1" for demos in ("demos", "varied_demos")),
    *(
        override
        for policy in ("plain", "varied")
        for override in (
            f"{policy}.training.steps=2",
            f"{policy}.training.batch_size=4",
            f"{policy}.training.preflight_seconds=0",
        )
    ),
    "sensitivity.protocol.episodes=2",
    "sensitivity.protocol.max_steps=4",
    "sensitivity.design.points=8",
    "sensitivity.factors.mass.values=[4]",
)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return run_all("pick_cube_sensitivity", SHORT, tmp_path_factory.mktemp("runs"))


def test_all_policies_play_the_same_starts_and_points(artifacts: dict[str, Artifact]) -> None:
    folder = artifacts["sensitivity"].path
    found = json.loads((folder / "sensitivity.json").read_text())
    assert found["agents"] == ["plain", "varied"]
    assert found["seeds"] == [100000, 100001]
    assert [name for name in found["solved"]["varied"] if name.startswith("mass")] == ["mass=4"]
    assert [point["seed"] for point in found["points"]] == [100000, 100001] * 4
    assert set(found["points"][0]["solved"]) == {"plain", "varied"}
    assert not (folder / ".episodes").exists()
    assert (folder / "sensitivity.png").stat().st_size > 1000


def test_the_result_is_told_in_a_phrase(artifacts: dict[str, Artifact]) -> None:
    manifest = artifacts["sensitivity"].manifest
    told = describe("sensitivity", manifest["metrics"])
    assert told.startswith("plain 0.00 nominal, 0.00 over all factors, important: none; varied")
    assert told in stage_page("sensitivity", artifacts["sensitivity"].path, manifest)


def test_demonstrations_of_a_family_of_environments_draw_from_its_ranges() -> None:
    stages = declared("pick_cube_sensitivity")
    assert not stages["demos"].config.demonstrate.mujoco.ranges
    drawn = {item.what for item in stages["varied_demos"].config.demonstrate.mujoco.ranges}
    assert drawn == {"mass", "friction", "delay", "gain"}


def test_factors_that_the_environments_lack_are_refused_by_plan() -> None:
    light = "sensitivity.factors.light={kind: appearance, what: light, values: [0.5]}"
    with pytest.raises(HandoffError, match=r"factor light = 0\.5: .*has no options\.cameras"):
        declared("pick_cube_sensitivity", [light])
