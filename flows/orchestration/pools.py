"""Runs a stage in another work pool of the Prefect server, such as that of a computer with a GPU.

The stage is a run of its own there, of the same recipe up to that stage. Both computers read and
write the same artifacts: a folder that both have, or a storage. The inputs of the stage are
finished, so the other computer takes them from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.runner.artifact import Artifact
from flows.runner.stage import Stage, find_cached
from robots.errors import HandoffError

DEPLOYMENT = "in-{}"
"""Name of the deployment that runs stages in a work pool, by the name of the pool."""


def is_elsewhere(stage: Stage) -> bool:
    """Whether a stage belongs to another work pool than the present run; without a Prefect server
    that stays, it runs here."""
    from prefect.context import FlowRunContext
    from prefect.settings import PREFECT_API_URL

    context = FlowRunContext.get()
    present = getattr(getattr(context, "flow_run", None), "work_pool_name", None)
    return bool(stage.pool) and bool(PREFECT_API_URL.value()) and stage.pool != present


def run_in_pool(stage: Stage, recipe: str, overrides: Sequence[str]) -> None:
    """Runs a stage in its work pool and waits for its end.

    Args:
        stage: the stage.
        recipe: name or path of its recipe, as the worker finds it.
        overrides: overrides of the recipe.

    Raises:
        HandoffError: the pool has no deployment for stages, or the run there did not complete.
    """
    from prefect.deployments import run_deployment
    from prefect.exceptions import ObjectNotFound

    parameters: Mapping[str, object] = {
        "recipe": recipe,
        "overrides": list(overrides),
        "until": stage.name,
    }
    name = DEPLOYMENT.format(stage.pool)
    try:
        run: Any = run_deployment(f"handoff/{name}", parameters=dict(parameters), tags=[stage.name])
    except ObjectNotFound:
        raise HandoffError(
            f"stage {stage.name}: its pool '{stage.pool}' has no deployment '{name}'. Is the name misspelt? "
            "'handoff register' makes the deployments of the pools that it creates."
        ) from None
    state = run.state
    if state is None or not state.is_completed():
        message = "" if state is None else f" {state.name}: {state.message}"
        raise HandoffError(
            f"stage {stage.name}: its run '{run.name}' in the work pool '{stage.pool}' ended:{message}"
        )


def cached_artifact(stage: Stage, inputs: Mapping[str, Artifact], root: Path) -> Artifact | None:
    """Returns the finished artifact of a stage, if there is one.

    Args:
        stage: the stage.
        inputs: artifacts of its inputs.
        root: the runs folder.
    """
    return find_cached(root, stage, {label: source.digest for label, source in inputs.items()})


def check_arrived(stage: Stage, inputs: Mapping[str, Artifact], root: Path) -> None:
    """Checks that the artifact of a stage that ran in another work pool is here; arguments as those
    of `cached_artifact`.

    Raises:
        HandoffError: it is not.
    """
    if cached_artifact(stage, inputs, root) is None:
        raise HandoffError(
            f"stage {stage.name}: it ran in the work pool '{stage.pool}', but its artifact is not in {root}. Do both "
            "computers have the same runs=, the same code and the same packages?"
        )
