"""Runs a recipe with a person in this terminal: `handoff hil TASK`, a short name for the recipe
`hil/TASK`.

The stages are cached by content and resume after a kill, as in any run. They run one after another,
without Prefect, because a person attends them; results are written after every stage.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flows.deployment.approval import (
    noted_session,
    pending_question,
    read_answer,
    read_request,
    seconds_left,
)
from flows.orchestration.recipe_run import run_shown, run_stages
from flows.orchestration.serving.results_app import results_at_console
from flows.recipes.graph import stages
from flows.recipes.recipe import Recipe, read_recipe
from flows.runner.display import Display
from flows.runner.plan import up_to
from flows.runner.run_end import RUN_ENDED
from flows.runner.stage import Stage, StageOutcome
from flows.session.config import HilEnvConfig, HilOperator
from flows.storage.address import runs_folder
from flows.storage.shared_runs import open_runs
from robots.errors import ApprovalNeededError
from robots.storage.durable import explain_write_errors

ANSWER_PERIOD = 0.5
"""Time between two looks for an answer [s]."""


@dataclass(frozen=True)
class ConsoleAddress:
    """Address at which the console of an attended run listens."""

    host: str = "127.0.0.1"
    port: int = 8700
    """Port; 0 takes a free one."""
    spacemouse: bool = False
    """Whether a SpaceMouse at this machine moves the arm for the person in control."""


def run_attended(
    name: str,
    overrides: Sequence[str] = (),
    *,
    until: str | None = None,
    address: ConsoleAddress = ConsoleAddress(),
) -> Path:
    """Runs a recipe in this terminal, with a console if its operator is at one; an approval can be
    answered there, and the run goes on behind it.

    Args:
        name: a recipe, e.g. `hil/reach`, or the path of a YAML file.
        overrides: see `flows.recipes.recipe.read_recipe`.
        until: runs only this stage and what it needs; None runs all stages.
        address: address of the console.

    Returns:
        The path of `summary.json`.

    Raises:
        HandoffError: a stage failed or the person stopped; finished stages are kept, the running
            one resumes in the next run.
    """
    from rich.console import Console

    recipe = read_recipe(name, overrides)
    declared = up_to(stages(recipe), until)
    screen = Console()
    operator = _operator(declared)
    if operator is None or operator.kind != "console":
        _print_bindings(operator, screen)
        return run_in_order(recipe, declared)
    from flows.session.viewer import scene_viewer
    from real.console.process import open_console
    from real.console.server import ConsoleConfig

    folder = runs_folder(recipe.runs) / recipe.name / "console"
    settings = ConsoleConfig(host=address.host, port=address.port, spacemouse=address.spacemouse)
    attach = partial(results_at_console, runs_folder(recipe.runs))
    with open_console(settings, folder, attach) as opened, scene_viewer(_env(declared), opened):
        screen.print(f"console  {opened.url}", highlight=False, markup=False, soft_wrap=True)
        while True:
            try:
                return run_in_order(recipe, declared)
            except ApprovalNeededError as needed:
                _wait_for_answer(runs_folder(recipe.runs) / recipe.name, needed, screen)


def _wait_for_answer(run: Path, needed: ApprovalNeededError, screen: Any) -> None:
    """Waits until somebody answers the question of a run, at the console or elsewhere.

    Args:
        run: folder of the run.
        needed: raised again when the question has expired.
        screen: where the person at this terminal is told.
    """
    question = pending_question(run)
    line = f"waits for an approval: at the console, or handoff approve {run}; Ctrl-C ends the wait"
    screen.print(line, highlight=False, markup=False, soft_wrap=True)
    with noted_session(run):
        while read_answer(question) is None:
            if seconds_left(read_request(question)) <= 0.0:
                raise needed
            time.sleep(ANSWER_PERIOD)


def run_in_order(recipe: Recipe, declared: Sequence[Stage], *, isolate: bool = True) -> Path:
    """Runs stages one after another, or takes them from the cache; returns the path of
    `summary.json`.

    Args:
        recipe: the recipe, which names the folder of the results.
        declared: its stages, inputs before the stages that need them.
        isolate: see `run_stage`.

    Raises:
        HandoffError: a stage failed.
    """
    runs = open_runs(recipe.runs, recipe.stages)
    folder = runs.folder / recipe.name
    with explain_write_errors(folder, "the results of the run cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)

    def submit(display: Display, stage: Stage, inputs: Mapping[str, Any]) -> Future[StageOutcome]:
        """Runs the stage in this thread, which signals reach."""
        ended: Future[StageOutcome] = Future()
        artifacts = {label: future.result().artifact for label, future in inputs.items()}
        try:
            ended.set_result(run_shown(stage, artifacts, runs, display, isolate=isolate))
        except Exception as error:  # noqa: BLE001  raised again behind the record of the run
            ended.set_exception(error)
        return ended

    here = [replace(stage, pool="") for stage in declared]
    try:
        with Display() as display:
            run_stages(
                recipe,
                here,
                runs,
                partial(submit, display),
                parallel=1,
                fail_fast=True,
                prefect=False,
            )
    finally:
        RUN_ENDED.clear()
    runs.publish(recipe.name)
    return folder / "summary.json"


def _operator(declared: Sequence[Stage]) -> HilOperator | None:
    """The operator of the first stage that has one."""
    operators = (getattr(stage.config, "operator", None) for stage in declared)
    return next((found for found in operators if isinstance(found, HilOperator)), None)


def _env(declared: Sequence[Stage]) -> HilEnvConfig:
    environments = (getattr(stage.config, "env", None) for stage in declared)
    return next(found for found in environments if isinstance(found, HilEnvConfig))


def _print_bindings(operator: HilOperator | None, screen: Any) -> None:
    """Prints the key bindings before the run starts."""
    match None if operator is None else operator.kind:
        case "keyboard":
            from real.teleop.keyboard import bindings

            assert operator is not None
            rows = bindings(operator.keyboard.takeover.view_yaw)
        case "spacemouse":
            from real.teleop.spacemouse import bindings

            rows = bindings()
        case _:
            return
    for keys, meaning in rows:
        screen.print(f"  {keys:<16} {meaning}", highlight=False, markup=False)
