"""Runs recipes with RL fine-tuning stage by stage, without the arm, for learning checks."""

from pathlib import Path
from typing import Any

STAGES = ("demos", "pretrained", "scores@pretrained", "teacher", "scores@teacher")


def run_recipe(
    recipe: str, seed: int, root: Path, overrides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns the artifacts by stage, up to the evaluation of the fine-tuned policy; imitation and
    fine-tuning use this seed."""
    from tests.flows.recipe_stages import run_all

    seeds = (f"pretrained.training.seed={seed}", f"teacher.seed={seed}")
    chosen = [*seeds, "scores.evaluate.videos=0", *overrides]
    return run_all(recipe, chosen, root / str(seed), STAGES)
