"""Recipes with a practice, stage by stage without the arm, as learning checks need them."""

from pathlib import Path
from typing import Any

STAGES = ("ingest", "pretrain", "evaluate_pretrained", "finetune", "evaluate_teacher")


def made_by(recipe: str, seed: int, root: Path, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Artifacts by stage, up to the practised policy's evaluation; imitation and practice have this
    seed."""
    from flows.recipes.compose import compose
    from flows.recipes.pipeline import stages
    from flows.runner.stage import run_stage
    from robots.interfaces import no_progress

    seeds = (f"pretrain.training.seed={seed}", f"finetune.learning.seed={seed}")
    made: dict[str, Any] = {}
    for stage in stages(compose(recipe, [*seeds, "evaluate.videos=0", *overrides])):
        if stage.name in STAGES:
            inputs = {name: made[upstream.name] for name, upstream in stage.inputs.items()}
            made[stage.name] = run_stage(
                stage, inputs, root / str(seed), no_progress, isolate=False
            ).artifact
    return made
