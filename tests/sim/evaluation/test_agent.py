from dataclasses import replace

import numpy as np
import pytest

from robots.control.noise import chunk_noise
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, encode
from robots.spec import ActionSpec
from sim.engines.gym_push_t import PushTVecEnv
from sim.evaluation.agent import ChunkAgent, Chunking, RandomAgent, ReplayAgent, chunking_under
from sim.evaluation.protocol import ChunkRule, Protocol, Sampling
from sim.evaluation.rollout import rollout
from tests.sim.evaluation.test_rollout import BEST, LINE, Recorder
from tests.sim.line import Line

PROTOCOL = Protocol(name="p", engine="gym", task="t", max_steps=9)


class Seeing(Line):
    """A line whose environments also observe a picture of 2 px, as bright as the count of steps."""

    def _observation(self):
        observation = super()._observation()
        count = (observation["place"] % 100).astype(np.uint8)
        return {
            **observation,
            "camera": np.broadcast_to(count[:, :, None, None], (len(count), 1, 2, 3)),
        }


class Shown(Recorder):
    """Keeps all that it is shown."""

    def __init__(self):
        super().__init__()
        self.inputs = []

    def __call__(self, observation, noise):
        self.inputs.append(observation)
        return super().__call__(observation.vector, noise)


def test_execution_starts_at_the_action_of_the_newest_observation():
    env = Line(1)
    rollout(ChunkAgent(Recorder(), LINE), env, [0], 5, BEST)
    assert np.concatenate(env.line.actions).tolist() == [1, 2, 11, 12, 21]


def test_first_observation_is_repeated_and_newest_is_last():
    policy = Recorder()
    rollout(ChunkAgent(policy, LINE), Line(1), [3], 4, BEST)
    assert policy.observations == [[[300, 300]], [[301, 302]]]


def test_second_episode_does_not_see_the_first():
    policy = Recorder()
    agent = ChunkAgent(policy, LINE)
    rollout(agent, Line(1), [3], 3, BEST)
    rollout(agent, Line(1), [4], 1, BEST)
    assert policy.observations[-1] == [[400, 400]]


def test_an_ensemble_asks_at_every_step_and_averages_all_predictions():
    env, policy = Line(1), Recorder()
    rollout(ChunkAgent(policy, replace(LINE, ensemble=0.0)), env, [0], 3, BEST)
    plain = Line(1)
    rollout(ChunkAgent(Recorder(), replace(LINE, n_action_steps=1)), plain, [0], 3, BEST)
    first, second, third = (float(action[0]) for action in plain.line.actions)
    assert len(policy.observations) == 3
    # The stub's chunk is its number times ten and counts up along the horizon.
    expected = [first, (first + 1 + second) / 2, (first + 2 + second + 1 + third) / 3]
    assert np.concatenate(env.line.actions).ravel().tolist() == pytest.approx(expected)


def test_policy_is_asked_for_running_environments_only():
    policy = Recorder()
    rollout(ChunkAgent(policy, LINE), Line(3, {0: 1, 1: 99, 2: 3}.__getitem__), [0, 1, 2], 6, BEST)
    assert [len(rows) for rows in policy.observations] == [3, 2, 1]
    assert policy.observations[2] == [[103, 104]]


def test_noise_depends_on_seed_and_chunk_only():
    alone, together = Recorder(), Recorder()
    rollout(ChunkAgent(alone, LINE), Line(1), [8], 4, BEST)
    rollout(ChunkAgent(together, LINE), Line(2, {7: 1, 8: 99}.__getitem__), [7, 8], 4, BEST)
    np.testing.assert_array_equal(alone.noises[0][0], together.noises[0][1])
    np.testing.assert_array_equal(alone.noises[1][0], together.noises[1][0])
    np.testing.assert_array_equal(alone.noises[1][0], chunk_noise(8, 1, 4, 1))
    assert not np.array_equal(chunk_noise(8, 0, 4, 1), chunk_noise(8, 1, 4, 1))


def test_protocol_can_take_the_noise_away():
    policy = Recorder()
    rollout(ChunkAgent(policy, LINE, Sampling(noise="zero")), Line(1), [8], 1, BEST)
    assert policy.noises[0].tolist() == [[[0.0], [0.0], [0.0], [0.0]]]


