"""Worst-case search, trainings on families of environments, and their evaluation, as stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.orchestration.stage_report import stage_page
from flows.reports.results import describe
from flows.runner.artifact import Artifact
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from sim.environment_families.members import read_family
from tests.flows.recipe_stages import declared, run_all

TRAINED = ("nominal", "robust", "more_robust", "randomised", "long_randomised")
SEARCHES = ("worst_of_nominal", "worst_of_robust", "worst_of_more")
SHORT = (
    "shared.num_envs=4",
    *(f"{name}.algorithm.rollouts=1" for name in TRAINED),
    *(f"{name}.algorithm.rollout_steps=8" for name in TRAINED),
    *(f"{name}.algorithm.batch_size=16" for name in TRAINED),
    *(f"{name}.protocol.max_steps=10" for name in SEARCHES),
    *(f"{name}.protocol.score.over=last" for name in SEARCHES),
    *(f"{name}.search.design.points=2" for name in SEARCHES),
    *(f"{name}.search.corners=false" for name in SEARCHES),
    *(f"{name}.search.episodes=1" for name in SEARCHES),
    *(f"{name}.search.final_episodes=2" for name in SEARCHES),
    # Of a score between 0 and 1, every candidate that is lower at all is added.
    *(f"{name}.search.tolerance=0" for name in SEARCHES),
    "drawn.design.points=3",
    "held_out.design.points=2",
    *(f"{name}.protocol.episodes=1" for name in ("scores", "corner_scores")),
    *(f"{name}.protocol.max_steps=6" for name in ("scores", "corner_scores")),
)
RECIPE = """
name: family
stages:
  members:
    uses: draw_family
    with:
      factors: {payload: {kind: arm, what: payload, low: 0.5, high: 1.0}}
      design: {points: 1}
  demos: {uses: scripted, inputs: {family: members}, with: {task: reach, episodes: 4}}
