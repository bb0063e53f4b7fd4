"""Fine-tuning from pictures in environments that stay on the device of their policy, here a CPU:
the stage, and transfers from the device."""

import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.flows.recipe_stages import options, run_all
from tests.sim.stays import Stays

if not os.environ.get("HANDOFF_REQUIRE_ENGINES"):
    pytest.importorskip("mujoco_warp", reason="the extra [warp] is not installed")
import warp

pytestmark = pytest.mark.usefixtures("unoptimised_kernels")

NUM_ENVS = 4
ON_DEVICE = (
    "name: reach_by_name, engine: warp, task: reach_by_name, packages: [handoff], max_steps: 8"
)
CAMERAS = "{names: [front], height: 32, width: 32}"
TINY = [
    "demos.episodes=4",
    f"demos.demonstrate.mujoco.cameras={CAMERAS}",
    "pretrained.policy.image_fields=[image_front]",
    "pretrained.training.steps=10",
    "pretrained.training.warmup_steps=2",
    "pretrained.policy.backbone.scratch.width=16",
    "pretrained.policy.backbone.scratch.heads=2",
    f"teacher.num_envs={NUM_ENVS}",
    "teacher.rollouts=2",
    "teacher.decisions=3",
    "teacher.algorithm.learning.critic_warmup_rollouts=0",
    f"shared.protocol={{{ON_DEVICE}, options: {{cameras: {CAMERAS}}}}}",
    f"teacher.protocol={{{ON_DEVICE}, options: {{resident: true, cameras: {CAMERAS}}}}}",
]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("runs")
    return run_all("vla_ppo", TINY, root, ("demos", "pretrained", "teacher"))


def test_a_policy_is_finetuned_on_the_device_of_its_environments(artifacts: dict[str, Any]) -> None:
    metrics = artifacts["teacher"].manifest["metrics"]
    assert metrics["rollouts"] == 2
    assert 0 < metrics["steps"] <= 2 * 3 * 4 * NUM_ENVS
    assert metrics["episodes"] >= NUM_ENVS
    assert (artifacts["teacher"].path / "practised.safetensors").exists()


def test_nothing_leaves_the_device_between_two_updates(
    artifacts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from policies.load import load_module
    from policies.rl.collection.split_chunk_env import make_chunk_env
    from policies.rl.finetuning.config import VlaFinetuneConfig
    from policies.rl.finetuning.vla import VlaFinetuning
    from sim.evaluation.evaluate import device_env

    finetuning: Any = options("vla_ppo", TINY)["teacher"]
    module: Any
    module, card = load_module(artifacts["pretrained"].path, trainable=True)
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
    from flows.artifacts import Policy
    from flows.stages.learn.finetune import run
    from sim.evaluation.evaluate import make_env

    refused = "disaggregated placement of environments that stay on the device"
    with pytest.raises(HandoffError, match=refused):
        options("vla_ppo", [*TINY, "teacher.placement.kind=disaggregated"])
    collocated: Any = options("vla_ppo", TINY)["teacher"]
    disaggregated = replace(
        collocated, placement=replace(collocated.placement, kind="disaggregated")
    )
    with pytest.raises(HandoffError, match=refused):
        run(disaggregated, Path(), no_progress, policy=Policy(Path()))
    with pytest.raises(
        HandoffError, match="resident: true is for fine-tuning and for PPO, FastTD3"
    ):
        make_env(disaggregated.protocol, 1)
