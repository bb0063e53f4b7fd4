from collections.abc import Iterator

import numpy as np
import pytest

from robots.interfaces import EnvState, VecEnv
from sim.engine import EngineState
from sim.vec_env import EngineVecEnv, VecEnvConfig
from tests.sim import conformance
from tests.sim.conformance import Check, checks_of, is_slow
from tests.sim.conformance_entries import ENTRIES, Entry, OnEnd
from tests.sim.walk import WalkEngine


@pytest.fixture(scope="module", autouse=True)
def shared_envs() -> Iterator[None]:
    yield
    conformance.close_idle()


@pytest.mark.parametrize(
    ("entry", "check"),
    [
        pytest.param(
            entry,
            check,
            id=f"{entry.name}-{check.__name__.removeprefix('check_')}",
            marks=(*entry.marks, *((pytest.mark.slow,) if is_slow(entry, check) else ())),
        )
        for entry in ENTRIES
        for check in checks_of(entry)
    ],
)
def test_engine_conforms(entry: Entry, check: Check) -> None:
    check(entry)


class DrawsBySlot(WalkEngine):
    def _noise(self, env_id: int) -> float:
        return super()._noise(env_id) + 1e-9 * env_id


class PullsNeighbours(WalkEngine):
    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        super().step(action, running)
        self.place[running] += 1e-9 * self.place.mean()


class ForgetsItsNoise(WalkEngine):
    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        super().restore(env_ids, state)
        self.count[env_ids] = 0


class RestoresAll(WalkEngine):
    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        super().restore(env_ids, state)
        self.place[:] = state["place"][0]


class KeepsItsArrays(WalkEngine):
    def read(self) -> EngineState:
        return super().read()._replace(observation={"place": self.place[:, None]})


class LeavesTheLastEpisode(WalkEngine):
    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        before = self.place[env_ids]
        super().reset(env_ids, seeds)
        self.place[env_ids] += 1e-9 * before


class ResetsAll(WalkEngine):
    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        super().reset(env_ids, seeds)
        self.count[:] = 0


class TellsInSingles(WalkEngine):
    def read(self) -> EngineState:
        return (
            super().read()._replace(observation={"place": self.place[:, None].astype(np.float32)})
        )


@pytest.mark.parametrize(
    ("engine", "check"),
    [
        (DrawsBySlot, conformance.check_an_environment_depends_on_its_seed_and_actions_only),
        (PullsNeighbours, conformance.check_an_environment_depends_on_its_seed_and_actions_only),
        (PullsNeighbours, conformance.check_a_partial_reset_leaves_the_others_alone),
        (ForgetsItsNoise, conformance.check_a_restored_state_has_the_saved_future),
        (RestoresAll, conformance.check_saved_rows_fit_into_any_environment),
        (KeepsItsArrays, conformance.check_earlier_arrays_are_not_overwritten),
        (KeepsItsArrays, conformance.check_the_final_observation_is_the_one_before_the_reset),
        (LeavesTheLastEpisode, conformance.check_a_second_episode_from_the_same_seed_is_the_first),
        (ResetsAll, conformance.check_a_partial_reset_leaves_the_others_alone),
        (TellsInSingles, conformance.check_arrays_are_as_specified),
    ],
)
def test_a_faulty_engine_is_caught(engine: type[WalkEngine], check: Check) -> None:
    def make(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
        return EngineVecEnv(engine(num_envs), VecEnvConfig(on_end=on_end, max_steps=max_steps))

    with pytest.raises(AssertionError):
        check(Entry("faulty", make))


def test_an_inexact_engine_is_held_to_its_tolerance() -> None:
    def make(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
        return EngineVecEnv(DrawsBySlot(num_envs), VecEnvConfig(on_end=on_end, max_steps=max_steps))

    conformance.check_an_environment_depends_on_its_seed_and_actions_only(
        Entry("walk", make, exact=False, tolerance=1e-6)
    )
    with pytest.raises(AssertionError):
        conformance.check_an_environment_depends_on_its_seed_and_actions_only(
            Entry("walk", make, exact=False, tolerance=1e-12)
        )
