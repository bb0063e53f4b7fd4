import numpy as np
import pytest

from sim.evaluation.agent import RandomAgent
from sim.evaluation.failure_videos import choose_episodes, write_failure_videos
from sim.evaluation.protocol import Protocol
from sim.evaluation.rollout import EpisodeResult, rollout
from tests.sim.line import Line, make_line

PROTOCOL = Protocol(name="line", engine="gym", task="line", first_seed=0, episodes=2, max_steps=5)


def _episodes(outcomes):
    return [
        EpisodeResult(i, 0.0, solved, 1, {}, np.zeros((1, 1))) for i, solved in enumerate(outcomes)
    ]


@pytest.mark.parametrize(
    ("outcomes", "videos", "seeds"),
    [
        ([1, 0, 1, 0, 0, 1], 4, [1, 3, 4, 0]),
        ([1, 1, 0, 1], 3, [2, 0, 1]),
        ([0, 0, 0], 2, [0, 1]),
        ([1, 1, 1], 2, [0, 1]),
        ([1, 0], 1, [1]),
        ([1, 0], 9, [1, 0]),
    ],
)
def test_failures_come_first_and_leave_one_place_for_a_success(outcomes, videos, seeds):
    assert [
        episode.seed for episode in choose_episodes(_episodes(map(bool, outcomes)), videos)
    ] == seeds


def test_replays_that_differ_are_not_exact(tmp_path):
    env = make_line(2)
    episodes = rollout(RandomAgent(env.action_spec), env, [0, 1], 5, PROTOCOL.score)
    other = Line(2, lambda seed: 4)
    assert [
        shown["exact"] for shown in write_failure_videos(other, episodes, PROTOCOL, tmp_path)
    ] == [False, False]
    assert [
        shown["exact"] for shown in write_failure_videos(make_line(2), episodes, PROTOCOL, tmp_path)
    ] == [
        True,
        True,
    ]
