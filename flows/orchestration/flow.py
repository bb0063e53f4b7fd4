"""Makes the Prefect flow of a recipe, whose tasks are the stages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flows.config.files import ENDINGS
from flows.orchestration.recipe_run import redone, run_shown, run_stages
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.reports.results import Summary
from flows.runner.artifact import Artifact
from flows.runner.display import Display
from flows.runner.isolate import StageProcessError
from flows.runner.plan import up_to
from flows.runner.run_end import RUN_ENDED
from flows.runner.stage import Stage, StageOutcome, find_cached
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
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "60")
    os.environ.setdefault(HEARTBEAT, str(HEARTBEAT_SECONDS))
    if not debug:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        # Its own logger does not know the handler's level.
        os.environ.setdefault("PREFECT_INTERNAL_LOGGING_LEVEL", "CRITICAL")


def make_flow() -> Callable[..., Summary]:
    """Creates the Prefect flow; a function, because importing Prefect takes a second."""
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE
    from prefect.task_runners import ThreadPoolTaskRunner

    @task(
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=RETRIES,
        retry_delay_seconds=RETRY_SECONDS,
        retry_condition_fn=_process_died,
    )
    def run_task(
        stage: Stage,
        inputs: dict[str, Any],
        runs: Runs,
        display: Display,
        redo: bool,
        elsewhere: Callable[[Stage, Runs], Runs] | None,
    ) -> StageOutcome:
        from flows.orchestration.stage_report import StageReport

        report = StageReport(stage.name)
        artifacts = {label: outcome.artifact for label, outcome in inputs.items()}
        try:
            if elsewhere is not None and cached_artifact(stage, artifacts, runs.folder) is None:
                runs = elsewhere(stage, runs)
                check_arrived(stage, artifacts, runs.folder)
            outcome = run_shown(stage, artifacts, runs, display, redo=redo, report=report.progress)
        except HandoffError as error:
            report.failed(error_text(error))
            raise
        report.finished(stage.uses, outcome)
        return outcome

    # Prefect's type annotations do not accept its thread runner.
    runner: Any = ThreadPoolTaskRunner(max_workers=MOST_WORKERS)

    @flow(
        name="handoff",
        flow_run_name=_run_name,
        task_runner=runner,
        persist_result=False,
    )
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

        def submit(display: Display, stage: Stage, inputs: Mapping[str, Any]) -> Any:
            named: Any = run_task.with_options(
                name=stage.name, task_run_name=stage.name, tags=[stage.uses]
            )
            again = redone(stage, redo or ())
            sent = elsewhere if stage.pool else None
            return named.submit(stage, dict(inputs), runs, display, again, sent)

        def elsewhere(stage: Stage, runs: Runs) -> Runs:
            run_in_pool(stage, recipe, overrides or ())
            # What the other computer has published.
            return open_runs(chosen.runs, chosen.stages)

        from flows.orchestration.approvals import answer_on_page
        from flows.orchestration.pools import is_elsewhere, run_in_pool
        from flows.orchestration.stage_report import write_summary

        chosen = read_recipe(recipe, overrides or ())
        runs = open_runs(chosen.runs, chosen.stages, redo or ())
        declared = [
            stage if is_elsewhere(stage) else replace(stage, pool="")
            for stage in up_to(stages(chosen), until)
        ]
        folder = runs.folder / chosen.name

        def once(display: Display) -> Summary:
            return run_stages(
                chosen,
                declared,
                runs,
                partial(submit, display),
                parallel=parallel,
                fail_fast=fail_fast,
                ended=lambda summary: write_summary(summary, folder),
            )

        while True:
            try:
                with Display() as display:
                    summary = once(display)
                break
            except ApprovalNeededError as needed:
                answer_on_page(folder, needed)
        runs.publish(chosen.name)
        return summary

    return handoff


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
