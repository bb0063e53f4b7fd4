"""Runs the stages of a recipe and writes the results while they go on, whoever starts the
stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.config.resources import check_resources
from flows.deployment.approval import clear_pending, write_pending
from flows.orchestration.pools import cached_artifact
from flows.orchestration.ray_pool import RAY, check_cluster, run_on_ray
from flows.recipes.recipe import Recipe
from flows.reports.results import Summary
from flows.reports.run_records.computer import resources
from flows.reports.run_records.record import RunRecord
from flows.reports.summary import summarise, write_results
from flows.runner.artifact import Artifact
from flows.runner.display import Display
from flows.runner.memory import MemoryMeter
from flows.runner.plan import begun_attempt, cached_artifacts
from flows.runner.run_end import stop_if_ended
from flows.runner.schedule import Results, Submit, check_parallel, run_graph
from flows.runner.stage import Stage, StageOutcome, partial_path, run_stage
from flows.storage.shared_runs import Runs
from robots.code_version import code_version
from robots.errors import (
    ApprovalNeededError,
    ApprovalRejectedError,
    HandoffError,
    error_text,
)
from robots.interfaces import Progress, no_progress


def run_stages(
    recipe: Recipe,
    declared: Sequence[Stage],
    runs: Runs,
    submit: Submit,
    *,
    parallel: int | None = None,
    fail_fast: bool = False,
    prefect: bool = True,
    ended: Callable[[Summary], None] = lambda summary: None,
) -> Summary:
    """Runs stages and writes the results and the record of the run after each of them.

    Args:
        recipe: the recipe, which names the results.
        declared: its stages, inputs before the stages that need them; those with a `pool` need
            nothing of this computer.
        runs: folder of artifacts and results.
        submit: starts a stage.
        parallel: largest number of stages that run at once; None for one per core.
        fail_fast: stops all stages after the first failure.
        prefect: whether Prefect runs the stages.
        ended: called with the results when no stage runs any more, also after a failure.

    Returns:
        The results of the stages.

    Raises:
        HandoffError: `parallel` is smaller than 1, a stage needs what this computer has not, or the
            error of the stage that failed first.
    """
    started = time.time()
    limit = check_parallel(parallel)
    available = resources()
    for stage in declared:
        if not stage.pool:
            check_resources(stage.name, available, stage.resources)
    _read_code(declared)
    _check_ray(declared, runs)
    results = Results()
    record = RunRecord(runs.folder, recipe.name, recipe.request, declared)
    with record, MemoryMeter() as memory:

        def summary() -> Summary:
            return summarise(results.outcomes, started, memory.peak_bytes, prefect=prefect)

        def write() -> None:
            write_results(runs.folder, recipe.name, summary(), recipe.request)
            record.add(results.outcomes)

        run_graph(
            declared,
            submit,
            results,
            parallel=limit,
            computer=available,
            fail_fast=fail_fast,
            stage_finished=write,
        )
        found = summary()
        ended(found)
        _raise_failure(runs.folder / recipe.name, declared, results, runs)
    return found


def _raise_failure(folder: Path, declared: Sequence[Stage], results: Results, runs: Runs) -> None:
    """Raises the error of the stage that failed first, a rejection and a missing approval only if
    nothing else failed; the run's folder then says where the question is."""
    clear_pending(folder)
    asked = (ApprovalNeededError, ApprovalRejectedError)
    for failure in results.failed.values():
        if not isinstance(failure, asked):
            raise failure
    stages = {stage.name: stage for stage in declared}
    for name, failure in results.failed.items():
        digests = {
            label: results.outcomes[source.name].artifact.digest
            for label, source in stages[name].inputs.items()
        }
        write_pending(folder, name, partial_path(runs.folder, stages[name], digests))
        if isinstance(failure, ApprovalRejectedError):
            raise failure
        raise ApprovalNeededError(
            f"{error_text(failure)}. Then: handoff approve {folder}, and the same command again; a run on a Prefect "
            "server goes on by itself."
        )


