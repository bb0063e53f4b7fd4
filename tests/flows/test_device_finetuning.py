"""Fine-tuning in environments that stay on the device of their policy, here a CPU: the stage, and
transfers from the device."""

import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.recipes.compose import compose
from flows.recipes.pipeline import stages
from flows.runner.stage import run_stage
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.sim.stays import Stays

if not os.environ.get("HANDOFF_REQUIRE_ENGINES"):
    pytest.importorskip("mujoco_warp", reason="the extra [warp] is not installed")
import warp

pytestmark = pytest.mark.usefixtures("unoptimised_kernels")

NUM_ENVS = 4
ON_DEVICE = (
    "name: reach_by_name, engine: warp, task: reach_by_name, packages: [handoff], max_steps: 8"
)
TINY = [
    "scripted.episodes=4",
    "pretrain.training.steps=10",
    "pretrain.training.warmup_steps=2",
    "pretrain.policy.backbone.scratch.width=16",
    "pretrain.policy.backbone.scratch.heads=2",
    f"finetune.num_envs={NUM_ENVS}",
    "finetune.learning.rollouts=2",
    "finetune.learning.decisions=3",
    "finetune.learning.algorithm.learning.critic_warmup_rollouts=0",
    f"+finetune.protocol={{{ON_DEVICE}, options: {{resident: true}}}}",
]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    config = compose("vla_ppo", TINY)
    root = tmp_path_factory.mktemp("runs")
    artifacts: dict[str, Any] = {}
    for stage in stages(config):
        if stage.name in ("ingest", "pretrain", "finetune"):
            inputs = {name: artifacts[upstream.name] for name, upstream in stage.inputs.items()}
            outcome = run_stage(stage, inputs, root, no_progress, isolate=False)
            artifacts[stage.name] = outcome.artifact
    return artifacts


def test_a_policy_is_finetuned_on_the_device_of_its_environments(artifacts: dict[str, Any]) -> None:
    metrics = artifacts["finetune"].manifest["metrics"]
    assert metrics["rollouts"] == 2
    assert 0 < metrics["steps"] <= 2 * 3 * 4 * NUM_ENVS
    assert metrics["episodes"] >= NUM_ENVS
    assert (artifacts["finetune"].path / "practised.safetensors").exists()


def test_nothing_leaves_the_device_between_two_updates(
    artifacts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from policies.load import load_module
    from policies.rl.collection.split_chunk_env import make_chunk_env
    from policies.rl.finetuning.config import VlaFinetuneConfig
    from policies.rl.finetuning.vla import VlaFinetuning
    from sim.evaluation.evaluate import device_env

    finetuning: Any = compose("vla_ppo", TINY).finetune
    module: Any
    module, card = load_module(artifacts["pretrain"].path, trainable=True)
    envs: Any = make_chunk_env(
        device_env(finetuning.protocol, NUM_ENVS), module, card.model.n_action_steps, count(), 0.99
    )
    collector = VlaFinetuning(VlaFinetuneConfig(), module, envs, 0)._collector
    collector.rollout(1)
    copied: list[str] = []
    for kind in (torch.Tensor, warp.array):
        monkeypatch.setattr(kind, "numpy", lambda self, *rest: copied.append("numpy"))
    with Stays() as watched:
        assert len([*collector._decisions(3)]) == 3
    assert (watched.left, copied) == ([], [])


def test_environments_on_a_device_need_collocated_placement() -> None:
    from flows.stages.finetune import run
    from sim.evaluation.evaluate import make_env

    disaggregated: Any = compose(
        "vla_ppo", [*TINY, "finetune.placement.kind=disaggregated"]
    ).finetune
    with pytest.raises(
        HandoffError, match="disaggregated placement of environments that stay on the device"
    ):
        run(disaggregated, {"policy": Path()}, Path(), no_progress)
    with pytest.raises(HandoffError, match="resident: true is for fine-tuning only"):
        make_env(disaggregated.protocol, 1)
