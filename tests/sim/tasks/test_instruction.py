"""Environments with one instruction: the goal is the named one, the rest of the start the same."""

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.language.text import decode
from sim.make import EnvConfig, find_task, make_vec_env
from sim.tasks.task import with_instruction

SEEDS = [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("task", ["reach_by_name", "pick_by_name"])
def test_all_episodes_have_the_instruction_and_starts_are_otherwise_the_same(task: str) -> None:
    instruction = find_task(task).instructions[2]
    free = make_vec_env(EnvConfig(task=task), len(SEEDS))
    fixed = make_vec_env(EnvConfig(task=task, instruction=instruction), len(SEEDS))
    drawn, named = free.reset(SEEDS), fixed.reset(SEEDS)
    free.close()
    fixed.close()
    assert set(decode(named["instruction"])) == {instruction}
    assert len(set(decode(drawn["instruction"]))) > 1
    for name in drawn.keys() - {"instruction"}:
        np.testing.assert_array_equal(drawn[name], named[name])


def test_an_unknown_instruction_and_a_task_without_any_are_refused() -> None:
    with pytest.raises(HandoffError, match="instruction 'reach the red markr', did you mean"):
        with_instruction(find_task("reach_by_name"), "reach the red markr")
    with pytest.raises(
        HandoffError, match="reach: got the instruction 'go', but the task has none"
    ):
        with_instruction(find_task("reach"), "go")
