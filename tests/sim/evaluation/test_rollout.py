import numpy as np
import pytest

from robots.errors import HandoffError
from sim.evaluation.agent import ChunkAgent, Chunking
from sim.evaluation.protocol import ScoreRule
from sim.evaluation.rollout import rollout
from tests.sim.line import Line

LINE = Chunking(fields=("place",), action_size=1, n_obs_steps=2, horizon=4, n_action_steps=2)
BEST = ScoreRule(of="reward", over="max")


class Recorder:
    """Answers chunk n with 10 n + (0, 1, 2, 3) and records its inputs."""

    def __init__(self):
        self.observations, self.noises = [], []

    def __call__(self, observation, noise):
        self.observations.append(observation[..., 0].tolist())
        self.noises.append(noise)
        chunk = 10.0 * (len(self.observations) - 1) + np.arange(4.0)
        return np.broadcast_to(chunk[:, None], (len(observation), 4, 1)).astype(np.float32)


def up_and_down(step):
    return (0.0, 0.2, 0.4, 0.1)[step]


def agent():
    return ChunkAgent(Recorder(), LINE)


def test_rollout_stops_when_all_environments_are_solved():
    env = Line(2, {0: 2, 1: 3}.__getitem__)
    episodes = rollout(agent(), env, [0, 1], 50, BEST)
    assert len(env.line.actions) == 3
    assert [(e.success, e.steps) for e in episodes] == [(True, 2), (True, 3)]


@pytest.mark.parametrize(
    ("rule", "score"),
    [
        (ScoreRule(of="reward", over="max"), 0.8),
        (ScoreRule(of="reward", over="sum"), 0.4 + 0.8 + 0.2),
        (ScoreRule(of="coverage", over="last"), 0.1),
        (ScoreRule(), 0.0),
    ],
)
def test_score_follows_the_rule(rule, score):
    episodes = rollout(agent(), Line(1, coverage=up_and_down), [0], 3, rule)
    assert episodes[0].score == pytest.approx(score)
    assert episodes[0].largest == {"coverage": 0.4}
    assert not episodes[0].success
    assert episodes[0].trajectory is None


class CostlyLine(Line):
    """Step n of an episode costs n, also after the episode has ended."""

    def step(self, action):
        result = super().step(action)
        return result._replace(info={**result.info, "cost": self.line.count.astype(float)})


def test_the_cost_of_an_episode_is_summed_until_it_ends():
    episodes = rollout(agent(), CostlyLine(2, {0: 2, 1: 4}.__getitem__), [0, 1], 50, BEST)
    assert [episode.cost for episode in episodes] == [1.0 + 2.0, 1.0 + 2.0 + 3.0 + 4.0]
    assert rollout(agent(), Line(1), [0], 3, BEST)[0].cost is None


def test_score_of_a_negative_reward_is_its_largest_value_not_zero():
    episodes = rollout(agent(), Line(1, coverage=lambda step: -1.0 / (1 + step)), [0], 3, BEST)
    assert episodes[0].score == pytest.approx(-0.5)


def test_environment_that_ended_adds_nothing_to_its_sum():
    env = Line(2, {0: 1, 1: 99}.__getitem__, lambda step: 0.5)
    episodes = rollout(agent(), env, [0, 1], 4, ScoreRule(of="reward", over="sum"))
    assert [episode.score for episode in episodes] == [1.0, 4.0]


def test_score_of_an_unknown_number_lists_what_the_environment_tells():
    with pytest.raises(
        HandoffError, match=r"'cover', this environment reports \['coverage', 'reward', 'success'\]"
    ):
        rollout(agent(), Line(1), [0], 1, ScoreRule(of="cover"))


class Passing(Line):
    """Solved at the second step only, and never over."""

    def step(self, action):
        result = super().step(action)
        return result._replace(info={**result.info, "success": self.line.count == 2})


def test_success_at_the_end_is_not_success_once():
    assert rollout(agent(), Passing(1), [0], 3, BEST, success="once")[0].success
    assert not rollout(agent(), Passing(1), [0], 3, BEST, success="at_end")[0].success
    assert rollout(agent(), Passing(1), [0], 2, BEST, success="at_end")[0].success


def test_actions_are_those_executed():
    episodes = rollout(agent(), Line(2, {0: 3, 1: 99}.__getitem__), [0, 1], 4, BEST)
    assert episodes[0].actions[:, 0].tolist() == [1, 2, 11]
    assert episodes[1].actions[:, 0].tolist() == [1, 2, 11, 12]


def test_recorded_action_stands_beside_the_observation_it_answers():
    episodes = rollout(agent(), Line(2, {0: 3, 1: 99}.__getitem__), [0, 1], 4, BEST, record=True)
    solved, other = (episode.trajectory for episode in episodes)
    assert solved is not None
    assert other is not None
    assert solved["place"][:, 0].tolist() == [0, 1, 2]
    assert solved["action"][:, 0].tolist() == [1, 2, 11]
    assert other["place"][:, 0].tolist() == [100, 101, 102, 103]


def test_watcher_is_shown_the_start_and_every_step():
    places = []
    rollout(
        agent(),
        Line(1),
        [2],
        3,
        BEST,
        watch=lambda observation: places.append(observation["place"][0, 0]),
    )
    assert places == [200, 201, 202, 203]


def test_a_specification_is_measured_from_the_first_observation_to_the_last():
    # Episodes at 0, 1, 2 and at 100, 101, .., 104, of 2 and 4 steps.
    env = Line(2, {0: 2, 1: 4}.__getitem__)
    formulas = {
        "small": "always place < 103",
        "there": "eventually[0, 0.3] place >= 102",
        "late": "eventually[0.3, 0.5] place >= 102",
    }
    episodes = rollout(agent(), env, [0, 1], 50, BEST, specifications=formulas)
    assert [episode.specifications for episode in episodes] == [
        {"small": 101.0, "there": -100.0, "late": -np.inf},
        {"small": -1.0, "there": 1.0, "late": 2.0},
    ]


def test_a_specification_of_another_field_is_refused():
    with pytest.raises(HandoffError, match="'near', character 8: unknown field 'plaice', did you"):
        rollout(agent(), Line(1), [0], 3, BEST, specifications={"near": "always plaice < 1"})
