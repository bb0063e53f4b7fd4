"""Practice in worlds that stay on the device of their policy, here a CPU: the stage, and what
leaves the device."""

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

WORLDS = 4
RESIDENT = (
    "name: reach_by_name, engine: warp, task: reach_by_name, packages: [handoff], max_steps: 8"
)
TINY = [
    "scripted.episodes=4",
    "pretrain.training.steps=10",
    "pretrain.training.warmup_steps=2",
    "pretrain.policy.backbone.scratch.width=16",
    "pretrain.policy.backbone.scratch.heads=2",
    f"finetune.worlds={WORLDS}",
    "finetune.learning.rollouts=2",
    "finetune.learning.decisions=3",
    "finetune.learning.practice.learning.critic_warm_up=0",
    f"+finetune.protocol={{{RESIDENT}, options: {{resident: true}}}}",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    config, root, found = compose("vla_ppo", TINY), tmp_path_factory.mktemp("runs"), {}
    for stage in stages(config):
        if stage.name in ("ingest", "pretrain", "finetune"):
            inputs = {name: found[upstream.name] for name, upstream in stage.inputs.items()}
            found[stage.name] = run_stage(stage, inputs, root, no_progress, isolate=False).artifact
    return found


def test_a_policy_practises_where_its_worlds_are(made: dict[str, Any]) -> None:
    metrics = made["finetune"].manifest["metrics"]
    assert metrics["rollouts"] == 2
    assert 0 < metrics["steps"] <= 2 * 3 * 4 * WORLDS
    assert metrics["episodes"] >= WORLDS
    assert (made["finetune"].path / "practised.safetensors").exists()


def test_nothing_leaves_the_device_between_two_updates(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from policies.load import load_module
    from policies.rl.collection.split_chunk_env import worlds_of
    from policies.rl.finetuning.config import VlaPracticeConfig
    from policies.rl.finetuning.vla import VlaPractice
    from sim.evaluation.evaluate import resident_env

    practice: Any = compose("vla_ppo", TINY).finetune
    module: Any
    module, card = load_module(made["pretrain"].path, trainable=True)
    worlds: Any = worlds_of(
        resident_env(practice.protocol, WORLDS), module, card.model.n_action_steps, count(), 0.99
    )
    collector = VlaPractice(VlaPracticeConfig(), module, worlds, 0)._collector
    collector.rollout(1)
    copied: list[str] = []
    for kind in (torch.Tensor, warp.array):
        monkeypatch.setattr(kind, "numpy", lambda self, *rest: copied.append("numpy"))
    with Stays() as watched:
        assert len([*collector._decided(3)]) == 3
    assert (watched.left, copied) == ([], [])


def test_worlds_on_a_device_are_for_collocated_practice_alone() -> None:
    from flows.stages.finetune import run
    from sim.evaluation.evaluate import make_env

    apart: Any = compose("vla_ppo", [*TINY, "finetune.placement.kind=disaggregated"]).finetune
    with pytest.raises(
        HandoffError, match="disaggregated placement of worlds that stay on the device"
    ):
        run(apart, {"policy": Path()}, Path(), no_progress)
    with pytest.raises(HandoffError, match="resident: true is for practice alone"):
        make_env(apart.protocol, 1)
