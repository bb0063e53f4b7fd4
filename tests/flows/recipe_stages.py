"""Stages of recipes, and runs of them in this process."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from flows.artifacts import Bundle
from flows.deployment.config import DeployConfig, DeployTaskConfig
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.artifact import Artifact
from flows.runner.stage import Stage, run_stage
from flows.stages.release import deploy
from flows.stages.release.config import DeployBundleConfig
from robots.interfaces import no_progress


def declared(name: str, overrides: Sequence[str] = ()) -> dict[str, Stage]:
    """The stages of a recipe by name, without a download."""
    return {stage.name: stage for stage in stages(read_recipe(name, overrides), fetch=False)}


def options(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The options of every stage of a recipe."""
    return {stage.name: stage.config for stage in declared(name, overrides).values()}


def run_all(
    name: str,
    overrides: Sequence[str],
    root: Path,
    only: Container[str] | None = None,
    finished: dict[str, Artifact] | None = None,
) -> dict[str, Artifact]:
    """Runs the stages in this process; returns their artifacts by stage.

    Args:
        name: the recipe.
        overrides: its overrides.
        root: the runs folder.
        only: names of the stages to run; None runs all.
        finished: artifacts of stages that are not run.
    """
    artifacts = dict(finished or {})
    for stage in declared(name, overrides).values():
        if stage.name in artifacts or (only is not None and stage.name not in only):
            continue
        inputs = {key: artifacts[upstream.name] for key, upstream in stage.inputs.items()}
        outcome = run_stage(stage, inputs, root, no_progress, isolate=False)
        artifacts[stage.name] = outcome.artifact
    return artifacts


def run_by_command(name: str, overrides: Sequence[str], root: Path) -> dict[str, dict[str, Any]]:
    """Runs a recipe as `handoff run` does, below `root`; returns the rows of its summary by stage.
    The artifacts are `root/NAME/STAGE`."""
    from flows.run import run

    summary = run(name, [*overrides, f"runs={root}"])
    return json.loads(summary.read_bytes())["stages"]


def deployed(table: DeployConfig | DeployTaskConfig, bundle: Path, out: Path) -> dict[str, Any]:
    """Runs the stage `deploy` with a bundle; returns its metrics."""
    config = DeployBundleConfig(table=table)
    output = deploy.run(config, out, no_progress, bundle=Bundle(bundle))
    return output.metrics
