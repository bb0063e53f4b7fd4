"""A language-conditioned policy as a pipeline: imitation, fine-tuning, on-policy distillation to a
smaller student, gate and twin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from policies.imitation.config import PretrainConfig
from policies.policy_config import TokenVlaConfig, VlaConfig
from robots.errors import HandoffError
from tests.flows.recipe_stages import options, run_all
from tests.sim.twin.loopback import address

RECIPES = ("vla_ppo", "vla_grpo")
CLUSTER = "teacher.placement={kind: disaggregated, simulators: 1, cluster: {address: local}}"
"""A Ray cluster on this machine, started for the test."""
TINY = [
    "demos.episodes=4",
    "pretrained.training.steps=20",
    "pretrained.training.warmup_steps=2",
    "pretrained.policy.backbone.scratch.width=16",
    "pretrained.policy.backbone.scratch.layers=2",
    "pretrained.policy.backbone.scratch.heads=2",
    "teacher.num_envs=8",
    "teacher.rollouts=1",
    "teacher.decisions=3",
    "imitator.training.steps=10",
    "imitator.policy.backbone.scratch.width=8",
    "imitator.policy.backbone.scratch.layers=1",
    "imitator.policy.backbone.scratch.heads=2",
    "student.algorithm.num_envs=4",
    "student.algorithm.rollouts=2",
    "student.algorithm.decisions=3",
    "protocol.episodes=4",
    "protocol.max_steps=24",
    "scores.evaluate.videos=0",
    "control.evaluate.videos=0",
    "bundle.golden=16",
    "reference.golden=16",
    "one_step.evaluate.videos=0",
    "gate.evaluate.videos=0",
    "gate.latency={repeats: 60, warmup: 5}",
    "gate.p99_ms=500.0",
    "gate.period_share=1.0",
    "gate.min_speedup=0.1",
    "gate.min_success=0.0",
    "gate.margin=1.0",
    "gate.twin={min_success: 0.0, max_faults: 1.0}",
    "twin.table.starts=1",
    "twin.table.max_steps=8",
    "twin.table.videos=0",
]


@pytest.fixture
def without_ray() -> Iterator[None]:
    """Disconnects from Ray, to which a process connects once; later tests start their own
    cluster."""
    import ray

    ray.shutdown()
    yield
    ray.shutdown()


def test_from_demonstrations_with_words_to_the_twin(tmp_path: Path) -> None:
    host = f"twin.table.twin.host='{address(52)}'"
    artifacts = run_all("vla_ppo", [*TINY, host], tmp_path)
    assert artifacts["gate"].manifest["metrics"]["parity"] < 1e-4
    assert {"policy.onnx", "tokenizer.json", "golden.npz"} <= {
        file.name for file in artifacts["bundle"].path.iterdir()
    }
    distilled = artifacts["student"].manifest
    assert distilled["inputs"]["teacher"] == artifacts["teacher"].digest
    assert distilled["inputs"]["student"] == artifacts["imitator"].digest
    assert distilled["metrics"]["rollouts"] == 2
    teacher, student = (
        artifacts[stage].manifest["metrics"]["bytes"] for stage in ("reference", "bundle")
    )
    assert student < teacher
    assert artifacts["twin"].manifest["metrics"]["starts"] == 1


def test_groups_of_trajectories_are_collected_on_a_cluster(
    tmp_path: Path, without_ray: None
) -> None:
    only = ("demos", "pretrained", "teacher")
    artifacts = run_all("vla_grpo", [*TINY, CLUSTER], tmp_path, only)
    tuned = artifacts["teacher"].manifest
    assert tuned["inputs"]["policy"] == artifacts["pretrained"].digest
    # Eight environments of three decisions of up to four actions each.
    assert 0 < tuned["metrics"]["steps"] <= 8 * 3 * 4


@pytest.mark.parametrize("name", RECIPES)
def test_teacher_and_student_differ_in_their_size_alone(name: str) -> None:
    config = options(name)
    teacher, student = config["pretrained"], config["imitator"]
    assert isinstance(student, PretrainConfig)
    assert isinstance(student.policy, TokenVlaConfig | VlaConfig)
    assert isinstance(teacher.policy, TokenVlaConfig | VlaConfig)
    small, large = student.policy.backbone.scratch, teacher.policy.backbone.scratch
    assert small is not None
    assert large is not None
    assert small.sentences == large.sentences
    assert replace(student.policy, backbone=teacher.policy.backbone) == teacher.policy
    assert replace(student, policy=teacher.policy) == teacher


def test_a_policy_without_language_has_no_such_student() -> None:
    with pytest.raises(HandoffError, match="family 'diffusion'"):
        options(
            "vla_ppo",
            ["imitator.policy={kind: diffusion, observation_fields: [q], anchor_field: null}"],
        )


def test_a_regression_policy_is_no_such_student() -> None:
    with pytest.raises(HandoffError, match="a student of the family 'act' is not supported"):
        options(
            "vla_ppo", ["imitator.policy={kind: act, observation_fields: [q], anchor_field: null}"]
        )
