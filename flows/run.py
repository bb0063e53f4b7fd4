"""Runs a pipeline: a Prefect flow whose tasks are the stages.

Prefect is the skeleton: it orders the stages, runs two side by side where both may, and keeps the
run's record. The work happens in one spawned process per stage, so a learner never starves
Prefect's heartbeats, and torch never enters this process. When every stage is cached there is
nothing to orchestrate and no flow is started.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.recipes.compose import compose
from flows.recipes.config import PipelineConfig
from flows.recipes.pipeline import stages
from flows.reports.results import Summary
from flows.reports.summary import summarise, write_results
from flows.runner.artifact import Artifact
from flows.runner.display import Display
from flows.runner.isolate import OVER
from flows.runner.memory import MemoryMeter
from flows.runner.plan import cached_artifacts
from flows.runner.stage import Stage, StageOutcome, run_stage
from robots.code_version import code_version
from robots.errors import HandoffError

SIDE_BY_SIDE = 2
"""Stages that may run at the same time; each keeps one core busy."""


def run(name: str, overrides: Sequence[str] = (), *, debug: bool = False) -> Path:
    """Runs the pipeline `configs/<name>.yaml`; returns the path of its `summary.json`.

    Raises:
        HandoffError: bad configuration, or a stage failed; finished stages stay cached.
    """
    started = time.time()
    config = compose(name, overrides)
    runs = Path(config.runs)
    outcomes = _all_cached(config)
    if outcomes is not None:
        return write_results(runs, config.name, summarise(outcomes, started, peak_bytes=0))
    prepare_prefect(debug)
    try:
        summary = make_flow()(name, list(overrides))
    finally:
        OVER.clear()
    return write_results(runs, config.name, summary.ended(started, time.time()))


def prepare_prefect(debug: bool = False) -> None:
    """Quiet, offline defaults for a Prefect that nobody has configured; what the user has set
    wins."""
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "60")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "INFO" if debug else "CRITICAL")


def make_flow() -> Callable[..., Summary]:
    """The Prefect flow. Made on demand, because importing Prefect takes a second that `--help` need
    not pay."""
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

    # Prefect's own annotations do not admit its thread runner, nor a future where its result is
    # expected.
    runner: Any = ThreadPoolTaskRunner(max_workers=SIDE_BY_SIDE)
    submit: Any = stage_task.submit

    @flow(name="handoff", task_runner=runner, persist_result=False)
    def handoff(config_name: str = "demo", overrides: list[str] | None = None) -> Summary:
        """Composes `configs/<config_name>.yaml`, runs its stages and writes the results."""
        started = time.time()
        config = compose(config_name, overrides or ())
        declared = stages(config)
        _read_code(declared)
        futures: dict[str, Any] = {}  # Prefect's, each of a StageOutcome
        barrier: list[Any] = []
        with Display() as display, MemoryMeter() as memory:
            for stage in declared:
                inputs = {name: futures[upstream.name] for name, upstream in stage.inputs.items()}
                before = list(futures.values()) if stage.exclusive else barrier
                future = submit(stage, inputs, Path(config.runs), display, wait_for=before)
                futures[stage.name] = future
                barrier = [future] if stage.exclusive else barrier
            outcomes = _collect(futures)
        summary = summarise(outcomes, started, peak_bytes=memory.peak_bytes)
        write_results(Path(config.runs), config.name, summary)
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


def _collect(futures: dict[str, Any]) -> dict[str, StageOutcome]:
    """Waits for every stage; the error of the first that failed is raised, not that of those
    waiting for it."""
    try:
        for future in futures.values():
            future.wait()
    except BaseException:
        # Ctrl-C or a signal. Prefect's runner will wait for its threads, and these for the stages'
        # processes.
        OVER.set()
        raise
    return {name: future.result() for name, future in futures.items()}


def _all_cached(config: PipelineConfig) -> dict[str, StageOutcome] | None:
    started = time.time()
    found = cached_artifacts(stages(config), Path(config.runs))
    if any(artifact is None for artifact in found.values()):
        return None
    return {
        name: StageOutcome(artifact, True, time.time() - started, started)
        for name, artifact in found.items()
        if artifact is not None
    }
