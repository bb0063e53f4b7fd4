"""States beside success: on random ways, and by an expert who leaves success, waits and returns."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from robots.spec import ActionSpec
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.ignore_success import IgnoreSuccess
from sim.make import find_task
from sim.recording.hard_negatives import DIRECTION_PERIODS, LEAVES, leaving_expert, random_walk
from sim.vec_env import EngineVecEnv, VecEnvConfig


@pytest.mark.parametrize("task", ["pick_cube", "peg_insert"])
def test_the_expert_leaves_what_they_have_solved_on_changing_ways_waits_and_returns(
    task: str,
) -> None:
    engine = MujocoEngine(find_task(task, 10.0), 1, MujocoConfig(reward="sparse"))
    env = EngineVecEnv(IgnoreSuccess(engine), VecEnvConfig(on_end="freeze", max_steps=120))
    after, ways, waited = [], [], []
    with closing(env):
        for seed in range(4):
            observation = env.reset([seed])
            propose, solved, step = leaving_expert(engine, seed), False, 0
            for _ in range(env.max_steps):
                expert = engine.expert_action()
                solved = solved or bool(engine.task.success(engine.view)[0])
                action = propose(observation)
                phase = step // LEAVES % 3 if solved else 2
                step += solved
                assert (action == expert).all() == (phase == 2)
                if task == "pick_cube":
                    assert action[0, -1] == expert[0, -1], "the gripper does not release"
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


def test_random_walk__is_kept_for_a_while_and_is_that_of_its_seed() -> None:
    spec = ActionSpec(
        names=("x", "y"), low=(-1.0, 0.0), high=(1.0, 0.5), unit="1", interface="cartesian_delta"
    )

    def made(seed: int) -> np.ndarray:
        propose = random_walk(spec, seed)
        return np.concatenate([propose({}) for _ in range(2 * DIRECTION_PERIODS)])

    ways = made(3)
    assert len(np.unique(ways, axis=0)) == 2
    assert (ways[:DIRECTION_PERIODS] == ways[0]).all()
    assert ((ways >= spec.low) & (ways <= spec.high)).all()
    np.testing.assert_array_equal(ways, made(3))
    assert (made(4)[0] != ways[0]).all()
