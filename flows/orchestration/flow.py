"""Makes the Prefect flow of a recipe, whose tasks are the stages."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flows.config.files import ENDINGS
from flows.orchestration.ray_pool import RAY
from flows.orchestration.recipe_run import redone, run_shown, run_stages
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.reports.results import Summary
from flows.runner.display import Display
from flows.runner.isolate import StageProcessError
from flows.runner.plan import up_to
from flows.runner.run_end import RUN_ENDED
from flows.runner.stage import Stage, StageOutcome
from flows.storage.shared_runs import Runs, open_runs
from robots.errors import ApprovalNeededError, HandoffError, error_text

RETRIES = 1
"""Number of times that a stage is started again whose process died; it resumes from its partial
artifact."""
RETRY_SECONDS = 2.0
"""Time before that [s]."""
HEARTBEAT = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
HEARTBEAT_SECONDS = 30
"""Interval at which a run says that it is alive [s]; the automation of crashed runs expects it."""
MOST_WORKERS = 64
"""Threads of Prefect's runner, more than stages run at once; `flows.runner.schedule` decides how
many do."""
LONGEST_NAME = 200
"""Longest name of a flow run [characters]."""


def prepare_prefect(debug: bool = False) -> None:
    """Sets quiet, offline defaults of Prefect; variables that the user has set take precedence.

    Logs go to Prefect's server in any case, to the terminal only with `debug`.
    """
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    # The first start makes the database, which takes a minute on a busy machine.
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    os.environ.setdefault(HEARTBEAT, str(HEARTBEAT_SECONDS))
    if not debug:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        # Its own logger does not know the handler's level.
        os.environ.setdefault("PREFECT_INTERNAL_LOGGING_LEVEL", "CRITICAL")
        # `flows.orchestration.reachable` says it in one line.
        warnings.filterwarnings("ignore", "Failed to create the Prefect home directory")


def make_flow() -> Callable[..., Summary]:
    """Creates the Prefect flow; a function, because importing Prefect takes a second."""
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE
    from prefect.task_runners import ThreadPoolTaskRunner

    run_task = task(
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=RETRIES,
        retry_delay_seconds=RETRY_SECONDS,
        retry_condition_fn=_process_died,
    )(_run_reported)
    # Prefect's type annotations do not accept its thread runner.
    runner: Any = ThreadPoolTaskRunner(max_workers=MOST_WORKERS)

    @flow(name="handoff", flow_run_name=_run_name, task_runner=runner, persist_result=False)
    def handoff(
        recipe: str = "demo",
        overrides: list[str] | None = None,
        until: str | None = None,
        redo: list[str] | None = None,
        parallel: int | None = None,
        fail_fast: bool = False,
    ) -> Summary:
        """Runs the stages of a recipe; stages that are cached are skipped.

        Args:
            recipe: Name of a recipe, or path of a YAML file on the worker's computer.
            overrides: Changes of options, e.g. teacher.training.steps=2000, seed=1.
            until: Only this stage and the stages that it needs; empty for all.
            redo: Stages that are computed again although they are cached.
            parallel: Largest number of stages that run at once; empty for one per core.
            fail_fast: Stop all stages after the first failure, also those that do not need it.
        """
        return _run_recipe(
            run_task, recipe, overrides or [], until, redo or [], parallel, fail_fast
        )

    return handoff


def _run_recipe(
    run_task: Any,
    recipe: str,
    overrides: Sequence[str],
    until: str | None,
    redo: Sequence[str],
    parallel: int | None,
    fail_fast: bool,
) -> Summary:
    """The flow: runs the stages as tasks, until a missing approval is given on the run's page."""
    from prefect.logging import get_run_logger

    from flows.orchestration.approvals import answer_on_page
    from flows.orchestration.pools import is_elsewhere, run_in_pool
    from flows.orchestration.stage_report import write_summary
    from flows.orchestration.unread_output import outlive_readers

    outlive_readers()
    try:
        chosen = read_recipe(recipe, overrides)
        graph = stages(chosen)
    except HandoffError as error:
        # The log of a run shows it before the traceback.
        get_run_logger().error("%s", error_text(error))
        raise
    runs = open_runs(chosen.runs, chosen.stages, redo)
    folder = runs.folder / chosen.name
    declared = [
        stage if stage.pool == RAY or is_elsewhere(stage) else replace(stage, pool="")
        for stage in up_to(graph, until)
    ]

    def elsewhere(stage: Stage) -> Runs:
        run_in_pool(stage, recipe, overrides)
        # What the other computer has published.
        return open_runs(chosen.runs, chosen.stages)

    def submit(display: Display, stage: Stage, inputs: Mapping[str, Any]) -> Any:
        named = run_task.with_options(name=stage.name, task_run_name=stage.name, tags=[stage.uses])
        sent = elsewhere if stage.pool not in ("", RAY) else None
        return named.submit(stage, dict(inputs), runs, display, redone(stage, redo), sent)

    while True:
        try:
            with Display() as display:
                summary = run_stages(
                    chosen,
                    declared,
                    runs,
                    partial(submit, display),
                    parallel=parallel,
                    fail_fast=fail_fast,
                    ended=lambda summary: write_summary(summary, folder),
                )
            runs.publish(chosen.name)
            return summary
        except ApprovalNeededError as needed:
            answer_on_page(folder, needed)


def _run_reported(
    stage: Stage,
    inputs: dict[str, StageOutcome],
    runs: Runs,
    display: Display,
    redo: bool,
    elsewhere: Callable[[Stage], Runs] | None,
) -> StageOutcome:
    """The task: runs a stage, here or by `elsewhere`, and reports it on Prefect's page."""
    from flows.orchestration.pools import cached_artifact, check_arrived
    from flows.orchestration.stage_report import StageReport

    report = StageReport(stage.name)
    artifacts = {label: outcome.artifact for label, outcome in inputs.items()}
    try:
        if elsewhere is not None and cached_artifact(stage, artifacts, runs.folder) is None:
            runs = elsewhere(stage)
            check_arrived(stage, artifacts, runs.folder)
        outcome = run_shown(stage, artifacts, runs, display, redo=redo, report=report.progress)
    except HandoffError as error:
        report.failed(error_text(error))
        raise
    report.finished(stage.uses, outcome)
    return outcome


def _run_name() -> str:
    """Returns the name of a flow run: its recipe and what it changes."""
    from prefect.runtime import flow_run

    given = flow_run.parameters
    recipe = str(given.get("recipe"))
    name = Path(recipe).stem if recipe.endswith(ENDINGS) else recipe
    words = [name, *(given.get("overrides") or ())]
    if given.get("until"):
        words.append(f"until {given['until']}")
    return " ".join(words)[:LONGEST_NAME]


def _process_died(task: Any, task_run: Any, state: Any) -> bool:
    """Whether a failed stage is started again: its process died, and the run goes on."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, StageProcessError) and not RUN_ENDED.is_set()
