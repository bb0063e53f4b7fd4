"""Recorded motions become parameters, and parameters the environments of later stages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.artifacts import Dynamics
from flows.evaluation.dynamics import check_dynamics_source, with_dynamics
from flows.runner.artifact import Artifact, tree_digest
from flows.stages.data import scripted
from flows.stages.data.config import ScriptedConfig
from flows.stages.learn import finetune, tune
from flows.stages.learn.config import FinetunePolicyConfig, TuneArmConfig
from flows.tune import tune_command
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.evaluation.evaluate import make_env
from sim.evaluation.protocol import Protocol
from sim.identification.config import (
    ExcitationConfig,
    ListedParameters,
    Parameter,
    PerJointParameters,
    TrackingConfig,
    TuneStoreConfig,
)
from sim.identification.fit_store import read_dynamics
from tests.flows.recipe_stages import declared, run_all

SHORT = (
    "motions.motions=2",
    "motions.seconds=1.5",
    "tuned.algorithm.samples=40",
    "tuned.algorithm.rounds=0",
    "tuned.algorithm.polish=3",
    "tuned.profile_points=0",
    "demos.episodes=4",
    "imitator.training.steps=5",
    "shared.protocol.episodes=2",
)
REACH = Protocol(name="reach", engine="mujoco", task="reach", episodes=2, max_steps=60)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return run_all("smoke_tune", SHORT, tmp_path_factory.mktemp("runs"))


def recorded(artifact: Artifact) -> dict[str, Any]:
    return json.loads((artifact.path / "episodes.json").read_text())


def test_the_dynamics_are_part_of_the_record_of_the_evaluation(
    artifacts: dict[str, Artifact],
) -> None:
    plain, tuned = recorded(artifacts["scores"]), recorded(artifacts["tuned_scores"])
    assert "dynamics" not in plain["protocol"]["options"]
    entry = tuned["protocol"]["options"]["dynamics"]
    assert entry["source"] == artifacts["motions"].digest
    values = {item["what"]: item["value"] for item in entry["values"]}
    assert values.keys() == {
        "stiffness",
        "damping",
        "friction",
        "armature",
        "payload",
        "delay",
    }
    assert plain["protocol_digest"] != tuned["protocol_digest"]
    found = artifacts["tuned"].manifest["metrics"]["values"]
    assert found["payload"] == values["payload"]


def test_tuning_leaves_a_page_with_pictures(artifacts: dict[str, Artifact]) -> None:
    folder = artifacts["tuned"].path
    assert "Tuning of the simulated fr3" in (folder / "report.html").read_text()
    assert (folder / "tracking.png").stat().st_size > 10_000
    metrics = artifacts["tuned"].manifest["metrics"]
    assert metrics["held_out_mse"] < 0.2 * metrics["held_out_nominal_mse"]


def test_environments_are_simulated_with_the_tuned_values(artifacts: dict[str, Artifact]) -> None:
    protocol = with_dynamics(REACH, artifacts["tuned"].path)
    assert with_dynamics(REACH, None) is REACH
    env = make_env(protocol, 1)
    found = artifacts["tuned"].manifest["metrics"]["values"]["friction of all joints"]
    loss = env.engine.model.dof_frictionloss[:7]  # type: ignore[attr-defined]
    env.close()
    assert loss.tolist() == [found] * 7
    with pytest.raises(HandoffError, match=r"has options\.dynamics, and the stage an input"):
        with_dynamics(protocol, artifacts["tuned"].path)


def test_the_scripted_expert_demonstrates_with_the_tuned_arm(
    artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    config = ScriptedConfig(task="reach", episodes=2)
    stores = []
    for name, dynamics in (("plain", None), ("tuned", Dynamics(artifacts["tuned"].path))):
        (tmp_path / name).mkdir()
        scripted.run(config, tmp_path / name, no_progress, dynamics=dynamics)
        stores.append(EpisodeStore.open(tmp_path / name / "store.zarr").read(0, "policy")["q"])
    steps = min(len(each) for each in stores)
    assert abs(stores[0][:steps] - stores[1][:steps]).max() > 1e-3


def source(parameters: Sequence[Parameter] | None = None, robot: str = "fr3") -> dict[str, Any]:
    tracking = TrackingConfig(robot=robot)  # type: ignore[arg-type]
    which = ListedParameters(items=tuple(parameters)) if parameters else PerJointParameters()
    return {"dynamics": TuneStoreConfig(parameters=which, tracking=tracking)}


def test_dynamics_that_the_environments_cannot_have_are_refused_before_anything_runs() -> None:
    friction = (Parameter(what="friction", joints=(1,), low=0.0, high=1.0),)
    check_dynamics_source(REACH, source(friction))
    check_dynamics_source(REACH, {})
    joints = replace(REACH, options={"actions": {"kind": "joint_target"}})
    check_dynamics_source(joints, source())
    for protocol, sources, message in (
        (replace(REACH, engine="gym"), source(friction), "the engine gym cannot take tuned"),
        (
            REACH,
            source(friction, robot="panda"),
            "robot 'fr3', the dynamics were tuned for 'panda'",
        ),
        (REACH, source(), "no gains of single joints, but the tuning has stiffness of joint 1"),
    ):
        with pytest.raises(HandoffError, match=message):
            check_dynamics_source(protocol, sources)


def test_a_recipe_with_the_wrong_robot_or_too_few_motions_is_refused_by_plan() -> None:
    with pytest.raises(HandoffError, match="motions are of the robot 'panda'"):
        declared("smoke_tune", ["motions.robot=panda"])
    with pytest.raises(HandoffError, match="1 motions, of which held_out leaves none"):
        tune.check(TuneArmConfig(), {"demos": ExcitationConfig(motions=1)})
    for config, sources in (
        (TuneArmConfig(), {}),
        (TuneArmConfig(store="store.zarr"), {"demos": ExcitationConfig()}),
    ):
        with pytest.raises(HandoffError, match="either the input 'demos' or the option 'store'"):
            tune.check(config, sources)


def test_a_store_from_outside_gives_the_values_that_it_gives_as_an_input(
    artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    store = artifacts["motions"].path / "store.zarr"
    inside = declared("smoke_tune", SHORT)["tuned"].config
    config = replace(inside, store=str(store))
    tune.check(config, {})
    assert tune.external(config, False) == {"store": tree_digest(store)}
    values = tune.run(config, tmp_path, no_progress).metrics["values"]
    assert values == artifacts["tuned"].manifest["metrics"]["values"]
    with pytest.raises(HandoffError, match="no such episode store"):
        tune.external(replace(config, store=str(tmp_path / "none.zarr")), False)


def test_the_command_tunes_a_store_and_prints_what_it_determines(
    artifacts: dict[str, Artifact], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ("algorithm.kind=random", "algorithm.samples=4", "profile_points=0")
    tune_command(artifacts["motions"].path, out, options)
    printed = capsys.readouterr().out
    assert "payload:" in printed
    assert str(out / "report.html") in printed
    assert read_dynamics(out).source == tree_digest(artifacts["motions"].path / "store.zarr")
    with pytest.raises(HandoffError, match=r"'algorithm\.rounds' is not read by the kind 'random'"):
        tune_command(artifacts["motions"].path, out, (*options, "algorithm.rounds=1"))
    with pytest.raises(HandoffError, match="no such episode store"):
        tune_command(tmp_path / "none", out)


def test_dynamics_in_imagination_are_refused() -> None:
    config = FinetunePolicyConfig(protocol=REACH)
    with pytest.raises(HandoffError, match="in imagination no arm is simulated"):
        finetune.check(config, {"policy": None, "dynamics": None, "world_model": None})
