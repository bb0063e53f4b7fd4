"""A language-conditioned policy as a pipeline: imitation, fine-tuning, on-policy distillation to a
smaller student, gate and twin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.recipes.compose import compose
from flows.recipes.pipeline import stages
from policies.imitation.config import PretrainConfig
from policies.policy_config import TokenVlaConfig, VlaConfig
from robots.errors import HandoffError
from tests.flows.test_diwa import run_all
from tests.sim.twin.loopback import address

RECIPES = ("vla_ppo", "vla_grpo")
CLUSTER = "finetune.placement={kind: disaggregated, simulators: 1, cluster: {address: local}}"
"""A Ray cluster on this machine, started for the test."""
TINY = [
    "scripted.episodes=4",
    "pretrain.training.steps=20",
    "pretrain.training.warmup_steps=2",
    "pretrain.policy.backbone.scratch.width=16",
    "pretrain.policy.backbone.scratch.layers=2",
    "pretrain.policy.backbone.scratch.heads=2",
    "finetune.num_envs=8",
    "finetune.learning.rollouts=1",
    "finetune.learning.decisions=3",
    "student.steps=10",
    "student.backbone.scratch.width=8",
    "student.backbone.scratch.layers=1",
    "student.backbone.scratch.heads=2",
    "student.distillation.num_envs=4",
    "student.distillation.learning.rollouts=2",
    "student.distillation.learning.decisions=3",
    "protocol.episodes=4",
    "protocol.max_steps=24",
    "evaluate.videos=0",
    "export.golden=16",
    "gate.repeats=60",
    "gate.warmup=5",
    "gate.p99_ms=500.0",
    "gate.min_speedup=0.1",
    "bench.starts=1",
    "bench.max_steps=8",
    "bench.videos=0",
]


@pytest.fixture
def without_ray() -> Iterator[None]:
    """Disconnects from Ray, to which a process connects once; later tests start their own
    cluster."""
    import ray

    ray.shutdown()
    yield
    ray.shutdown()


@pytest.mark.parametrize(
    ("number", "name", "placed"), [(0, "vla_ppo", []), (1, "vla_grpo", [CLUSTER])]
)
def test_from_demonstrations_with_words_to_the_twin(
    number: int, name: str, placed: list[str], tmp_path: Path, without_ray: None
) -> None:
    artifacts = run_all(
        compose(
            name, [f"runs={tmp_path}", *TINY, *placed, f"bench.twin.host='{address(52 + number)}'"]
        )
    )
    assert artifacts["gate"].manifest["metrics"]["parity"] < 1e-4
    assert {"policy.onnx", "tokenizer.json", "golden.npz"} <= {
        file.name for file in artifacts["export"].path.iterdir()
    }
    distilled = artifacts["distil"].manifest
    assert distilled["inputs"]["teacher"] == artifacts["finetune"].digest
    assert distilled["inputs"]["student"] == artifacts["pretrain_student"].digest
    assert distilled["metrics"]["rollouts"] == 2
    teacher, student = (
        artifacts[stage].manifest["metrics"]["bytes"] for stage in ("export_teacher", "export")
    )
    assert student < teacher
    assert artifacts["deploy"].manifest["metrics"]["starts"] == 1


@pytest.mark.parametrize("name", RECIPES)
def test_teacher_and_student_differ_in_their_size_alone(name: str) -> None:
    config = compose(name)
    student = {stage.name: stage for stage in stages(config)}["pretrain_student"].config
    assert isinstance(student, PretrainConfig)
    assert isinstance(student.policy, TokenVlaConfig | VlaConfig)
    teacher = config.pretrain.policy
    assert isinstance(teacher, TokenVlaConfig | VlaConfig)
    small, large = student.policy.backbone.scratch, teacher.backbone.scratch
    assert small is not None
    assert large is not None
    assert small.sentences == large.sentences
    assert replace(student.policy, backbone=teacher.backbone) == teacher
    assert replace(student, policy=teacher, training=config.pretrain.training) == config.pretrain


def test_a_policy_without_language_has_no_such_student() -> None:
    with pytest.raises(HandoffError, match="family 'diffusion'"):
        stages(compose("demo", ["+student=on_policy"]))


def test_a_teacher_with_cameras_has_no_such_student() -> None:
    config = compose("vla_ppo")
    assert isinstance(config.pretrain.policy, TokenVlaConfig | VlaConfig)
    with_camera = replace(config.pretrain.policy, image_fields=("front",))
    with pytest.raises(HandoffError, match="with cameras"):
        stages(replace(config, pretrain=replace(config.pretrain, policy=with_camera)))
