"""Reward and success of recorded episodes, from each source, and copies with other labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.rewards.config import (
    ClassifierConfig,
    ClassifierRewardConfig,
    ImageTextRewardConfig,
    RecordedRewardConfig,
    SuccessCard,
    SuccessRewardConfig,
)
from policies.rewards.labels import EpisodeLabels, new_labeller, recorded_success
from policies.rewards.relabel import relabel
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from robots.success import DetectorConfig

PLACE = {"place": FieldSpec(shape=(1,))}


def write(
    path: Path,
    success: np.ndarray | None = None,
    final: float | None = None,
    metadata: dict[str, Any] | None = None,
    places: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0),
) -> EpisodeStore:
    """One episode with rewards 0, 10, 20, 30, the given successes and places."""
    fields = {**PLACE, "action": FieldSpec(shape=(1,)), "reward": FieldSpec(shape=())}
    columns: dict[str, np.ndarray] = {
        "place": np.array(places, np.float32)[:, None],
        "action": np.zeros((4, 1), np.float32),
        "reward": 10.0 * np.arange(4, dtype=np.float32),
    }
    if success is not None:
        fields["success"] = FieldSpec(shape=(), dtype="int8")
        columns["success"] = success.astype(np.int8)
    streams = {"policy": StreamSpec(rate_hz=10.0, fields=fields)}
    episode = {"policy": columns}
    if final is not None:
        streams["final"] = StreamSpec(rate_hz=10.0, fields=dict(PLACE))
        episode["final"] = {"place": np.array([[final]], np.float32)}
    with EpisodeStore.create(path, EpisodeSchema(name="walk", streams=streams)) as store:
        store.append(episode, metadata or {})
    return EpisodeStore.open(path)


def save_place_classifier(folder: Path, task: str = "walk") -> Path:
    """An untrained classifier of places; the fixture `near_three` gives its probabilities."""
    from policies.rewards.success_classifier import SuccessClassifier
    from policies.rewards.success_files import save_classifier

    config = ClassifierConfig(fields=("place",), vector_width=4, hidden=())
    classifier = SuccessClassifier(PLACE, config)
    folder.mkdir()
    card = SuccessCard(
        task=task,
        rate_hz=10.0,
        observation=PLACE,
        model=config,
        detector=DetectorConfig(threshold=0.8, release=0.5, steps=1),
        report={},
        training_data="",
    )
    save_classifier(folder, card, classifier)
    return folder


@pytest.fixture
def near_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the network by the probability place / 3."""
    import policies.rewards.success_classifier as module

    def probabilities(classifier: Any, fields: dict[str, np.ndarray]) -> np.ndarray:
        return np.clip(fields["place"][:, 0] / 3.0, 0.0, 1.0)

    monkeypatch.setattr(module, "probabilities", probabilities)


def test_the_recorded_reward_is_kept_and_the_first_success_counts(tmp_path: Path):
    store = write(tmp_path / "s", np.array([0, 1, 1, 0]))
    labels = new_labeller(RecordedRewardConfig())(store, "policy", 0)
    assert labels.reward_T.tolist() == [0.0, 10.0, 20.0, 30.0]
    assert labels.solved_T.tolist() == [False, True, False, False]
    assert labels.steps == 2


def test_the_sparse_reward_is_one_at_the_first_success(tmp_path: Path):
    store = write(tmp_path / "s", np.array([0, 0, 1, 1]))
    labels = new_labeller(SuccessRewardConfig())(store, "policy", 0)
    assert labels.reward_T.tolist() == [0.0, 0.0, 1.0, 0.0]


def test_an_episode_that_was_given_up_is_not_solved(tmp_path: Path):
    store = write(tmp_path / "s", np.array([0, 0, 0, -1]))
    labels = new_labeller(SuccessRewardConfig())(store, "policy", 0)
    assert not labels.solved_T.any()
    assert labels.steps == 4


@pytest.mark.parametrize("success", [True, False])
def test_without_a_field_the_metadata_say_whether_the_last_step_solved_it(
    tmp_path: Path, success: bool
):
    store = write_with_metadata(tmp_path / "s", success)
    assert recorded_success(store, "policy", 0).tolist() == [False, False, False, success]


