"""Acting and learning in turn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import OnlineConfig, SacConfig, updates_due
from policies.rl.off_policy.online import (
    MinibatchSampler,
    OnlineProgress,
    learn_online,
    store,
)
from policies.rl.off_policy.sac import Sac
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Sizes, Transitions
from robots.errors import HandoffError
from robots.wire.steps import Steps
from tests.toy_envs.person import Person, PersonConfig, collector
from tests.toy_envs.point_maze import PointMaze
from tests.toy_envs.toy_env import demonstrations


class Still:
    """Acts by standing still, and writes down what it is taught with."""

    def __init__(self) -> None:
        self.taught: list[list[Transitions]] = []

    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """Nothing."""
        return np.zeros((len(vector_NO), 2), np.float32)

    def update(self, minibatches: Sequence[Transitions]) -> dict[str, Any]:
        """Keeps them."""
        self.taught.append(list(minibatches))
        return {"rows": minibatches[-1].rows}

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


def buffers() -> tuple[Replay, Replay]:
    """An empty replay, and one of two demonstrations of the maze."""
    config = ReplayConfig(capacity=2000)
    replay, demos = Replay(config, 2, 2), Replay(config, 2, 2)
    for steps in demonstrations(PointMaze(1, 100), 2):
        demos.append(steps)
    return replay, demos


def test_exactly_half_of_a_minibatch_is_from_the_demonstrations() -> None:
    replay, demos = buffers()
    toy_env = PointMaze(1)
    for _ in range(30):
        replay.append(toy_env.transition(np.zeros((1, 2)))[0])
    rng = np.random.default_rng(0)
    for share, expected in ((0.5, 32), (0.25, 16), (0.0, 0), (1.0, 64)):
        batch = MinibatchSampler(OnlineConfig(batch_size=64, demo_share=share), replay, demos)(rng)
        assert batch.rows == 64
        assert int(batch.demo_B.sum()) == expected
        # Only the demonstrations' actions are not zero.
        assert int((batch.action_BA != 0).any(dim=1).sum()) == expected


def test_if_one_buffer_is_empty_all_rows_come_from_the_other() -> None:
    replay, demos = buffers()
    rng = np.random.default_rng(0)
    config = OnlineConfig(batch_size=10)
    assert int(MinibatchSampler(config, replay, demos)(rng).demo_B.sum()) == 10
    replay.append(PointMaze(1).transition(np.zeros((1, 2)))[0])
    empty = Replay(ReplayConfig(capacity=10), 2, 2)
    for without in (empty, None):
        batch = MinibatchSampler(config, replay, without)(rng)
        assert (batch.rows, int(batch.demo_B.sum())) == (10, 0)
    with pytest.raises(HandoffError, match="0 steps are stored"):
        MinibatchSampler(config, empty, None)(rng)


def test_impossible_sizes_are_refused() -> None:
    replay, demos = buffers()
    for wrong in (
        OnlineConfig(batch_size=0),
        OnlineConfig(minibatches=0),
        OnlineConfig(demo_share=1.5),
    ):
        with pytest.raises(HandoffError, match="online: batch_size"):
            MinibatchSampler(wrong, replay, demos)


def test_a_correction_goes_to_both_buffers_with_the_action_that_was_executed() -> None:
    replay, demos = buffers()
    before = len(demos)
    maze = PointMaze(1)
    person = Person(maze, PersonConfig(probability=1.0, patience=2, hold=3, half_life=10**9))
    collected: list[Steps] = []
    for _ in range(8):
        collected.append(collector(maze, person)(Still(), np.random.default_rng(0)))
        store(collected[-1], replay, demos)
    corrected = [steps for steps in collected if steps.intervention[0]]
    assert [bool(steps.intervention[0]) for steps in collected] == [False] * 2 + [True] * 3 + [
        False
    ] * 2 + [True]
    assert all((steps.action != 0).any() and (steps.proposed == 0).all() for steps in corrected)
    assert len(replay) == 8
    assert len(demos) == before + 4
    rows = demos.transitions(np.arange(before, before + 4))
    np.testing.assert_array_equal(
        rows.action_BA.numpy(), np.concatenate([steps.action for steps in corrected])
    )
    assert rows.intervention_B.all()
    everything = replay.transitions(np.arange(8))
    np.testing.assert_array_equal(
        everything.action_BA.numpy(), np.concatenate([steps.action for steps in collected])
    )


def test_updates_due_are_exact_whatever_the_fraction() -> None:
    tenth = OnlineConfig(updates_per_step=0.1, training_starts=100)
    assert [updates_due(tenth, steps) for steps in (0, 100, 109, 110, 199, 200, 1_000_100)] == [
        0,
        0,
        0,
        1,
        9,
        10,
        100_000,
    ]
    assert updates_due(OnlineConfig(updates_per_step=4.0, training_starts=5), 7) == 8


@pytest.mark.parametrize("num_envs", [1, 4])
def test_numbers_of_updates_and_minibatches_are_as_configured(num_envs: int) -> None:
    replay, demos = buffers()
    config = OnlineConfig(batch_size=6, updates_per_step=0.5, minibatches=3, training_starts=8)
    learner, calls = Still(), []
    done = learn_online(
        learner,
        MinibatchSampler(config, replay, demos),
        collector(PointMaze(num_envs)),
        config,
        20,
        watch=lambda progressed, metrics: calls.append((progressed, dict(metrics))),
    )
    assert done == OnlineProgress(20, 6)
    assert [len(minibatches) for minibatches in learner.taught] == [3] * 6
    assert all(
        batch.rows == 6 and int(batch.demo_B.sum()) == 3
        for batches in learner.taught
        for batch in batches
    )
    assert len(replay) == 20
    assert [progressed.steps for progressed, _ in calls] == list(range(num_envs, 21, num_envs))
    assert calls[0] == (OnlineProgress(num_envs, 0), {})
    assert calls[-1] == (OnlineProgress(20, 6), {"rows": 6})


def test_the_first_actions_are_uniform_with_random_steps() -> None:
    replay, demos = buffers()
    config = OnlineConfig(batch_size=4, training_starts=10_000)
    learn_online(
        Still(),
        MinibatchSampler(config, replay, demos),
        collector(PointMaze(4)),
        config,
        60,
        random_steps=40,
    )
    action = replay.transitions(np.arange(60)).action_BA
    assert (action[:40] != 0).all()
    assert (action[40:] == 0).all()
    assert action[:40].min() < -0.5
    assert action[:40].max() > 0.5


def small_run() -> tuple[Sac, MinibatchSampler, PointMaze, Person, OnlineConfig]:
    """A run of a few units in two environments, with a person."""
    sizes = MlpSizes(hidden=(8,))
    learner = Sac(SacConfig(critic=sizes, actor=sizes), Sizes(observation=2, action=2), seed=3)
    config = OnlineConfig(batch_size=8, updates_per_step=0.3, minibatches=2, training_starts=10)
    maze = PointMaze(2, seed=5)
    return (
        learner,
        MinibatchSampler(config, *buffers()),
        maze,
        Person(maze, PersonConfig(probability=0.5)),
        config,
    )


def test_a_resumed_run_continues_bit_for_bit() -> None:
    learner, batches, maze, person, config = small_run()
    whole = learn_online(learner, batches, collector(maze, person), config, 80, seed=1)

    first, halves, place, helper, _ = small_run()
    halfway = learn_online(first, halves, collector(place, helper), config, 34, seed=1)
    second, fresh, _, _, _ = small_run()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    fresh.replay.load_state_dict(halves.replay.state_dict())
    assert fresh.demos is not None
    assert halves.demos is not None
    fresh.demos.load_state_dict(halves.demos.state_dict())
    place, helper = copy.deepcopy((place, helper))
    again = learn_online(
        second, fresh, collector(helper.toy_env, helper), config, 80, seed=1, begin=halfway
    )

    assert (halfway, whole, again) == (
        OnlineProgress(34, 7),
        OnlineProgress(80, 21),
        OnlineProgress(80, 21),
    )
    expected, got = learner.networks.state_dict(), second.networks.state_dict()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    np.testing.assert_array_equal(
        batches.replay.transitions(np.arange(80)).action_BA,
        fresh.replay.transitions(np.arange(80)).action_BA,
    )