def test_nan_names_policy_output_index_and_value():
    def policy(observation, noise):
        chunk = np.zeros_like(noise)
        chunk[1, 2, 0] = np.nan
        return chunk

    with pytest.raises(
        HandoffError, match=r"policy output: value at index \(1, 2, 0\) is nan.*seed 6"
    ):
        rollout(ChunkAgent(policy, LINE), Line(2), [5, 6], 2, BEST)


def test_wrong_shape_names_both_shapes():
    agent = ChunkAgent(lambda observation, noise: noise[:, :3], LINE)
    with pytest.raises(
        HandoffError, match=r"policy output: shape \(1, 3, 1\), expected \(1, 4, 1\)"
    ):
        rollout(agent, Line(1), [5], 2, BEST)


def test_more_actions_than_the_chunk_holds_are_refused():
    with pytest.raises(HandoffError, match=r"n_action_steps is 4, expected 1\.\.3"):
        ChunkAgent(Recorder(), Chunking(horizon=4, n_obs_steps=2, n_action_steps=4))


def test_unknown_field_lists_what_the_environment_has():
    with pytest.raises(HandoffError, match=r"no field \['keypoints', 'agent'\].*\['place'\]"):
        rollout(ChunkAgent(Recorder(), Chunking()), Line(1), [5], 2, BEST)


def test_a_policy_that_sees_is_shown_the_history_of_every_sensor():
    policy = Shown()
    rollout(ChunkAgent(policy, replace(LINE, sensors=("camera",))), Seeing(1), [3], 4, BEST)
    assert [given.sensors["camera"][0, :, 0, 0, 0].tolist() for given in policy.inputs] == [
        [0, 0],
        [1, 2],
    ]
    assert policy.inputs[0].sensors["camera"].shape == (1, 2, 1, 2, 3)
    assert policy.inputs[0].sensors["camera"].dtype == np.uint8
    assert policy.observations == [[[300, 300]], [[301, 302]]]
    assert policy.inputs[0].instructions == ()


def test_a_blind_policy_is_shown_black_pictures_and_all_else():
    policy = Shown()
    blind = replace(LINE, sensors=("camera",), blind=True)
    rollout(ChunkAgent(policy, blind), Seeing(1), [3], 4, BEST)
    assert [given.sensors["camera"].any() for given in policy.inputs] == [False, False]
    assert policy.inputs[1].sensors["camera"].shape == (1, 2, 1, 2, 3)
    assert policy.observations == [[[300, 300]], [[301, 302]]]


def test_pictures_of_running_environments_only_are_shown():
    policy = Shown()
    agent = ChunkAgent(policy, replace(LINE, sensors=("camera",)))
    rollout(agent, Seeing(3, {0: 1, 1: 99, 2: 3}.__getitem__), [0, 1, 2], 6, BEST)
    assert [len(given.sensors["camera"]) for given in policy.inputs] == [3, 2, 1]


def test_a_language_conditioned_policy_gets_its_instruction_in_every_environment():
    policy = Shown()
    rollout(ChunkAgent(policy, replace(LINE, instruction="go on")), Line(2), [3, 4], 1, BEST)
    assert policy.inputs[0].instructions == ("go on", "go on")
    assert policy.inputs[0].sensors == {}


