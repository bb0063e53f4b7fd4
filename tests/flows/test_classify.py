"""Stage `classifier`: whose states it learns from."""

from contextlib import closing

import numpy as np
import pytest

from flows.hil.classify import LEAVES, _leaving
from flows.session.config import HilWorld
from flows.session.worlds import make_session_worlds


@pytest.mark.parametrize("task", ["pick_cube", "peg_insert"])
def test_the_expert_leaves_what_they_have_solved_on_changing_ways_waits_and_returns(
    task: str,
) -> None:
    fields = {"pick_cube": ("goal_offset", "width", "width_target"), "peg_insert": ("tip_offset",)}[
        task
    ]
    world = HilWorld(task=task, rate_hz=10.0, observation_fields=fields, max_steps=120)
    env, engine = make_session_worlds(world, on_end="freeze", endless=True)
    after, ways, waited = [], [], []
    with closing(env):
        for seed in range(4):
            observation = env.reset([seed])
            propose, solved, step = _leaving(engine)(seed), False, 0
            for _ in range(env.max_steps):
                expert = engine.expert_action()
                solved = solved or bool(engine.task.success(engine.view)[0])
                action = propose(observation)
                phase = step // LEAVES % 3 if solved else 2
                step += solved
                assert (action == expert).all() == (phase == 2)
                if task == "pick_cube":
                    assert action[0, -1] == expert[0, -1], "the hand does not let go"
                if phase == 0:
                    ways.append(tuple(action[0, :3]))
                observation = env.step(action).observation
                if phase == 1:
                    assert not action[0, : action.shape[1] - (task == "pick_cube")].any()
                    waited.append(bool(np.linalg.norm(engine.view.grasp_velocity[0, :3]) < 0.02))
                if solved:
                    after.append(bool(engine.task.success(engine.view)[0]))
    assert 0.1 < np.mean(after) < 0.9, "states of success and states beside it"
    assert np.mean(waited) > 0.4, "stands still beside success, not only at it"
    assert len(set(ways)) >= 16, "another way at every leave"
