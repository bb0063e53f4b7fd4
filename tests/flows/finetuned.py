"""Runs recipes with RL fine-tuning stage by stage, without the arm, for learning checks."""

from pathlib import Path
from typing import Any

STAGES = ("ingest", "pretrain", "evaluate_pretrained", "finetune", "evaluate_teacher")


def run_recipe(
    recipe: str, seed: int, root: Path, overrides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns the artifacts by stage, up to the evaluation of the fine-tuned policy; imitation and
    fine-tuning use this seed."""
    from flows.recipes.compose import compose
    from flows.recipes.pipeline import stages
    from flows.runner.stage import run_stage
    from robots.interfaces import no_progress

    seeds = (f"pretrain.training.seed={seed}", f"finetune.learning.seed={seed}")
    artifacts: dict[str, Any] = {}
    for stage in stages(compose(recipe, [*seeds, "evaluate.videos=0", *overrides])):
        if stage.name in STAGES:
            inputs = {name: artifacts[upstream.name] for name, upstream in stage.inputs.items()}
            artifacts[stage.name] = run_stage(
                stage, inputs, root / str(seed), no_progress, isolate=False
            ).artifact
    return artifacts
