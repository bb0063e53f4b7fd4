"""The runner of learning checks."""

from __future__ import annotations

import os
from functools import partial

import pytest

from robots.errors import HandoffError
from tests.toy_envs.comparison import better, compare, runs


def scaled(factor: float, seed: int) -> float:
    """A score without learning."""
    return factor * seed


def threads(seed: int) -> float:
    """Torch threads of the process of a run."""
    import torch

    return float(torch.get_num_threads())


def process(seed: int) -> float:
    """Number of the process of a run."""
    return float(os.getpid())


def divided(seed: int) -> tuple[int, int]:
    """A record instead of a score."""
    return divmod(seed, 2)


def broken(seed: int) -> float:
    """A run that fails."""
    raise ValueError(f"no {seed}")


def test_scores_come_in_the_order_of_the_seeds() -> None:
    assert compare(
        {"one": partial(scaled, 1.0), "ten": partial(scaled, 10.0)}, seeds=(3, 1), processes=1
    ) == {
        "one": [3.0, 1.0],
        "ten": [30.0, 10.0],
    }


def test_records_come_back_whole() -> None:
    assert runs({"pair": divided}, seeds=(7,), processes=1) == {"pair": [(3, 1)]}


def test_runs_of_several_processes_are_elsewhere_with_one_thread_each() -> None:
    scores = compare({"threads": threads, "process": process}, seeds=range(2), processes=2)
    assert scores["threads"] == [1.0, 1.0]
    assert float(os.getpid()) not in scores["process"]


@pytest.mark.parametrize("processes", [1, 2])
def test_every_result_is_printed(processes: int, capsys: pytest.CaptureFixture[str]) -> None:
    compare({"ten": partial(scaled, 10.0)}, seeds=(3, 1), processes=processes)
    assert capsys.readouterr().out.splitlines() == [
        "ten, seed 3: 30.0",
        "ten, seed 1: 10.0",
        "ten: 30, 10",
    ]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failed_run_is_named(processes: int) -> None:
    with pytest.raises(HandoffError, match=r"arm broken failed with seed 4: ValueError: no 4"):
        compare({"broken": broken}, seeds=(4,), processes=processes)


def test_better_needs_a_significant_difference() -> None:
    scores = {
        "high": [0.9, 1.0, 0.95, 0.9, 1.0],
        "low": [0.1, 0.0, 0.2, 0.1, 0.1],
        "near": [0.95, 0.9, 1.0, 0.85, 1.0],
    }
    assert better(scores, "high", "low")
    assert not better(scores, "low", "high")
    assert not better(scores, "high", "near")


def test_equal_scores_are_never_better() -> None:
    assert not better({"a": [1.0] * 5, "b": [1.0] * 5}, "a", "b")


def test_an_unknown_arm_is_refused() -> None:
    with pytest.raises(HandoffError, match=r"no scores of \['c'\]"):
        better({"a": [1.0] * 5}, "a", "c")
