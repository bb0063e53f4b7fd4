"""FastTD3 and PQL from scratch in environments on a device: the steps of the same environments on
the host, what leaves the device, resumption and refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.load import load_module, load_policy
from policies.rl.collection.device_episodes import DeviceEnv
from policies.rl.collection.seeds import CountedSeeds
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.config import FastTd3Algorithm, FromScratchConfig, PqlAlgorithm
from policies.rl.from_scratch.device_env import DeviceStateEnv
from policies.rl.from_scratch.experience.device import LOOK_EVERY, DeviceExperience
from policies.rl.from_scratch.replay_files import REPLAY_FOLDER
from policies.rl.from_scratch.run import STATE
from policies.rl.from_scratch.train import train_from_scratch
from policies.rl.off_policy.config import OnlineConfig
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.device_buffer import DeviceReplay, DeviceSteps
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from tests.policies.kill import run_until_killed
from tests.policies.rl.collection.test_device_chunk_env import CountingStep
from tests.policies.rl.from_scratch.test_device_env import (
    HOST,
    META,
    SHAPING,
    Forgetful,
    N,
    Saved,
    Unstable,
    Unwatched,
    WalkingOnDevice,
    device_state_env,
)
from tests.policies.rl.from_scratch.test_off_policy import SMALL, curve, with_options
from tests.policies.rl.walking import LIMIT, Walking, solved_share
from tests.sim.stays import Stays

REPLAY = ReplayConfig(capacity=12 * N, discount=0.9, n_step=3)
ONLINE = OnlineConfig(batch_size=16)


def learned(
    config: FromScratchConfig, make: type[WalkingOnDevice], out: Path, progress: Progress
) -> dict[str, Any]:
    return train_from_scratch(config, "walking", partial(make, N), out, progress)


def experience(env: DeviceStateEnv) -> DeviceExperience:
    assert isinstance(SMALL.algorithm, FastTd3Algorithm)
    return DeviceExperience(SMALL.algorithm, env, ONLINE, REPLAY, seed=0)


def weights(out: Path) -> dict[str, Tensor]:
    return load_module(out)[0].state_dict()


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("whole")
    return out, learned(SMALL, Saved, out, no_progress)


def test_what_is_stored_is_what_the_host_stores_for_the_same_actions_and_starts() -> None:
    """All exactly, but rewards, which are shaped in double precision here."""
    host_env = StateEnv(Walking(N), ("place",), CountedSeeds(10), SHAPING)
    device_env = device_state_env(WalkingOnDevice(N))
    host, device = Replay(REPLAY, 1, 1), DeviceReplay(REPLAY, N, 1, 1, HOST)
    host_env.begin()
    device_env.begin()
    draws = np.random.default_rng(0)
    for _ in range(30):
        # Towards the middle, often far enough to solve it.
        towards_NA = draws.uniform(-0.7, 1.0, (N, 1)) * -np.sign(host_env.observation)
        action_NA = towards_NA.astype(np.float32)
        host.append(host_env.step(action_NA))
        before, number_N = device_env.observation(), device_env.step_index
        result = device_env.step(torch.from_numpy(action_NA))
        device.append(
            DeviceSteps(
                before,
                result.final_obs,
                torch.from_numpy(action_NA),
                result.reward_N,
                result.terminated_N,
                result.truncated_N,
                number_N,
            )
        )
    for name, column in device.columns.items():
        if name == "reward":
            np.testing.assert_allclose(column, host.columns[name], rtol=1e-5, atol=1e-6)
        else:
            assert np.array_equal(column.numpy(), host.columns[name]), name
    kinds = (device.columns["terminated"].sum(), device.columns["truncated"].sum())
    assert min(kinds) > 0, "episodes of both ends are compared"
    expected = host.transitions(np.arange(len(host)))
    got = device.transitions(torch.arange(len(device)))
    assert torch.equal(got.discount_B, expected.discount_B)
    assert torch.equal(got.next_obs.vector_BO, expected.next_obs.vector_BO)


def test_of_collection_and_losses_nothing_leaves_the_device() -> None:
    """On torch's device `meta`, whose numbers do not exist: reading one is an error, and so is an
    operator of two devices."""
    env = device_state_env(Unwatched(N, META), ("place",))
    # Neither random generator nor fused optimiser is of this device.
    env.device = HOST
    made = experience(env)
    learner, replay = made.learner, made.replay
    learner.networks.to(META)
    learner.noise.deviation_N = learner.noise.deviation_N.to(META)
    learner.statistics.mean = learner.statistics.mean.to(META)
    learner.statistics.squares = learner.statistics.squares.to(META)
    replay.columns = {name: column.to(META) for name, column in replay.columns.items()}
    made.begin()
    for number in range(15):
        made.collect(number * N, random=number < 2)
    assert {column.device for column in replay.columns.values()} == {META}
    batch = replay.sample(16, torch.Generator())
    critic_loss, metrics = learner.critic_loss(batch)
    actor_loss, _ = learner.actor_loss(batch)
    (critic_loss + actor_loss).backward()
    assert {value.device for value in metrics.values()} == {META}
    assert all(p.grad is not None for p in learner.networks.actor.parameters())


def test_of_collection_and_updates_nothing_is_read_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a CPU, with the optimisers."""
    made = experience(device_state_env(Unwatched(N)))
    made.begin()
    made.collect(0)
    metrics = made.update(0)
    copied: list[str] = []
    for name in ("numpy", "tolist", "item", "cpu", "__bool__", "__float__", "__int__"):
        original = getattr(Tensor, name)

        def watched(self: Tensor, *rest: Any, name: str = name, original: Any = original) -> Any:
            copied.append(name)
            return original(self, *rest)

        monkeypatch.setattr(Tensor, name, watched)
    with Stays() as stays:
        for number in range(1, 20):
            made.collect(number * N)
            metrics = made.update(number)
    monkeypatch.undo()
    assert (stays.left, copied) == ([], [])
    assert made.learner.updates == 20
    assert made.learner.policy_updates == 10
    assert np.isfinite([float(value) for value in metrics.values()]).all()
    with Stays() as stays:
        made.look()
    assert stays.left, "a look does read"


