"""Fine-tuning in imagination as a pipeline: from a scripted expert and play to the twin, without
environment steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.reports.results import describe
from flows.stages.learn import finetune
from flows.stages.learn.config import FinetunePolicyConfig
from policies.world_model.config import ImaginationConfig, WorldModelConfig
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from sim.make import find_task
from tests.flows.recipe_stages import options, run_all
from tests.sim.twin.loopback import address

TINY = [
    "demos.episodes=4",
    "pretrained.training.steps=60",
    "pretrained.training.warmup_steps=10",
    "pretrained.policy.network.width=32",
    "play.episodes=24",
    "play.play.steps=120",
    "world_model.training.steps=60",
    "world_model.training.warmup_steps=5",
    "world_model.sequence=10",
    "world_model.members=2",
    "world_model.sizes.recurrent=32",
    "world_model.held_out=0.1",
    "world_model.success.training.steps=200",
    "world_model.success.precision=0.2",
    "teacher.imagination.penalty=0.1",
    "teacher.num_envs=4",
    "teacher.rollouts=3",
    "teacher.decisions=4",
    "protocol.episodes=4",
    "protocol.max_steps=24",
    "scores.evaluate.videos=0",
    "control.evaluate.videos=0",
    "student.algorithm.training.steps=60",
    "student.algorithm.training.warmup_steps=10",
    "student.algorithm.targets=2048",
    "bundle.golden=32",
    "reference.golden=32",
    "gate.latency.repeats=100",
    "gate.period_share=1.0",
    "gate.min_speedup=0.5",
    "gate.min_success=0.0",
    "gate.margin=1.0",
    "gate.twin={min_success: 0.0, max_faults: 1.0}",
    "twin.table.starts=1",
    "twin.table.max_steps=8",
    "twin.table.videos=1",
    f"twin.table.twin.host='{address(51)}'",
]


def test_a_drawer_policy_is_finetuned_without_an_environment_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def env(*_: object) -> None:
        raise AssertionError("fine-tuning in imagination created an environment")

    monkeypatch.setattr("sim.evaluation.evaluate.training_env", env)
    artifacts = run_all("drawer_diwa", TINY, tmp_path)
    deployed = artifacts["twin"].manifest["metrics"]
    assert (deployed["starts"], deployed["lost_packets"]) == (1, 0)
    assert EpisodeStore.open(artifacts["twin"].path / "store.zarr", "r").num_episodes == 1
    assert artifacts["gate"].manifest["metrics"]["parity"] < 1e-4
    assert artifacts["teacher"].manifest["inputs"]["world_model"] == artifacts["world_model"].digest
    assert artifacts["teacher"].manifest["metrics"]["rollouts"] == 3
    metrics = artifacts["world_model"].manifest["metrics"]
    assert metrics["members"] == 2
    correlation = metrics["disagreement"]["rank_correlation_imagined"]
    assert describe("world_model", metrics).endswith(
        f"; 2 models, rank correlation of disagreement and error {correlation:.2f}"
    )
    assert metrics["pictures"] == ["imagined.png", "imagined.mp4"]
    assert (artifacts["world_model"].path / "imagined.mp4").stat().st_size > 1000
    assert set(metrics["errors"]["50"]) >= {"q", "dq", "opening", "handle_position"}
    source = artifacts["demos"].manifest["metrics"]["source_line"]
    assert "scripted expert of open_drawer" in source


@pytest.mark.parametrize(
    ("name", "near"), [("drawer_diwa", "slot_offset"), ("switch_diwa", "knob_offset")]
)
def test_the_world_model_contains_all_observation_fields_of_the_policy(
    name: str, near: str
) -> None:
    config = options(name)
    fields = config["world_model"].fields
    assert set(config["pretrained"].policy.observation_fields) < set(fields)
    assert fields[:3] == ("q", "dq", near)
    # Play, demonstrations and protocol are of one task.
    task = config["demos"].task
    assert config["play"].task == task == config["teacher"].protocol.task
    assert set(fields) <= set(find_task(task).observations)


def test_a_misspelt_key_of_the_world_model_is_named() -> None:
    with pytest.raises(HandoffError, match=r"unknown key 'world_model.noize', did you mean"):
        options("drawer_diwa", ["world_model.noize=1"])


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"policy": None}, "nothing is imagined; the input 'world_model' is missing"),
        (
            {"policy": None, "world_model": WorldModelConfig()},
            "a single world model, which cannot disagree",
        ),
    ],
)
def test_a_charge_for_disagreement_needs_models_that_disagree(
    sources: dict[str, Any], message: str
) -> None:
    config = FinetunePolicyConfig(imagination=ImaginationConfig(penalty=0.1))
    with pytest.raises(HandoffError, match=message):
        finetune.check(config, sources)
