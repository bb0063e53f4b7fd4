"""The recipe `smoke_finetune`, whole: EXPO, Q-chunking and self-distillation."""

from __future__ import annotations

import json

import pytest

from flows.reports.speed import INFERENCE
from flows.runner.artifact import Artifact
from policies.checkpoint import read_card
from tests.flows.recipe_stages import run_all


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return run_all("smoke_finetune", (), tmp_path_factory.mktemp("runs"))


def test_every_policy_is_trained_and_evaluated(artifacts: dict[str, Artifact]) -> None:
    policies = ("diffusion", "flow", "expo", "q_chunking", "student")
    evaluations = [f"scores@{policy}" for policy in policies]
    assert set(artifacts) == {"demos", *policies, *evaluations}
    for name in evaluations:
        assert artifacts[name].manifest["metrics"]["success"]["n"] > 0
        times = json.loads((artifacts[name].path / INFERENCE).read_bytes())
        assert times["p99_ms"] >= times["p50_ms"] > 0.0
        assert times["denoising_steps"] == (1 if name == "scores@student" else 10)


@pytest.mark.parametrize(("name", "base"), [("expo", "diffusion"), ("q_chunking", "flow")])
def test_what_is_released_is_a_policy_like_its_base_with_a_curve(
    artifacts: dict[str, Artifact], name: str, base: str
) -> None:
    folder = artifacts[name].path
    assert read_card(folder).model == read_card(artifacts[base].path).model
    rollouts = [json.loads(line) for line in (folder / "finetune.jsonl").open()]
    assert [entry["rollout"] for entry in rollouts] == [1, 2, 3]
    assert rollouts[-1]["critic_loss"] > 0.0
    assert (folder / "finetune.png").is_file()


def test_losses_are_logged_where_the_recipe_asks_for_it(artifacts: dict[str, Artifact]) -> None:
    assert list((artifacts["expo"].path / "finetune" / "tensorboard").iterdir())
    assert not (artifacts["q_chunking"].path / "finetune").exists()
