"""The recipe `sim_to_real`: the stages that train never read what is hidden, and the smallest form of
it runs from the first stage to the last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.artifacts import Bundle, Dynamics, Gate
from flows.runner.artifact import Artifact
from flows.stages.release import deploy
from flows.stages.release.config import DeployBundleConfig
from robots.config import to_plain, validate
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.identification.config import TuneStoreConfig
from sim.identification.fit_store import read_dynamics
from sim.scene.deviations import Deviations
from tests.flows.recipe_stages import declared, options, run_all

AT_THE_ARM = {"before", "motions", "after", "control_after"}
"""Stages that run at the arm."""
COMPARES = "transfer"
"""Stage that compares what was found with what is true."""


def other_values() -> list[str]:
    """Overrides that hide other values."""
    other = "{arm: [{what: friction, value: 0.1}]}"
    tables = [f"{name}.table.twin.deviations={other}" for name in AT_THE_ARM - {"motions"}]
    return [*tables, f"motions.twin.deviations={other}", f"{COMPARES}.deviations={other}"]


@pytest.mark.parametrize("recipe", ["sim_to_real", "smoke_sim_to_real"])
def test_only_the_stages_at_the_arm_and_the_last_comparison_have_the_hidden_values(
    recipe: str,
) -> None:
    own = options(recipe)
    hidden = to_plain(own[COMPARES].deviations)
    assert len(hidden["arm"]) >= 5
    having = {name for name, config in own.items() if contains(to_plain(config), hidden)}
    assert having == {*AT_THE_ARM, COMPARES}


def test_other_hidden_values_change_no_option_of_a_stage_that_trains() -> None:
    own = options("sim_to_real")
    others = options("sim_to_real", other_values())
    changed = {name for name, config in own.items() if config != others[name]}
    assert changed == {*AT_THE_ARM, COMPARES}


def test_what_trains_takes_nothing_of_the_arm_but_the_tuned_dynamics() -> None:
    stages = declared("sim_to_real")
    taken: dict[str, set[str]] = {
        name: {upstream.name for upstream in stage.inputs.values()}
        for name, stage in stages.items()
    }
    assert taken["tuned_demos"] == {"tuned"}
    assert taken["adapted"] == {"tuned_demos", "nominal"}
    assert taken["control"] == {"control_demos", "nominal"}
    from_the_arm = {name for name, inputs in taken.items() if inputs & AT_THE_ARM}
    assert from_the_arm == {"tuned", "shadow", COMPARES}


def test_the_control_has_the_same_budget_as_what_is_adapted() -> None:
    own = options("sim_to_real")
    assert own["control"] == own["adapted"]
    assert own["control_demos"] == own["tuned_demos"]
    tables = [own[name].table for name in ("before", "control_after", "after")]
    assert tables[0] == tables[1] == tables[2]


def test_nothing_moves_at_the_arm_before_the_gate() -> None:
    after = declared("sim_to_real")["after"]
    assert {key: stage.name for key, stage in after.inputs.items()} == {
        "bundle": "bundle",
        "gate": "gate",
    }


def contains(plain: Any, wanted: Any) -> bool:
    """Whether `wanted` is a part of the plain values."""
    if plain == wanted:
        return True
    if isinstance(plain, dict):
        return any(contains(value, wanted) for value in plain.values())
    return isinstance(plain, list) and any(contains(value, wanted) for value in plain)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")
    return run_all("smoke_sim_to_real", (), tmp_path_factory.mktemp("runs"))


def test_the_whole_chain_runs_and_ends_with_pairs_and_parameters(
    artifacts: dict[str, Artifact],
) -> None:
    figures = json.loads((artifacts[COMPARES].path / "deployments.json").read_text())
    assert [row["name"] for row in figures["deployments"]] == ["before", "control_after", "after"]
    assert all(row["success"]["n"] == 2 for row in figures["deployments"])
    names = [row["name"] for row in figures["parameters"]]
    assert names == [
        "viscous of all joints",
        "friction of all joints",
        "armature of all joints",
        "payload",
        "delay",
    ]
    assert figures["unidentified"] == []


def test_the_recordings_hold_nothing_of_what_is_hidden(artifacts: dict[str, Artifact]) -> None:
    motions = EpisodeStore.open(artifacts["motions"].path / "store.zarr")
    assert set(motions.read(0, "robot")) == {"q", "q_d"}
    before = EpisodeStore.open(artifacts["before"].path / "store.zarr")
    for store in (motions, before):
        assert "deviations" not in json.dumps(store.metadata(0), default=str)


def test_demonstrations_are_drawn_from_the_tuned_values_and_their_uncertainty(
    artifacts: dict[str, Artifact],
) -> None:
    dynamics = read_dynamics(artifacts["tuned"].path)
    assert dynamics.varies
    assert artifacts["tuned_demos"].manifest["inputs"]["dynamics"] == artifacts["tuned"].digest
    assert artifacts["control_demos"].manifest["inputs"] == {}


def test_the_shadow_compares_the_new_policy_with_the_executed_actions(
    artifacts: dict[str, Artifact],
) -> None:
    metrics = artifacts["shadow"].manifest["metrics"]
    assert metrics["episodes"] == 2
    assert metrics["normalised"]["mean"] > 0.0


def test_a_gate_of_another_bundle_lets_nothing_move(
    artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    with pytest.raises(HandoffError, match="let another bundle pass than"):
        deploy.run(
            DeployBundleConfig(),
            tmp_path,
            no_progress,
            bundle=Bundle(artifacts["nominal_bundle"].path),
            gate=Gate(artifacts["gate"].path),
        )


def test_a_twin_takes_its_values_from_one_place_and_no_gains_of_a_driver() -> None:
    deviating = validate(
        DeployBundleConfig,
        {
            "table": {
                "kind": "task",
                "twin": {"deviations": {"arm": [{"what": "delay", "value": 0.01}]}},
            }
        },
        "",
    )
    with pytest.raises(HandoffError, match="both say how the twin differs"):
        deploy.check(deviating, {"dynamics": object()})
    with pytest.raises(HandoffError, match=r"stiffness of all joints, which is the driver's"):
        deploy.check(DeployBundleConfig(), {"dynamics": TuneStoreConfig()})
    assert Deviations() == DeployBundleConfig().table.twin.deviations


def test_dynamics_of_a_controller_are_refused_at_the_twin(tmp_path: Path) -> None:
    tuned = {"values": [{"what": "stiffness", "value": 0.8}]}
    (tmp_path / "dynamics.json").write_text(json.dumps(tuned))
    with pytest.raises(HandoffError, match="controller's"):
        deploy.run(
            DeployBundleConfig(),
            tmp_path,
            no_progress,
            bundle=Bundle(tmp_path),
            dynamics=Dynamics(tmp_path),
        )
