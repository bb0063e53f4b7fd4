"""Fine-tuning of language-conditioned policies on the arm: four markers, an instruction that names
one, and imitation that solves two of five starts.

The stages are those of the recipe `learning_vla`, and for tokens those of `vla_token_ppo`, from the
scripted demonstrations to the fine-tuned policy, training seeds 0 and 1, before against after on the
protocol's 200 starts, which were not used for training, and without exploration noise:
- imitation solves 25 to 55 %, fine-tuning 90 % or more: PPO of a flow, PPO of tokens, GRPO of a
  flow. Token policies start to follow the instruction within a few hundred updates, sooner with one
  seed than with
  another: each has its own number of updates, by its success after imitation. With seed 1,
  fine-tuning takes tokens from two in five to one in two only, so that is expected to fail
  (docs/results/vla.md lists the attempts);
- negative control: a flow that receives a constant instruction during fine-tuning solves, there, as
  many starts as guessing among four markers, less than .4 to the end (the bound was set when the
  newest hundred episodes had reached .11 and .13, which is .15 and .16 of all episodes of a
  rollout).

Settings were chosen by success in training, which uses other starts than this evaluation: on seed
0, except the GAE lambda of tokens, which was examined on seed 1 and then used for both.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.flows.recipe_stages import run_by_command

pytestmark = pytest.mark.slow

SEEDS = (0, 1)
ARMS = {
    "ppo": ("pretrained", "teacher"),
    "grpo": ("pretrained", "grpo"),
    "constant": ("deaf", "control"),
}
"""Stages of the policies before and after fine-tuning."""
TOKEN_UPDATES = {0: 1150, 1: 2500}
"""Updates of imitation learning, by seed."""
WITHOUT_STUDENT = (
    *(f"~{name}" for name in ("imitator", "student", "control")),
    *(f"~{name}" for name in ("reference", "bundle", "gate", "twin")),
    "shared.action_interface=null",
    "scores.inputs.policy=[pretrained,teacher]",
    "scores.evaluate.videos=0",
)


@dataclass(frozen=True)
class Success:
    """Success before and after fine-tuning, and in its last episodes."""

    before: float
    after: float
    training: float


def success(rows: dict[str, Any], before: str, after: str, copy: str = "") -> Success:
    """The figures of one training seed; `copy` is what follows the names of its stages."""
    scores = [
        rows[f"scores@{name}{copy.replace('@', ',')}"]["metrics"]["success"]
        for name in (before, after)
    ]
    first, last = (score["k"] / score["n"] for score in scores)
    return Success(first, last, rows[f"{after}{copy}"]["metrics"]["success"])


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Success]]:
    root = tmp_path_factory.mktemp("runs")
    rows = run_by_command("learning_vla", (), root)
    found = {
        name: [success(rows, *stages, copy=f"@training.seed={seed}") for seed in SEEDS]
        for name, stages in ARMS.items()
    }
    found["tokens"] = []
    for seed, updates in TOKEN_UPDATES.items():
        chosen = (
            f"name=tokens_{seed}",
            f"pretrained.training.seed={seed}",
            f"teacher.seed={seed}",
            f"pretrained.training.steps={updates}",
        )
        tokens = run_by_command("vla_token_ppo", (*WITHOUT_STUDENT, *chosen), root)
        found["tokens"].append(success(tokens, "pretrained", "teacher"))
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("arm", ["ppo", "tokens", "grpo"])
def test_imitation_solves_about_two_in_five(
    arms: dict[str, list[Success]], arm: str, seed: int
) -> None:
    assert 0.25 <= arms[arm][SEEDS.index(seed)].before <= 0.55


@pytest.mark.parametrize(
    ("arm", "seed"),
    [
        ("ppo", 0),
        ("ppo", 1),
        ("tokens", 0),
        pytest.param(
            "tokens",
            1,
            marks=pytest.mark.xfail(
                raises=AssertionError, reason="docs/results/vla.md", strict=True
            ),
        ),
        ("grpo", 0),
        ("grpo", 1),
    ],
)
def test_finetuning_solves_nine_in_ten(arms: dict[str, list[Success]], arm: str, seed: int) -> None:
    assert arms[arm][SEEDS.index(seed)].after >= 0.9


def test_finetuning_with_a_constant_instruction_solves_no_more_than_guessing(
    arms: dict[str, list[Success]],
) -> None:
    assert all(result.training < 0.4 for result in arms["constant"])