def test_a_run_leaves_a_policy_and_draws_a_start_for_every_one_that_was_taken(
    tmp_path: Path,
) -> None:
    made: list[WalkingOnDevice] = []

    def make() -> WalkingOnDevice:
        made.append(WalkingOnDevice(N))
        return made[0]

    metrics = train_from_scratch(SMALL, "walking", make, tmp_path, no_progress)
    # 37 collections after the start, 1.5 critic updates each; one policy update for two of them.
    assert (metrics["collections"], metrics["steps"], metrics["updates"]) == (40, 120, 55)
    assert metrics["policy_updates"] == 27
    assert metrics["episodes"] >= 40 * N // LIMIT - N
    assert [entry["episodes"] for entry in curve(tmp_path)] == sorted(
        entry["episodes"] for entry in curve(tmp_path)
    )
    assert not (tmp_path / STATE).exists()
    assert not (tmp_path / REPLAY_FOLDER).exists()
    assert made[0].closed
    seeds = made[0].seeds
    assert seeds == list(range(len(seeds)))
    assert len(seeds) - 64 >= metrics["episodes"], "every look replaces the starts that were taken"
    chunk = load_policy(tmp_path)(np.array([[[0.5]], [[-1.5]]]), np.zeros((2, 1, 1)))
    assert np.abs(chunk).max() <= 1.0
    assert float(load_module(tmp_path)[0].state_dict()["half_range"][0]) not in (0.0, 1.0)


