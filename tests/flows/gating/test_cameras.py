"""A policy that observes a camera goes from demonstrations through its own ONNX file to the gate."""

from __future__ import annotations

from pathlib import Path

from flows.gating.outcome import read_conditions
from tests.flows.recipe_stages import run_all

RECIPE = """
name: seeing
shared:
  protocol: {uses: push_t_image, episodes: 2, max_steps: 10}
  evaluate: {videos: 0, batch: 2}
stages:
  demos: {uses: ingest, with: {max_episodes: 3, download: false}}
  teacher:
    uses: pretrain
    inputs: {demos: demos}
    with:
      policy:
        uses: unet_image
        inference_steps: 1
        network: {widths: [16, 32], groups: 4}
        image_encoder: {channels: [16, 16]}
      training: {steps: 4, warmup_steps: 1, batch_size: 8}
  bundle: {uses: export, inputs: {policy: teacher, demos: demos}, with: {golden: 8}}
  scores: {uses: evaluate, inputs: {policy: teacher}}
  gate:
    uses: gate
    inputs: {bundle: bundle, scores: scores}
    with:
      latency: {repeats: 20, warmup: 2}
      period_share: 1.0
      min_success: 0.0
      repeated: 1
      twin: null
"""


def test_it_plays_the_pictures_that_the_policy_was_trained_on(tmp_path: Path) -> None:
    recipe = tmp_path / "seeing.yaml"
    recipe.write_text(RECIPE)
    gate = run_all(str(recipe), (), tmp_path)["gate"]
    found = {condition.name: condition for condition in read_conditions(gate.path)}
    assert [name for name, each in found.items() if each.state == "not evaluated"] == []
    assert found["difference between ONNX Runtime and training"].state == "passed"
    # The same pictures by the robot's inference, the evaluation's, and torch in the evaluation.
    assert found["difference between the evaluation and the robot's process"].value == 0.0
    assert found["equal repetitions"].state == "passed"
    assert abs(found["loss by export"].details["mean"]) < 1e-3
    assert gate.manifest["metrics"]["success"]["n"] == 2
