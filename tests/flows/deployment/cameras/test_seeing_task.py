"""A policy that sees two cameras goes from demonstrations to the twin."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from flows.runner.artifact import Artifact
from real.deploy.onnx_policy import OnnxPolicy
from robots.episodes.store import EpisodeStore
from sim.twin.task_world import ROBOT_FIELDS
from tests.flows.recipe_stages import run_all
from tests.sim.twin.loopback import address

RECIPE = """
name: seeing_task
shared: {seed: 0}
stages:
  demos:
    uses: scripted
    with:
      task: pick_cube
      episodes: 3
      demonstrate:
        batch: 3
        mujoco: {cameras: {names: [front, wrist], height: 32, width: 40}}
  policy:
    uses: pretrain
    inputs: {demos: demos}
    with:
      policy:
        kind: bc
        observation_fields: [grasp_pose, width]
        anchor_field: null
        image_fields: [image_front, image_wrist]
        hidden: [32]
        image_encoder: {channels: [16, 16]}
      training: {steps: 4, warmup_steps: 1, batch_size: 8, learning_rate: 0.001}
  bundle: {uses: export, inputs: {policy: policy, demos: demos}, with: {golden: 4, action_interface: cartesian_delta}}
  twin:
    uses: deploy
    inputs: {bundle: bundle}
    with: {table: {kind: task, starts: 2, max_steps: 12, videos: 0, twin: {host: TWIN}}}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("seeing") / "seeing.yaml"
    path.write_text(RECIPE.replace("TWIN", address(9)))
    return path


@pytest.fixture(scope="module")
def stages(recipe: Path) -> dict[str, Artifact]:
    return run_all(str(recipe), (), recipe.parent)


def test_nothing_but_pictures_and_the_arms_own_state_reaches_the_policy(
    stages: dict[str, Artifact],
) -> None:
    contract = OnnxPolicy(stages["bundle"].path / "policy.onnx").contract
    assert {*contract.observation, *contract.sensors} <= {
        *ROBOT_FIELDS,
        "image_front",
        "image_wrist",
    }
    recorded = set(
        EpisodeStore.open(stages["twin"].path / "store.zarr").schema.streams["policy"].fields
    )
    # The scene, for the videos, is recorded beside it; no position of an object is.
    assert recorded - {*contract.observation, *contract.sensors} == {
        "qpos",
        "goal_state",
        "image_front_time",
        "image_wrist_time",
        "action",
        "action_proposed",
    }


def test_the_recorded_pictures_state_when_they_were_captured(stages: dict[str, Artifact]) -> None:
    store = EpisodeStore.open(stages["twin"].path / "store.zarr")
    steps = store.read(0, "policy")
    rate = store.schema.streams["policy"].rate_hz
    observed = np.arange(len(steps["action"])) / rate
    for camera in ("image_front", "image_wrist"):
        age = observed - steps[f"{camera}_time"]
        assert age.min() >= 0.03 - 2e-3
        assert age.max() <= 0.03 + 1.0 / 30.0 + 2e-3
        shared = np.diff(steps[f"{camera}_time"]) == 0.0
        same = [np.array_equal(*pair) for pair in pairwise(steps[camera])]
        assert np.all(~shared | np.array(same))
    assert store.metadata(0)["calibration"]["image_wrist"]["frame"] == "hand"


def test_the_age_of_the_pictures_is_a_metric(stages: dict[str, Artifact]) -> None:
    metrics = stages["twin"].manifest["metrics"]
    assert 0.03 <= metrics["picture_age_p95_s"] <= 0.03 + 1.0 / 30.0 + 2e-3
    assert metrics["faults"] == 0


def test_a_repeated_deployment_records_the_same_pictures(
    stages: dict[str, Artifact], recipe: Path, tmp_path: Path
) -> None:
    before = {name: stages[name] for name in ("demos", "policy", "bundle")}
    again = run_all(str(recipe), (), tmp_path, finished=before)["twin"]
    assert again.digest == stages["twin"].digest


def test_pictures_that_do_not_arrive_are_a_fault_of_their_start(
    stages: dict[str, Artifact], recipe: Path, tmp_path: Path
) -> None:
    before = {name: stages[name] for name in ("demos", "policy", "bundle")}
    lossy = ("twin.table.cameras.drop=0.98", "twin.table.cameras.max_age=0.2")
    twin = run_all(str(recipe), lossy, tmp_path, finished=before)["twin"]
    metrics = twin.manifest["metrics"]
    assert metrics["faults"] == 2
    assert all("its newest picture is" in start["fault"] for start in metrics["per_start"])
