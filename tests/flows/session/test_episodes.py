"""Episodes with a person in the loop: labels, pauses, stops, and their metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from flows.session.episodes import CONTRADICTED, LABELLED, EpisodeLoop, EpisodeOutcome
from robots.episodes.corrections import EpisodeAssembler, corrections_schema, open_corrections
from robots.episodes.store import EpisodeStore
from robots.interfaces import Intervention, Label, Observation, Requests
from robots.spec import ActionSpec
from sim.vec_env import EngineVecEnv, VecEnvConfig
from tests.sim.walk import WalkEngine

ACTIONS = ActionSpec(low=(-1.0,), high=(1.0,), names=("x",), interface="walk")


class Scripted:
    """A person who follows a script of requests, one per poll, and never intervenes."""

    def __init__(self, *script: Requests) -> None:
        self.script = list(script)
        self.polls = 0

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> None:
        pass

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        none = np.array([-1])
        return Intervention(
            proposed, proposed, np.array([False]), none, np.array([0]), "ada", "script"
        )

    def requests(self) -> Requests:
        self.polls += 1
        return self.script.pop(0) if self.script else Requests()

    def status(self) -> str:
        return ""

    def close(self) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EpisodeStore]:
    schema = corrections_schema("walk", 20.0, WalkEngine.observation_spec, ACTIONS)
    with open_corrections(tmp_path / "store.zarr", schema) as opened:
        yield opened


def walk(store: EpisodeStore, person: Scripted, speed: float = 1.0) -> EpisodeOutcome:
    env = EngineVecEnv(WalkEngine(1), VecEnvConfig(on_end="freeze", max_steps=12))
    session = EpisodeLoop(env, person, lambda observation: np.full((1, 1), speed))
    return session.run(7, EpisodeAssembler(store, 1, {}), {"source": "test"})


def test_the_environments_success_counts_without_a_label(
    store: EpisodeStore,
) -> None:
    ended = walk(store, Scripted())
    assert (ended.success, ended.label, ended.stopped) == (True, Label.NONE, False)
    assert store.read(0, "policy")["success"].tolist() == [0] * (ended.steps - 1) + [1]
    about = store.metadata(0)
    assert (about["seed"], about["success"], about["true_success"], about["source"]) == (
        7,
        True,
        True,
        "test",
    )


def test_an_episode_without_success_fails_at_its_time_limit(store: EpisodeStore) -> None:
    ended = walk(store, Scripted(), speed=-1.0)
    assert (ended.steps, ended.success) == (12, False)
    assert store.read(0, "policy")["success"][-1] == -1


def test_a_label_ends_the_episode_and_overrides_the_environment(store: EpisodeStore) -> None:
    ended = walk(store, Scripted(Requests(), Requests(Label.SUCCESS)), speed=-1.0)
    assert (ended.steps, ended.success, ended.label) == (2, True, Label.SUCCESS)
    ended = walk(store, Scripted(*[Requests()] * 3, Requests(Label.FAILURE)))
    assert (ended.steps, ended.success) == (4, False)
    assert [store.metadata(e)["success"] for e in range(2)] == [True, False]


@pytest.mark.parametrize("label", [Label.REDO, Label.DISCARD])
def test_a_dropped_episode_is_kept_with_its_reason(store: EpisodeStore, label: Label) -> None:
    assert walk(store, Scripted(Requests(), Requests(label))).label == label
    assert store.metadata(0)["discard_reason"] == label.name.lower()


def ended(store: EpisodeStore, episode: int = 0) -> tuple[str, str]:
    about = store.metadata(episode)
    return about["ended_by"], about["labelled_by"]


def test_the_metadata_state_what_ended_an_episode_and_who_labelled_it(
    store: EpisodeStore,
) -> None:
    walk(store, Scripted())
    walk(store, Scripted(), speed=-1.0)
    walk(store, Scripted(Requests(), Requests(Label.FAILURE)))
    walk(store, Scripted(Requests(), Requests(Label.REDO)))
    assert [ended(store, episode) for episode in range(4)] == [
        ("task", "task"),
        ("time_limit", "task"),
        ("label", "ada"),
        ("discarded", "ada"),
    ]


def test_nothing_moves_while_the_person_pauses(store: EpisodeStore) -> None:
    person = Scripted(Requests(), Requests(paused=True), Requests(paused=True))
    ended = walk(store, person)
    assert person.polls == ended.steps + 2


def test_a_label_given_during_a_pause_applies_to_the_next_step(
    store: EpisodeStore,
) -> None:
    ended = walk(
        store, Scripted(Requests(), Requests(Label.FAILURE, paused=True), Requests(paused=True))
    )
    assert (ended.steps, ended.success, ended.label) == (2, False, Label.FAILURE)


def test_stopping_records_no_partial_episode(store: EpisodeStore) -> None:
    assert walk(store, Scripted(Requests(), Requests(stop=True))).stopped
    assert store.num_episodes == 0


class Mover(Scripted):
    """A person who moves the arm in every step."""

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        mine = np.full((1, 1), -0.5)
        one = np.array([1])
        return Intervention(proposed, mine, np.array([True]), one, one, "ada", "script")


def judged(
    store: EpisodeStore, person: Scripted, objections: list[str] | None, speed: float = -1.0
) -> EpisodeOutcome:
    """An episode in which a label of success is followed by three states at rest."""
    env = EngineVecEnv(WalkEngine(1), VecEnvConfig(on_end="freeze", max_steps=12))
    heard = None if objections is None else objections.append
    session = EpisodeLoop(
        env,
        person,
        lambda observation: np.full((1, 1), speed),
        label_linger=3,
        object_to_label=heard,
    )
    return session.run(7, EpisodeAssembler(store, 1, {}), {})


SUCCESS, FAILURE = Requests(Label.SUCCESS), Requests(Label.FAILURE)


def test_states_at_rest_after_a_label_of_success_count(store: EpisodeStore) -> None:
    ended = judged(store, Mover(Requests(), SUCCESS), None)
    assert (ended.steps, ended.solved_steps, ended.labelled_steps) == (4, 3, 3)
    steps = store.read(0, "policy")
    assert (steps["reward"].ravel() > 0.5).tolist() == [False, True, True, True]
    assert steps["intervention"].ravel().tolist() == [1, 0, 0, 0], "the person's hands are off"
    assert steps["action"].ravel().tolist() == [-0.5, -1.0, -1.0, -1.0]
    about = store.metadata(0)
    assert (about["success"], about["ended_by"], about["labelled_by"]) == (True, "label", "ada")
    assert (about[LABELLED], about[CONTRADICTED], about["true_success"]) == (3, False, False)


def test_a_label_that_the_simulator_contradicts_counts_once_it_is_given_again(
    store: EpisodeStore,
) -> None:
    objections: list[str] = []
    ended = judged(store, Scripted(Requests(), SUCCESS, Requests(), SUCCESS), objections)
    assert objections == [
        "The simulator sees no success, so the label success does not count yet. Label success again to keep it, or "
        "go on."
    ]
    assert (ended.steps, ended.labelled_steps, ended.success) == (5, 3, True)
    assert store.metadata(0)[CONTRADICTED] is True
    objections.clear()
    ended = judged(store, Scripted(Requests(), SUCCESS), objections)
    assert len(objections) == 1
    assert (ended.steps, ended.labelled_steps, ended.success) == (12, 0, False), "it was not kept"


def test_a_failure_that_the_simulator_contradicts_is_asked_about_too(store: EpisodeStore) -> None:
    objections: list[str] = []
    env = EngineVecEnv(WalkEngine(1), VecEnvConfig(on_end="freeze", max_steps=12))
    session = EpisodeLoop(
        env,
        Scripted(FAILURE),
        lambda observation: np.full((1, 1), -1.0),
        object_to_label=objections.append,
    )
    ended = session.run(7, EpisodeAssembler(store, 1, {}), {})
    assert (objections, ended.label) == ([], Label.FAILURE)
    assert EpisodeLoop._contradicts(session, Label.FAILURE, success=True)
    assert objections[0].startswith("The simulator sees success, so the label failure")


def test_an_undone_label_is_none(store: EpisodeStore) -> None:
    ended = judged(store, Scripted(SUCCESS, Requests(), Requests(Label.DISCARD)), None)
    assert (ended.label, ended.labelled_steps) == (Label.DISCARD, 2)
