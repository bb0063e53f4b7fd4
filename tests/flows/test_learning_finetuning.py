"""Fine-tuning of a pretrained push-T policy in gym-pusht, from a weak base and from the full one,
on held-out seeds: the recipe `learning_best_of_n`.

Asked for, training seeds 0 and 1, 200 seeds of the published protocol that were not used for
training, before against after, 40 CPU-minutes each:
- weak base (4,000 updates of imitation, 2.6 CPU-minutes): score + .08, 95 % interval above 0;
- full base (the demo's 20,000): success + .15, 95 % interval above 0;
- negative control, weak base: critics without updates select at random, and the score gained stays
  below half of that.

Settings were chosen on a base of 3,000 updates and on the full one of seed 0, by success in
training, which uses other starts than this evaluation; the number of rollouts by their duration.
See docs/results/push_t.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.flows.recipe_stages import run_by_command

pytestmark = pytest.mark.slow

RECIPE = "learning_best_of_n"
SEEDS = (0, 1)
CPU_MINUTES = 40.0


@dataclass(frozen=True)
class Finetuned:
    """Result of one training seed; differences are after minus before, with 95 % intervals
    (bootstrap over seeds)."""

    score: dict[str, float]
    success: dict[str, float]
    cpu_minutes: float


Compare = Callable[[str, str], list[Finetuned]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def rows(root: Path) -> dict[str, Any]:
    return run_by_command(RECIPE, (), root)


@pytest.fixture(scope="module")
def finetuned(rows: dict[str, Any], root: Path) -> Compare:
    """The results of all seeds, by the stages of the policies before and after."""
    from sim.evaluation.comparison import read_result
    from sim.evaluation.intervals import paired_difference

    def compared(base: str, tuned: str, seed: int) -> Finetuned:
        before, after = (
            read_result(root / RECIPE / f"scores@{name},training.seed={seed}")
            for name in (base, tuned)
        )
        differences = (
            paired_difference(
                [float(value) for value in before.column(name)],
                [float(value) for value in after.column(name)],
                0,
            )
            for name in ("score", "success")
        )
        seconds = rows[f"{tuned}@training.seed={seed}"]["metrics"]["cpu_seconds"]
        return Finetuned(*differences, cpu_minutes=seconds / 60.0)

    return lambda base, tuned: [compared(base, tuned, seed) for seed in SEEDS]


def test_a_weak_base_scores_higher(finetuned: Compare) -> None:
    for result in finetuned("weak", "weak_tuned"):
        assert result.score["mean"] >= 0.08
        assert result.score["low"] > 0.0
        assert result.cpu_minutes <= CPU_MINUTES


def test_critics_without_updates_gain_nothing(finetuned: Compare) -> None:
    learned = finetuned("weak", "weak_tuned")
    controls = finetuned("weak", "untrained_critics")
    for result, control in zip(learned, controls, strict=True):
        assert control.score["mean"] < 0.5 * result.score["mean"]


def test_the_full_base_succeeds_more_often(finetuned: Compare) -> None:
    for result in finetuned("full", "full_tuned"):
        assert result.success["mean"] >= 0.15
        assert result.success["low"] > 0.0
        assert result.cpu_minutes <= CPU_MINUTES
