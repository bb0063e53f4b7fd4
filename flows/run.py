"""Runs a recipe as a Prefect flow whose tasks are the stages.

Prefect orders the stages, runs up to two in parallel and records the run. Every stage runs in a
spawned process, so training does not delay Prefect's heartbeats, and this process never imports
torch. If every stage is cached, no flow is started.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.recipes.graph import stages
from flows.recipes.recipe import Recipe, read_recipe
from flows.reports.results import Summary
from flows.reports.summary import summarise, write_results
from flows.runner.artifact import Artifact
from flows.runner.content import check_content
from flows.runner.display import Display
from flows.runner.memory import MemoryMeter
from flows.runner.plan import cached_artifacts, up_to
from flows.runner.run_end import RUN_ENDED
from flows.runner.stage import Stage, StageOutcome, run_stage
from robots.code_version import code_version
from robots.errors import HandoffError

MAX_PARALLEL_STAGES = 2
"""Maximum number of stages that run at the same time; each uses one core."""


def run(
    name: str,
    overrides: Sequence[str] = (),
    *,
    until: str | None = None,
    debug: bool = False,
) -> Path:
    """Runs a recipe; returns the path of its `summary.json`.

    Args:
        name: a file in `configs/` without its ending, e.g. `demo`, or the path of a YAML file.
        overrides: see `flows.recipes.recipe.read_recipe`.
        until: runs only this stage and what it needs; None runs all stages.
        debug: shows Prefect's log.

    Raises:
        HandoffError: invalid recipe, or a stage failed; finished stages stay cached.
    """
    started = time.time()
    recipe = read_recipe(name, overrides)
    runs = Path(recipe.runs)
    outcomes = _all_cached(recipe, until)
    if outcomes is not None:
        summary = summarise(outcomes, started, peak_bytes=0, prefect=False)
        return write_results(runs, recipe.name, summary, recipe.request)
    prepare_prefect(debug)
    try:
        summary = make_flow()(name, list(overrides), until)
    finally:
        RUN_ENDED.clear()
    return write_results(
        runs, recipe.name, summary.with_times(started, time.time()), recipe.request
    )


def prepare_prefect(debug: bool = False) -> None:
    """Sets quiet, offline defaults of Prefect; variables that the user has set take precedence."""
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "60")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "INFO" if debug else "CRITICAL")


def make_flow() -> Callable[..., Summary]:
    """Creates the Prefect flow; a function, because importing Prefect takes a second."""
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE
    from prefect.task_runners import ThreadPoolTaskRunner

    @task(task_run_name="{stage.name}", cache_policy=NO_CACHE, persist_result=False)
    def stage_task(
        stage: Stage, inputs: dict[str, Any], root: Path, display: Display
    ) -> StageOutcome:
        return _run_shown(
            stage, {name: outcome.artifact for name, outcome in inputs.items()}, root, display
        )

    # Prefect's type annotations accept neither its thread runner nor a future in place of its
    # result.
    runner: Any = ThreadPoolTaskRunner(max_workers=MAX_PARALLEL_STAGES)
    submit: Any = stage_task.submit

    @flow(name="handoff", task_runner=runner, persist_result=False)
    def handoff(
        config_name: str = "demo",
        overrides: list[str] | None = None,
        until: str | None = None,
    ) -> Summary:
        """Runs the stages of a recipe, or those that the stage `until` needs, and writes the
        results."""
        started = time.time()
        recipe = read_recipe(config_name, overrides or ())
        declared = up_to(stages(recipe), until)
        _read_code(declared)
        futures: dict[str, Any] = {}  # Prefect futures of a StageOutcome
        barrier: list[Any] = []
        with Display() as display, MemoryMeter() as memory:
            for stage in declared:
                inputs = {name: futures[source.name] for name, source in stage.inputs.items()}
                upstream = list(futures.values()) if stage.exclusive else barrier
                future = submit(stage, inputs, Path(recipe.runs), display, wait_for=upstream)
                futures[stage.name] = future
                barrier = [future] if stage.exclusive else barrier
            try:
                _wait(futures)
            finally:
                # What the finished stages found stays readable after another one has failed.
                outcomes = _finished(futures)
                summary = summarise(outcomes, started, peak_bytes=memory.peak_bytes)
                if outcomes:
                    write_results(Path(recipe.runs), recipe.name, summary, recipe.request)
        return summary

    return handoff


def _read_code(declared: Sequence[Stage]) -> None:
    """Determines the version of every stage's code before the first stage starts.

    Stages start in threads. Python 3.11 can fail with "AST constructor recursion depth mismatch"
    when two threads parse source files at the same time (CPython issue 106905).
    """
    for stage in declared:
        code_version(stage.module)


def _run_shown(
    stage: Stage, inputs: dict[str, Artifact], root: Path, display: Display
) -> StageOutcome:
    progress = display.started(stage.name)
    try:
        outcome = run_stage(stage, inputs, root, progress)
    except HandoffError:
        display.finished(stage.name, "failed", "✗")
        raise
    display.finished(stage.name, "cached" if outcome.cached else f"{outcome.seconds:.1f} s")
    return outcome


def _wait(futures: dict[str, Any]) -> None:
    """Waits for every stage; raises the error of the stage that failed first, not of those that
    depend on it."""
    try:
        for future in futures.values():
            future.wait()
    except BaseException:
        # Ctrl-C or a signal: Prefect's runner waits for its threads, which wait for the stages'
        # processes.
        RUN_ENDED.set()
        raise
    for future in futures.values():
        future.result()


def _finished(futures: dict[str, Any]) -> dict[str, StageOutcome]:
    """Outcomes of the stages that have ended without an error."""
    return {
        name: future.result() for name, future in futures.items() if future.state.is_completed()
    }


def _all_cached(recipe: Recipe, until: str | None) -> dict[str, StageOutcome] | None:
    started = time.time()
    artifacts = cached_artifacts(up_to(stages(recipe), until), Path(recipe.runs))
    if any(artifact is None for artifact in artifacts.values()):
        return None
    for artifact in artifacts.values():
        assert artifact is not None
        check_content(artifact.path)
    return {
        name: StageOutcome(artifact, True, time.time() - started, started)
        for name, artifact in artifacts.items()
        if artifact is not None
    }
