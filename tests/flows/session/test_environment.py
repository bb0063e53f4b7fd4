"""The environment of a session has the configured robot."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from flows.correction.actor_process import learner_actions
from flows.session.config import HilEnvConfig, HilOperator
from flows.session.environment import make_operator, make_session_env, robot_label, still_policy
from policies.rl.hil.config import HilSerlConfig
from robots.control.gripper_commands import CommandedGripper
from robots.franka import find_robot


def test_session_simulates_and_records_the_configured_robot() -> None:
    config = HilEnvConfig(task="pick_cube", robot="panda", observation_fields=())
    env, engine = make_session_env(config, on_end="freeze")
    with closing(env):
        assert engine.task.robot is find_robot("panda")
        assert engine.model.joint(0).name == "panda_joint1"
        assert robot_label(config) == "panda mujoco"
        observation = env.reset([0])
        still = still_policy(env.action_spec, engine.task.robot)(observation)
        # An open gripper holds still with a command of its full stroke.
        np.testing.assert_allclose(still, [[0.0, 0.0, 0.0, 0.0, 1.0]], atol=1e-6)
        actions = learner_actions(HilSerlConfig(), env.action_spec, engine.task.robot)
        assert isinstance(actions, CommandedGripper)
        assert actions.width_max == engine.task.robot.gripper.width_max
        with closing(make_operator(HilOperator(), engine)) as person:
            person.reset([0])


def test_session_without_a_robot_has_an_fr3() -> None:
    assert robot_label(HilEnvConfig()) == "fr3 mujoco"