@pytest.mark.parametrize("call", [4, 8])
def test_a_killed_run_ends_with_the_weights_it_would_have_had(
    call: int, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """The buffer has been full since collection 25, and steps were overwritten."""
    run_until_killed(call, learned, SMALL, Saved, tmp_path)
    assert curve(tmp_path) == curve(whole[0])[:call]
    metrics = learned(SMALL, Saved, tmp_path, no_progress)
    assert same(weights(whole[0]), weights(tmp_path))
    assert curve(tmp_path) == curve(whole[0])
    assert {name: metrics[name] for name in ("updates", "episodes")} == {
        name: whole[1][name] for name in ("updates", "episodes")
    }


def test_worlds_that_are_not_restored_exactly_give_other_weights(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run_until_killed(4, learned, SMALL, Saved, tmp_path)
    learned(SMALL, Forgetful, tmp_path, no_progress)
    assert not same(weights(whole[0]), weights(tmp_path))


def test_environments_that_cannot_be_saved_resume_with_new_episodes(tmp_path: Path) -> None:
    run_until_killed(4, learned, SMALL, WalkingOnDevice, tmp_path)
    before = curve(tmp_path)
    seeds = torch.load(tmp_path / STATE)["seeds"]
    made: list[WalkingOnDevice] = []

    def make() -> WalkingOnDevice:
        made.append(WalkingOnDevice(N))
        return made[0]

    metrics = train_from_scratch(SMALL, "walking", make, tmp_path, no_progress)
    assert curve(tmp_path)[:4] == before
    assert metrics["steps"] == 120
    assert metrics["episodes"] > before[-1]["episodes"]
    assert made[0].seeds[0] == seeds, "starts that were not drawn before"


def test_a_run_does_not_depend_on_how_often_it_is_saved(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Each checkpoint is a look, which draws starts and changes no step."""
    learned(with_options(save_every=40), Saved, tmp_path, no_progress)
    assert same(weights(whole[0]), weights(tmp_path))


def test_another_seed_is_another_policy(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    learned(replace(SMALL, seed=1), Saved, tmp_path, no_progress)
    assert not same(weights(whole[0]), weights(tmp_path))


def test_pql_is_trained_there_too(tmp_path: Path) -> None:
    assert isinstance(SMALL.algorithm, FastTd3Algorithm)
    learner = replace(
        PqlAlgorithm().learner,
        critic=SMALL.algorithm.learner.critic,
        actor=SMALL.algorithm.learner.actor,
    )
    algorithm = PqlAlgorithm(
        learner=learner,
        collections=10,
        batch_size=16,
        capacity=25,
        learning_starts=3,
        random_collections=2,
        save_every=5,
    )
    metrics = learned(replace(SMALL, algorithm=algorithm), Saved, tmp_path, no_progress)
    assert (metrics["updates"], metrics["policy_updates"]) == (7 * 8, 7 * 4)


class Blind(WalkingOnDevice):
    """An observation is lost at the third step of an episode; the place is not."""

    def observation(self) -> dict[str, Tensor]:
        lost_N1 = torch.where(self._steps == 2, torch.nan, 0.0)[:, None]
        return {name: value + lost_N1 for name, value in super().observation().items()}

    def step(self, action_NHA: Tensor) -> CountingStep:
        return super().step(torch.nan_to_num(action_NHA))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Unstable, "walking: a place is not finite"),
        (Blind, r"values of the entries \[\[0\]\], expected all of them finite"),
    ],
)
def test_values_that_are_not_finite_end_a_run_before_they_are_saved(
    make: type[WalkingOnDevice], message: str, tmp_path: Path
) -> None:
    with pytest.raises(HandoffError, match=message):
        learned(SMALL, make, tmp_path, no_progress)
    assert [*tmp_path.iterdir()] == []


def test_starts_suffice_between_two_looks() -> None:
    """Of episodes of eight steps, with the four starts of an environment that wait."""
    assert LOOK_EVERY <= 4 * 8


def test_it_learns_to_walk_to_the_middle(tmp_path: Path) -> None:
    """As on the host: from starts on both sides, whatever their distance."""
    assert isinstance(SMALL.algorithm, FastTd3Algorithm)
    config = with_options(
        collections=400,
        capacity=400,
        batch_size=64,
        save_every=100,
        learner=replace(
            SMALL.algorithm.learner, learning_rate=3e-3, actor_learning_rate=3e-3, weight_decay=0.0
        ),
    )
    learned(config, WalkingOnDevice, tmp_path, no_progress)
    assert solved_share(tmp_path) > 0.9


def test_a_buffer_that_does_not_fit_is_refused_and_the_environments_closed(tmp_path: Path) -> None:
    env = WalkingOnDevice(N)
    assert isinstance(env, DeviceEnv)
    with pytest.raises(
        HandoffError, match=r"GiB for \d+ steps, which the device cpu does not have"
    ):
        train_from_scratch(
            with_options(capacity=2**45), "walking", lambda: env, tmp_path, no_progress
        )
    assert env.closed
