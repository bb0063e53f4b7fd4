"""DeviceChunkEnv gives the same results as ChunkEnv through the host, in counting environments."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.policy import ChunkPolicy
from policies.rl.collection.chunk_collector import ChunkCollector
from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.collection.device_chunk_env import DeviceChunkEnv
from policies.rl.collection.device_episodes import DeviceEnv
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.collection.seeds import CountedSeeds
from robots.errors import HandoffError
from tests.policies.rl.collection.test_collector import policy
from tests.policies.rl.counting import LIMIT, Counting, SeeingCounting
from tests.policies.rl.finetuning.test_with_pictures import seeing_policy

N = 3
PAYS = RewardShaping(task=0.5, step=-0.1, progress=2.0, success=3.0, failure=-1.0)


class CountingStep(NamedTuple):
    observation: dict[str, Tensor]
    reward_NH: Tensor
    executed_N: Tensor
    terminated_N: Tensor
    truncated_N: Tensor
    success_N: Tensor


class OnDevice:
    """The counting environments as environments of a device, whose starts are drawn before they are
    needed."""

    def __init__(self, waiting: int = 20, inner: Counting | None = None) -> None:
        self.inner, self.num_envs, self.device = inner or Counting(N), N, torch.device("cpu")
        self.observation_spec, self.waiting = self.inner.observation_spec, waiting
        self.action_spec, self.rate_hz = self.inner.action_spec, self.inner.rate_hz
        self.max_steps = LIMIT
        self.pool: list[int] = []
        self.used = self.checked = 0
        self.shown: dict[str, np.ndarray] = {}
        self.ended = np.zeros(N, bool)

    def refill(self, seeds: Any) -> dict[str, np.ndarray]:
        self.pool += list(seeds)
        return {}

    def taken(self) -> int:
        return self.used + self.waiting - len(self.pool)

    def begin(self, size: int = 1) -> None:
        self._take(np.ones(N, bool), np.arange(N) // size)

    def reset_ended(self, ended_N: Tensor) -> None:
        over = ended_N.numpy()
        if over.any():
            self._take(over, np.cumsum(over) - 1)

    def _take(self, over: np.ndarray, order: np.ndarray) -> None:
        rows = np.flatnonzero(over)
        seeds = [self.pool[self.used + order[row]] for row in rows]
        self.used += int(order[rows].max()) + 1
        self.shown = self.inner.reset(seeds, rows.tolist())
        self.ended[rows] = False

    def save(self) -> None:
        return None

    def restore(self, state: dict[str, Any]) -> None:
        raise AssertionError("no state was saved")

    def observation(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(array.copy()) for name, array in self.shown.items()}

    def step(self, action_NHA: Tensor) -> CountingStep:
        begun, made = ~self.ended, self.inner.step(action_NHA.numpy().astype(float))
        self.ended |= made.terminated | made.truncated
        self.shown = made.observation
        flags = (
            made.terminated & begun,
            made.truncated & begun,
            made.info["success"] & made.terminated & begun,
        )
        columns = (
            torch.from_numpy(made.reward),
            torch.from_numpy(np.asarray(made.executed, np.int64)),
        )
        return CountingStep(
            self.observation(), *columns, *[torch.from_numpy(flag) for flag in flags]
        )

    def check(self) -> None:
        self.checked += 1

    def close(self) -> None: ...


class Draws:
    """Decides by chance and values what it sees by its first entry."""

    def __init__(self, of: ChunkPolicy) -> None:
        self._shape = of.chunk_shape

    def decide(self, obs: Tensor, generator: torch.Generator) -> Any:
        chunk = torch.randn((len(obs), *self._shape), generator=generator)
        return Decision(chunk, {"chunk": chunk[:, None]}, chunk[:, None], self.value(obs))

    def value(self, obs: Tensor) -> Tensor:
        return obs[:, -1, :1]


class Decision(NamedTuple):
    chunk_BHA: Tensor
    trace: dict[str, Tensor]
    log_prob_BKHA: Tensor
    value_BV: Tensor


def both(n_obs_steps: int = 2) -> tuple[ChunkCollector, ChunkCollector]:
    found = []
    kinds: list[tuple[Any, Any]] = [(ChunkEnv, Counting(N)), (DeviceChunkEnv, OnDevice())]
    for kind, env in kinds:
        of = policy(n_obs_steps)
        vec_env = kind(env, of, 2, CountedSeeds(100), 0.9, PAYS)
        found.append(ChunkCollector(vec_env, Draws(of), seed=5))
    return found[0], found[1]


@pytest.mark.parametrize("n_obs_steps", [1, 2])
def test_rollouts_are_those_through_the_host(n_obs_steps: int) -> None:
    through, resident = both(n_obs_steps)
    for _ in range(3):
        one, other = through.rollout(5), resident.rollout(5)
        for name, part, there in zip(one._fields, one, other, strict=True):
            if isinstance(part, Tensor):
                torch.testing.assert_close(there, part, msg=name)
        for collector in (through, resident):
            collector.statistics.flush()
        ended, expected = resident.statistics.ended, through.statistics.ended
        np.testing.assert_allclose(np.array(ended, float), np.array(expected, float), rtol=1e-6)
        assert resident.env.take_executed() == through.env.take_executed() > 0
        states, expected_states = (
            collector.env.visited_states() for collector in (resident, through)
        )
        torch.testing.assert_close(states, expected_states)
    assert through.statistics.episodes > N, "episodes ended and began anew"


@pytest.mark.parametrize(("history", "stride"), [(1, 1), (2, 1), (2, 50)])
def test_features_of_pictures_are_those_through_the_host(history: int, stride: int) -> None:
    """Of the newest steps, or of the first and the newest, before and after resets."""
    of, inner = seeing_policy(history, stride), SeeingCounting(N)
    inner.max_steps = LIMIT  # type: ignore[attr-defined]
    through = ChunkEnv(inner, of, 2, CountedSeeds(100), 0.9)
    resident = DeviceChunkEnv(OnDevice(inner=SeeingCounting(N)), of, 2, CountedSeeds(100), 0.9)
    chunk = torch.zeros(N, *of.chunk_shape)
    ended = 0
    for _ in range(6):
        shown = resident.observation()
        assert shown.shape == (N, *of.encoded_shape)
        torch.testing.assert_close(shown, through.observation())
        one, other = through.step(chunk), resident.step(chunk)
        torch.testing.assert_close(other.final_obs, one.final_obs)
        ended += int((one.terminated_N | one.truncated_N).sum())
    assert ended > N
    torch.testing.assert_close(resident.visited_states(), through.visited_states())


def test_pictures_go_whole_to_a_policy_that_encodes_nothing(monkeypatch) -> None:
    of = seeing_policy(1)
    monkeypatch.setattr(type(of), "encoded_shape", of.observation_shape)
    through = ChunkEnv(SeeingCounting(N), of, 2, CountedSeeds(100), 0.9)
    resident = DeviceChunkEnv(OnDevice(inner=SeeingCounting(N)), of, 2, CountedSeeds(100), 0.9)
    chunk = torch.zeros(N, *of.chunk_shape)
    for _ in range(5):
        shown, expected = resident.observation(), through.observation()
        assert set(shown.keys()) == {"vector", "camera"}
        for name in shown.keys():  # noqa: SIM118 - of a TensorDict
            torch.testing.assert_close(shown[name], expected[name])
        through.step(chunk)
        resident.step(chunk)
    states, expected = resident.visited_states(), through.visited_states()
    torch.testing.assert_close(states["camera"], expected["camera"])


def test_groups_begin_from_one_start_and_end_once() -> None:
    through, resident = both()
    one, other = (
        collector.episodes(3, 6, ("success", "return")) for collector in (through, resident)
    )
    torch.testing.assert_close(other.outcome_NM, one.outcome_NM)
    torch.testing.assert_close(other.length_TN, one.length_TN)
    with pytest.raises(HandoffError, match="3 environments cannot be split into groups of 2"):
        resident.env.begin_groups(2)


def test_starts_are_drawn_for_those_that_were_taken_and_faults_looked_for_before_every_rollout() -> (
    None
):
    _, resident = both()
    assert isinstance(resident.env, DeviceChunkEnv)
    env: Any = resident.env.env
    resident.rollout(5)
    taken, drawn, checked = env.taken(), len(env.pool), env.checked
    assert taken > N
    resident.rollout(1)
    assert (env.taken() < taken, len(env.pool)) == (True, drawn + taken)
    assert env.checked > checked


def test_it_is_known_by_what_it_does() -> None:
    assert isinstance(OnDevice(), DeviceEnv)
    assert not isinstance(Counting(N), DeviceEnv)
