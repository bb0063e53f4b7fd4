"""Practice in dreams as a pipeline: from a scripted expert and play to the twin, and no world in
between."""

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
    "dreams.play.episodes=24",
    "dreams.play.play.steps=120",
    "dreams.world_model.training.steps=60",
    "dreams.world_model.training.warmup_steps=5",
    "dreams.world_model.sequence=10",
    "dreams.world_model.sizes.recurrent=32",
    "dreams.world_model.held_out=0.1",
    "dreams.world_model.success.training.steps=200",
    "dreams.world_model.success.precision=0.2",
    "finetune.worlds=4",
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
    made: dict[str, Artifact] = {}
    for stage in stages(config):
        inputs = {name: made[upstream.name] for name, upstream in stage.inputs.items()}
        made[stage.name] = run_stage(
            stage, inputs, Path(config.runs), no_progress, isolate=False
        ).artifact
    return made


def test_a_drawer_is_practised_without_a_step_in_a_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def world(*_: object) -> None:
        raise AssertionError("practice in dreams made a world")

    monkeypatch.setattr("sim.evaluation.evaluate.practice_env", world)
    made = run_all(compose("drawer_diwa", [f"runs={tmp_path}", *TINY]))
    deployed = made["deploy"].manifest["metrics"]
    assert (deployed["starts"], deployed["lost_packets"]) == (1, 0)
    assert EpisodeStore.open(made["deploy"].path / "store.zarr", "r").num_episodes == 1
    assert made["gate"].manifest["metrics"]["parity"] < 1e-4
    assert made["finetune"].manifest["inputs"]["world_model"] == made["world_model"].digest
    assert made["finetune"].manifest["metrics"]["rollouts"] == 3
    told = made["world_model"].manifest["metrics"]
    assert told["pictures"] == ["imagined.png", "imagined.mp4"]
    assert (made["world_model"].path / "imagined.mp4").stat().st_size > 1000
    assert set(told["errors"]["50"]) >= {"q", "dq", "opening", "handle_position"}
    assert "scripted expert of open_drawer" in made["ingest"].manifest["metrics"]["source_line"]


def test_dreams_that_nobody_practises_in_are_refused() -> None:
    with pytest.raises(HandoffError, match="dreams: nothing practises in them"):
        stages(replace(compose("drawer_diwa"), finetune=None))


@pytest.mark.parametrize(
    ("name", "near"), [("drawer_diwa", "slot_offset"), ("switch_diwa", "knob_offset")]
)
def test_the_world_model_knows_all_that_the_policy_is_to_see(name: str, near: str) -> None:
    config = compose(name)
    model = next(stage for stage in stages(config) if stage.name == "world_model")
    assert set(config.pretrain.policy.observation_fields) < set(model.config.fields)
    assert model.config.fields[:3] == ("q", "dq", near)
    assert config.dreams is not None
    assert isinstance(config.scripted, ScriptedConfig)
    # Play, demonstrations and protocol are of one task.
    assert config.dreams.play.task == config.scripted.task == config.protocol.task
    assert set(model.config.fields) <= set(find_task(config.scripted.task).observations)


def test_a_misspelt_key_of_dreams_is_named() -> None:
    with pytest.raises(HandoffError, match="Config group override must be a string"):
        compose("drawer_diwa", ["finetune=null"])
    with pytest.raises(HandoffError, match=r"unknown key 'dreams.world_modell.noise'"):
        compose("drawer_diwa", ["dreams.world_modell.noise=1"])
