"""Measurements of sensitivity: the same starts under all conditions, designs, figures, pages."""

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
from robots.interfaces import no_progress
from robots.proportions import wilson
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.evaluation.agent import ExpertAgent, MakeAgent
from sim.evaluation.evaluate import EvaluateConfig, env_config, make_env, run_episodes
from sim.evaluation.intervals import mcnemar
from sim.evaluation.protocol import Protocol
from sim.make import find_task
from sim.sensitivity.design import draw_design, ranged, values_at
from sim.sensitivity.factors import DUMMY, OptionFactor, with_values
from sim.sensitivity.family import can_be_family, family
from sim.sensitivity.figures import sensitivity_figures
from sim.sensitivity.measure import (
    Sensitivity,
    SensitivityConfig,
    conditions,
    measure_sensitivity,
)
from sim.sensitivity.report import sensitivity_tables, write_sensitivity

PROTOCOL = replace(read_protocol("reach"), episodes=4, max_steps=50)
CONFIG = validate(
    SensitivityConfig,
    {
        "factors": {
            "stiffness": {
                "kind": "arm",
                "what": "stiffness",
                "values": [0.05, 1.0],
                "low": 0.05,
                "high": 1.0,
            },
            "late": {"kind": "physics", "what": "delay", "low": 0.0, "high": 0.03},
            "gain": {
                "kind": "physics",
                "what": "gain",
                "names": ["impedance_*"],
                "low": 0.5,
                "high": 2.0,
                "log": True,
            },
            "hertz": {"kind": "option", "option": "rate_hz", "values": [10]},
        },
        "design": {"points": 8},
    },
)
EXECUTION = EvaluateConfig(batch=3, videos=0)


def expert() -> MakeAgent:
    return ExpertAgent


def refuse() -> MakeAgent:
    raise AssertionError("no episode is missing")


def measured(agents: dict[str, Callable[[], MakeAgent]], **options: Any) -> Sensitivity:
    return measure_sensitivity(PROTOCOL, CONFIG, agents, EXECUTION, no_progress, **options)


@pytest.fixture(scope="module")
def one() -> Sensitivity:
    return measured({"expert": expert})


def engine(protocol: Protocol, num_envs: int) -> MujocoEngine:
    env = env_config(protocol)
    options = MujocoConfig(ranges=env.ranges, places=env.places, dynamics=env.dynamics)
    return MujocoEngine(find_task(protocol.task), num_envs, options)


def made(solved: dict[str, list[list[int]]], design: dict[str, list[int]]) -> Sensitivity:
    names = [each.name for each in conditions(PROTOCOL, CONFIG.factors)]
    by_condition = {
        agent: {name: np.array(row, dtype=bool) for name, row in zip(names, rows, strict=True)}
        for agent, rows in solved.items()
    }
    unit = draw_design(ranged(CONFIG.factors), CONFIG.design)
    by_agent = {agent: np.array(each, dtype=bool) for agent, each in design.items()}
    return Sensitivity(PROTOCOL, CONFIG, 0.95, by_condition, unit, by_agent)


def test_the_nominal_value_is_played_once_and_every_other_value_once() -> None:
    names = [each.name for each in conditions(PROTOCOL, CONFIG.factors)]
    assert names == ["nominal", "stiffness=0.05", "hertz=10"]


def test_every_condition_is_the_evaluation_of_its_environments_from_the_same_starts(
    one: Sensitivity,
) -> None:
    for condition in conditions(PROTOCOL, CONFIG.factors):
        changed = with_values(PROTOCOL, CONFIG.factors, condition.values)
        played = run_episodes(changed, expert, partial(make_env, changed), 4, 1, no_progress)
        assert one.solved["expert"][condition.name].tolist() == [each.success for each in played]
    # An arm without stiffness does not reach; otherwise the test could not tell the conditions.
    assert one.solved["expert"]["nominal"].all()
    assert not one.solved["expert"]["stiffness=0.05"].any()


