"""The worlds of a session have the robot that it names."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from flows.hil.actor_process import learner_actions
from flows.session.config import HilOperator, HilWorld
from flows.session.worlds import make_operator, make_session_worlds, robot_label, standing_still
from robots.control.gripper_commands import CommandedHand
from robots.franka import find_robot


def test_session_simulates_and_records_the_robot_that_it_names() -> None:
    config = HilWorld(task="pick_cube", robot="panda", observation_fields=())
    env, engine = make_session_worlds(config, on_end="freeze")
    with closing(env):
        assert engine.task.robot is find_robot("panda")
        assert engine.model.joint(0).name == "panda_joint1"
        assert robot_label(config) == "panda mujoco"
        observation = env.reset([0])
        still = standing_still(env.action_spec, engine.task.robot)(observation)
        # To hold an open gripper is to be told its whole stroke again.
        np.testing.assert_allclose(still, [[0.0, 0.0, 0.0, 0.0, 1.0]], atol=1e-6)
        actions = learner_actions(env.action_spec, engine.task.robot)
        assert isinstance(actions, CommandedHand)
        assert actions.width_max == engine.task.robot.gripper.width_max
        with closing(make_operator(HilOperator(), engine)) as person:
            person.reset([0])


def test_session_without_a_robot_has_an_fr3() -> None:
    assert robot_label(HilWorld()) == "fr3 mujoco"
