"""Formulas that name what is not observed are refused before anything runs."""

from __future__ import annotations

import pytest

from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from robots.errors import HandoffError

TWIN = "twin.table.loop.specifications"
REWARD = "shared.protocol.options.specified_reward.specifications"


def build(recipe: str, *overrides: str) -> None:
    stages(read_recipe(recipe, list(overrides)))


@pytest.mark.parametrize(
    ("recipe", "formula", "problem"),
    [
        ("demo", "always (agnt.max < 0.5)", "unknown field 'agnt', did you mean 'agent'"),
        ("demo", "always (agent[2] < 0.5)", "agent"),
        ("pick_cube_cameras", "always (grasp_pos.z > 0)", "did you mean 'grasp_pose'"),
        # A field of the task that the policy does not observe.
        ("pick_cube_cameras", "always (cube_position[2] > 0)", "unknown field 'cube_position'"),
        ("reach_ppo", "always (norm(q) < 2)", "unknown field 'q'"),
        ("pusht_dppo", "always (agnt.max < 0.5)", "unknown field 'agnt'"),
    ],
)
def test_a_formula_at_the_twin_is_over_what_the_policy_observes(
    recipe: str, formula: str, problem: str
) -> None:
    with pytest.raises(HandoffError, match="stage twin: specification 'x', character") as refused:
        build(recipe, f"{TWIN}.x='{formula}'")
    assert problem in str(refused.value)
    assert str(refused.value).endswith("are over what the policy observes.")


@pytest.mark.parametrize(
    ("recipe", "formula"),
    [
        ("demo", "always (agent.max < 0.5)"),
        ("pick_cube_cameras", "always (grasp_pose.z > 0.02)"),
        ("reach_ppo", "eventually[0, 0.01] (distance(grasp_pose[0:3], goal) < 0.5)"),
    ],
)
def test_a_formula_over_what_the_policy_observes_passes(recipe: str, formula: str) -> None:
    build(recipe, f"{TWIN}.x='{formula}'")


def test_what_a_policy_of_all_fields_observes_is_left_to_the_twin() -> None:
    build("reach_ppo", "teacher.fields=[]", f"{TWIN}.x='always (norm(q) < 2)'")
    with pytest.raises(HandoffError, match="unknown operator 'alwys'"):
        build("reach_ppo", "teacher.fields=[]", f"{TWIN}.x='alwys (norm(q) < 2)'")


def test_a_formula_of_a_reward_is_over_what_the_environments_observe() -> None:
    with pytest.raises(HandoffError, match="unknown field 'dqq', did you mean 'dq'"):
        build("reach_specified", f"{REWARD}.slow='always (norm(dqq) < 0.8)'")
    with pytest.raises(HandoffError, match="unknown operator 'alwys', did you mean 'always'"):
        build("reach_specified", f"{REWARD}.slow='alwys (norm(dq) < 0.8)'")
    build("reach_specified", f"{REWARD}.slow='always (norm(q) < 2)'")