"""


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return run_all("reach_robust", SHORT, tmp_path_factory.mktemp("runs"))


def test_every_search_goes_on_with_the_family_of_the_one_before(
    artifacts: dict[str, Artifact],
) -> None:
    before = ("nominal",)
    for name in SEARCHES:
        folder = artifacts[name].path
        found = json.loads((folder / "worst_case.json").read_text())
        members = tuple(member.name for member in read_family(folder).members)
        assert members[: len(before)] == before
        assert len(members) == len(before) + found["added"] == found["family"]
        assert [row["name"] for row in found["members"]].count("nominal") == 1
        assert not (folder / ".episodes").exists()
        before = members


def test_a_training_on_a_family_is_another_one(artifacts: dict[str, Artifact]) -> None:
    def weights(name: str) -> bytes:
        return (artifacts[name].path / "policy.safetensors").read_bytes()

    # Nominal and randomised differ in their family alone.
    assert weights("nominal") != weights("randomised")
    assert weights("randomised") == weights("long_randomised")


def test_all_policies_are_evaluated_in_all_held_out_members(
    artifacts: dict[str, Artifact],
) -> None:
    found = json.loads((artifacts["scores"].path / "family_scores.json").read_text())
    assert list(found["agents"]) == [
        "nominal",
        "randomised",
        "long_randomised",
        "robust",
        "more_robust",
    ]
    assert [member["name"] for member in found["members"]] == ["nominal", "drawn 1", "drawn 2"]
    corners = json.loads((artifacts["corner_scores"].path / "family_scores.json").read_text())
    assert [member["name"] for member in corners["members"]][-1] == "corner 8"
    assert (found["seeds"], found["seeds_again"]) == ([100000], [100001])


@pytest.mark.parametrize(
    ("name", "uses", "phrase"),
    [
        ("drawn", "draw_family", "4 members of payload, friction, stiffness"),
        ("worst_of_nominal", "worst_case", "score 0."),
        ("scores", "evaluate_family", "nominal 0.00 nominal, 0.00 mean, 0.00 worst; randomised"),
    ],
)
def test_the_results_are_told_in_a_phrase(
    artifacts: dict[str, Artifact], name: str, uses: str, phrase: str
) -> None:
    manifest = artifacts[name].manifest
    told = describe(uses, manifest["metrics"])
    assert phrase in told
    assert told in stage_page(uses, artifacts[name].path, manifest)


def test_the_seed_of_a_recipe_moves_the_search_and_not_the_evaluation() -> None:
    first, second = declared("reach_robust"), declared("reach_robust", ["seed=1"])
    own, other = first["worst_of_nominal"].config, second["worst_of_nominal"].config
    assert (own.first_seed, other.first_seed) == (450_000, 1_450_000)
    assert (own.search.seed, other.search.seed) == (0, 1)
    for name in ("drawn", "held_out", "scores"):
        assert first[name].config == second[name].config


def test_demonstrations_of_a_family_are_those_of_its_members(tmp_path: Path) -> None:
    recipe = tmp_path / "family.yaml"
    recipe.write_text(RECIPE)
    made = run_all(str(recipe), (), tmp_path / "runs")
    plain = run_all(str(recipe), ["demos.inputs=null"], tmp_path / "runs", only=("demos",))
    assert [member.name for member in read_family(made["members"].path).members] == [
        "nominal",
        "drawn 1",
    ]

    def positions(artifact: Artifact) -> list[np.ndarray]:
        with EpisodeStore.open(artifact.path / "store.zarr") as store:
            return [store.read(i, "policy", ["q"])["q"] for i in range(store.num_episodes)]

    own, nominal = positions(made["demos"]), positions(plain["demos"])
    # Starts are the same; a payload that nobody knows of bends the way in every second episode.
    bent = [float(np.abs(a[:10] - b[:10]).max()) > 1e-3 for a, b in zip(own, nominal, strict=True)]
    assert bent == [False, True, False, True]
    for a, b in zip(own, nominal, strict=True):
        np.testing.assert_allclose(a[0], b[0], atol=1e-12)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["shared.factors.light={kind: appearance, what: light, low: 0.5, high: 1}"],
            r"factor light = 0\.5: .*no options\.cameras",
        ),
        (
            ["drawn.factors.late={kind: arm, what: delay, values: [0.01]}"],
            "late: has no low and high",
        ),
        (["shared.factors={}"], r"factors: 0 are given"),
        (
            ["worst_of_robust.factors.payload.high=3"],
            r"worst_case: factor payload is .*high=3.* in the input 'family'",
        ),
        (
            ["shared.protocol.options.dynamics=null"],
            "factor friction: only the model knows its value",
        ),
    ],
)
def test_families_that_the_environments_cannot_have_are_refused_by_plan(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        declared("reach_robust", overrides)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            "demos: {uses: scripted, inputs: {family: members}, with: {demonstrate: {simulator: {engine: warp}}}}",
            "scripted: the input 'family' is for MuJoCo",
        ),
        (
            "demos: {uses: scripted, inputs: {family: members}, with: {demonstrate: {mujoco: {randomized: true}}}}",
            "do not draw parameters by themselves",
        ),
    ],
)
def test_recordings_that_cannot_have_a_family_are_refused_by_plan(
    tmp_path: Path, stage: str, message: str
) -> None:
    recipe = tmp_path / "family.yaml"
    kept: Any = RECIPE.splitlines()[:-1]
    recipe.write_text("\n".join([*kept, f"  {stage}"]) + "\n")
    with pytest.raises(HandoffError, match=message):
        declared(str(recipe))


def test_imagined_environments_have_no_family(tmp_path: Path) -> None:
    recipe = tmp_path / "imagined.yaml"
    kept = RECIPE.replace("stages:", "defaults: [switch_diwa]\nstages:").splitlines()[:-1]
    recipe.write_text("\n".join([*kept, "  teacher: {inputs: {family: members}}"]) + "\n")
    with pytest.raises(HandoffError, match="in imagination no environment has parameters"):
        declared(str(recipe))
