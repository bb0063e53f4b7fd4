"""The pendulum moves and is rewarded as Gymnasium's."""

import numpy as np
import pytest

from tests.toy_envs.pendulum import Pendulum, mean_return

gymnasium = pytest.importorskip("gymnasium")


def test_every_step_equals_gymnasiums() -> None:
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=0)
    toy_env = Pendulum(1, seed=0)
    env.unwrapped.state = np.array([toy_env.angle[0], toy_env.velocity[0]])
    rng = np.random.default_rng(0)
    ends = []
    for step in range(200):
        # Runs of equal torque reach the speed limit, and actions beyond 1 the torque's.
        action = np.array([[np.sign(np.sin(step / 9.0)) * rng.uniform(0.5, 1.3)]])
        observation, reward, terminated, truncated, _ = env.step(2.0 * action[0])
        outcome = toy_env.step(action)
        np.testing.assert_allclose(outcome.final_observation[0], observation, atol=1e-6)
        assert outcome.reward[0] == pytest.approx(reward, abs=1e-10)
        assert (bool(outcome.terminated[0]), bool(outcome.truncated[0])) == (terminated, truncated)
        ends.append(truncated)
    assert ends == [False] * 199 + [True]
    env.close()


def test_starts_cover_the_circle_as_gymnasiums() -> None:
    toy_env = Pendulum(2000, seed=0)
    for values, limit in ((toy_env.angle, np.pi), (toy_env.velocity, 1.0)):
        assert np.abs(values).max() <= limit
        assert values.std() == pytest.approx(limit / np.sqrt(3.0), rel=0.05)


def test_the_expert_swings_up_and_holds() -> None:
    toy_env = Pendulum(100, seed=0)
    assert mean_return(toy_env, lambda _: toy_env.expert(), 100) > -250.0


def test_doing_nothing_does_not() -> None:
    toy_env = Pendulum(100, seed=0)
    assert mean_return(toy_env, lambda observation: np.zeros((len(observation), 1)), 100) < -900.0
