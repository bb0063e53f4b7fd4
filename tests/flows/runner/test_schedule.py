"""Order, number and failures of the stages of a run, with futures that the test finishes itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from flows.config.resources import Resources, check_resources
from flows.runner import run_end
from flows.runner.schedule import Results, check_parallel, default_parallel, run_graph, startable
from flows.runner.stage import Stage
from robots.errors import HandoffError


def stage(name: str, *sources: Stage, exclusive: bool = False) -> Stage:
    inputs = {source.name: source for source in sources}
    return Stage(name, "number", "", None, inputs, exclusive=exclusive)


class Recorder:
    """Starts stages in threads and records what ran at the same time; stages in `failing` fail."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.order: list[str] = []
        self.beside: dict[str, set[str]] = {}
        self.most = 0
        self._running: set[str] = set()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(8)

    def submit(self, stage: Stage, inputs: Mapping[str, Any]) -> Future[str]:
        return self._threads.submit(self._run, stage, inputs)

    def _run(self, stage: Stage, inputs: Mapping[str, Any]) -> Any:
        with self._lock:
            self.order.append(stage.name)
            self._running.add(stage.name)
            self.most = max(self.most, len(self._running))
            for name in self._running:
                self.beside.setdefault(name, set()).update(self._running)
        threading.Event().wait(0.05)
        with self._lock:
            self._running.remove(stage.name)
        if stage.name in self.failing:
            raise HandoffError(f"{stage.name} failed")
        return [*sorted(future.result() for future in inputs.values()), stage.name]


def ran(declared: list[Stage], *failing: str, parallel: int = 2, fail_fast: bool = False) -> Any:
    recorder, results = Recorder(*failing), Results()
    finished: list[int] = []
    run_graph(
        declared,
        recorder.submit,
        results,
        parallel=parallel,
        fail_fast=fail_fast,
        stage_finished=lambda: finished.append(len(results.outcomes)),
    )
    run_end.RUN_ENDED.clear()
    assert finished == list(range(1, len(results.outcomes) + 1))
    return recorder, results


def test_a_stage_starts_when_its_own_inputs_are_finished_not_when_earlier_stages_are() -> None:
    demos = stage("demos")
    teacher = stage("teacher", demos)
    waiting, running = [stage("late", teacher), stage("early", demos)], {"teacher": teacher}
    (found,) = startable(waiting, running, {"demos": 1}, parallel=2)
    assert found.name == "early"


def test_no_more_stages_run_at_once_than_allowed() -> None:
    recorder, results = ran([stage(name) for name in "abcdef"], parallel=2)
    assert recorder.most == 2
    assert list(results.outcomes) == list("abcdef")
    alone, _ = ran([stage(name) for name in "abc"], parallel=1)
    assert alone.most == 1


def test_an_exclusive_stage_runs_alone_and_is_not_overtaken_for_ever() -> None:
    first = stage("first")
    gate = stage("gate", first, exclusive=True)
    declared = [first, stage("beside"), gate, stage("behind", first), stage("last", gate)]
    recorder, _ = ran(declared, parallel=4)
    assert recorder.beside["gate"] == {"gate"}
    waiting = [gate, stage("behind", first)]
    assert startable(waiting, {"beside": stage("beside")}, {"first": 1}, parallel=4) == []
    assert startable(waiting, {}, {"first": 1}, parallel=4) == [gate]
    assert startable(waiting[1:], {"gate": gate}, {"first": 1}, parallel=4) == []


def test_stages_that_do_not_need_the_failed_one_go_on() -> None:
    demos = stage("demos")
    bad, good = stage("bad", demos), stage("good", demos)
    declared = [demos, bad, good, stage("behind_bad", bad), stage("behind_good", good)]
    declared.append(stage("far_behind", declared[3]))
    _, results = ran(declared, "bad", parallel=1)
    assert list(results.outcomes) == ["demos", "good", "behind_good"]
    assert {name: str(error) for name, error in results.failed.items()} == {"bad": "bad failed"}
    assert results.skipped == {"behind_bad": "bad", "far_behind": "bad"}


def test_with_fail_fast_nothing_starts_after_the_first_failure() -> None:
    demos = stage("demos")
    declared = [demos, stage("bad", demos), stage("good", demos), stage("better", demos)]
    recorder, results = ran(declared, "bad", parallel=1, fail_fast=True)
    assert recorder.order == ["demos", "bad"]
    assert results.skipped == {"good": "bad", "better": "bad"}


def test_an_interrupted_run_tells_the_threads_that_wait_for_its_stages() -> None:
    def interrupted(stage: Stage, inputs: Mapping[str, Any]) -> Future[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_graph([stage("a")], interrupted, Results(), parallel=1, stage_finished=lambda: None)
    assert run_end.RUN_ENDED.is_set()
    run_end.RUN_ENDED.clear()


def test_stages_run_at_once_as_far_as_the_computer_suffices() -> None:
    def needing(name: str, **share: float) -> Stage:
        return replace(stage(name), resources=Resources(**share))  # type: ignore[arg-type]

    computer = Resources(cores=4, memory_gb=8.0, gpus=1)
    two, three = needing("two", cores=2), needing("three", cores=3)
    assert startable([two, three, needing("one")], {}, {}, 4, computer)[0] is two
    names = [found.name for found in startable([two, three, needing("one")], {}, {}, 4, computer)]
    assert names == ["two", "one"]
    first, second = needing("first", gpus=1), needing("second", gpus=1)
    assert startable([first, second], {}, {}, 4, computer) == [first]
    assert startable([second], {"first": first}, {}, 4, computer) == []
    hungry = needing("hungry", memory_gb=7.0)
    assert startable([needing("eater", memory_gb=2.0)], {"hungry": hungry}, {}, 4, computer) == []
    large = needing("large", cores=16)
    assert startable([large, needing("one")], {}, {}, 4, computer) == [large], "it runs alone"


def test_a_stage_of_another_computer_takes_nothing_of_this_one() -> None:
    there = replace(stage("there"), pool="gpu", resources=Resources(cores=64, gpus=8))
    here = [stage("a"), stage("b")]
    computer = Resources(cores=2, memory_gb=8.0)
    found = startable([there, *here], {}, {}, 2, computer)
    assert [each.name for each in found] == ["there", "a", "b"]


def test_memory_and_gpus_that_are_not_there_are_refused_before_anything_runs() -> None:
    computer = Resources(cores=2, memory_gb=8.0)
    check_resources("teacher", computer, Resources(cores=64, memory_gb=8.0))
    with pytest.raises(HandoffError, match=r"teacher: resources\.gpus is 1, this computer has 0"):
        check_resources("teacher", computer, Resources(gpus=1))
    with pytest.raises(HandoffError, match=r"resources\.memory_gb is 9, this computer has 8"):
        check_resources("teacher", computer, Resources(memory_gb=9.0))


def test_fewer_than_one_stage_at_once_is_refused() -> None:
    with pytest.raises(HandoffError, match="parallel stages: 0, expected 1 or more"):
        check_parallel(0)
    assert check_parallel(None) == default_parallel() >= 1