def test_every_point_of_the_design_is_played_from_the_next_start(one: Sensitivity) -> None:
    within = ranged(CONFIG.factors)
    assert one.unit.shape == (8, 4)
    for index, row in enumerate(one.unit):
        changed = with_values(PROTOCOL, CONFIG.factors, values_at(within, row))
        seed = PROTOCOL.first_seed + index % 4
        (played,) = run_episodes(
            changed, expert, partial(make_env, changed), 1, 1, no_progress, seeds=[seed]
        )
        assert one.design_solved["expert"][index] == played.success
    assert 0 < one.design_solved["expert"].sum() < 8


def test_points_that_are_stepped_together_have_the_models_of_their_values() -> None:
    within = ranged(CONFIG.factors)
    unit = draw_design(within, CONFIG.design)[:3]
    payload = {"what": "payload", "value": 0.3}
    tuned = replace(PROTOCOL, options={"dynamics": {"robot": "fr3", "values": [payload]}})
    assert can_be_family(tuned, within)
    seeds = [tuned.first_seed + i for i in range(3)]
    together = engine(family(tuned, within, unit), 3)
    together.reset(np.arange(3), np.array(seeds))
    for i, row in enumerate(unit):
        alone = engine(with_values(tuned, within, values_at(within, row)), 1)
        alone.reset(np.arange(1), np.array(seeds[i : i + 1]))
        member, own = together._models[i], alone._models[0]
        for name in ("actuator_gainprm", "actuator_biasprm", "body_mass", "dof_invweight0"):
            np.testing.assert_allclose(getattr(member, name), getattr(own, name), rtol=1e-9)
        assert together._delay[i] == alone._delay[0]
    gains = [model.actuator_gainprm[0, 0] for model in together._models]
    assert len(set(np.round(gains, 6))) == 3


def test_environments_that_vary_by_themselves_or_in_other_options_are_no_family() -> None:
    within = ranged(CONFIG.factors)
    assert can_be_family(PROTOCOL, within)
    assert not can_be_family(PROTOCOL, {**within, "n": OptionFactor(option="n", low=0, high=1)})
    values = [{"what": "payload", "value": 0.3, "low": 0.1, "high": 0.5}]
    uncertain = {"dynamics": {"robot": "fr3", "values": values}}
    assert not can_be_family(replace(PROTOCOL, options=uncertain), within)
    assert not can_be_family(replace(PROTOCOL, engine="warp"), within)
    assert not can_be_family(replace(PROTOCOL, options={"randomized": True}), within)


def test_two_processes_give_the_same_and_a_finished_measurement_is_taken_from_its_journal(
    one: Sensitivity, tmp_path: Path
) -> None:
    both = measure_sensitivity(
        PROTOCOL,
        CONFIG,
        {"expert": expert},
        replace(EXECUTION, workers=2),
        no_progress,
        journal=tmp_path,
    )
    again = measured({"expert": refuse}, journal=tmp_path)
    for other in (both, again):
        assert other.design_solved["expert"].tolist() == one.design_solved["expert"].tolist()
        for name, solved in one.solved["expert"].items():
            assert other.solved["expert"][name].tolist() == solved.tolist()


def test_progress_counts_the_control_periods_of_all_episodes_of_all_agents() -> None:
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int, note: str = "") -> None:
        told.append((done, total))

    measure_sensitivity(PROTOCOL, CONFIG, {"a": expert, "b": expert}, EXECUTION, progress)
    total = 2 * 50 * (3 * 4 + 8)
    assert {each for _, each in told} == {total}
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_value_that_the_engine_refuses_is_named_before_an_episode_is_played() -> None:
    late = validate(
        SensitivityConfig, {"factors": {"late": {"kind": "arm", "what": "delay", "values": [0.4]}}}
    )
    with pytest.raises(HandoffError, match=r"factor late = 0\.4: mujoco reach: delay is 0\.4000 s"):
        measure_sensitivity(PROTOCOL, late, {"expert": refuse}, EXECUTION, no_progress)


