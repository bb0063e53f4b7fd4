"""The worst environment of an agent: found where it was planted, confirmed by new starts, the same
after a kill."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.config.protocols import read_protocol
from robots.config import validate
from robots.errors import HandoffError
from robots.interfaces import VecEnv, no_progress
from robots.proportions import wilson
from sim.environment_families.members import (
    NOMINAL,
    EnvironmentFamily,
    nominal_family,
    read_family,
)
from sim.environment_families.search import Candidate
from sim.environment_families.worst_case import (
    Tried,
    WorstCase,
    WorstCaseConfig,
    find_worst_case,
)
from sim.environment_families.worst_case_report import (
    verdict,
    worst_case_figures,
    worst_case_tables,
    write_worst_case,
)
from sim.evaluation.agent import Agent, ExpertAgent, MakeAgent
from sim.evaluation.evaluate import EvaluateConfig, make_env, run_episodes
from sim.sensitivity.factors import with_values

REACH = replace(read_protocol("reach"), max_steps=40)
CONFIG = validate(
    WorstCaseConfig,
    {
        "factors": {
            "stiffness": {"kind": "arm", "what": "stiffness", "low": 0.1, "high": 1.0},
            "payload": {"kind": "arm", "what": "payload", "low": 0.0, "high": 1.0},
        },
        "search": {
            "design": {"points": 4},
            "corners": False,
            "rounds": 2,
            "parents": 2,
            "episodes": 4,
            "finalists": 2,
            "final_episodes": 6,
        },
    },
)
EXECUTION = EvaluateConfig(batch=4, videos=0)


def expert() -> MakeAgent:
    return ExpertAgent


def refuse() -> MakeAgent:
    raise AssertionError("no episode is missing")


def found(load: Callable[[], MakeAgent] = expert, **options: Any) -> WorstCase:
    arguments = {"config": CONFIG, "protocol": REACH, "progress": no_progress, **options}
    return find_worst_case(agent="expert", load=load, execution=EXECUTION, **arguments)


@pytest.fixture(scope="module")
def whole() -> WorstCase:
    return found()


def test_the_soft_arm_that_fails_is_found_and_added(whole: WorstCase) -> None:
    # The expert reaches with an arm as it is, and not with one of a tenth of the stiffness.
    assert whole.added
    worst = whole.family.members[-1]
    assert [member.name for member in whole.family.members] == [NOMINAL, "worst 1"]
    assert float(worst.values["stiffness"]) < 0.2
    assert whole.found_again.mean() < 0.5 < whole.member_again.mean()
    assert len(whole.candidates) == 4 + 2 * 2 * 2
    assert [each.round for each in whole.candidates].count(0) == 4


def test_scores_are_those_of_evaluations_from_starts_of_their_own(whole: WorstCase) -> None:
    def scores(values: Any, first: int, count: int) -> list[float]:
        changed = with_values(REACH, CONFIG.factors, values)
        seeds = range(CONFIG.first_seed + first, CONFIG.first_seed + first + count)
        make = partial(make_env, changed)
        played = run_episodes(changed, expert, make, 4, 1, no_progress, seeds=seeds)
        return [each.score for each in played]

    worst, member = whole.finalists[0], whole.members[0]
    assert scores(worst.values, 0, 4) == worst.searched.tolist()
    assert scores(worst.values, 4, 6) == worst.final.tolist()
    assert scores(member.values, 4, 6) == member.final.tolist()
    assert scores(worst.values, 10, 6) == whole.found_again.tolist()
    assert scores(member.values, 10, 6) == whole.member_again.tolist()


def test_a_search_from_a_family_that_has_the_worst_adds_nothing(whole: WorstCase) -> None:
    again = found(known=whole.family)
    assert not again.added
    assert again.family == whole.family
    assert again.members[0].name == "worst 1"
    assert "nothing added" in verdict(worst_case_figures(again))


class KilledError(Exception):
    """The end of an interrupted search."""


class _Counting:
    """Loads the expert, counts its batches, and is killed in one of them."""

    def __init__(self, last: int) -> None:
        self.batches = 0
        self._last = last

    def __call__(self) -> MakeAgent:
        return self._make

    def _make(self, env: VecEnv) -> Agent:
        if self.batches == self._last:
            raise KilledError
        self.batches += 1
        return ExpertAgent(env)


def test_a_killed_search_goes_on_with_the_missing_batches_and_finds_the_same(
    whole: WorstCase, tmp_path: Path
) -> None:
    with pytest.raises(KilledError):
        found(_Counting(9), journal=tmp_path)
    rest = _Counting(1000)
    resumed = found(rest, journal=tmp_path)
    # 12 candidates in one batch each, 2 finalists and 1 member in two each, 2 at the end in two.
    assert rest.batches == 12 + 3 * 2 + 2 * 2 - 9
    read = found(refuse, journal=tmp_path)
    for other in (resumed, read):
        assert worst_case_figures(other) == worst_case_figures(whole)
        assert other.family == whole.family


def test_progress_counts_the_control_periods_of_all_episodes() -> None:
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int, note: str = "") -> None:
        told.append((done, total))

    found(progress=progress)
    total = 40 * (12 * 4 + 3 * 6 + 2 * 6)
    assert {each for _, each in told} == {total}
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_parameters_that_the_search_cannot_vary_are_refused() -> None:
    def searched(**changed: Any) -> WorstCaseConfig:
        return validate(WorstCaseConfig, {"factors": changed})

    light = searched(light={"kind": "appearance", "what": "light", "low": 0.5, "high": 1.0})
    with pytest.raises(HandoffError, match=r"factor light = 0\.5: .*no options\.cameras"):
        found(refuse, config=light)
    unknown = searched(mass={"kind": "option", "option": "weight", "low": 0, "high": 1})
    with pytest.raises(HandoffError, match=r"factor mass = 0: .*weight"):
        found(refuse, config=unknown)
    single = searched(payload={"kind": "arm", "what": "payload", "values": [1]})
    with pytest.raises(HandoffError, match="factor payload: has no low and high"):
        found(refuse, config=single)
    with pytest.raises(HandoffError, match="factors: 0 are given"):
        found(refuse, config=searched())
    heavier = {"kind": "arm", "what": "payload", "low": 0.0, "high": 3.0}
    other = validate(
        EnvironmentFamily, {"factors": {"payload": heavier}, "members": [{"name": NOMINAL}]}
    )
    with pytest.raises(HandoffError, match=r"worst_case: factor stiffness is .* and None"):
        found(refuse, known=other)


def made(found_again: list[float], member_again: list[float], tolerance: float) -> WorstCase:
    """A search whose final scores are given; it looked worse in the search than it is."""
    search = replace(CONFIG.search, tolerance=tolerance)
    config = replace(CONFIG, search=search)
    candidate = Candidate(np.array([0.0, 1.0]), 0, np.zeros(4))
    worst = Tried("worst 1", {"stiffness": 0.1, "payload": 1.0}, np.zeros(4), np.array([0.0, 1.0]))
    member = Tried(NOMINAL, {}, np.zeros(0), np.ones(2))
    return WorstCase(
        REACH,
        config,
        0.95,
        "expert",
        nominal_family(CONFIG.factors),
        [candidate],
        [worst],
        [member],
        np.array(found_again),
        np.array(member_again),
    )


def test_only_what_new_starts_show_to_be_worse_by_more_than_the_tolerance_is_added() -> None:
    # In the search the candidate failed always; by new starts it is 0.1 below the member.
    near = made([1.0] * 9 + [0.0], [1.0] * 10, 0.1)
    assert not near.added
    assert made([1.0] * 9 + [0.0], [1.0] * 10, 0.05).added
    assert not made([1.0] * 10, [0.0] * 10, 0.0).added
    figures = worst_case_figures(near)
    assert figures["finalists"][0]["searched"]["mean"] == 0.0
    assert figures["found"]["mean"] == 0.9
    assert (figures["found"]["low"], figures["found"]["high"]) == wilson(9, 10)
    assert figures["difference"]["mean"] == pytest.approx(-0.1)
    # Scores that are no successes have an interval over episodes.
    graded = worst_case_figures(made([0.5, 0.7], [1.0, 1.0], 0.0))["found"]
    assert (graded["low"], graded["high"]) == (0.5, 0.7)


def test_page_chart_and_family_are_written(whole: WorstCase, tmp_path: Path) -> None:
    figures = write_worst_case(whole, tmp_path)
    assert read_family(tmp_path) == whole.family
    assert json.loads((tmp_path / "worst_case.json").read_text()) == json.loads(json.dumps(figures))
    page = (tmp_path / "report.html").read_text()
    assert "added as worst 1" in page
    assert "on starts without a choice" in page
    assert (tmp_path / "worst_case.png").read_bytes().startswith(b"\x89PNG")
    rows = worst_case_tables(figures)["The worst"][1]
    assert [row[0] for row in rows] == [
        "lowest candidate",
        "lowest member: nominal",
        "candidate",
    ]
