"""Stage `classifier`: whose states it learns from."""

from contextlib import closing

import numpy as np
import pytest

from flows.hil_config import HilWorld
from flows.hil_worlds import make_session_worlds
from flows.stages.classify import LEAVES, _leaving


@pytest.mark.parametrize("task", ["pick_cube", "peg_insert"])
def test_the_expert_leaves_what_they_have_solved_on_changing_ways_and_returns(task: str) -> None:
    fields = {"pick_cube": ("goal_offset", "width", "width_target"), "peg_insert": ("tip_offset",)}[task]
    world = HilWorld(task=task, rate_hz=10.0, observation_fields=fields)
    env, engine = make_session_worlds(world, on_end="freeze", endless=True)
    after, ways = [], []
    with closing(env):
        for seed in range(4):
            observation = env.reset([seed])
            propose, solved, step = _leaving(engine)(seed), False, 0
            for _ in range(env.max_steps):
                expert = engine.expert_action()
                solved = solved or bool(engine.task.success(engine.view)[0])
                action = propose(observation)
                leaves = solved and step % (2 * LEAVES) < LEAVES
                step += solved
                assert (action == expert).all() != leaves
                if task == "pick_cube":
                    assert action[0, -1] == expert[0, -1], "the hand does not let go"
                if leaves:
                    ways.append(tuple(action[0, :3]))
                observation = env.step(action).observation
                if solved:
                    after.append(bool(engine.task.success(engine.view)[0]))
    assert 0.1 < np.mean(after) < 0.9, "states of success and states beside it"
    assert len(set(ways)) >= 4, "another way at every leave"