def test_figures_are_paired_by_start_and_worked_by_hand() -> None:
    figures = sensitivity_figures(
        made(
            {
                "plain": [[1, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]],
                "varied": [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
            },
            {"plain": [1, 0, 1, 0, 1, 0, 1, 0], "varied": [1] * 8},
        )
    )
    lost = figures["conditions"][1]["agents"]["plain"]
    assert (lost["success"]["low"], lost["success"]["high"]) == wilson(1, 4)
    assert (lost["against_nominal"]["mean"], lost["against_nominal"]["p_value"]) == (-0.75, 0.25)
    # Six such tests are corrected together: two values and the design of two agents.
    assert lost["against_nominal"]["p_holm"] == 1.0
    better = figures["conditions"][1]["agents"]["varied"]["against_first"]
    assert (better["mean"], better["only_first"], better["only_second"]) == (0.5, 1, 3)
    # Starts 0 to 3 and again: nominal 1 1 1 0 twice against 1 eight times.
    design = figures["design"]["agents"]["varied"]
    nominal = np.array([1, 1, 1, 0] * 2, dtype=bool)
    assert (
        design["against_nominal"] | mcnemar(nominal, np.ones(8, dtype=bool))
        == (design["against_nominal"])
    )
    assert design["against_nominal"]["mean"] == 0.25
    assert design["against_first"]["mean"] == 0.5
    assert [row["name"] for row in design["factors"]] == ["stiffness", "late", "gain", DUMMY]
    assert [row["share"] for row in design["factors"]] == [0.0] * 4
    assert design["factors"][0]["edges"] == pytest.approx([0.05, 0.24, 0.43, 0.62, 0.81, 1.0])


def test_a_factor_that_decides_is_important_and_the_one_without_an_effect_is_not() -> None:
    many = replace(CONFIG, design=replace(CONFIG.design, points=200))
    unit = draw_design(ranged(CONFIG.factors), many.design)
    start = made({"plain": [[1, 1, 1, 1]] * 3}, {"plain": [1] * 8})
    decided = start._replace(config=many, unit=unit, design_solved={"plain": unit[:, 0] > 0.4})
    rows = sensitivity_figures(decided)["design"]["agents"]["plain"]["factors"]
    assert [row["important"] for row in rows] == [True, False, False, False]
    assert rows[0]["log_odds"]["low"] > 0.0
    assert [each["k"] for each in rows[0]["slices"]] == [0, 0, 40, 40, 40]


def test_the_page_states_the_control_and_the_episodes_can_be_read_back(
    one: Sensitivity, tmp_path: Path
) -> None:
    figures = write_sensitivity(one, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "the factor without an effect was not found important" in page
    assert "Influence of each factor" in page
    assert (tmp_path / "sensitivity.png").read_bytes().startswith(b"\x89PNG")
    read = json.loads((tmp_path / "sensitivity.json").read_text())
    assert {**read, **json.loads(json.dumps(figures))} == read
    assert len(read["points"]) == 8
    assert read["points"][5]["seed"] == PROTOCOL.first_seed + 1
    assert set(read["points"][0]["values"]) == {"stiffness", "late", "gain", DUMMY}
    assert read["solved"]["expert"]["nominal"] == [True] * 4


def test_a_control_that_fails_is_said_in_the_page(tmp_path: Path) -> None:
    many = replace(CONFIG, design=replace(CONFIG.design, points=200))
    unit = draw_design(ranged(CONFIG.factors), many.design)
    start = made({"plain": [[1, 1, 1, 1]] * 3}, {"plain": [1] * 8})
    failed = start._replace(config=many, unit=unit, design_solved={"plain": unit[:, -1] > 0.5})
    write_sensitivity(failed, tmp_path)
    assert "was found important for plain" in (tmp_path / "report.html").read_text()


def test_words_as_values_have_a_chart_and_no_design_without_a_range(tmp_path: Path) -> None:
    given = validate(
        SensitivityConfig,
        {
            "factors": {
                "reward": {"kind": "option", "option": "reward", "values": ["dense", "sparse"]}
            }
        },
    )
    rows = {"expert": {"nominal": np.ones(4, bool), "reward=dense": np.ones(4, bool)}}
    rows["expert"]["reward=sparse"] = np.zeros(4, bool)
    start = Sensitivity(PROTOCOL, given, 0.95, rows, np.zeros((0, 1)), {"expert": np.zeros(0)})
    figures = write_sensitivity(start, tmp_path)
    assert figures["design"] is None
    assert list(sensitivity_tables(figures)) == ["One factor at a time"]
    assert "Control" not in (tmp_path / "report.html").read_text()
