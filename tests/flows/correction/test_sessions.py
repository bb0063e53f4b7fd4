"""The sessions of the eleven tasks: each is wired, and its environment, operator, observation, features
and actions fit one another."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from flows.correction.actor_process import learner_actions
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.stage import Stage
from flows.session.environment import make_operator, make_session_env, still_policy
from policies.rl.hil.algorithms import SessionData, set_up_learner
from policies.rl.hil.config import HilSerlConfig
from real.hil.actor_policy import ActorPolicy
from real.hil.interfaces import observation_vector
from robots.config import validate
from robots.wire.learner import Parameters
from robots.wire.steps import plain_steps
from sim.make import TASKS
from sim.scene.cameras import CamerasConfig

STAGES = (
    "demos",
    "clone",
    "classifier",
    "corrected",
    "scores",
    "rollouts",
    "teacher",
    "student",
    "bundle",
    "reference",
    "gate",
    "student_scores@teacher",
    "student_scores@student",
    "control",
)
WITHOUT_TWIN = {"push_t", "reach_by_name", "pick_by_name"}
FROM_PICTURES = ("lift_cube",)
"""Sessions whose learned policy is exported itself, since pictures are not imitated again."""
PICTURE_STAGES = {"demos", "clone", "classifier", "corrected", "scores", "bundle"}
STEPS = 50


def session(task: str) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages(read_recipe(f"hil/{task}"), fetch=False)}


@pytest.mark.parametrize("task", FROM_PICTURES)
def test_a_session_from_pictures_observes_no_object(task: str) -> None:
    made = session(task)
    assert set(made) == PICTURE_STAGES
    config = made["corrected"].config
    protocol = made["scores"].config.protocol
    assert (protocol.task, protocol.episodes) == (task, 100)
    assert protocol.options.get("rate_hz") == config.env.rate_hz
    assert validate(CamerasConfig, protocol.options["cameras"]) == config.env.cameras
    assert config.actor.pictures == ("image_front", "image_wrist")
    assert set(config.env.observation_fields) == {
        "grasp_pose",
        "target_offset",
        "width",
        "width_target",
    }
    assert "image_wrist" in made["classifier"].config.train.classifier.fields


@pytest.mark.parametrize("task", [task for task in TASKS if task not in FROM_PICTURES])
def test_every_task_has_a_session_from_demonstrations_to_a_gate(task: str) -> None:
    made = session(task)
    assert set(made) == {*STAGES, *(() if task in WITHOUT_TWIN else ("twin",))}
    for name in ("demos", "classifier", "corrected"):
        assert made[name].config.env == made["corrected"].config.env
        assert made[name].config.env.task == task
    protocol = made["scores"].config.protocol
    assert made["rollouts"].config.protocol == protocol
    assert (protocol.task, protocol.episodes) == (task, 100)
    env = made["corrected"].config.env
    assert protocol.options.get("rate_hz") == env.rate_hz
    assert protocol.options.get("instruction") == env.instruction
    for name in ("clone", "teacher"):
        assert made[name].config.policy.observation_fields == env.observation_fields


@pytest.mark.parametrize("task", TASKS)
def test_the_learner_acts_in_the_session_of_every_task(task: str) -> None:
    made = session(task)
    config = made["corrected"].config
    env, engine = make_session_env(config.env, on_end="reset")
    with closing(env), closing(make_operator(config.operator, engine, demonstrates=True)) as person:
        protocol = made["scores"].config.protocol
        assert protocol.max_steps == engine.task.max_steps
        classifier = made["classifier"].config.train.classifier
        assert set(classifier.fields) <= set(env.observation_spec)
        vector = observation_vector(env.observation_spec, config.env.observation_fields)
        actions = learner_actions(HilSerlConfig(), env.action_spec, engine.task.robot)
        still = still_policy(env.action_spec, engine.task.robot)
        # A person demonstrates.
        observation = env.reset([3])
        person.reset([3])
        rows: list[dict[str, Any]] = []
        for number in range(STEPS):
            intervention = person.intervene(still(observation), observation)
            assert intervention.intervening.all()
            action = actions.from_env(intervention.executed, observation)
            assert np.abs(action).max() <= 1.0
            before = vector(observation)
            step = env.step(intervention.executed)
            rows.append(
                {
                    "number": [number],
                    "observation": before,
                    "action": action,
                    "next_observation": vector(step.final_observation),
                }
            )
            observation = step.observation
            if step.terminated[0] or step.truncated[0]:
                person.reset([int(env.episode_seeds[0])])
        # A session from pictures has their feature maps.
        maps = tuple((name, 112, 6, 6) for name in config.actor.pictures)
        encoded = {name: np.zeros((STEPS, *shape), np.float16) for name, *shape in maps}
        columns = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        none = np.zeros(STEPS, bool)
        steps = plain_steps(
            episode=none,
            reward=none,
            terminated=none,
            truncated=none,
            demo=True,
            number=columns["number"],
            observation=columns["observation"],
            action=columns["action"],
            next_observation=columns["next_observation"],
        )._replace(pictures=encoded, next_pictures=encoded)
        # The learner of the session acts in the environment.
        fields = {name: env.observation_spec[name] for name in config.env.observation_fields}
        setup = set_up_learner(
            config.algorithm,
            SessionData(
                fields=fields,
                action=env.action_spec,
                demonstrations=[steps],
                relative_features=config.relative_features,
                scaled_features=config.scaled_features,
                maps=maps,
            ),
        )
        policy = ActorPolicy(Parameters(0, *setup.publish(setup.learner)))
        newest = {name: rows[-1:] for name, rows in encoded.items()}
        proposed = policy.act(vector(observation), np.random.default_rng(0), newest)
        executed = actions.to_env(proposed, observation)
        low, high = (np.array(bound) for bound in (env.action_spec.low, env.action_spec.high))
        assert ((executed >= low - 1e-6) & (executed <= high + 1e-6)).all()
        assert np.isfinite(env.step(executed).final_observation["grasp_pose"]).all()


def test_a_language_task_has_one_instruction_for_a_learner_that_reads_no_text() -> None:
    from robots.language.text import decode

    env, _ = make_session_env(session("reach_by_name")["corrected"].config.env, on_end="freeze")
    with closing(env):
        words = {decode(env.reset([seed])["instruction"])[0] for seed in range(8)}
    assert words == {"reach the red marker"}
