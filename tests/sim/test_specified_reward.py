"""Rewards from specifications, on a walk whose place is observed and on the tasks of the arm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policies.rl.collection.reward_shaping import RewardShaping, last_task_reward
from robots.errors import HandoffError
from robots.specifications.formula import observed_fields
from robots.specifications.parser import parse
from robots.specifications.quantities import resolve
from robots.specifications.robustness import robustness
from sim.evaluation.protocol import Protocol, check_protocol
from sim.make import EnvConfig, make_device_env, make_vec_env
from sim.servers.config import ServerConfig
from sim.specified_reward import SpecifiedReward, SpecifiedRewardConfig
from sim.vec_env import EngineVecEnv, VecEnvConfig
from tests.sim.walk import WalkEngine

FORMULAS = {
    "arrives": "eventually[0, 1] always[0, 0.1] (place[0] > 2)",
    "careful": "always (place[0] < 3) and (place[0] > -5 until place[0] > 1)",
}


def specified(num_envs: int, bound: float = 10.0, max_steps: int = 20, **formulas: str):
    config = SpecifiedRewardConfig(specifications=formulas or FORMULAS, bound=bound)
    engine = SpecifiedReward(WalkEngine(num_envs), config, max_steps)
    return EngineVecEnv(engine, VecEnvConfig(on_end="freeze", max_steps=max_steps))


def expected(places_T: list[float], bound: float = 10.0) -> float:
    fields = {"place": np.array(places_T)[:, None]}
    spec = WalkEngine.observation_spec
    each = [
        robustness(resolve(parse(text, name), spec, 20.0, name), fields, 20.0)[0]
        for name, text in FORMULAS.items()
    ]
    return float(np.clip(each, -bound, bound).sum())


def test_a_step_is_worth_the_robustness_of_the_episode_so_far() -> None:
    """Of environments that end at different steps, in a history of their own each."""
    env = specified(3)
    rng = np.random.default_rng(0)
    places = [[place] for place in env.reset([0, 1, 2])["place"][:, 0]]
    lengths = set()
    for _ in range(20):
        step = env.step(rng.uniform(-0.2, 0.9, (3, 1)))
        for i in np.flatnonzero(step.executed):
            places[i].append(step.final_observation["place"][i, 0])
            assert step.reward[i] == pytest.approx(expected(places[i]), abs=1e-12)
        lengths.add(tuple(len(one) for one in places))
    assert len({len(one) for one in places}) > 1, "the episodes ended together"
    own = WalkEngine(1)
    own.reset(np.array([0]), np.array([0]))
    assert own.read().reward[0] != pytest.approx(expected(places[0][:1]))


def test_its_increases_add_up_to_the_robustness_of_the_episode() -> None:
    env = specified(1)
    places = [float(env.reset([5])["place"][0, 0])]
    shaping = RewardShaping(task=0.0, progress=1.0)
    previous, paid, first = np.full(1, np.nan), 0.0, 0.0
    for _ in range(15):
        step = env.step(np.full((1, 1), 0.3))
        if not step.executed[0]:
            break
        places.append(float(step.final_observation["place"][0, 0]))
        first = first or float(step.reward[0])
        reward, length, none = step.reward[:, None], np.ones(1, np.int64), np.zeros(1, bool)
        paid += float(shaping.shaped_reward(reward, length, none, none, previous)[0, 0])
        previous = last_task_reward(reward, length, previous, none)
    assert paid == pytest.approx(expected(places) - first, abs=1e-5)
    assert paid > 1.0


def test_a_robustness_counts_within_the_bound() -> None:
    """Before an interval begins it is infinite."""
    env = specified(1, bound=0.25, later="always[0.5, 1] (place[0] < 3)", now="place[0] > 100")
    env.reset([0])
    assert env.step(np.zeros((1, 1))).reward[0] == pytest.approx(0.25 - 0.25)
    alone = specified(1, bound=0.25, later="always[0.5, 1] (place[0] < 3)")
    alone.reset([0])
    assert alone.step(np.zeros((1, 1))).reward[0] == 0.25


def test_what_is_satisfied_has_a_bonus() -> None:
    rewards = {}
    for bonus in (0.0, 0.5):
        config = SpecifiedRewardConfig(specifications=FORMULAS, bound=10.0, bonus=bonus)
        env = EngineVecEnv(
            SpecifiedReward(WalkEngine(1), config, 20),
            VecEnvConfig(on_end="freeze", max_steps=20),
        )
        env.reset([0])
        rewards[bonus] = [float(env.step(np.full((1, 1), 0.6)).reward[0]) for _ in range(5)]
    bonuses = np.subtract(rewards[0.5], rewards[0.0])
    # It is careful once it is beyond 1 m, arrives with the next step, and then goes too far.
    np.testing.assert_allclose(bonuses, [0.0, 0.5, 1.0, 1.0, 0.5])


def test_a_state_goes_on_in_another_environment_with_its_history() -> None:
    env = specified(2)
    env.reset([0, 1])
    for _ in range(4):
        env.step(np.array([[0.5], [-0.2]]))
    state = env.save()
    other = specified(2)
    other.reset([7, 8])
    other.restore({name: array[::-1] for name, array in state.items()})
    there = other.step(np.array([[-0.2], [0.5]])).reward
    here = env.step(np.array([[0.5], [-0.2]])).reward
    assert np.array_equal(there, here[::-1])
    assert here[0] != here[1]


@pytest.mark.parametrize(
    "other", [{"max_steps": 30}, {"arrives": "eventually (place[0] > 2)", "max_steps": 21}]
)
def test_a_state_with_another_limit_is_refused(other: dict) -> None:
    env = specified(1)
    env.reset([0])
    changed = specified(1, **other)
    changed.reset([0])
    with pytest.raises(HandoffError, match="Was it saved with other specifications"):
        changed.restore(env.save())


def test_a_diverged_environment_is_reported_as_without_it(tmp_path) -> None:
    engine = SpecifiedReward(WalkEngine(1), SpecifiedRewardConfig(specifications=FORMULAS), 20)
    env = EngineVecEnv(engine, VecEnvConfig(on_end="freeze", dump_folder=str(tmp_path)))
    env.reset([0])
    with pytest.raises(HandoffError, match="non-finite"):
        env.step(np.full((1, 1), 200.0))


REACHED = {"near": "eventually (distance(grasp_pose[0:3], goal) < 0.02)"}


def test_the_arm_is_rewarded_by_it() -> None:
    """As the approach to the goal grows, and in worker processes alike."""
    config = EnvConfig(
        task="reach",
        specified_reward=SpecifiedRewardConfig(specifications=REACHED),
        on_end="freeze",
    )
    rewards = []
    for workers in (1, 2):
        env = make_vec_env(replace(config, workers=workers), 2)
        seen = env.reset([3, 4])
        nearest = np.linalg.norm(seen["grasp_pose"][:, :3] - seen["goal"], axis=1)
        gone = []
        for _ in range(5):
            step = env.step(np.full((2, env.action_spec.size), 0.5))
            gaps = step.observation["grasp_pose"][:, :3] - step.observation["goal"]
            nearest = np.minimum(nearest, np.linalg.norm(gaps, axis=1))
            np.testing.assert_allclose(step.reward, 0.02 - nearest, atol=1e-12)
            gone.append(step.reward)
        rewards.append(gone)
        env.close()
    assert np.array_equal(rewards[0], rewards[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "isaaclab"},
        {"engine": "server", "server": ServerConfig(engine="gym", venv="gym_hil")},
    ],
)
def test_engines_that_would_ignore_it_refuse_it(changes: dict) -> None:
    config = EnvConfig(specified_reward=SpecifiedRewardConfig(specifications=REACHED), **changes)
    with pytest.raises(HandoffError, match=r"ignores .*specified_reward"):
        make_vec_env(config, 1)


def test_environments_on_a_device_refuse_it() -> None:
    config = EnvConfig(
        engine="warp",
        resident=True,
        on_end="freeze",
        specified_reward=SpecifiedRewardConfig(specifications=REACHED),
    )
    with pytest.raises(HandoffError, match=r"ignores .*specified_reward"):
        make_device_env(config, 1)


def test_a_formula_that_does_not_fit_is_refused_before_anything_runs() -> None:
    options = {"specified_reward": {"specifications": {"near": "always (width < 0.1)"}}}
    protocol = Protocol(name="reach", engine="mujoco", task="reach", max_steps=60, options=options)
    with pytest.raises(HandoffError, match=r"'near'.*width"):
        check_protocol(protocol)
    with pytest.raises(HandoffError, match="'near', character"):
        SpecifiedRewardConfig(specifications={"near": "always always"})


def test_the_fields_that_a_formula_reads() -> None:
    text = "eventually[0, 1] (a.norm < b[2] + max(c, 1)) and not (a.x > 0 until d < 1)"
    assert observed_fields(parse(text, "all")) == ("a", "b", "c", "d")
    assert observed_fields(parse("1 < 2", "none")) == ()
