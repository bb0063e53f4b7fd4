"""The recipe `smoke_finetune`, whole: EXPO and Q-chunking through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.checkpoint import read_card
from tests.flows.test_smoke import handoff


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    handoff("run", "smoke_finetune", f"runs={runs}", home=runs)
    return runs / "smoke_finetune"


def test_every_stage_is_done_and_every_policy_evaluated(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    policies = ("diffusion", "flow", "expo", "q_chunking")
    assert set(summary["stages"]) == {
        "demos",
        *policies,
        *(f"scores@{policy}" for policy in policies),
    }
    assert {row["status"] for row in summary["stages"].values()} == {"done"}


@pytest.mark.parametrize(("name", "base"), [("expo", "diffusion"), ("q_chunking", "flow")])
def test_what_is_released_is_a_policy_like_its_base_with_a_curve(
    folder: Path, name: str, base: str
) -> None:
    assert read_card(folder / name).model == read_card(folder / base).model
    rollouts = [json.loads(line) for line in (folder / name / "finetune.jsonl").open()]
    assert [entry["rollout"] for entry in rollouts] == [1, 2, 3]
    assert rollouts[-1]["critic_loss"] > 0.0
    assert (folder / name / "finetune.png").is_file()


def test_losses_are_logged_where_the_recipe_asks_for_it(folder: Path) -> None:
    assert list((folder / "expo" / "finetune" / "tensorboard").iterdir())
    assert not (folder / "q_chunking" / "finetune").exists()
