"""Runs a recipe: as a Prefect flow whose tasks are the stages, or without Prefect where its server
cannot start.

Every stage runs in a spawned process, so training does not delay Prefect's heartbeats, and this
process never imports torch. If every stage is cached, no flow is started.
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flows.orchestration.flow import make_flow, prepare_prefect
from flows.orchestration.reachable import check_prefect
from flows.orchestration.recipe_run import redone, run_in_threads
from flows.orchestration.temporary_server import start_temporary_server
from flows.recipes.graph import stages
from flows.recipes.recipe import Recipe, read_recipe
from flows.reports.run_records.record import RunRecord
from flows.reports.summary import summarise, write_cached_results, write_results
from flows.runner.artifact import Artifact
from flows.runner.content import check_content
from flows.runner.plan import cached_artifacts, up_to
from flows.runner.run_end import RUN_ENDED
from flows.runner.schedule import check_parallel
from flows.runner.stage import Stage, StageOutcome
from flows.storage.shared_runs import Runs, open_runs
from robots.errors import HandoffError, suggest

READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of writing to a read-only share."""


def run(
    name: str,
    overrides: Sequence[str] = (),
    *,
    until: str | None = None,
    redo: Sequence[str] = (),
    parallel: int | None = None,
    fail_fast: bool = False,
    debug: bool = False,
    announce: Callable[[Sequence[Stage]], None] = lambda pending: None,
) -> Path:
    """Runs a recipe; returns the path of its `summary.json`.

    Args:
        name: a file in `configs/` without its ending, e.g. `demo`, or the path of a YAML file.
        overrides: see `flows.recipes.recipe.read_recipe`.
        until: runs only this stage and what it needs; None runs all stages.
        redo: names of stages that are computed again although they are cached.
        parallel: largest number of stages that run at once; None for one per core.
        fail_fast: stops all stages after the first failure; otherwise those go on that do not need
            the failed one.
        debug: shows Prefect's log.
        announce: called with the stages that are not cached, before the first of them starts.

    Raises:
        HandoffError: invalid recipe, or a stage failed; finished stages stay cached.
    """
    started = time.time()
    check_parallel(parallel)
    recipe = read_recipe(name, overrides)
    runs = open_runs(recipe.runs, recipe.stages, redo)
    declared = up_to(stages(recipe), until)
    check_redo(declared, redo)
    artifacts = cached_artifacts(declared, runs.folder)
    outcomes = None if redo else _all_cached(artifacts, runs)
    if outcomes is not None:
        path = _write_cached(recipe, runs, outcomes, started)
        runs.publish(recipe.name)
        return path
    runs.check_writable()
    announce([each for each in declared if artifacts[each.name] is None or redone(each, redo)])
    prepare_prefect(debug)
    obstacle = check_prefect()
    try:
        if obstacle is None:
            start_temporary_server()
            summary = make_flow()(
                name, list(overrides), until, list(redo), parallel, fail_fast
            ).with_times(started, time.time())
        else:
            print(f"without Prefect: {obstacle}", file=sys.stderr)  # noqa: T201  a notice
            summary = run_in_threads(
                recipe, declared, runs, redo=redo, parallel=parallel, fail_fast=fail_fast
            )
    finally:
        RUN_ENDED.clear()
    path = write_results(runs.folder, recipe.name, summary, recipe.request)
    runs.publish(recipe.name)
    return path


def check_redo(declared: Sequence[Stage], redo: Sequence[str]) -> None:
    """Checks the names of the stages that are to be computed again.

    Raises:
        HandoffError: the run has no such stage.
    """
    for name in redo:
        if not any(redone(stage, [name]) for stage in declared):
            known = [stage.name for stage in declared]
            raise HandoffError(f"redo: the run has no stage '{name}', {suggest(name, known)}")


def _write_cached(
    recipe: Recipe, runs: Runs, outcomes: Mapping[str, StageOutcome], started: float
) -> Path:
    """Writes results and record of a run that computed nothing; on a read-only share those of the
    run that computed its artifacts stay."""
    summary = summarise(outcomes, started, peak_bytes=0, prefect=False)
    path = write_cached_results(runs.folder, recipe.name, summary, recipe.request)
    try:
        with RunRecord(runs.folder, recipe.name, recipe.request) as record:
            record.add(outcomes)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
    return path


def _all_cached(
    artifacts: Mapping[str, Artifact | None], runs: Runs
) -> dict[str, StageOutcome] | None:
    """The outcomes of a run that computes nothing; None if a stage is not cached."""
    started = time.time()
    if any(artifact is None for artifact in artifacts.values()):
        return None
    for artifact in artifacts.values():
        assert artifact is not None
        check_content(artifact.path, runs.store)
    return {
        name: StageOutcome(artifact, True, time.time() - started, started)
        for name, artifact in artifacts.items()
        if artifact is not None
    }
