"""Further training of a success classifier on a session's states: which states count as what, the
same weights after a kill, and false successes that vanish."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.rewards.config import ClassifierConfig, RefreshConfig, TrainSuccessConfig
from policies.rewards.labelled_steps import LabelledSteps
from policies.rewards.refresh_success import SuccessRefresh, read_options, read_session_episode
from policies.rewards.success_classifier import probabilities
from policies.rewards.success_files import CARD, WEIGHTS, load_classifier
from policies.rewards.train_success_classifier import OPTIONS, train_success
from policies.training.config import TrainingConfig
from robots.episodes.corrections import FINAL, STREAM
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.spec import FieldSpec
from robots.success import DetectorConfig
from tests.policies.kill import run_until_killed

PLACE = {"place": FieldSpec(shape=(2,), unit="m")}
SCHEMA = EpisodeSchema(
    name="walk",
    streams={
        STREAM: StreamSpec(rate_hz=10.0, fields=PLACE),
        FINAL: StreamSpec(rate_hz=10.0, fields=PLACE),
    },
)
OPTIONS_OF = TrainSuccessConfig(
    classifier=ClassifierConfig(fields=("place",), vector_width=16, hidden=(32,)),
    training=TrainingConfig(
        steps=300, learning_rate=3e-3, batch_size=64, precision="fp32", warmup_steps=10
    ),
    detector=DetectorConfig(steps=2),
    precision=0.9,
)
REFRESH = RefreshConfig(
    precision=0.9,
    training=TrainingConfig(
        steps=200,
        learning_rate=3e-3,
        batch_size=64,
        precision="fp32",
        warmup_steps=10,
        preflight_seconds=0.0,
    ),
)
HOLE = np.array([2.5, 0.0])
"""Place of the plane in which the classifier's own data has no state."""


def own_data(seed: int = 0, episodes: int = 60) -> LabelledSteps:
    """Steps on the left of x = 1; right of x = 0.6 the task is solved. That it is not solved right
    of x = 1 no step of these tells."""
    rng = np.random.default_rng(seed)
    steps = 15
    place = rng.uniform((-1.0, -1.0), (1.0, 1.0), (episodes * steps, 2)).astype(np.float32)
    number = np.repeat(np.arange(episodes), steps)
    solved = place[:, 0] > 0.6
    return LabelledSteps({"place": place}, solved, number, number >= 10, "walk", 10.0, PLACE)


def path_to(end: np.ndarray, steps: int = 12, seed: int = 0) -> np.ndarray:
    """(steps + 1, 2) places from (-0.5, 0) to `end`, where the last three are, with noise."""
    share = np.minimum(np.linspace(0.0, 1.3, steps + 1), 1.0)[:, None]
    noise = np.random.default_rng(seed).normal(0.0, 0.02, (steps + 1, 2))
    return ((-0.5, 0.0) + share * (end - (-0.5, 0.0)) + noise).astype(np.float32)


def about(solved: bool, by: str = "classifier", **more: Any) -> dict[str, Any]:
    ended = ("classifier" if solved else "time_limit") if by == "classifier" else "label"
    return {"success": solved, "labelled_by": by, "ended_by": ended, "discard_reason": None, **more}


