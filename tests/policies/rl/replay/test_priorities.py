"""Priorities worked by hand, and how often they are sampled."""

from __future__ import annotations

import numpy as np
import pytest

from policies.rl.replay.config import LapConfig
from policies.rl.replay.priorities import LapPriorities
from tests.policies.rl.replays import episode, replay_of


def test_a_priority_is_the_bounded_error_to_a_power():
    replay = replay_of(episode([1, 2, 4]))
    priorities = LapPriorities(LapConfig(exponent=0.5, floor=1.0), replay)
    priorities.admit()
    assert priorities.values[:3].tolist() == [1, 1, 1]
    priorities.update(np.array([0, 2]), np.array([9.0, 0.01]))
    assert priorities.values[:3].tolist() == [3, 1, 1]


def test_new_steps_have_the_largest_priority_so_far_also_behind_the_end_of_the_ring():
    replay = replay_of(episode([1, 2, 4]), capacity=4)
    priorities = LapPriorities(LapConfig(exponent=0.5), replay)
    priorities.admit()
    priorities.update(np.array([1]), np.array([16.0]))
    priorities.update(np.array([1]), np.array([4.0]))
    assert priorities.largest == 4.0
    replay.append(episode([8, 16], number=1))
    priorities.admit()
    # Slots 3 and, over the oldest step, 0.
    assert priorities.values.tolist() == [4, 2, 1, 4]
    priorities.admit()
    assert priorities.values.tolist() == [4, 2, 1, 4]


@pytest.mark.parametrize(("exponent", "expected"), [(1.0, 0.75), (0.0, 1 / 4)])
def test_steps_are_sampled_in_proportion_to_their_priorities(exponent: float, expected: float):
    replay = replay_of(episode([1, 2, 4, 8]))
    priorities = LapPriorities(LapConfig(exponent=exponent), replay)
    priorities.admit()
    priorities.update(np.arange(4), np.array([1.0, 9.0, 1.0, 1.0]))
    slots = priorities.sample(20_000, np.random.default_rng(0))
    # Four standard deviations.
    assert (slots == 1).mean() == pytest.approx(expected, abs=0.0125)


def test_a_loaded_state_samples_and_admits_as_the_saved_one():
    replay = replay_of(episode([1, 2, 4]), capacity=10)
    first, second = (LapPriorities(LapConfig(exponent=1.0), replay) for _ in range(2))
    first.admit()
    first.update(np.array([1]), np.array([5.0]))
    second.load_state_dict(first.state_dict())
    replay.append(episode([8], number=1))
    for priorities in (first, second):
        priorities.admit()
    assert first.values.tolist() == second.values.tolist() == [1, 5, 1, 5, 0, 0, 0, 0, 0, 0]
    drawn = [one.sample(50, np.random.default_rng(3)).tolist() for one in (first, second)]
    assert drawn[0] == drawn[1]
