"""Policies are rows and simulators are columns of one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.evaluation import simulators
from flows.evaluation.config import CompareSimulatorsConfig
from flows.evaluation.simulators import FIGURES, REPORT, simulator_figures, write_simulators
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.stages.release import compare_simulators
from robots.config import to_plain
from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.evaluation.protocol import Protocol, digest

SEED = 100
COLUMNS = ("in_mujoco", "in_mujoco_randomized", "in_warp", "in_maniskill")
"""Stages of `transfer_pick_cube` that evaluate."""


def evaluation(folder: Path, stage: str, solved: list[int], max_steps: int = 9) -> Path:
    """The artifact of a stage that evaluated the task `reach`."""
    out = folder / stage
    out.mkdir()
    protocol = Protocol(
        name=stage.partition("@")[0],
        engine="mujoco",
        task="reach",
        first_seed=SEED,
        episodes=len(solved),
        max_steps=max_steps,
    )
    statement = {**to_plain(protocol), "packages": {"mujoco": "4.0.0"}, "code": {"x": "y"}}
    episodes = [{"seed": SEED + i, "success": bool(each)} for i, each in enumerate(solved)]
    table = {"protocol": statement, "protocol_digest": digest(statement), "episodes": episodes}
    (out / "episodes.json").write_text(json.dumps(table))
    return out


def deployment(folder: Path, stage: str, solved: list[int]) -> Path:
    out = folder / stage
    out.mkdir()
    starts = [{"seed": SEED + i, "success": bool(each)} for i, each in enumerate(solved)]
    metrics = {"robot": "fr3", "per_start": starts}
    (out / "deployed.json").write_text(json.dumps(metrics))
    return out


@pytest.fixture(autouse=True)
def _manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(folder: Path) -> dict[str, Any]:
        file = folder / "deployed.json"
        metrics = json.loads(file.read_text()) if file.exists() else {}
        return {"stage": folder.name, "metrics": metrics}

    monkeypatch.setattr(simulators, "read_manifest", read)


def four(folder: Path) -> tuple[list[Path], list[Path]]:
    evaluations = [
        evaluation(folder, "mujoco@seed=0", [1, 1, 1, 0]),
        evaluation(folder, "mujoco@seed=1", [1, 1, 1, 1]),
        evaluation(folder, "warp@seed=0", [0, 0, 1, 0], max_steps=7),
        evaluation(folder, "warp@seed=1", [1, 1, 1, 1], max_steps=7),
    ]
    return evaluations, [
        deployment(folder, "twin@seed=0", [0, 1]),
        deployment(folder, "twin@seed=1", [1, 1]),
    ]


def test_every_policy_has_a_cell_in_every_simulator_and_at_the_twin(tmp_path: Path) -> None:
    evaluations, deployments = four(tmp_path)
    figures = simulator_figures(evaluations, deployments, CompareSimulatorsConfig())
    assert figures["rows"] == ["seed=0", "seed=1"]
    assert [(c["name"], c["engine"], c["robot"], c["episodes"]) for c in figures["columns"]] == [
        ("mujoco", "mujoco", "fr3", 4),
        ("warp", "mujoco", "fr3", 4),
        ("twin", "twin", "fr3", 2),
    ]
    solved = {(c["column"], c["row"]): c["success"]["k"] for c in figures["cells"]}
    assert solved == {
        ("mujoco", "seed=0"): 3,
        ("mujoco", "seed=1"): 4,
        ("warp", "seed=0"): 1,
        ("warp", "seed=1"): 4,
        ("twin", "seed=0"): 1,
        ("twin", "seed=1"): 2,
    }


def test_rows_of_a_column_are_paired_by_seed(tmp_path: Path) -> None:
    evaluations, deployments = four(tmp_path)
    pairs = simulator_figures(evaluations, deployments, CompareSimulatorsConfig())["pairs"]
    assert [(p["column"], p["row"], p["only_first"], p["only_second"]) for p in pairs] == [
        ("mujoco", "seed=1", 0, 1),
        ("warp", "seed=1", 0, 3),
        ("twin", "seed=1", 0, 1),
    ]
    # Binomial, three starts of one side: 2 / 2^3; three comparisons.
    assert pairs[1]["p_value"] == pytest.approx(0.25)
    assert pairs[1]["p_holm"] == pytest.approx(0.75)
    assert pairs[1]["mean"] == pytest.approx(0.75)


def test_the_page_and_the_figures_are_written(tmp_path: Path) -> None:
    evaluations, deployments = four(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    made = compare_simulators.run(
        CompareSimulatorsConfig(),
        out,
        no_progress,
        evaluations=evaluations,  # type: ignore[arg-type]
        deployments=deployments,  # type: ignore[arg-type]
    )
    assert json.loads((out / FIGURES).read_text()) == made.metrics
    page = (out / REPORT).read_text()
    assert "3 of 4: 0.75" in page
    assert "twin" in page


def test_a_missing_cell_is_named(tmp_path: Path) -> None:
    evaluations, deployments = four(tmp_path)
    with pytest.raises(HandoffError, match="warp@seed=1 is missing"):
        simulator_figures(evaluations[:3], deployments, CompareSimulatorsConfig())


def test_a_column_with_two_protocols_is_refused(tmp_path: Path) -> None:
    evaluations = [
        evaluation(tmp_path, "mujoco@seed=0", [1, 1]),
        evaluation(tmp_path, "mujoco@seed=1", [1, 1, 1]),
    ]
    with pytest.raises(HandoffError, match="the stages of mujoco differ"):
        simulator_figures(evaluations, [], CompareSimulatorsConfig())


def test_one_evaluation_is_refused_before_anything_runs() -> None:
    with pytest.raises(HandoffError, match="expected two or more"):
        compare_simulators.check(CompareSimulatorsConfig(), {"evaluations": [None]})


def test_without_copies_there_is_one_row(tmp_path: Path) -> None:
    evaluations = [evaluation(tmp_path, name, [1, 0]) for name in ("mujoco", "warp")]
    figures = simulator_figures(evaluations, [], CompareSimulatorsConfig())
    assert (figures["rows"], figures["pairs"]) == (["policy"], [])
    write_simulators(figures, tmp_path)


def test_the_recipe_evaluates_both_policies_in_every_simulator() -> None:
    declared = {
        stage.name: stage for stage in stages(read_recipe("transfer_pick_cube"), fetch=False)
    }
    names = {name.partition("@")[0] for name in declared}
    assert names >= {*COLUMNS, "twin", "table"}
    for column in COLUMNS:
        copies = [stage for name, stage in declared.items() if name.partition("@")[0] == column]
        assert [stage.config.protocol.robot for stage in copies] == ["panda", "panda"]
        assert {stage.config.protocol.episodes for stage in copies} == {200}
    noisy = [
        declared[name].config.demonstrate.mujoco.randomized
        for name in declared
        if name.startswith("demos@")
    ]
    assert noisy == [False, True]
