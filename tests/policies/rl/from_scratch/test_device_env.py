"""PPO from scratch in environments on a device: the rollouts of the same environments on the host,
what leaves the device, resumption and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.load import load_policy
from policies.rl.collection.collector import Collector
from policies.rl.collection.device_episodes import DeviceEnv
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.collection.seeds import CountedSeeds
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.actor_critic import StateActorCritic
from policies.rl.from_scratch.config import (
    FromScratchConfig,
    PpoAlgorithm,
    PpoLagrangianAlgorithm,
    RlpdAlgorithm,
    SacAlgorithm,
)
from policies.rl.from_scratch.device_env import DeviceStateEnv
from policies.rl.from_scratch.rollout_env import StateRolloutEnv
from policies.rl.from_scratch.run import CURVE, STATE
from policies.rl.from_scratch.train import check_resident, train_from_scratch
from policies.rl.replay.transitions import Sizes
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.spec import ActionSpec
from tests.policies.kill import run_until_killed
from tests.policies.rl.collection.test_device_chunk_env import CountingStep
from tests.policies.rl.from_scratch.test_on_policy import PLAIN
from tests.policies.rl.walking import LIMIT, NEAR, Walking

N = 3
WAITING = 64
SHAPING = RewardShaping(task=0.5, step=-0.1, progress=2.0, success=3.0)
HOST, META = torch.device("cpu"), torch.device("meta")


class WalkingOnDevice:
    """The environments `Walking` as tensors of a device, from starts that are drawn in advance."""

    rate_hz = Walking.rate_hz
    waiting = WAITING

    def __init__(self, num_envs: int, device: torch.device = HOST) -> None:
        self.num_envs, self.device, self.closed = num_envs, device, False
        self._starts = Walking(WAITING)
        self.observation_spec = dict(self._starts.observation_spec)
        self.action_spec = self._starts.action_spec
        self.drawn = 0
        self._next = torch.zeros((), dtype=torch.int64, device=device)
        self._pool = torch.zeros(0, dtype=torch.float64, device=device)
        self._place = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._ended = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._broken = torch.zeros((), dtype=torch.bool, device=device)

    @property
    def seeds(self) -> list[int]:
        return self._starts.seeds

    def refill(self, seeds: Any) -> dict[str, np.ndarray]:
        rows = (self.drawn + np.arange(len(seeds))) % WAITING
        self._starts.reset(seeds, rows.tolist())
        self.drawn += len(seeds)
        places = self._starts.place.tolist()
        self._pool = torch.tensor(places, dtype=torch.float64, device=self.device)
        return {}

    def taken(self) -> int:
        return int(self._next) + WAITING - self.drawn

    def begin(self, size: int = 1) -> None:
        every = torch.ones_like(self._ended)
        self._take(every, torch.arange(self.num_envs, device=self.device) // size)

    def reset_ended(self, ended_N: Tensor) -> None:
        self._take(ended_N, ended_N.long().cumsum(0) - 1)

    def _take(self, ended_N: Tensor, order_N: Tensor) -> None:
        start_N = self._pool[(self._next + order_N) % WAITING]
        self._next = self._next + torch.where(ended_N, order_N + 1, 0).max()
        self._place = torch.where(ended_N, start_N, self._place)
        self._steps = torch.where(ended_N, 0, self._steps)
        self._ended = self._ended & ~ended_N

    def observation(self) -> dict[str, Tensor]:
        place_N1 = self._place[:, None]
        return {"place": place_N1, "twice": 2.0 * place_N1}

    def step(self, action_NHA: Tensor) -> CountingStep:
        assert action_NHA.shape == (self.num_envs, 1, 1), "one action at a time"
        running_N = ~self._ended
        moved_N = self._place + 0.5 * action_NHA[:, 0, 0]
        self._place = torch.where(running_N, moved_N, self._place)
        self._steps = self._steps + running_N
        solved_N = running_N & (self._place.abs() < NEAR)
        late_N = running_N & ~solved_N & (self._steps >= LIMIT)
        self._ended = self._ended | solved_N | late_N
        self._broken = self._broken | ~torch.isfinite(self._place).all()
        reward_NH = torch.where(running_N, -self._place.abs(), 0.0)[:, None]
        flags = (solved_N, late_N, solved_N)
        return CountingStep(self.observation(), reward_NH, running_N.long(), *flags)

    def check(self) -> None:
        if self._broken:
            raise HandoffError("walking: a place is not finite.")

    def save(self) -> dict[str, Any] | None:
        return None

    def restore(self, state: dict[str, Any]) -> None:
        raise AssertionError("no state was saved")

    def close(self) -> None:
        self.closed = True


class Saved(WalkingOnDevice):
    """Saves its state."""

    ARRAYS = ("_next", "_pool", "_place", "_steps", "_ended")

    def save(self) -> dict[str, Any] | None:
        arrays = {name: getattr(self, name).clone() for name in self.ARRAYS}
        return {**arrays, "drawn": self.drawn, "starts": self._starts.place.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        for name in self.ARRAYS:
            setattr(self, name, state[name])
        self.drawn = state["drawn"]
        # The starts that wait are replaced in turn, as they would have been.
        self._starts.reset([0] * WAITING)
        self._starts.place[:] = state["starts"]


class Forgetful(Saved):
    """Restores all but where the episodes are."""

    def restore(self, state: dict[str, Any]) -> None:
        super().restore({**state, "_place": 0.5 * state["_place"]})


class Unwatched(WalkingOnDevice):
    """Reads nothing between rollouts, either."""

    def taken(self) -> int:
        return 0

    def check(self) -> None: ...


class Unstable(WalkingOnDevice):
    """A place is lost at the third step of an episode."""

    def step(self, action_NHA: Tensor) -> CountingStep:
        lost_N1 = torch.where(self._steps == 2, torch.nan, 0.0)[:, None]
        return super().step(action_NHA + lost_N1[:, None])


def device_state_env(env: DeviceEnv, fields: tuple[str, ...] = ("place",)) -> DeviceStateEnv:
    return DeviceStateEnv(env, fields, CountedSeeds(10), SHAPING, 0.9)


def actor_critic(std: float) -> StateActorCritic:
    assert isinstance(PLAIN.algorithm, PpoAlgorithm)
    options = replace(PLAIN.algorithm, init_std=std)
    return StateActorCritic(options, Sizes(observation=1, action=1), 1, seed=0)


def learned(make: type[WalkingOnDevice], out: Path, progress: Progress) -> dict[str, Any]:
    return train_from_scratch(PLAIN, "walking", partial(make, N), out, progress)


def curve(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / CURVE).read_text().splitlines()]


def test_it_is_known_by_what_it_does() -> None:
    assert isinstance(WalkingOnDevice(N), DeviceEnv)
    assert not isinstance(Walking(N), DeviceEnv)


def test_rollouts_are_those_through_the_host() -> None:
    """With actions that often leave [-1, 1] and are clipped."""
    state_env = StateEnv(Walking(N), ("place",), CountedSeeds(10), SHAPING)
    device_env = device_state_env(WalkingOnDevice(N))
    through, resident = (
        Collector(env, model.actor, model.critic, 0.9, seed=5)
        for env, model in (
            (StateRolloutEnv(state_env, 0.9, None), actor_critic(1.5)),
            (device_env, actor_critic(1.5)),
        )
    )
    resident.statistics = device_env.statistics
    through.begin()
    resident.begin()
    for _ in range(3):
        expected, rollout = through.rollout(8), resident.rollout(8)
        for name, column, other in zip(expected._fields, expected, rollout, strict=True):
            if isinstance(column, Tensor):
                torch.testing.assert_close(other, column, rtol=1e-5, atol=1e-6, msg=name)
        resident.statistics.flush()
        ended, counted = state_env.statistics.ended, device_env.statistics.ended
        np.testing.assert_allclose(
            [(one.success, one.length, one.total_reward) for one in counted],
            [(one.success, one.length, one.total_reward) for one in ended],
            rtol=1e-5,
            atol=1e-6,
        )
    assert {one.success for one in device_env.statistics.ended} == {True, False}
    assert device_env.statistics.episodes > 3 * N


def test_of_a_rollout_nothing_leaves_the_device() -> None:
    """On torch's device `meta`, whose numbers do not exist: reading one is an error, and so is an
    operator of two devices."""
    env = device_state_env(Unwatched(N, META), ("place", "twice"))
    algorithm = PLAIN.algorithm
    assert isinstance(algorithm, PpoAlgorithm)
    model = StateActorCritic(algorithm, Sizes(observation=2, action=1), 1, seed=0).to(META)
    # There is no random generator of this device, which takes any.
    env.device = HOST
    collector = Collector(env, model.actor, model.critic, 0.9)
    collector.begin()
    rollout = collector.rollout(3)
    columns = [column for column in rollout if isinstance(column, Tensor)]
    assert {column.device for column in columns} == {META}
    assert len(columns) > 7


def test_what_leaves_the_device_is_an_error() -> None:
    numbers = torch.ones(3, device=META)
    for leave in (Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.nonzero, Tensor.all):
        with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
            assert leave(numbers)
    with pytest.raises(RuntimeError, match="device meta"):
        torch.add(numbers, torch.ones(3))


def test_a_run_leaves_a_policy_and_draws_a_start_for_every_one_that_was_taken(
    tmp_path: Path,
) -> None:
    made: list[WalkingOnDevice] = []

    def make() -> WalkingOnDevice:
        made.append(WalkingOnDevice(N))
        return made[0]

    metrics = train_from_scratch(PLAIN, "walking", make, tmp_path, no_progress)
    assert (metrics["rollouts"], metrics["steps"], metrics["updates"]) == (12, 12 * 8 * N, 12)
    assert metrics["episodes"] >= 12 * 8 * N // LIMIT - N
    assert [entry["episodes"] for entry in curve(tmp_path)] == sorted(
        {entry["episodes"] for entry in curve(tmp_path)}
    )
    assert not (tmp_path / STATE).exists()
    assert made[0].closed
    seeds = made[0].seeds
    assert seeds == list(range(len(seeds)))
    assert len(seeds) > WAITING
    chunk = load_policy(tmp_path)(np.array([[[0.5]], [[-1.5]]]), np.zeros((2, 1, 1)))
    assert np.abs(chunk).max() <= 1.0


def test_a_killed_run_continues_with_new_episodes(tmp_path: Path) -> None:
    run_until_killed(2, learned, WalkingOnDevice, tmp_path)
    before = curve(tmp_path)
    seeds = torch.load(tmp_path / STATE)["seeds"]
    made: list[WalkingOnDevice] = []

    def make() -> WalkingOnDevice:
        made.append(WalkingOnDevice(N))
        return made[0]

    metrics = train_from_scratch(PLAIN, "walking", make, tmp_path, no_progress)
    assert curve(tmp_path)[:2] == before
    assert metrics["steps"] == 12 * 8 * N
    assert metrics["episodes"] > before[-1]["episodes"]
    assert made[0].seeds[0] == seeds, "starts that were not drawn before"


def _without_time(out: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in entry.items() if k != "cpu_seconds"} for entry in curve(out)]


def test_a_killed_run_in_saved_worlds_is_the_one_that_was_not_killed(tmp_path: Path) -> None:
    """To the last bit of the policy; worlds that are not restored exactly give another one."""
    chunks = []
    for name, killed, resumed in (
        ("whole", None, Saved),
        ("killed", Saved, Saved),
        ("forgetful", Saved, Forgetful),
    ):
        out = tmp_path / name
        out.mkdir()
        if killed is not None:
            run_until_killed(2, learned, killed, out)
        learned(resumed, out, no_progress)
        policy = load_policy(out)
        chunks.append(policy(np.array([[[0.5]], [[-1.5]]]), np.zeros((2, 1, 1))))
    assert np.array_equal(chunks[0], chunks[1])
    assert _without_time(tmp_path / "whole") == _without_time(tmp_path / "killed")
    assert not np.array_equal(chunks[0], chunks[2])


def test_broken_values_end_a_run_before_anything_is_learned_from_them(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="walking: a place is not finite"):
        learned(Unstable, tmp_path, no_progress)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"algorithm": PpoLagrangianAlgorithm()},
            "algorithms ppo, fast_td3 and pql, not ppo_lagrangian: such environments report no cost",
        ),
        (
            {"algorithm": SacAlgorithm()},
            "not sac: it acts on the host, where its replay buffer is. Set resident: false, or use one",
        ),
        ({"image_fields": ("rear",)}, r"no pictures of the cameras \['rear'\]"),
        ({"fields": ("plaice",)}, r"fields \['plaice'\] are configured"),
    ],
)
def test_what_does_not_run_on_a_device_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config: FromScratchConfig = replace(PLAIN, **changes)
    env = WalkingOnDevice(N)
    with pytest.raises(HandoffError, match=message):
        train_from_scratch(config, "walking", lambda: env, tmp_path, no_progress)
    assert env.closed


def test_demonstrations_do_not_make_rlpd_run_on_a_device() -> None:
    with pytest.raises(HandoffError, match="not rlpd: it acts on the host"):
        check_resident(replace(PLAIN, algorithm=RlpdAlgorithm()))


def test_actions_with_other_bounds_are_refused() -> None:
    env = WalkingOnDevice(N)
    env.action_spec = ActionSpec(low=(-2.0,), high=(1.0,))
    with pytest.raises(HandoffError, match="expected -1 to 1 in every entry"):
        device_state_env(env)