def write_with_metadata(path: Path, success: bool) -> EpisodeStore:
    schema = EpisodeSchema(
        name="walk", streams={"policy": StreamSpec(rate_hz=10.0, fields=dict(PLACE))}
    )
    with EpisodeStore.create(path, schema) as store:
        store.append({"policy": {"place": np.zeros((4, 1), np.float32)}}, {"success": success})
    return EpisodeStore.open(path)


@pytest.mark.parametrize(("final", "solved"), [(None, 2), (0.0, 2)])
def test_a_classifier_labels_the_step_before_the_observation(
    tmp_path: Path, near_three: None, final: float | None, solved: int
):
    # Places after the actions are 1, 2, 3 and the final one; 3 is the first above 0.8 * 3.
    store = write(tmp_path / "s", final=final)
    classifier = save_place_classifier(tmp_path / "classifier")
    labels = new_labeller(ClassifierRewardConfig(), classifier)(store, "policy", 0)
    assert np.flatnonzero(labels.solved_T).tolist() == [solved]
    assert labels.reward_T.tolist() == [0.0, 0.0, 1.0, 0.0]


def test_a_classifier_judges_the_final_observation(tmp_path: Path, near_three: None):
    # Only the observation after the last action is above 0.8 * 3.
    store = write(tmp_path / "s", final=3.0, places=(0.0, 1.0, 2.0, 2.0))
    classifier = save_place_classifier(tmp_path / "classifier")
    labels = new_labeller(ClassifierRewardConfig(), classifier)(store, "policy", 0)
    assert np.flatnonzero(labels.solved_T).tolist() == [3]


def test_a_classifier_of_another_task_is_refused(tmp_path: Path):
    store = write(tmp_path / "s")
    classifier = save_place_classifier(tmp_path / "classifier", task="run")
    with pytest.raises(HandoffError, match="holds the task 'walk', but the classifier"):
        new_labeller(ClassifierRewardConfig(), classifier)(store, "policy", 0)


def test_a_folder_without_an_image_text_model_is_refused(tmp_path: Path):
    config = ImageTextRewardConfig(folder=str(tmp_path), goal="a", baseline="b")
    with pytest.raises(HandoffError, match="no CLIP model could be loaded"):
        new_labeller(config)


def doubled(episode: int) -> EpisodeLabels:
    solved = np.array([False, True, False, False])
    return EpisodeLabels(np.array([1.0, 2.0, 3.0, 4.0], np.float32), solved)


def test_a_copy_has_the_new_labels_and_ends_with_its_first_success(tmp_path: Path):
    source = write(tmp_path / "s", np.array([0, 0, 0, -1]), 4.0, {"success": False, "seed": 7})
    metrics = relabel(source, tmp_path / "copy", doubled, "policy", True, no_progress)
    copy = EpisodeStore.open(tmp_path / "copy")
    rows = copy.read(0, "policy")
    assert rows["reward"].tolist() == [1.0, 2.0]
    assert rows["success"].tolist() == [0, 1]
    assert rows["place"][:, 0].tolist() == [0.0, 1.0]
    assert copy.read(0, "final")["place"].tolist() == [[2.0]]
    assert copy.metadata(0) == {"success": True, "seed": 7}
    assert metrics == {
        "episodes": 1,
        "solved_episodes": 1,
        "frames": 2,
        "changed_episodes": 1,
        "mean_return": 3.0,
    }


def test_an_uncut_copy_keeps_all_steps_and_replaces_an_earlier_attempt(tmp_path: Path):
    source = write(tmp_path / "s", final=4.0)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "half").write_text("written by a killed attempt")
    relabel(source, tmp_path / "copy", doubled, "policy", False, no_progress)
    copy = EpisodeStore.open(tmp_path / "copy")
    assert len(copy.read(0, "policy")["reward"]) == 4
    assert copy.read(0, "final")["place"].tolist() == [[4.0]]