def run_in_threads(
    recipe: Recipe,
    declared: Sequence[Stage],
    runs: Runs,
    *,
    redo: Sequence[str] = (),
    parallel: int | None = None,
    fail_fast: bool = False,
) -> Summary:
    """Runs stages without Prefect, those of its other work pools here as well; arguments, result
    and errors as those of `run_stages`, and `redo` as of `redone`."""
    declared = [stage if stage.pool == RAY else replace(stage, pool="") for stage in declared]
    # A thread that waits for a node takes nothing from the stages of this computer.
    number = check_parallel(parallel) + sum(stage.pool == RAY for stage in declared)
    with Display() as display, ThreadPoolExecutor(number) as threads:

        def submit(stage: Stage, inputs: Mapping[str, Any]) -> Any:
            artifacts = {label: future.result().artifact for label, future in inputs.items()}
            return threads.submit(
                run_shown, stage, artifacts, runs, display, redo=redone(stage, redo)
            )

        return run_stages(
            recipe, declared, runs, submit, parallel=parallel, fail_fast=fail_fast, prefect=False
        )


def run_shown(
    stage: Stage,
    inputs: Mapping[str, Artifact],
    runs: Runs,
    display: Display,
    *,
    redo: bool = False,
    report: Progress = no_progress,
    isolate: bool = True,
) -> StageOutcome:
    """Runs a stage, here or in the pool `ray`, and shows its progress and its end on the terminal.

    Args:
        stage: the stage.
        inputs: finished artifacts, by the names of the stage's inputs.
        runs: folder of artifacts, and the storage whose working copy it is.
        display: the display of the run.
        redo: computes the artifact again although it is cached.
        report: called with the progress as well.
        isolate: see `run_stage`.

    Raises:
        HandoffError: the stage failed, or the run has ended.
    """
    stop_if_ended(stage.name)
    sent = stage.pool == RAY and (redo or cached_artifact(stage, inputs, runs.folder) is None)
    note = "" if sent or redo else begun_attempt(stage, inputs, runs.folder)
    shown = display.started(stage.name, note)

    def progress(done: int, total: int, note: str = "") -> None:
        shown(done, total, note)
        report(done, total, note)

    try:
        if sent:
            outcome = run_on_ray(stage, inputs, runs, progress, redo=redo)
        else:
            outcome = run_stage(
                stage, inputs, runs.folder, progress, isolate=isolate, redo=redo, store=runs.store
            )
    except ApprovalNeededError:
        display.finished(stage.name, "waits for a person's approval", "…")
        raise
    except HandoffError as error:
        display.finished(stage.name, error_text(error), "✗")
        raise
    display.finished(stage.name, "cached" if outcome.cached else f"{outcome.seconds:.1f} s")
    metrics = outcome.artifact.manifest["metrics"]
    if metrics.get("source") == "shipped":
        display.warn(stage.name, str(metrics.get("source_line", "")))
    return outcome


def redone(stage: Stage, names: Sequence[str]) -> bool:
    """Returns whether a stage is among those to be computed again; the name of a matrix means all
    its copies."""
    return stage.name in names or stage.name.partition("@")[0] in names


def _check_ray(declared: Sequence[Stage], runs: Runs) -> None:
    """Checks that the cluster is there before anything runs, if a stage is sent to it."""
    if any(stage.pool == RAY for stage in declared):
        cached = cached_artifacts(declared, runs.folder)
        check_cluster([each for each in declared if each.pool == RAY and not cached[each.name]])


def _read_code(declared: Sequence[Stage]) -> None:
    """Determines the version of every stage's code before the first stage starts.

    Stages start in threads. Python 3.11 can fail with "AST constructor recursion depth mismatch"
    when two threads parse source files at the same time (CPython issue 106905).
    """
    for stage in declared:
        code_version(stage.module)
