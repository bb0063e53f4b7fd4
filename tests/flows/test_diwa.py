"""Fine-tuning in imagination as a pipeline: from a scripted expert and play to the twin, without
environment steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flows.recipes.compose import compose
from flows.recipes.config import PipelineConfig
from flows.recipes.pipeline import stages
from flows.runner.artifact import Artifact
from flows.runner.stage import run_stage
from flows.stages.config import ScriptedConfig
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from sim.make import find_task
from tests.sim.twin.loopback import address

TINY = [
    "scripted.episodes=4",
    "pretrain.training.steps=60",
    "pretrain.training.warmup_steps=10",
    "pretrain.policy.network.width=32",
    "imagination.play.episodes=24",
    "imagination.play.play.steps=120",
    "imagination.world_model.training.steps=60",
    "imagination.world_model.training.warmup_steps=5",
    "imagination.world_model.sequence=10",
    "imagination.world_model.sizes.recurrent=32",
    "imagination.world_model.held_out=0.1",
    "imagination.world_model.success.training.steps=200",
    "imagination.world_model.success.precision=0.2",
    "finetune.num_envs=4",
    "finetune.learning.rollouts=3",
    "finetune.learning.decisions=4",
    "protocol.episodes=4",
    "protocol.max_steps=24",
    "evaluate.videos=0",
    "distil.training.steps=60",
    "distil.training.warmup_steps=10",
    "distil.targets=2048",
    "export.golden=32",
    "gate.repeats=100",
    "gate.p99_ms=200.0",
    "gate.min_speedup=0.5",
    "bench.starts=1",
    "bench.max_steps=8",
    "bench.videos=1",
    f"bench.twin.host='{address(51)}'",
]


def run_all(config: PipelineConfig) -> dict[str, Artifact]:
    artifacts: dict[str, Artifact] = {}
    for stage in stages(config):
        inputs = {name: artifacts[upstream.name] for name, upstream in stage.inputs.items()}
        artifacts[stage.name] = run_stage(
            stage, inputs, Path(config.runs), no_progress, isolate=False
        ).artifact
    return artifacts


def test_a_drawer_policy_is_finetuned_without_an_environment_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def env(*_: object) -> None:
        raise AssertionError("fine-tuning in imagination created an environment")

    monkeypatch.setattr("sim.evaluation.evaluate.training_env", env)
    artifacts = run_all(compose("drawer_diwa", [f"runs={tmp_path}", *TINY]))
    deployed = artifacts["deploy"].manifest["metrics"]
    assert (deployed["starts"], deployed["lost_packets"]) == (1, 0)
    assert EpisodeStore.open(artifacts["deploy"].path / "store.zarr", "r").num_episodes == 1
    assert artifacts["gate"].manifest["metrics"]["parity"] < 1e-4
    assert (
        artifacts["finetune"].manifest["inputs"]["world_model"] == artifacts["world_model"].digest
    )
    assert artifacts["finetune"].manifest["metrics"]["rollouts"] == 3
    metrics = artifacts["world_model"].manifest["metrics"]
    assert metrics["pictures"] == ["imagined.png", "imagined.mp4"]
    assert (artifacts["world_model"].path / "imagined.mp4").stat().st_size > 1000
    assert set(metrics["errors"]["50"]) >= {"q", "dq", "opening", "handle_position"}
    assert (
        "scripted expert of open_drawer" in artifacts["ingest"].manifest["metrics"]["source_line"]
    )


def test_imagination_without_finetuning_is_refused() -> None:
    with pytest.raises(HandoffError, match="imagination: no fine-tuning uses the world model"):
        stages(replace(compose("drawer_diwa"), finetune=None))


@pytest.mark.parametrize(
    ("name", "near"), [("drawer_diwa", "slot_offset"), ("switch_diwa", "knob_offset")]
)
def test_the_world_model_contains_all_observation_fields_of_the_policy(
    name: str, near: str
) -> None:
    config = compose(name)
    model = next(stage for stage in stages(config) if stage.name == "world_model")
    assert set(config.pretrain.policy.observation_fields) < set(model.config.fields)
    assert model.config.fields[:3] == ("q", "dq", near)
    assert config.imagination is not None
    assert isinstance(config.scripted, ScriptedConfig)
    # Play, demonstrations and protocol are of one task.
    assert config.imagination.play.task == config.scripted.task == config.protocol.task
    assert set(model.config.fields) <= set(find_task(config.scripted.task).observations)


def test_a_misspelt_key_of_imagination_is_named() -> None:
    with pytest.raises(HandoffError, match="Config group override must be a string"):
        compose("drawer_diwa", ["finetune=null"])
    with pytest.raises(HandoffError, match=r"unknown key 'imagination.world_modell.noise'"):
        compose("drawer_diwa", ["imagination.world_modell.noise=1"])
