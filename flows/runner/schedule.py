"""Orders the stages of a run: each starts when its inputs are finished, as many at once as the
machine bears, and a failed stage stops only the stages that need it."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flows.config.resources import Resources, suffices
from flows.runner.run_end import RUN_ENDED, interrupt_run
from flows.runner.stage import Stage, StageOutcome
from robots.errors import HandoffError

POLL_SECONDS = 0.2
"""Interval at which a waiting run handles signals [s]."""
LARGEST_DEFAULT = 8
"""Largest number of stages that run at once unless the user asks for more: a stage may start worker
processes of its own."""


class StageFuture(Protocol):
    """Result of a stage that is running, as of `concurrent.futures` or of Prefect."""

    def add_done_callback(self, fn: Callable[[Any], None], /) -> None:
        """Calls `fn` with this future when the stage has ended."""
        ...

    def result(self) -> Any:
        """Returns the outcome of the stage or raises its error."""
        ...


Submit = Callable[[Stage, Mapping[str, Any]], StageFuture]
"""Starts a stage with the futures of its finished inputs, by the name of the input."""


@dataclass
class Results:
    """Results of the stages of a run."""

    outcomes: dict[str, StageOutcome] = field(default_factory=dict)
    """Outcomes of the finished stages, by name, in the order of the recipe."""
    failed: dict[str, Exception] = field(default_factory=dict)
    """Errors of the failed stages, by name, the earliest first."""
    skipped: dict[str, str] = field(default_factory=dict)
    """For every stage that was not started, the stage whose failure prevented it."""

    def add(self, name: str, outcome: StageOutcome, declared: Sequence[Stage]) -> None:
        """Adds the outcome of a stage; outcomes keep the order of `declared`."""
        found = {**self.outcomes, name: outcome}
        self.outcomes = {stage.name: found[stage.name] for stage in declared if stage.name in found}


def default_parallel() -> int:
    """Returns the number of stages that run at once by default: one per core of this process, at
    most `LARGEST_DEFAULT`."""
    return max(1, min(len(os.sched_getaffinity(0)), LARGEST_DEFAULT))


def check_parallel(parallel: int | None) -> int:
    """Returns the number of stages that may run at once; None takes the default.

    Raises:
        HandoffError: it is smaller than 1.
    """
    if parallel is None:
        return default_parallel()
    if parallel < 1:
        raise HandoffError(f"parallel stages: {parallel}, expected 1 or more.")
    return parallel


def run_graph(
    declared: Sequence[Stage],
    submit: Submit,
    results: Results,
    *,
    parallel: int,
    computer: Resources | None = None,
    fail_fast: bool = False,
    stage_finished: Callable[[], None],
) -> None:
    """Runs stages in the order of their inputs and collects their results.

    An exclusive stage runs alone; while it waits, no stage that stands behind it in the recipe
    starts. After a failure the stages that do not need the failed one go on.

    Args:
        declared: the stages, inputs before the stages that need them.
        submit: starts a stage.
        results: filled while the run goes on.
        parallel: largest number of stages that run at once.
        computer: what this computer has for them; None for as much as they need.
        fail_fast: starts no stage after the first failure, and stops those that are running.
        stage_finished: called when a stage has finished.
    """
    waiting = list(declared)
    futures: dict[str, StageFuture] = {}
    running: dict[str, Stage] = {}
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    try:
        while waiting or running:
            _skip(waiting, results, all_of_them=fail_fast and bool(results.failed))
            for stage in startable(waiting, running, results.outcomes, parallel, computer):
                waiting.remove(stage)
                running[stage.name] = stage
                inputs = {label: futures[source.name] for label, source in stage.inputs.items()}
                futures[stage.name] = submit(stage, inputs)
                futures[stage.name].add_done_callback(lambda _, name=stage.name: ended.put(name))
            if not running:
                continue
            name = _next(ended)
            running.pop(name)
            try:
                outcome = futures[name].result()
            except Exception as error:  # noqa: BLE001  kept for the caller
                results.failed[name] = error
                if fail_fast:
                    RUN_ENDED.set()
            else:
                results.add(name, outcome, declared)
                stage_finished()
    except BaseException:
        # Ctrl-C or a signal: the threads that wait for the stages end their processes.
        interrupt_run()
        raise


def startable(
    waiting: Sequence[Stage],
    running: Mapping[str, Stage],
    finished: Mapping[str, Any],
    parallel: int,
    computer: Resources | None = None,
) -> list[Stage]:
    """Returns the stages that may start now, in the order of the recipe.

    Args:
        waiting: stages that have not started.
        running: stages that are running, by name.
        finished: names of the stages that have finished.
        parallel: largest number of stages that run at once.
        computer: what this computer has for them; None for as much as they need. A stage that asks
            for more than all of it runs alone; one of another work pool needs none of it.
    """
    if any(stage.exclusive for stage in running.values()):
        return []
    chosen: list[Stage] = []
    for stage in waiting:
        if any(source.name not in finished for source in stage.inputs.values()):
            continue
        if stage.exclusive:
            # It starts when nothing else runs; later stages must not delay it further.
            return chosen if running or chosen else [stage]
        beside = [other for other in (*running.values(), *chosen) if not other.pool]
        if stage.pool or (len(beside) < parallel and _fits(stage, beside, computer)):
            chosen.append(stage)
    return chosen


def _fits(stage: Stage, beside: Sequence[Stage], computer: Resources | None) -> bool:
    if computer is None or not beside:
        return True
    return suffices(computer, [stage.resources, *(other.resources for other in beside)])


def _skip(waiting: list[Stage], results: Results, *, all_of_them: bool) -> None:
    """Removes the stages that can no longer run from those that wait."""
    for stage in list(waiting):
        sources = [source.name for source in stage.inputs.values()]
        cause = next((name for name in sources if name in results.failed), None)
        cause = cause or next(
            (results.skipped[name] for name in sources if name in results.skipped), None
        )
        if cause is None and all_of_them:
            cause = next(iter(results.failed))
        if cause is not None:
            results.skipped[stage.name] = cause
            waiting.remove(stage)


def _next(ended: queue.SimpleQueue[str]) -> str:
    """Waits for the name of the next stage that has ended; signals are handled meanwhile."""
    while True:
        try:
            return ended.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
