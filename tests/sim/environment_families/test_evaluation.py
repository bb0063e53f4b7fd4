"""Evaluation over a family: every member from the same starts, and the worst one again from others."""

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
from flows.evaluation.agents import load_random
from robots.config import validate
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.proportions import wilson
from sim.environment_families.evaluation import FamilyEvaluation, evaluate_family
from sim.environment_families.evaluation_report import (
    family_figures,
    family_tables,
    write_family_evaluation,
)
from sim.environment_families.members import NOMINAL, EnvironmentFamily
from sim.evaluation.agent import ExpertAgent, MakeAgent
from sim.evaluation.evaluate import EvaluateConfig, make_env, run_episodes
from sim.sensitivity.factors import with_values

PROTOCOL = replace(read_protocol("reach"), episodes=3, max_steps=40)
FAMILY = validate(
    EnvironmentFamily,
    {
        "factors": {"stiffness": {"kind": "arm", "what": "stiffness", "low": 0.05, "high": 1.0}},
        "members": [
            {"name": NOMINAL},
            {"name": "soft", "values": {"stiffness": 0.05}},
            {"name": "half", "values": {"stiffness": 0.5}},
        ],
    },
)
EXECUTION = EvaluateConfig(batch=2, videos=0)


def expert() -> MakeAgent:
    return ExpertAgent


def refuse() -> MakeAgent:
    raise AssertionError("no episode is missing")


def measured(agents: dict[str, Callable[[], MakeAgent]], **options: Any) -> FamilyEvaluation:
    return evaluate_family(PROTOCOL, FAMILY, agents, EXECUTION, no_progress, **options)


@pytest.fixture(scope="module")
def both() -> FamilyEvaluation:
    return measured({"expert": expert, "random": load_random})


def made(solved: dict[str, list[list[int]]], again: list[int]) -> FamilyEvaluation:
    rows = {agent: np.array(each, dtype=bool) for agent, each in solved.items()}
    worst = {agent: int(np.argmin(each.mean(axis=1))) for agent, each in rows.items()}
    further = {agent: np.array(again, dtype=bool) for agent in rows}
    return FamilyEvaluation(PROTOCOL, FAMILY, 0.95, rows, worst, further)


def test_every_member_is_evaluated_from_the_same_starts_and_the_worst_from_the_next(
    both: FamilyEvaluation,
) -> None:
    first = PROTOCOL.first_seed

    def solved(number: int, seeds: range) -> list[bool]:
        changed = with_values(PROTOCOL, FAMILY.factors, FAMILY.members[number].values)
        make = partial(make_env, changed)
        played = run_episodes(changed, expert, make, 3, 1, no_progress, seeds=seeds)
        return [each.success for each in played]

    for number in range(3):
        assert both.solved["expert"][number].tolist() == solved(number, range(first, first + 3))
    assert both.worst["expert"] == 1
    assert both.worst_again["expert"].tolist() == solved(1, range(first + 3, first + 6))
    # An arm without stiffness does not reach; otherwise the test could not tell the members.
    assert both.solved["expert"][0].all()
    assert not both.solved["expert"][1].any()


def test_finished_batches_are_kept_and_progress_counts_all_episodes(
    both: FamilyEvaluation, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int, note: str = "") -> None:
        told.append((done, total))

    agents = {"expert": expert, "random": load_random}
    evaluate_family(PROTOCOL, FAMILY, agents, EXECUTION, progress, journal=tmp_path)
    total = 2 * (3 + 1) * 3 * 40
    assert {each for _, each in told} == {total}
    assert told[-1] == (total, total)
    again = measured({"expert": refuse, "random": refuse}, journal=tmp_path)
    assert family_figures(again) == family_figures(both)


def test_figures_are_worked_by_hand() -> None:
    figures = family_figures(
        made(
            {
                "plain": [[1, 1, 1], [0, 0, 0], [1, 1, 0]],
                "robust": [[1, 1, 0], [1, 1, 1], [1, 0, 1]],
            },
            [1, 0, 0],
        )
    )
    plain, robust = figures["agents"]["plain"], figures["agents"]["robust"]
    assert (plain["nominal"]["k"], plain["nominal"]["n"]) == (3, 3)
    assert plain["mean"]["mean"] == pytest.approx(5 / 9)
    assert plain["worst"]["member"] == "soft"
    assert (plain["worst"]["success"]["k"], plain["worst"]["again"]["k"]) == (0, 1)
    assert (plain["worst"]["again"]["low"], plain["worst"]["again"]["high"]) == wilson(1, 3)
    # Of equal members the first is the worst.
    assert robust["worst"]["member"] == NOMINAL
    against = robust["against_first"]
    assert against["mean"] == pytest.approx(7 / 9 - 5 / 9)
    assert "against_first" not in plain
    worst = against["worst_member"]
    assert (worst["member"], worst["only_first"], worst["only_second"]) == ("soft", 0, 3)
    assert worst["p_value"] == worst["p_holm"] == 0.25
    assert [row["success"]["robust"]["k"] for row in figures["members"]] == [2, 3, 2]


def test_page_chart_and_tables_are_written(both: FamilyEvaluation, tmp_path: Path) -> None:
    figures = write_family_evaluation(both, tmp_path)
    read = json.loads((tmp_path / "family_scores.json").read_text())
    assert {**read, **json.loads(json.dumps(figures))} == read
    assert read["seeds_again"] == [100003, 100004, 100005]
    assert read["solved"]["expert"][1] == [False] * 3
    assert "as they are" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "family_scores.png").read_bytes().startswith(b"\x89PNG")
    tables = family_tables(figures)
    assert [row[0] for row in tables["Policies"][1]] == ["expert", "random"]
    assert [row[1] for row in tables["Members"][1]] == [
        "as they are",
        "stiffness=0.05",
        "stiffness=0.5",
    ]


def test_one_agent_and_a_family_without_the_nominal_member_have_figures() -> None:
    alone = FAMILY.members[1:]
    single = made({"plain": [[1, 0, 1], [0, 0, 0]]}, [0, 0, 0])._replace(
        family=EnvironmentFamily(factors=FAMILY.factors, members=alone)
    )
    figures = family_figures(single)
    assert figures["agents"]["plain"]["nominal"] is None
    assert family_tables(figures)["Policies"][1][0][1] == ""


def test_a_family_of_other_environments_is_refused() -> None:
    light = {"light": {"kind": "appearance", "what": "light", "low": 0.5, "high": 1.0}}
    seen = validate(EnvironmentFamily, {"factors": light, "members": [{"name": NOMINAL}]})
    with pytest.raises(HandoffError, match=r"factor light = 0\.5: .*no options\.cameras"):
        evaluate_family(PROTOCOL, seen, {"expert": refuse}, EXECUTION, no_progress)
