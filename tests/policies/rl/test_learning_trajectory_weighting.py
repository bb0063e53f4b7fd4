"""B2: where 5 % of the trajectories are an expert's and the others random, drawing by advantage
makes IQL work.

Asked for: seeds 0 to 4, PointReach, 100 episodes each. With 95 % random trajectories advantage
weighting is at least 30 points above uniform draws, the negative control, and significantly so;
with expert trajectories alone uniform draws are not significantly better than it. Drawing the best
tenth alike is run beside it for comparison.

The bars and the seeds were fixed before any run; sizes and settings were chosen with seed 0 in
view.
"""

from functools import partial

import numpy as np
import pytest

from policies.rl.replay.trajectory_weighting import TrajectoryWeightingConfig
from tests.policies.rl.offline_arms import reach_success
from tests.toy_envs.comparison import better, compare

pytestmark = pytest.mark.slow

AW = TrajectoryWeightingConfig(kind="aw")
UNIFORM = TrajectoryWeightingConfig(kind="uniform")
TOP = TrajectoryWeightingConfig(kind="top")


def test_weighting_by_advantage_finds_the_expert_among_random_trajectories():
    scores = compare(
        {
            "aw": partial(reach_success, weighting=AW),
            "uniform": partial(reach_success, weighting=UNIFORM),
            "top": partial(reach_success, weighting=TOP),
        }
    )
    assert np.mean(scores["aw"]) - np.mean(scores["uniform"]) >= 0.3
    assert better(scores, "aw", "uniform")


def test_weighting_loses_nothing_where_all_trajectories_are_good():
    scores = compare(
        {
            "aw": partial(reach_success, weighting=AW, expert_share=1.0, episodes=100),
            "uniform": partial(reach_success, weighting=UNIFORM, expert_share=1.0, episodes=100),
        }
    )
    assert np.mean(scores["uniform"]) >= 0.3
    assert not better(scores, "uniform", "aw")
