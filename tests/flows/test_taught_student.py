"""A policy that reads as a pipeline: imitation, practice, a smaller student taught in its own
states, gate and twin."""

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
"""A Ray cluster of this machine alone, which is begun for it."""
TINY = [
    "scripted.episodes=4",
    "pretrain.training.steps=20",
    "pretrain.training.warmup_steps=2",
    "pretrain.policy.backbone.scratch.width=16",
    "pretrain.policy.backbone.scratch.layers=2",
    "pretrain.policy.backbone.scratch.heads=2",
    "finetune.worlds=8",
    "finetune.learning.rollouts=1",
    "finetune.learning.decisions=3",
    "student.steps=10",
    "student.backbone.scratch.width=8",
    "student.backbone.scratch.layers=1",
    "student.backbone.scratch.heads=2",
    "student.teaching.worlds=4",
    "student.teaching.learning.rollouts=2",
    "student.teaching.learning.decisions=3",
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
    """Ray is connected to once for a process; what comes next has a cluster of its own."""
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
    made = run_all(
        compose(
            name, [f"runs={tmp_path}", *TINY, *placed, f"bench.twin.host='{address(52 + number)}'"]
        )
    )
    assert made["gate"].manifest["metrics"]["parity"] < 1e-4
    assert {"policy.onnx", "tokenizer.json", "golden.npz"} <= {
        file.name for file in made["export"].path.iterdir()
    }
    distilled = made["distil"].manifest
    assert distilled["inputs"]["teacher"] == made["finetune"].digest
    assert distilled["inputs"]["student"] == made["pretrain_student"].digest
    assert distilled["metrics"]["rollouts"] == 2
    teacher, student = (
        made[stage].manifest["metrics"]["bytes"] for stage in ("export_teacher", "export")
    )
    assert student < teacher
    assert made["deploy"].manifest["metrics"]["starts"] == 1


@pytest.mark.parametrize("name", RECIPES)
def test_teacher_and_student_read_and_differ_in_their_size_alone(name: str) -> None:
    config = compose(name)
    own = {stage.name: stage for stage in stages(config)}["pretrain_student"].config
    assert isinstance(own, PretrainConfig)
    assert isinstance(own.policy, TokenVlaConfig | VlaConfig)
    teacher = config.pretrain.policy
    assert isinstance(teacher, TokenVlaConfig | VlaConfig)
    small, large = own.policy.backbone.scratch, teacher.backbone.scratch
    assert small is not None
    assert large is not None
    assert small.sentences == large.sentences
    assert replace(own.policy, backbone=teacher.backbone) == teacher
    assert replace(own, policy=teacher, training=config.pretrain.training) == config.pretrain


def test_what_does_not_read_has_no_such_student() -> None:
    with pytest.raises(HandoffError, match="family 'diffusion'"):
        stages(compose("demo", ["+student=taught"]))


def test_cameras_keep_a_student_from_the_controller() -> None:
    config = compose("vla_ppo")
    assert isinstance(config.pretrain.policy, TokenVlaConfig | VlaConfig)
    seeing = replace(config.pretrain.policy, image_fields=("front",))
    with pytest.raises(HandoffError, match="with cameras"):
        stages(replace(config, pretrain=replace(config.pretrain, policy=seeing)))
