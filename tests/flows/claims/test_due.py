"""As many claims are repeated as fit in a time, and every night goes on where the last one
stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.claims.due import UNKNOWN_MINUTES, RepeatedSeed, due_seeds, repeat_due
from flows.commands.lineage import reproduce
from robots.errors import HandoffError
from tests.flows.claims.test_claims import record, repeated, skilled, written

__all__ = ["written"]


class Clock:
    """Minutes pass when a claim has been repeated."""

    def __init__(self, each: float) -> None:
        self.each = each
        self._readings: Iterator[int] = iter(range(10**6))

    def __call__(self) -> float:
        # `repeat_due` reads it once at its begin, once before every seed, and around each.
        return next(self._readings) * self.each * 60.0


@pytest.fixture
def claims(written: Path) -> list[str]:
    """Two claims of one recipe: the second has one seed."""
    second = written.with_name("other.yaml")
    recipe = written.parent / "skills.yaml"
    second.write_text(f"# Another.\nrecipe: {recipe}\nfigures: {{after: {{stage: after}}}}\n")
    return [str(written), str(second)]


def named(seeds: list) -> list[tuple[str, int]]:
    return [(Path(one.claim).stem, one.seed) for one in seeds]


def test_what_was_never_repeated_comes_first_and_then_the_oldest(claims: list[str]) -> None:
    runs = str(Path(claims[0]).parent / "runs")
    assert named(due_seeds(claims, runs=runs)) == [("grows", 0), ("grows", 1), ("other", 0)]
    assert {one.expected for one in due_seeds(claims, runs=runs)} == {UNKNOWN_MINUTES}
    repeated(Path(claims[0]), "runs", 0)
    repeated(Path(claims[0]), "runs", 1)
    os.utime(Path(runs) / "grows-0" / "run.json", (2e9, 2e9))
    os.utime(Path(runs) / "grows-1" / "run.json", (1e9, 1e9))
    due = due_seeds(claims, runs=runs)
    assert named(due) == [("other", 0), ("grows", 1), ("grows", 0)]
    assert [one.repeated for one in due] == [None, 1e9, 2e9]
    assert max(due[1].expected, due[2].expected) < 1.0


@pytest.mark.parametrize(("state", "known"), [("failed", True), ("stopped", False)])
def test_a_repetition_that_did_not_come_to_its_end_tells_no_time(
    claims: list[str], state: str, known: bool
) -> None:
    repeated(Path(claims[0]), "runs", 0)
    runs = str(Path(claims[0]).parent / "runs")
    file = Path(runs) / "grows-0" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": state}))
    (first,) = (one for one in due_seeds(claims[:1], runs=runs) if one.seed == 0)
    assert first.expected == UNKNOWN_MINUTES
    # A failed one waits for its turn; an interrupted one goes on where it stopped.
    assert (first.repeated is not None) == known


def test_a_claim_that_is_named_twice_is_repeated_once(claims: list[str]) -> None:
    runs = str(Path(claims[0]).parent / "runs")
    assert named(due_seeds([claims[1], claims[1]], runs=runs)) == [("other", 0)]


def test_a_record_tells_the_time_where_nothing_was_repeated_here(claims: list[str]) -> None:
    grows = Path(claims[0])
    repeated(grows, "elsewhere", 1)
    record(grows, "elsewhere")
    path = grows.parent / "outcomes" / "grows.json"
    content = json.loads(path.read_text())
    content["seeds"]["1"]["minutes"] = 12.5
    path.write_text(json.dumps(content))
    due = due_seeds(claims, runs=str(grows.parent / "runs"))
    assert [(*one, each.expected) for one, each in zip(named(due), due, strict=True)] == [
        ("grows", 0, 12.5),
        ("grows", 1, 12.5),
        ("other", 0, UNKNOWN_MINUTES),
    ]


def test_a_night_takes_what_fits_and_the_next_one_goes_on(claims: list[str]) -> None:
    folder = Path(claims[0]).parent
    runs, told = str(folder / "runs"), list[RepeatedSeed]()

    def night(minutes: float) -> list[RepeatedSeed]:
        # Three readings of the clock per seed.
        return repeat_due(
            minutes, claims, runs=runs, report=told.append, clock=Clock(UNKNOWN_MINUTES / 3.0)
        )

    first = night(2.2 * UNKNOWN_MINUTES)
    assert [one.status for one in first] == ["reproduced", "postponed", "postponed"]
    assert told == first
    assert first[0].row[2:4] == (f"{UNKNOWN_MINUTES / 3.0:.1f}", f"{UNKNOWN_MINUTES:.1f}")
    content = json.loads((folder / "runs" / "claims" / "due.json").read_text())
    assert [one["status"] for one in content["seeds"]] == [one.status for one in first]
    second = night(1e4)
    assert named(second) == [("grows", 1), ("other", 0), ("grows", 0)]
    assert [one.status for one in second] == ["lost", "reproduced", "reproduced"]
    # Neither has changed since: it comes from the cache.
    assert second[2].expected < 1.0


def test_a_claim_that_fails_keeps_no_other_from_running(
    claims: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(claims[1])
    other.write_text(other.read_text().replace("skills.yaml", "skilz.yaml"))
    runs = str(other.parent / "runs")
    with pytest.raises(HandoffError, match=r"not reproduced: .*grows.* \(seed 1\), .*other"):
        reproduce(claim=tuple(claims), within=1e4, runs=runs)
    printed = capsys.readouterr().out
    assert f"grows.yaml, seed 0: begins, about {UNKNOWN_MINUTES:.1f} min expected" in printed
    assert "failed:" in printed
    assert "skilz.yaml" in printed
    assert "reproduced: 3 of 3 bars met" in printed


def test_the_command_ends_well_where_every_bar_is_met(claims: list[str], tmp_path: Path) -> None:
    reproduce(claim=(claims[1],), within=1e4, runs=str(tmp_path / "runs"))
    skilled(tmp_path, 0.1)
    reproduce(claim=(claims[1],), within=1e4, runs=str(tmp_path / "runs"))


def test_the_seeds_are_chosen_by_the_command() -> None:
    with pytest.raises(HandoffError, match="Leave out --seed"):
        reproduce(within=10.0, seed=(0,))
    with pytest.raises(HandoffError, match="--within take no run"):
        reproduce(Path("demo"), within=10.0)


def test_a_time_in_which_nothing_fits_is_said(
    claims: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce(claim=(claims[1],), within=1.0, runs=str(tmp_path / "runs"))
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "Nothing fits in 1 min: the shortest is expected to take 60.0 min."


def test_options_of_the_other_kind_are_refused() -> None:
    with pytest.raises(HandoffError, match="no --tolerance"):
        reproduce(claim=("demo",), tolerance=0.1)
    with pytest.raises(HandoffError, match="--runs is for a claim"):
        reproduce(Path("demo"), runs="elsewhere")
