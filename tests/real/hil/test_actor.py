"""The acting loop, on an environment of two counters that end on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from real.hil.actor import Actor, ActorConfig, ActorStep
from real.hil.actor_policy import ActorPolicy
from real.hil.interfaces import ScaledActions, ScaledWallClock, observation_vector
from real.hil.journal import Journal
from real.hil.rewards import ClassifierReward, SuccessVersion
from robots.errors import HandoffError
from robots.interfaces import Intervention, Label, Observation, Requests, Step
from robots.spec import ActionSpec, FieldSpec
from robots.success import DetectorConfig
from robots.wire.learner import EPISODES_PER_START, JournalEntry, decode
from robots.wire.shared_pictures import RECEIVED_EPISODES, SharedPictures
from robots.wire.steps import Steps, concatenate_steps
from tests.real.hil.made import parameters

POLICY = ActorPolicy(parameters(version=42))


class Counters:
    """N environments that observe (start, steps, 0); they end by success at `success_at` and by
    time at `limit`."""

    def __init__(self, num_envs: int = 1, success_at: int = 10**6, limit: int = 10**6) -> None:
        self.num_envs, self.rate_hz = num_envs, 10.0
        self.success_at, self.limit = success_at, limit
        self.observation_spec: Mapping[str, FieldSpec] = {
            "state": FieldSpec(shape=(3,)),
            "wrist": FieldSpec(shape=(2, 2, 3), dtype="uint8", unit="u8"),
        }
        self.action_spec = ActionSpec(low=(-1.0, -1.0), high=(1.0, 1.0))
        self.start, self.steps = np.zeros(num_envs), np.zeros(num_envs)
        self.resets: list[tuple[list[int], list[int] | None]] = []
        self.actions: list[np.ndarray] = []
        self.frozen = np.zeros(num_envs, bool)
        self.bad = False

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> Observation:
        self.resets.append((list(seeds), None if env_ids is None else list(env_ids)))
        rows = np.arange(self.num_envs) if env_ids is None else np.asarray(env_ids)
        self.start[rows], self.steps[rows] = seeds, 0
        return self.observation()

    def observation(self) -> Observation:
        numbers = np.stack(
            [self.start % 1000, self.steps, np.full(self.num_envs, np.nan if self.bad else 0.0)],
            axis=1,
        )
        wrist = np.broadcast_to(
            self.steps.astype(np.uint8)[:, None, None, None], (self.num_envs, 2, 2, 3)
        ).copy()
        return {"state": numbers, "wrist": wrist}

    def step(self, action: np.ndarray) -> Step:
        self.actions.append(action.copy())
        self.steps += ~self.frozen
        success, over = self.steps >= self.success_at, self.steps >= self.limit
        final = self.observation()
        for row in np.flatnonzero(success | over):
            self.start[row], self.steps[row] = self.start[row] + 1, 0
        return Step(
            observation=self.observation(),
            reward=np.full(self.num_envs, 0.25),
            terminated=success,
            truncated=over & ~success,
            final_observation=final,
            info={"success": success},
            executed=(~self.frozen).astype(np.int64),
        )

    def save(self):
        raise AssertionError

    def restore(self, state, env_ids=None):
        raise AssertionError

    def close(self) -> None:
        """Nothing to free."""


class Person:
    """Acts (0.5, 1) at the given steps, and gives the given labels before the steps
    named."""

    def __init__(self, acts: Sequence[int] = (), says: dict[int, Requests] | None = None) -> None:
        self.acts, self.says = acts, says or {}
        self.steps = self.asked = 0
        self.resets: list[tuple[list[int], list[int] | None]] = []

    def reset(self, seeds, env_ids=None) -> None:
        self.resets.append((list(seeds), None if env_ids is None else list(env_ids)))

    def intervene(
        self, proposed: np.ndarray, observation: Observation | None = None
    ) -> Intervention:
        acts = self.steps in self.acts
        self.steps += 1
        n = len(proposed)
        executed = np.tile([0.5, 1.0], (n, 1)) if acts else proposed
        flags = np.full(n, acts)
        return Intervention(proposed, executed, flags, flags - 1, 6 * flags, "Ada", "keys")

    def requests(self) -> Requests:
        self.asked += 1
        return self.says.pop(self.steps, Requests())

    def status(self) -> str:
        return ""

    def close(self) -> None:
        """No device."""


class Source:
    """What a link offers."""

    def __init__(self, policy: ActorPolicy | None = POLICY) -> None:
        self.policy, self.paused = policy, False


def written(journal: Journal) -> list[Steps]:
    messages = [
        decode(journal.frame(number)) for number in range(journal.first_number, journal.next_number)
    ]
    shared = SharedPictures(RECEIVED_EPISODES)
    return [
        message.steps
        if message.own_pictures is None
        else shared.complete(message.steps, message.own_pictures)
        for message in messages
        if isinstance(message, JournalEntry)
    ]


def acted(
    folder: Path, env: Counters, steps: int, person: Person | None = None, **options
) -> Steps:
    """All steps that one run commits."""
    config = options.pop("config", None)
    with Journal(folder) as journal:
        before = journal.next_number
        Actor(env, person or Person(), journal, Source(), config, **options).run(steps)
        return concatenate_steps(written(journal)[before:])


def test_a_person_s_action_is_executed_and_stored_and_the_proposal_beside_it(
    tmp_path: Path,
) -> None:
    env = Counters()
    steps = acted(tmp_path, env, 4, Person(acts=[1, 2]))
    assert steps.intervention.tolist() == [False, True, True, False]
    assert steps.action[1].tolist() == [0.5, 1.0]
    assert np.array_equal(steps.action[[0, 3]], steps.proposed[[0, 3]])
    assert not np.allclose(steps.proposed[1], steps.action[1])
    assert np.allclose(np.concatenate(env.actions), steps.action)
    assert steps.policy_version.tolist() == [42] * 4
    assert steps.observation[:, 1].tolist() == [0, 1, 2, 3]
    assert steps.next_observation[:, 1].tolist() == [1, 2, 3, 4]


class FirstSteps:
    """A guide for the first two steps of each episode."""

    def propose(
        self,
        episode: np.ndarray,
        number: np.ndarray,
        observation: Observation,
        proposed: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        guided = number < 2
        return np.where(guided[:, None], [0.25, -1.0], proposed), guided


def test_a_guide_proposes_in_place_of_the_learner_and_a_person_overrules_it(tmp_path: Path) -> None:
    env = Counters(limit=3)
    steps = acted(tmp_path, env, 6, Person(acts=[1]), guide=FirstSteps())
    assert steps.number.tolist() == [0, 1, 2, 0, 1, 2]
    assert steps.policy_version.tolist() == [-2, -2, 42, -2, -2, 42]
    assert steps.proposed[[0, 1, 3, 4]].tolist() == [[0.25, -1.0]] * 4
    assert steps.action[1].tolist() == [0.5, 1.0]
    assert not np.allclose(steps.proposed[2], [0.25, -1.0])
    assert steps.proposed.dtype == np.float32


def test_episodes_end_with_their_true_last_observation_and_are_numbered_anew(
    tmp_path: Path,
) -> None:
    env, person = Counters(num_envs=2, limit=3), Person()
    steps = acted(tmp_path, env, 4, person)
    own = steps.episode - EPISODES_PER_START
    assert own.tolist() == [0, 1, 0, 1, 0, 1, 2, 3]
    assert steps.number.tolist() == [0, 0, 1, 1, 2, 2, 0, 0]
    assert steps.truncated.tolist() == [False] * 4 + [True] * 2 + [False] * 2
    assert not steps.terminated.any()
    assert steps.next_observation[4:6, 1].tolist() == [3, 3]
    assert steps.observation[6:, 1].tolist() == [0, 0]
    assert [vec_env for _, vec_env in person.resets] == [[0, 1], [0, 1]]
    assert person.resets[1][0] == [EPISODES_PER_START + 2, EPISODES_PER_START + 3]


def test_a_restarted_actor_uses_no_episode_number_and_no_start_again(tmp_path: Path) -> None:
    first, second = Counters(), Counters()
    before, after = acted(tmp_path, first, 2), acted(tmp_path, second, 2)
    assert before.episode.tolist() == [EPISODES_PER_START] * 2
    assert after.episode.tolist() == [2 * EPISODES_PER_START] * 2
    assert first.resets != second.resets


def test_the_same_start_of_a_journal_repeats_itself(tmp_path: Path) -> None:
    a, b = (acted(tmp_path / name, Counters(limit=3), 7) for name in "ab")
    assert np.array_equal(a.action, b.action)
    assert np.array_equal(a.observation, b.observation)


def test_a_classifier_ends_the_episode_and_the_environment_that_did_not_notice_is_reset(
    tmp_path: Path,
) -> None:
    env = Counters(num_envs=2, limit=5)
    sure = lambda obs: np.where(obs["state"][:, 1] >= [2, 99], 0.9, 0.1)  # noqa: E731
    rewards = ClassifierReward(SuccessVersion(0, "", sure, DetectorConfig(steps=1)), 2)
    steps = acted(tmp_path, env, 5, rewards=rewards)
    first, second = (
        {name: getattr(steps, name)[env_id::2] for name in steps._fields[:8]} for env_id in (0, 1)
    )
    assert first["reward"].tolist() == [0, 1, 0, 1, 0]
    assert first["terminated"].tolist() == [False, True, False, True, False]
    assert first["number"].tolist() == [0, 1, 0, 1, 0]
    assert first["observation"][:, 1].tolist() == [0, 1, 0, 1, 0]
    assert [vec_env for _, vec_env in env.resets] == [None, [0], [0]]
    assert second["truncated"].tolist() == [False] * 4 + [True]
    assert not second["terminated"].any()


def test_what_the_environment_takes_for_success_is_a_time_limit_to_a_classifier(
    tmp_path: Path,
) -> None:
    rewards = ClassifierReward(SuccessVersion(0, "", lambda obs: np.zeros(1), DetectorConfig()))
    steps = acted(tmp_path, Counters(success_at=2), 2, rewards=rewards)
    assert (steps.terminated.tolist(), steps.truncated.tolist()) == ([False, False], [False, True])
    assert steps.reward.tolist() == [0.0, 0.0]


def test_a_newer_classifier_judges_from_the_next_episode_on(tmp_path: Path) -> None:
    blind = SuccessVersion(0, "a", lambda obs: np.zeros(1), DetectorConfig(steps=1))
    sure = SuccessVersion(1, "b", lambda obs: np.ones(1), DetectorConfig(threshold=0.9, steps=1))
    published: list[SuccessVersion] = []
    asked: list[int] = []

    def newer(number: int) -> SuccessVersion | None:
        asked.append(number)
        return next((one for one in published if one.number > number), None)

    rewards = ClassifierReward(blind, newer=newer)
    judged: list[tuple[int, bool]] = []

    def watch(step: ActorStep) -> None:
        published[:] = [sure]
        judged.append((rewards.version.number, bool(step.verdict.success[0])))

    acted(tmp_path, Counters(limit=3), 5, rewards=rewards, watch=watch)
    assert judged == [(0, False), (0, False), (0, False), (1, True), (1, True)]
    assert asked == [0, 0, 1, 1]
    assert rewards.threshold == 0.9


@pytest.mark.parametrize(
    ("label", "reward", "terminated"),
    [
        (Label.SUCCESS, 1.0, True),
        (Label.FAILURE, 0.0, True),
        (Label.REDO, 0.25, False),
        (Label.DISCARD, 0.25, False),
    ],
)
def test_a_person_s_word_ends_the_episode(
    tmp_path: Path, label: Label, reward: float, terminated: bool
) -> None:
    env = Counters()
    starts = lambda: env.start.copy()  # noqa: E731
    steps = acted(tmp_path, env, 4, Person(says={2: Requests(label=label)}), starts=starts)
    assert steps.number.tolist() == [0, 1, 2, 0]
    assert steps.reward.tolist() == [0.25, 0.25, reward, 0.25]
    assert steps.terminated.tolist() == [False, False, terminated, False]
    assert steps.truncated.tolist() == [False, False, not terminated, False]
    assert len(env.resets) == 2
    assert (env.resets[1][0] == env.resets[0][0]) == (label == Label.REDO)


def test_without_parameters_the_actor_holds_and_acts_once_they_come(tmp_path: Path) -> None:
    env, source, held = Counters(), Source(None), []

    def hold() -> None:
        held.append(len(env.actions))
        if len(held) == 3:
            source.policy = POLICY

    with Journal(tmp_path) as journal:
        assert Actor(env, Person(), journal, source, hold=hold).run(2) == 2
    assert held == [0, 0, 0]
    assert len(env.actions) == 2


@pytest.mark.parametrize("who", ["actor", "learner", "operator"])
def test_a_pause_holds_within_the_episode_and_ends(tmp_path: Path, who: str) -> None:
    env, source, person, held = Counters(), Source(), Person(), []

    def watch(actor_step: ActorStep) -> None:
        if len(env.actions) == 2:
            match who:
                case "actor":
                    actor.pause()
                case "learner":
                    source.paused = True
                case _:
                    person.says[2] = Requests(paused=True)

    def hold() -> None:
        held.append(len(env.actions))
        source.paused = False
        actor.resume()

    with Journal(tmp_path) as journal:
        actor = Actor(env, person, journal, source, hold=hold, watch=watch)
        assert actor.run(4) == 4
        steps = concatenate_steps(written(journal))
    assert held == [2]
    assert steps.number.tolist() == [0, 1, 2, 3]


def test_a_pause_that_is_asked_for_within_a_period_comes_before_its_step(tmp_path: Path) -> None:
    env, held = Counters(), []

    class Period:
        def now(self) -> float:
            return 0.0

        def advance(self, seconds: float) -> float:
            if len(env.actions) == 2 and not held:
                actor.pause()
            return 0.0

    def hold() -> None:
        held.append(len(env.actions))
        actor.resume()

    with Journal(tmp_path) as journal:
        actor = Actor(env, Person(), journal, Source(), hold=hold, clock=Period())
        assert actor.run(4) == 4
    assert held == [2]


def test_the_operator_ends_the_run(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        assert (
            Actor(Counters(), Person(says={3: Requests(stop=True)}), journal, Source()).run() == 3
        )
        assert journal.next_number == 3


def test_random_proposals_are_made_at_the_first_start_only(tmp_path: Path) -> None:
    config = ActorConfig(random_steps=3)
    first = acted(tmp_path, Counters(), 5, config=config)
    assert first.policy_version.tolist() == [-1, -1, -1, 42, 42]
    assert np.abs(first.action[:3]).max() <= 1.0
    assert acted(tmp_path, Counters(), 2, config=config).policy_version.tolist() == [42, 42]


def test_several_steps_per_entry_are_committed_together_and_at_an_episode_s_end(
    tmp_path: Path,
) -> None:
    with Journal(tmp_path) as journal:
        Actor(Counters(limit=5), Person(), journal, Source(), ActorConfig(commit_every=3)).run(7)
        assert [steps.number.tolist() for steps in written(journal)] == [[0, 1, 2], [3, 4], [0, 1]]


def test_an_environment_that_stands_still_is_not_written_down(tmp_path: Path) -> None:
    env = Counters(num_envs=2)
    env.frozen[1] = True
    steps = acted(tmp_path, env, 2)
    assert steps.episode.tolist() == [EPISODES_PER_START] * 2


def test_pictures_go_along(tmp_path: Path) -> None:
    steps = acted(tmp_path, Counters(), 2, config=ActorConfig(pictures=("wrist",)))
    assert steps.pictures["wrist"][:, 0, 0, 0].tolist() == [0, 1]
    assert steps.next_pictures["wrist"][:, 0, 0, 0].tolist() == [1, 2]


def test_an_encoder_runs_once_per_observation_and_its_maps_go_along(tmp_path: Path) -> None:
    seen: list[int] = []

    def encode(observation: Observation) -> dict[str, np.ndarray]:
        seen.append(int(observation["wrist"][0, 0, 0, 0]))
        return {"wrist": observation["wrist"].transpose(0, 3, 1, 2).astype(np.float16)}

    env, config = Counters(limit=3), ActorConfig(pictures=("wrist",))
    steps = acted(tmp_path, env, 4, config=config, encode=encode)
    assert steps.pictures["wrist"].dtype == np.float16
    assert steps.pictures["wrist"][:, 0, 0, 0].tolist() == [0, 1, 2, 0]
    assert steps.next_pictures["wrist"][:, 0, 0, 0].tolist() == [1, 2, 3, 1]
    assert seen == [0, 1, 2, 3, 0, 1]


def test_a_sensor_lost_in_a_step_ends_the_run_and_what_was_before_is_committed(
    tmp_path: Path,
) -> None:
    env = Counters()

    def watch(actor_step: ActorStep) -> None:
        env.bad = len(env.actions) == 3

    with Journal(tmp_path) as journal:
        with pytest.raises(HandoffError, match="next_observation: has a non-finite value"):
            Actor(env, Person(), journal, Source(), watch=watch).run(9)
        assert concatenate_steps(written(journal)).number.tolist() == [0, 1, 2]


def test_nothing_is_executed_on_an_observation_that_is_not_finite(tmp_path: Path) -> None:
    env = Counters()
    env.bad = True
    with (
        Journal(tmp_path) as journal,
        pytest.raises(HandoffError, match="entry 2 of the observation of environment 0 is"),
    ):
        Actor(env, Person(), journal, Source()).run(9)
    assert env.actions == []


def test_another_task_s_policy_is_refused(tmp_path: Path) -> None:
    vector = lambda obs: np.zeros((1, 4), np.float32)  # noqa: E731
    with (
        Journal(tmp_path) as journal,
        pytest.raises(HandoffError, match="3 observation and 2 action entries"),
    ):
        Actor(Counters(), Person(), journal, Source(), vector=vector).run(1)


def test_chosen_fields_stand_side_by_side() -> None:
    spec = {
        "a": FieldSpec(shape=(2, 2)),
        "image": FieldSpec(shape=(1, 1, 3), unit="u8"),
        "b": FieldSpec(shape=()),
    }
    obs = {
        "a": np.arange(8.0).reshape(2, 2, 2),
        "image": np.zeros((2, 1, 1, 3), np.uint8),
        "b": np.array([8.0, 9.0]),
    }
    assert observation_vector(spec)(obs).tolist() == [[0, 1, 2, 3, 8], [4, 5, 6, 7, 9]]
    assert observation_vector(spec, ["b"])(obs).tolist() == [[8], [9]]
    with pytest.raises(HandoffError, match="fields \\['c'\\]"):
        observation_vector(spec, ["c"])


def test_a_paced_clock_sleeps_until_the_next_tick_and_does_not_catch_up() -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    clock = ScaledWallClock(2.0, lambda: now[0], sleep)
    clock.advance(0.1)
    assert slept == []
    now[0] += 0.01
    assert clock.advance(0.1) == pytest.approx(0.1)
    assert slept == pytest.approx([0.04])
    now[0] += 0.07  # 0.14 s of robot time, late by less than a period: the next tick is kept
    clock.advance(0.1)
    clock.advance(0.1)
    assert slept == pytest.approx([0.04, 0.03])
    now[0] += 5.0  # far too late: the schedule begins anew
    clock.advance(0.1)
    clock.advance(0.1)
    assert slept == pytest.approx([0.04, 0.03, 0.05])


def test_scaled_actions_map_the_bounds_of_the_environment_to_one() -> None:
    actions = ScaledActions((0.0, 0.1), (0.4, 0.5))
    learner, env = np.array([[-1.0, 1.0], [0.0, 0.5]]), np.array([[0.0, 0.5], [0.2, 0.4]])
    assert np.allclose(actions.to_env(learner, {}), env)
    assert np.allclose(actions.from_env(env, {}), learner)
    assert np.allclose(actions.from_env(np.array([[-9.0, 9.0]]), {}), [[-1.0, 1.0]])
    assert not actions.toggled(learner, {}).any()
