"""Success under displaced cameras, light and distractors: conditions, pairs, figures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.config.protocols import read_protocol
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.proportions import wilson
from sim.evaluation.agent import ExpertAgent, MakeAgent
from sim.evaluation.evaluate import EvaluateConfig, run_episodes
from sim.evaluation.robustness import (
    NOMINAL_CONDITION,
    Robustness,
    SceneCondition,
    SweepConfig,
    conditions,
    measure_robustness,
    robustness_figures,
    under_condition,
)
from sim.evaluation.robustness_report import robustness_tables, write_robustness

PROTOCOL = replace(read_protocol("pick_cube_cameras"), episodes=4, max_steps=6)
SWEEP = SweepConfig(camera_shift=(0.0, 0.02), light=(1.0,), clutter=(2,))
SHIFTED = SceneCondition("camera_shift", 0.02)
CLUTTERED = SceneCondition("clutter", 2)


def expert() -> MakeAgent:
    return ExpertAgent


def made(solved: dict[str, list[list[int]]]) -> Robustness:
    by_condition = {
        name: {
            condition: np.array(each, dtype=bool)
            for condition, each in zip(conditions(SWEEP), rows, strict=True)
        }
        for name, rows in solved.items()
    }
    return Robustness(PROTOCOL, SWEEP, 0.95, by_condition)


def test_one_quantity_differs_at_a_time_and_the_nominal_scene_is_played_once() -> None:
    assert conditions(SWEEP) == (NOMINAL_CONDITION, SHIFTED, CLUTTERED)
    names = [condition.name for condition in conditions(SweepConfig())]
    assert names == [
        "nominal",
        "camera_shift=0.01",
        "camera_shift=0.02",
        "camera_shift=0.04",
        "light=0.5",
        "light=1.5",
        "clutter=4",
    ]


def test_a_condition_changes_the_protocol_s_appearance_alone() -> None:
    ranges = [{"what": "light", "names": ["key"], "low": 0.9, "high": 1.1}]
    given = replace(PROTOCOL, options={**PROTOCOL.options, "appearance": {"ranges": ranges}})
    changed = under_condition(given, SHIFTED)
    assert changed.options["appearance"] == {
        "ranges": ranges,
        "camera_shift": 0.02,
        "light": 1.0,
        "clutter": 0,
    }
    assert replace(changed, options=given.options) == given


def test_environments_that_show_nothing_are_refused() -> None:
    with pytest.raises(HandoffError, match=r"needs the engine mujoco and options\.cameras"):
        under_condition(read_protocol("pick_cube"), NOMINAL_CONDITION)
    with pytest.raises(HandoffError, match=r"needs the engine mujoco and options\.cameras"):
        under_condition(read_protocol("push_t_published"), NOMINAL_CONDITION)
    fixed = replace(PROTOCOL, options={**PROTOCOL.options, "appearance": {"light": 0.5}})
    with pytest.raises(HandoffError, match=r"appearance sets \['light'\], which the sweep varies"):
        under_condition(fixed, NOMINAL_CONDITION)


def test_a_sweep_without_a_change_or_with_a_repeated_value_is_refused() -> None:
    with pytest.raises(HandoffError, match="no value differs"):
        SweepConfig(camera_shift=(0.0,), light=(), clutter=(0,))
    with pytest.raises(HandoffError, match="light is"):
        SweepConfig(light=(0.5, 0.5))


def test_figures_are_paired_by_seed_and_worked_by_hand() -> None:
    figures = robustness_figures(
        made(
            {
                "plain": [[1, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]],
                "varied": [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 0, 0]],
            }
        )
    )
    shifted = figures["conditions"][1]["agents"]
    assert shifted["plain"]["success"]["k"] == 1
    assert (shifted["plain"]["success"]["low"], shifted["plain"]["success"]["high"]) == wilson(1, 4)
    lost = shifted["plain"]["against_nominal"]
    assert (lost["mean"], lost["only_first"], lost["only_second"]) == (-0.75, 3, 0)
    # Three discordant pairs on one side: 2 / 2^3. Four such tests are corrected together.
    assert lost["p_value"] == 0.25
    assert lost["p_holm"] == 1.0
    better = shifted["varied"]["against_first"]
    assert (better["mean"], better["only_first"], better["only_second"]) == (0.5, 1, 3)
    assert "against_first" not in shifted["plain"]
    assert "against_nominal" not in figures["conditions"][0]["agents"]["plain"]


def test_tables_have_a_row_for_every_condition_and_agent() -> None:
    one = robustness_figures(made({"plain": [[1, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]]}))
    ((_, rows),) = robustness_tables(one)
    assert [row[:4] for row in rows] == [
        ("nominal", "plain", "3 of 4", "0.750"),
        ("camera_shift=0.02", "plain", "1 of 4", "0.250"),
        ("clutter=2", "plain", "4 of 4", "1.000"),
    ]


@pytest.mark.needs("opengl")
def test_an_expert_that_sees_the_state_is_the_same_under_every_condition(tmp_path: Path) -> None:
    longer = replace(PROTOCOL, max_steps=60, episodes=2)
    config = EvaluateConfig(batch=2, videos=0)
    measured = measure_robustness(longer, SWEEP, {"expert": expert}, config, no_progress)
    played = run_episodes(longer, expert, make_plain, 2, 1, no_progress)
    for solved in measured.solved["expert"].values():
        assert solved.tolist() == [episode.success for episode in played]
    figures = write_robustness(measured, tmp_path)
    assert [row["name"] for row in figures["conditions"]] == [
        "nominal",
        "camera_shift=0.02",
        "clutter=2",
    ]
    for name in ("robustness.png", "conditions.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert "camera_shift=0.02" in (tmp_path / "report.html").read_text()


def make_plain(num_envs: int, pictures: bool = False):
    from sim.evaluation.evaluate import make_env

    return make_env(replace(PROTOCOL, max_steps=60, episodes=2), num_envs, pictures)
