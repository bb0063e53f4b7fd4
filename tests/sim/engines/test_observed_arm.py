"""A scripted expert acts on observations as it does on the simulator's state."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from robots.errors import HandoffError
from sim.engines.isaac_lab import OWN_TASKS
from sim.engines.observed_arm import ObservedArm
from sim.evaluation.agent import ExpertAgent, ObservedExpertAgent
from sim.make import EnvConfig, find_task, make_vec_env


@pytest.mark.parametrize("task", OWN_TASKS)
def test_the_expert_over_observations_acts_as_the_one_over_states(task: str) -> None:
    with closing(make_vec_env(EnvConfig(task=task, on_end="freeze"), 2)) as env:
        observation = env.reset([3, 4])
        expert = ExpertAgent(env)
        observed = ObservedExpertAgent(find_task(task), env)
        for _ in range(40):
            running = np.ones(2, dtype=bool)
            action = expert.act(observation, running)
            np.testing.assert_allclose(
                observed.act(observation, running), action, atol=2e-4, err_msg=task
            )
            observation = env.step(action).observation


def test_a_missing_field_is_named() -> None:
    with closing(make_vec_env(EnvConfig(task="pick_cube"), 1)) as env:
        observation = env.reset([0])
        del observation["width"]
        with pytest.raises(HandoffError, match="'width' is not observed"):
            ObservedArm(find_task("pick_cube"), 1).observe(observation)