class Speaking(Line):
    """A line whose environments ask for something in words."""

    def _observation(self):
        observation = super()._observation()
        texts = [f"go to {int(place)}" for place in observation["place"][:, 0] // 100]
        return {**observation, INSTRUCTION: encode(texts, 16)}


def test_a_policy_that_listens_gets_every_environments_instruction():
    policy = Shown()
    agent = ChunkAgent(policy, replace(LINE, instruction="go on", listens=True))
    rollout(agent, Speaking(3, {3: 1, 4: 99, 5: 99}.__getitem__), [3, 4, 5], 4, BEST)
    assert policy.inputs[0].instructions == ("go to 3", "go to 4", "go to 5")
    # The first environment has ended.
    assert policy.inputs[1].instructions == ("go to 4", "go to 5")


def test_words_given_come_before_those_of_the_environments():
    policy = Shown()
    rollout(ChunkAgent(policy, replace(LINE, instruction="go on")), Speaking(2), [3, 4], 1, BEST)
    assert policy.inputs[0].instructions == ("go on", "go on")


def test_a_policy_that_listens_gets_its_own_instruction_without_the_environments():
    policy = Shown()
    rollout(
        ChunkAgent(policy, replace(LINE, instruction="go on", listens=True)), Line(1), [3], 1, BEST
    )
    assert policy.inputs[0].instructions == ("go on",)


def test_a_policy_may_see_pictures_and_nothing_else():
    shapes = []

    def policy(observation, noise):
        shapes.append(observation.vector.shape)
        return noise

    rollout(
        ChunkAgent(policy, replace(LINE, fields=(), sensors=("camera",))), Seeing(1), [3], 1, BEST
    )
    assert shapes == [(1, 2, 0)]


def test_an_environment_without_the_camera_is_named_with_the_likely_cause():
    agent = ChunkAgent(Shown(), replace(LINE, sensors=("camera",)))
    with pytest.raises(
        HandoffError,
        match=r"no field \['camera'\]; the environment has \['place'\].*without cameras",
    ):
        rollout(agent, Line(1), [5], 2, BEST)


def test_push_t_observation_is_18_keypoint_numbers_then_the_agent():
    env = PushTVecEnv(1)
    start = env.reset([4])
    inputs = []

    def policy(observation, noise):
        inputs.append(observation)
        return np.broadcast_to(observation[:, -1:, 18:], noise.shape)

    rollout(ChunkAgent(policy, Chunking()), env, [4], 1, BEST)
    assert inputs[0].shape == (1, 2, 20)
    assert inputs[0].dtype == np.float32
    np.testing.assert_array_equal(inputs[0][0, 1, :18], start["keypoints"][0].ravel())
    np.testing.assert_array_equal(inputs[0][0, 1, 18:], start["agent"][0])


def test_protocol_rules_how_often_a_policy_plans_anew():
    rule = Protocol(
        name="p", engine="gym", task="t", max_steps=9, chunk=ChunkRule(n_action_steps=1)
    )
    assert chunking_under(rule, LINE).n_action_steps == 1
    assert chunking_under(PROTOCOL, LINE) == LINE


def test_protocol_cannot_rule_a_horizon_that_the_network_has_not():
    rule = Protocol(name="p", engine="gym", task="t", max_steps=9, chunk=ChunkRule(horizon=16))
    with pytest.raises(HandoffError, match=r"chunk\.horizon is 16, this agent has 4"):
        chunking_under(rule, LINE)


def test_random_actions_lie_within_bounds_and_follow_the_seed_not_the_neighbours():
    spec = ActionSpec(low=(-1.0, 2.0), high=(1.0, 3.0))
    alone, together = RandomAgent(spec), RandomAgent(spec)
    alone.reset([8])
    together.reset([7, 8])
    for running in ([True, True], [False, True]):
        one, two = alone.act({}, np.array([True])), together.act({}, np.array(running))
        np.testing.assert_array_equal(one[0], two[1])
        assert not np.array_equal(two[0], two[1])
        assert (two >= spec.low).all()
        assert (two <= spec.high).all()


def test_random_actions_need_bounds():
    with pytest.raises(HandoffError, match="expected finite bounds"):
        RandomAgent(ActionSpec(low=(0.0,), high=(np.inf,)))


def test_replay_repeats_the_last_action_after_its_end():
    agent = ReplayAgent([np.array([[1.0], [2.0]]), np.array([[3.0]])])
    agent.reset([0, 1])
    assert [agent.act({}, np.ones(2, dtype=bool))[:, 0].tolist() for _ in range(2)] == [
        [1, 3],
        [2, 3],
    ]


def test_a_stride_observes_earlier_steps() -> None:
    seen: list[np.ndarray] = []

    def policy(observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        seen.append(observation[0, :, 0].copy())
        return np.ones_like(noise)

    chunking = Chunking(
        fields=("place",),
        action_size=1,
        n_obs_steps=2,
        observation_stride=3,
        horizon=2,
        n_action_steps=1,
    )
    agent = ChunkAgent(policy, chunking)
    agent.reset([1])
    for place in range(6):
        agent.act({"place": np.array([[float(place)]])}, np.array([True]))
    assert [history.tolist() for history in seen] == [
        [0, 0],
        [0, 1],
        [0, 2],
        [0, 3],
        [1, 4],
        [2, 5],
    ]