def session(folder: Path, episodes: list[tuple[np.ndarray, dict[str, Any]]]) -> EpisodeStore:
    with EpisodeStore.create(folder / "store.zarr", SCHEMA) as store:
        for place, metadata in episodes:
            store.append({STREAM: {"place": place[:-1]}, FINAL: {"place": place[-1:]}}, metadata)
    return EpisodeStore.open(folder / "store.zarr")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classifier that the session began with."""
    out = tmp_path_factory.mktemp("first")
    train_success(OPTIONS_OF, own_data(), out, no_progress)
    return out


def rows(folder: Path, metadata: dict[str, Any]) -> tuple[list[bool], list[bool], bool]:
    store = session(folder, [(path_to(HOLE, 4), metadata)])
    read = read_session_episode(store, STREAM, 0, ("place",))
    assert read is not None
    assert np.array_equal(read.fields["place"], path_to(HOLE, 4)[1:]), "the states after actions"
    return read.positive_T.tolist(), read.negative_T.tolist(), read.by_classifier


def test_the_states_of_an_episode_that_nobody_labelled_are_negatives(tmp_path: Path) -> None:
    assert rows(tmp_path, about(True)) == ([False] * 4, [True] * 4, True)


def test_a_persons_success_makes_the_last_state_a_positive_and_no_state_a_negative(
    tmp_path: Path,
) -> None:
    expected = ([False, False, False, True], [False] * 4, False)
    assert rows(tmp_path, about(True, "ada")) == expected


def test_the_states_that_a_person_calls_a_failure_are_negatives(tmp_path: Path) -> None:
    assert rows(tmp_path, about(False, "ada")) == ([False] * 4, [True] * 4, False)


def test_a_discarded_episode_is_not_read(tmp_path: Path) -> None:
    store = session(tmp_path, [(path_to(HOLE, 4), about(False, discard_reason="fault"))])
    assert read_session_episode(store, STREAM, 0, ("place",)) is None


@pytest.mark.parametrize(("judged", "left"), [("negative", 0), ("left_out", 2)])
def test_the_states_that_ended_an_episode_are_left_out_if_asked(
    judged: Any, left: int, tmp_path: Path
) -> None:
    trainer = SuccessRefresh(replace(REFRESH, judged=judged), OPTIONS_OF, own_data())
    store = session(tmp_path, [(path_to(HOLE), about(True)), (path_to(HOLE), about(False))])
    steps = trainer._training_steps(store, 2)
    of_session = steps.success.size - int(trainer.split.train.sum())
    assert of_session == 24 - left


def version(
    folder: Path,
    first: Path,
    store: EpisodeStore,
    config: RefreshConfig = REFRESH,
    progress: Progress = no_progress,
) -> Path:
    trainer = SuccessRefresh(config, read_options(first), own_data())
    folder.mkdir(exist_ok=True)
    trainer.train(first, 1, store, store.num_episodes, folder / "work", folder, progress)
    return folder


def false_ends(count: int = 12) -> list[tuple[np.ndarray, dict[str, Any]]]:
    return [(path_to(HOLE, seed=seed), about(True)) for seed in range(count)]


def score(folder: Path, end: np.ndarray, seeds: range = range(100, 120)) -> np.ndarray:
    """(20,) probabilities at the ends of other paths to `end`."""
    place = np.stack([path_to(end, seed=seed)[-1] for seed in seeds])
    return probabilities(load_classifier(folder)[0], {"place": place})


def test_a_first_training_keeps_its_options_and_an_older_classifier_is_refused(
    first: Path, tmp_path: Path
) -> None:
    assert read_options(first) == OPTIONS_OF
    with pytest.raises(HandoffError, match=f"no {OPTIONS}.*Train it again"):
        read_options(tmp_path)


def test_states_where_the_policy_found_the_classifier_wrong_are_no_success_any_more(
    first: Path, tmp_path: Path
) -> None:
    """The bed is made so that the first classifier is wrong right of its data."""
    store = session(tmp_path, false_ends())
    threshold = load_classifier(first)[1].detector.threshold
    assert (score(first, HOLE) >= threshold).mean() > 0.9, "false successes before"
    refreshed = version(tmp_path / "v", first, store)
    card = load_classifier(refreshed)[1]
    assert (score(refreshed, HOLE) < card.detector.threshold).all()
    assert card.report["recall"] > 0.8, "true successes are still seen"
    trainer = SuccessRefresh(REFRESH, OPTIONS_OF, own_data())
    assert trainer.judge(refreshed, store, 3) == [(0, 12, False), (1, 12, False), (2, 12, False)]


@pytest.mark.parametrize(("last", "solved"), [(0.45, False), (0.55, True)])
def test_an_episode_stays_solved_while_its_last_state_reaches_the_release(
    last: float, solved: bool, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import policies.rewards.success_classifier as module

    def scores(classifier: Any, fields: dict[str, np.ndarray]) -> np.ndarray:
        return np.append(np.zeros(len(fields["place"]) - 1), last)

    trainer = SuccessRefresh(REFRESH, OPTIONS_OF, own_data())
    monkeypatch.setattr(module, "probabilities", scores)
    release = load_classifier(first)[1].detector.release
    assert release == 0.5, "below the threshold"
    store = session(tmp_path, [(path_to(HOLE), about(True)), (path_to(HOLE), about(True, "ada"))])
    assert trainer.judge(first, store, 2) == [(0, 12, solved)], "a person's label stays"


def test_control_training_on_without_the_policys_states_leaves_them_a_success(
    first: Path, tmp_path: Path
) -> None:
    store = session(tmp_path, [(path_to(HOLE), about(True, discard_reason="fault"))])
    refreshed = version(tmp_path / "v", first, store)
    card = load_classifier(refreshed)[1]
    assert (score(refreshed, HOLE) >= card.detector.threshold).mean() > 0.9


def test_the_same_session_gives_the_same_weights_also_after_a_kill(
    first: Path, tmp_path: Path
) -> None:
    store = session(tmp_path, false_ends(4))
    training = replace(REFRESH.training, checkpoint_seconds=0.0, log_every=5)
    config = replace(REFRESH, training=training)
    whole = version(tmp_path / "whole", first, store, config)
    run_until_killed(111, version, tmp_path / "killed", first, store, config)
    assert not (tmp_path / "killed" / CARD).exists()
    updates: list[int] = []
    counted: Progress = lambda done, total, note="": updates.append(done)  # noqa: E731
    version(tmp_path / "killed", first, store, config, counted)
    assert updates[0] > 100, "it goes on"
    assert (tmp_path / "killed" / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    assert not (tmp_path / "killed" / "work").exists()


def test_a_version_that_is_not_precise_enough_is_not_written(first: Path, tmp_path: Path) -> None:
    store = session(tmp_path, false_ends(2))
    demanding = replace(REFRESH, precision=0.999)
    trainer = SuccessRefresh(demanding, read_options(first), own_data())
    (tmp_path / "v").mkdir()
    with pytest.raises(HandoffError, match=r"success threshold: .* a precision of 0\.999"):
        trainer.train(first, 1, store, 2, tmp_path / "work", tmp_path / "v", no_progress)
    assert list((tmp_path / "v").iterdir()) == []


def test_every_member_is_trained_further(tmp_path: Path) -> None:
    options = replace(OPTIONS_OF, members=2)
    (tmp_path / "first").mkdir()
    train_success(options, own_data(), tmp_path / "first", no_progress)
    refreshed = version(tmp_path / "v", tmp_path / "first", session(tmp_path, false_ends(4)))
    before, after = load_classifier(tmp_path / "first"), load_classifier(refreshed)
    assert after[1].members == 2
    changed = {
        name.split(".")[1]
        for name, weight in before[0].state_dict().items()
        if not weight.equal(after[0].state_dict()[name])
    }
    assert changed == {"0", "1"}
