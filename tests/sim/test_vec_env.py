from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.interfaces import EnvState
from sim.vec_env import EngineVecEnv, VecEnvConfig, next_seed
from tests.sim.walk import FAR, WalkEngine

NOISE = 0.01
"""Largest noise of one step of a walk [m]."""


def walks(num_envs: int = 2, **options: object) -> EngineVecEnv:
    return EngineVecEnv(WalkEngine(num_envs), VecEnvConfig(**options))  # type: ignore[arg-type]


def actions(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


def chunk(*rows: Sequence[float]) -> np.ndarray:
    return np.array(rows)[:, :, None]


def test_the_tasks_own_limit_holds_by_default() -> None:
    assert walks().max_steps == WalkEngine.max_steps == 50
    assert walks(max_steps=7).max_steps == 7


@pytest.mark.parametrize(("num_envs", "max_steps"), [(0, 5), (2, 0)])
def test_no_environments_and_no_steps_are_refused(num_envs: int, max_steps: int) -> None:
    with pytest.raises(HandoffError, match="both must be >= 1"):
        walks(num_envs, max_steps=max_steps)


def test_an_environment_that_ends_within_a_chunk_leaves_the_rest_of_it() -> None:
    # Environment 0 starts within 1 of zero and walks 1 per step, so it passes 4 after 4 to 6 of 8
    # steps; environment 1 stays.
    env = walks(max_steps=50)
    start = env.reset([1, 2])["place"][:, 0]
    step = env.step(chunk([1.0] * 8, [0.0] * 8))
    executed = int(step.executed[0])
    assert executed in (4, 5, 6)
    assert step.executed[1] == 8
    assert step.final_observation["place"][0, 0] == pytest.approx(
        start[0] + executed, abs=executed * NOISE
    )
    assert step.final_observation["place"][0, 0] >= FAR > step.reward[0, executed - 2]
    assert (step.reward[0, executed:] == 0.0).all()
    assert step.terminated.tolist() == [True, False]


def test_success_is_reported_although_the_environment_was_reset() -> None:
    env = walks(1)
    env.reset([1])
    step = env.step(chunk([1.0] * 8))
    assert step.info["success"].tolist() == [True]
    assert step.info["count"][0] == step.executed[0]
    assert step.observation["place"][0, 0] < 1.0


def test_success_at_the_limit_terminates_and_does_not_truncate() -> None:
    env = walks(1, on_end="freeze", max_steps=1)
    env.reset([1])
    step = env.step(actions(9.0))
    assert (step.terminated[0], step.truncated[0]) == (True, False)


def test_an_automatic_start_has_the_seed_of_its_episode() -> None:
    env = walks(2, max_steps=2)
    env.reset([3, 4])
    assert env.episode_seeds.tolist() == [3, 4]
    env.step(chunk([0.0] * 2, [0.0] * 2))
    assert env.episode_seeds.tolist() == [next_seed(3, 1), next_seed(4, 1)]
    observation = env.step(chunk([0.0] * 2, [0.0] * 2)).observation["place"]
    again = walks(2).reset([next_seed(3, 2), next_seed(4, 2)])["place"]
    np.testing.assert_array_equal(observation, again)
    assert len({next_seed(3, 1), next_seed(3, 2), next_seed(4, 1), next_seed(4, 2)}) == 4


def test_steps_are_counted_from_each_environments_own_start() -> None:
    env = walks(2)
    env.reset([1, 2])
    env.step(actions(0.0, 0.0))
    env.reset([3], env_ids=[1])
    env.step(actions(0.0, 0.0))
    assert env.steps.tolist() == [2, 1]


def test_a_frozen_environment_is_not_moved_by_an_engine_that_steps_all() -> None:
    env = EngineVecEnv(WalkEngine(2, steps_all=True), VecEnvConfig(on_end="freeze"))
    env.reset([1, 2])
    end = env.step(actions(9.0, 0.0)).observation["place"][0, 0]
    env.step(chunk([1.0] * 2, [0.0] * 2))
    step = env.step(actions(1.0, 0.0))
    assert step.observation["place"][0, 0] == end
    assert step.info["count"].tolist() == [1, 4]


def test_non_finite_numbers_name_the_environment_and_leave_a_dump(tmp_path: Path) -> None:
    env = walks(2, guard_steps=3, dump_folder=str(tmp_path))
    env.reset([5, 6])
    for _ in range(4):
        env.step(actions(0.1, 0.1))
    with pytest.raises(
        HandoffError, match=r"environment 1 \(seed 6, step 4\) has non-finite \['place'\]"
    ):
        env.step(actions(0.1, 101.0))
    dumps = list(tmp_path.glob("walk-*.npz"))
    assert len(dumps) == 1
    with np.load(dumps[0]) as dump:
        assert np.isnan(dump["now_place"]).all()
        assert dump["before_1_action"] == 101.0
        assert dump["before_3_action"] == 0.1
        assert "before_4_action" not in dump
        assert np.isfinite([dump["before_1_place"], dump["before_3_place"]]).all()
        assert (int(dump["seed"]), int(dump["step"])) == (6, 4)


def test_the_guard_watches_engines_that_cannot_save(tmp_path: Path) -> None:
    env = EngineVecEnv(WalkEngine(1, can_save=False), VecEnvConfig(dump_folder=str(tmp_path)))
    env.reset([5])
    with pytest.raises(HandoffError, match="non-finite"):
        env.step(actions(101.0))
    with np.load(next(tmp_path.iterdir())) as dump:
        assert dump["before_1_action"] == 101.0


def test_the_guard_lets_frozen_environments_be(tmp_path: Path) -> None:
    env = EngineVecEnv(
        WalkEngine(2, steps_all=True), VecEnvConfig(on_end="freeze", dump_folder=str(tmp_path))
    )
    env.reset([1, 2])
    env.step(actions(9.0, 0.0))
    env.step(actions(101.0, 0.0))
    assert list(tmp_path.iterdir()) == []


def test_a_restored_environment_continues_with_its_own_seeds() -> None:
    env = walks(1, max_steps=2)
    env.reset([3])
    env.step(chunk([0.0] * 2))
    state = env.save()
    env.reset([8])
    env.restore(state)
    assert env.episode_seeds.tolist() == [next_seed(3, 1)]


def test_a_state_of_other_environments_is_refused() -> None:
    env = walks(2)
    env.reset([1, 2])
    state = env.save()
    with pytest.raises(HandoffError, match="for 1 environments"):
        env.restore(state, env_ids=[0])
    del state["episode"]
    with pytest.raises(HandoffError, match=r"lacks \['episode'\]"):
        env.restore(state)


def test_the_engine_is_closed_once() -> None:
    engine = WalkEngine(1)
    env = EngineVecEnv(engine)
    env.close()
    env.close()
    assert engine.closed == 1


class Counting(WalkEngine):
    """Saves its steps under the name of the episodes' own."""

    def save(self) -> EnvState:
        return {**super().save(), "steps": np.zeros(self.num_envs)}


def test_an_engine_that_saves_a_field_of_the_episodes_is_an_error() -> None:
    env = EngineVecEnv(Counting(2), VecEnvConfig())
    env.reset([1, 2])
    with pytest.raises(HandoffError, match=r"saves \['steps'\].*Name them otherwise"):
        env.save()
