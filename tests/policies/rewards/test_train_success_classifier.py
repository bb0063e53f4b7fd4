"""Success classifier: labels, split, learning, files, graph; its threshold must come from a
policy's states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from policies.networks.config import TrunkConfig
from policies.networks.images.efficientnet_lite import pretrained_trunk
from policies.rewards.config import ClassifierConfig, TrainSuccessConfig
from policies.rewards.labelled_steps import (
    LabelledSteps,
    join_steps,
    read_labelled_steps,
    split_steps,
)
from policies.rewards.success_classifier import (
    SuccessClassifier,
    TrunkImageEncoder,
    digest_weights,
    probabilities,
    shifted_images,
    to_tensors,
)
from policies.rewards.success_files import CARD, WEIGHTS, classifier_to_onnx, load_classifier
from policies.rewards.train_success_classifier import (
    classification_loss,
    fit_classifier,
    train_success,
    with_maps,
    with_threshold,
)
from policies.training.config import TrainingConfig
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.spec import FieldSpec
from robots.success import (
    SUCCESS_KEY,
    SuccessContract,
    ThresholdReport,
    choose_threshold,
    report_threshold,
)
from sim.engines.mujoco import MujocoConfig
from sim.make import find_task
from sim.recording.config import PlayConfig
from sim.recording.play import play
from tests.policies.kill import run_until_killed

TINY = ClassifierConfig(
    fields=("lamp", "arm"),
    channels=(8, 8),
    embeddings=2,
    picture_width=16,
    vector_width=8,
    hidden=(16,),
    shift=1,
)
CONFIG = TrainSuccessConfig(
    classifier=TINY,
    training=TrainingConfig(
        steps=60, learning_rate=1e-2, batch_size=32, precision="fp32", log_every=5
    ),
)
SCHEMA = EpisodeSchema(
    name="lamp",
    streams={
        "policy": StreamSpec(
            rate_hz=10.0,
            fields={
                "lamp": FieldSpec(shape=(12, 16, 3), dtype="uint8", unit="u8"),
                "arm": FieldSpec(shape=(2,), unit="m"),
                "reward": FieldSpec(shape=()),
            },
        )
    },
)


def write_lamps(path: Path, episodes: int, seed: int) -> Path:
    """Episodes of ten steps in which a bright spot appears somewhere in the image when the task is
    solved."""
    rng = np.random.default_rng(seed)
    with EpisodeStore.create(path, SCHEMA) as store, store.writer() as writer:
        for _ in range(episodes):
            solved = np.arange(10) >= rng.integers(3, 8)
            lamp = rng.integers(0, 60, (10, 12, 16, 3), dtype=np.uint8)
            row, column = rng.integers(2, 8), rng.integers(2, 12)
            lamp[solved, row : row + 3, column : column + 3] += 180
            reward = np.append(solved[1:], True).astype(np.float32)
            writer.append(
                {"policy": {"lamp": lamp, "arm": rng.normal(0.0, 0.1, (10, 2)), "reward": reward}},
                {},
            )
    return path


@pytest.fixture(scope="module")
def lamps(tmp_path_factory: pytest.TempPathFactory) -> LabelledSteps:
    folder = tmp_path_factory.mktemp("lamps")
    demonstrations = read_labelled_steps(
        write_lamps(folder / "demos", 10, seed=0), TINY, by_policy=False
    )
    return join_steps(
        [
            demonstrations,
            read_labelled_steps(write_lamps(folder / "policy", 30, seed=1), TINY, True),
        ]
    )


@pytest.fixture(scope="module")
def trained(lamps: LabelledSteps, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("classifier")
    train_success(CONFIG, lamps, out, no_progress)
    return out


def test_a_reward_labels_the_observation_that_followed(tmp_path: Path):
    steps = read_labelled_steps(write_lamps(tmp_path / "store", 5, seed=3), TINY, by_policy=True)
    assert len(steps.success) == 5 * 9  # The first observation of an episode follows nothing.
    assert (steps.success == (steps.fields["lamp"].reshape(45, -1).max(axis=1) >= 180)).all()


def test_a_misspelt_label_is_refused(tmp_path: Path):
    path = write_lamps(tmp_path / "store", 1, seed=3)
    with pytest.raises(HandoffError, match="label 'key'"):
        read_labelled_steps(
            path, ClassifierConfig(fields=("lamp",), label_field="key"), by_policy=True
        )


def test_joined_episodes_keep_apart(lamps: LabelledSteps):
    assert np.unique(lamps.episode).tolist() == list(range(40))
    assert (lamps.by_policy == (lamps.episode >= 10)).all()


def test_no_episode_is_in_two_parts_and_both_sources_are_in_each(lamps: LabelledSteps):
    split = split_steps(lamps, CONFIG)
    parts = [set(lamps.episode[mask].tolist()) for mask in split]
    assert sum(len(part) for part in parts) == len(set.union(*parts)) == 40
    assert [len([e for e in part if e < 10]) for part in parts] == [6, 2, 2]
    assert [len([e for e in part if e >= 10]) for part in parts] == [18, 6, 6]


def test_demonstrations_alone_are_refused(lamps: LabelledSteps):
    with pytest.raises(HandoffError, match="Were only demonstrations given"):
        split_steps(lamps._replace(by_policy=np.zeros_like(lamps.by_policy)), CONFIG)


class Recorder(SuccessClassifier):
    """Records the batches that it receives."""

    def forward(self, fields: dict[str, torch.Tensor]) -> torch.Tensor:
        self.fields = fields
        return super().forward(fields)


def test_half_of_a_batch_are_successes(lamps: LabelledSteps):
    rare = lamps.rows(
        np.concatenate([np.flatnonzero(lamps.success)[:3], np.flatnonzero(~lamps.success)])
    )
    classifier = Recorder(rare.observation, TINY)
    classification_loss(classifier, rare, CONFIG, "fp32")(0)
    bright = classifier.fields["lamp"].flatten(1).amax(dim=1) >= 180
    assert bright.tolist() == [True] * 16 + [False] * 16


def test_the_loss_of_an_update_is_a_function_of_its_number(lamps: LabelledSteps):
    loss = classification_loss(SuccessClassifier(lamps.observation, TINY), lamps, CONFIG, "fp32")
    first, second, again = (loss(number).item() for number in (4, 5, 4))
    assert first == again != second


def test_one_class_alone_is_refused(lamps: LabelledSteps):
    with pytest.raises(HandoffError, match="0 successes and"):
        classification_loss(
            SuccessClassifier(lamps.observation, TINY), lamps.rows(~lamps.success), CONFIG, "fp32"
        )


def test_a_shift_repeats_the_edge():
    picture = np.arange(12, dtype=np.uint8).reshape(1, 4, 1, 3).repeat(5, axis=2)
    draws = np.random.default_rng(0)
    rows = {tuple(shifted_images(picture, 1, draws)[0, :, 0, 0].tolist()) for _ in range(50)}
    assert rows == {(0, 3, 6, 9), (0, 0, 3, 6), (3, 6, 9, 9)}


def test_it_classifies_images_of_held_out_episodes(trained: Path, tmp_path: Path):
    classifier, card = load_classifier(trained)
    unseen = read_labelled_steps(write_lamps(tmp_path / "store", 20, seed=9), TINY, by_policy=True)
    said = probabilities(classifier, unseen.fields) >= card.detector.threshold
    assert (said == unseen.success).mean() > 0.95
    assert card.report["precision"] > 0.95


def test_a_saved_classifier_answers_as_it_did(trained: Path, lamps: LabelledSteps):
    split = split_steps(lamps, CONFIG)
    classifier, card = load_classifier(trained)
    judge = lamps.rows(split.evaluation & lamps.by_policy)
    report = report_threshold(
        probabilities(classifier, judge.fields), judge.success, judge.episode, card.detector
    )
    assert (report.precision.share, report.recall.share) == (
        card.report["precision"],
        card.report["recall"],
    )
    assert (card.task, card.rate_hz, card.model) == ("lamp", 10.0, TINY)


def test_the_same_seed_gives_the_same_weights(trained: Path, lamps: LabelledSteps, tmp_path: Path):
    train_success(CONFIG, lamps, tmp_path, no_progress)
    assert (tmp_path / WEIGHTS).read_bytes() == (trained / WEIGHTS).read_bytes()


def train_lamps(lamps: LabelledSteps, out: Path, progress: Progress) -> None:
    """Trains with a checkpoint at every entry of the curve."""
    training = replace(CONFIG.training, checkpoint_seconds=0.0)
    train_success(TrainSuccessConfig(classifier=TINY, training=training), lamps, out, progress)


def test_a_killed_training_ends_with_the_very_weights_it_would_have_had(
    trained: Path, lamps: LabelledSteps, tmp_path: Path
):
    run_until_killed(33, train_lamps, lamps, tmp_path)
    updates: list[int] = []
    train_lamps(lamps, tmp_path, lambda done, total, note="": updates.append(done))
    assert updates == list(range(31, 61))
    assert (tmp_path / WEIGHTS).read_bytes() == (trained / WEIGHTS).read_bytes()


def test_onnx_answers_as_torch(trained: Path, lamps: LabelledSteps):
    classifier, card = load_classifier(trained)
    model = classifier_to_onnx(classifier, card)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for size in (1, 7, 100):
        fields = {name: values[:size] for name, values in lamps.fields.items()}
        (answer,) = session.run(["probability"], fields)
        assert np.abs(np.asarray(answer) - probabilities(classifier, fields)).max() <= 1e-5
    assert np.ptp(np.asarray(answer)) > 0.5
    contract = SuccessContract.from_json(session.get_modelmeta().custom_metadata_map[SUCCESS_KEY])
    assert (contract.observation, contract.detector) == (card.observation, card.detector)


class Brightness(nn.Module):
    """A frozen encoder with a learned scale that must not change: smallest and largest value per
    channel."""

    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale), requires_grad=False)

    def forward(self, picture_BCHW: torch.Tensor) -> torch.Tensor:
        return self.scale * torch.cat(
            [picture_BCHW.amin(dim=(2, 3)), picture_BCHW.amax(dim=(2, 3))], dim=1
        )


def test_a_given_encoder_is_used_and_stays_frozen(lamps: LabelledSteps, tmp_path: Path):
    report = train_success(CONFIG, lamps, tmp_path, no_progress, {"lamp": Brightness()})
    assert report["precision"] > 0.95
    classifier, card = load_classifier(tmp_path, {"lamp": Brightness(scale=0.0)})
    assert isinstance(classifier, SuccessClassifier)
    assert float(classifier.encoders["lamp"].scale) == 2.0  # type: ignore[arg-type]
    assert card.foreign_encoders == ("lamp",)
    with pytest.raises(HandoffError, match=r"given for \[\], expected \['lamp'\]"):
        load_classifier(tmp_path)


def test_a_frozen_encoder_stays_in_evaluation_mode(lamps: LabelledSteps):
    frozen, learning = Brightness(), Brightness()
    learning.scale.requires_grad = True
    for encoder in (frozen, learning):
        SuccessClassifier(lamps.observation, TINY, {"lamp": encoder}).train()
    assert (frozen.training, learning.training) == (False, True)


def test_a_policy_that_never_succeeds_needs_the_share_of_successes_to_come(
    lamps: LabelledSteps, tmp_path: Path
):
    hopeless = lamps.rows(~lamps.by_policy | ~lamps.success)
    with pytest.raises(HandoffError, match="0 successes of"):
        train_success(CONFIG, hopeless, tmp_path, no_progress)
    train_config = TrainSuccessConfig(
        classifier=TINY, training=CONFIG.training, precision=0.8, success_share=0.3
    )
    report = train_success(train_config, hopeless, tmp_path, no_progress)
    assert report["recall_n"] == 0
    assert report["false_positives"] < 0.1


def test_an_encoder_for_no_picture_is_refused(lamps: LabelledSteps):
    with pytest.raises(HandoffError, match=r"encoders for \['arm'\]"):
        SuccessClassifier(lamps.observation, TINY, {"arm": Brightness()})


def test_a_picture_that_is_too_small_is_refused(lamps: LabelledSteps):
    with pytest.raises(HandoffError, match="cannot be halved 4 times"):
        SuccessClassifier(lamps.observation, ClassifierConfig(fields=("lamp",)))


def test_a_damaged_classifier_is_refused(trained: Path, tmp_path: Path):
    with pytest.raises(HandoffError, match=f"no {CARD}"):
        load_classifier(tmp_path)
    (tmp_path / CARD).write_bytes((trained / CARD).read_bytes())
    (tmp_path / WEIGHTS).write_bytes((trained / WEIGHTS).read_bytes()[:-40])
    with pytest.raises(HandoffError, match="damaged"):
        load_classifier(tmp_path)


def test_pictures_are_not_widened_on_their_way_in(lamps: LabelledSteps):
    tensors = to_tensors(lamps.fields, torch.device("cpu"))
    assert (tensors["lamp"].dtype, tensors["arm"].dtype) == (torch.uint8, torch.float32)


def test_evaluation_does_not_disturb_the_random_stream_or_the_weights(
    trained: Path, lamps: LabelledSteps
):
    classifier, _ = load_classifier(trained)
    before, state = digest_weights(classifier), torch.get_rng_state()
    probabilities(classifier, lamps.fields)
    assert digest_weights(classifier) == before
    assert torch.equal(torch.get_rng_state(), state)


SWITCH = TrainSuccessConfig(
    classifier=ClassifierConfig(fields=("lever", "goal", "grasp_pose", "width")),
    training=TrainingConfig(steps=500, learning_rate=1e-3, precision="fp32"),
)
"""Whether a switch is flipped, from its lever, the wanted side and the hand."""


@pytest.fixture(scope="module")
def switches(tmp_path_factory: pytest.TempPathFactory) -> tuple[LabelledSteps, LabelledSteps]:
    """Demonstrations, and an inaccurate policy that deviates from them; both continue after
    success."""
    folder, envs = tmp_path_factory.mktemp("switch"), MujocoConfig(reward="sparse")
    task = find_task("flip_switch")
    expert = PlayConfig(
        steps=60,
        weights=(0, 0, 0, 0, 0, 1),
        duration=(20, 20),
        slowest=0.99,
        noise=0.0,
        batch=32,
        mujoco=envs,
    )
    clumsy = PlayConfig(
        steps=60, weights=(0.1, 0.1, 0.1, 0.05, 0.05, 0.6), noise=0.01, batch=64, mujoco=envs
    )
    play(task, range(32), folder / "demos", expert)
    play(task, range(1000, 1064), folder / "policy", clumsy)
    return (
        read_labelled_steps(folder / "demos", SWITCH.classifier, by_policy=False),
        read_labelled_steps(folder / "policy", SWITCH.classifier, by_policy=True),
    )


def test_precision_on_held_out_states_of_a_policy_is_095(
    switches: tuple[LabelledSteps, LabelledSteps], tmp_path: Path
):
    report = train_success(SWITCH, join_steps(switches), tmp_path, no_progress)
    assert report["precision"] >= 0.95
    assert report["recall"] >= 0.90


def test_no_threshold_is_found_for_shuffled_labels(
    switches: tuple[LabelledSteps, LabelledSteps], tmp_path: Path
):
    steps = join_steps(switches)
    shuffled = steps._replace(success=np.random.default_rng(0).permutation(steps.success))
    with pytest.raises(HandoffError, match="precision is"):
        train_success(SWITCH, shuffled, tmp_path, no_progress)


def test_a_threshold_from_demonstrations_is_less_precise_on_a_policys_states_than_one_from_its_own(
    switches: tuple[LabelledSteps, LabelledSteps], tmp_path: Path
):
    demonstrations, policy = switches
    classifier = fit_classifier(
        SWITCH, demonstrations.rows(demonstrations.episode < 16), tmp_path, no_progress
    )
    judge = policy.rows(policy.episode >= 32)

    def judged(held_out: LabelledSteps) -> ThresholdReport:
        threshold = choose_threshold(probabilities(classifier, held_out.fields), held_out.success)
        detector = with_threshold(SWITCH.detector, threshold)
        return report_threshold(
            probabilities(classifier, judge.fields), judge.success, judge.episode, detector
        )

    too_easy, fair = (
        judged(demonstrations.rows(demonstrations.episode >= 16)),
        judged(policy.rows(policy.episode < 32)),
    )
    assert too_easy.precision.high < fair.precision.low
    assert too_easy.false_episodes.k > fair.false_episodes.k


def test_relative_features_are_added_to_the_vectors():
    specs = {"hand": FieldSpec(shape=(3,)), "goal": FieldSpec(shape=(2,))}
    classifier = SuccessClassifier(
        specs, ClassifierConfig(fields=("hand", "goal"), relative_features=(("hand", "goal"),))
    )
    fields = {
        "hand": np.array([[1.0, 2.0, 0.0], [3.0, 4.0, 0.0]]),
        "goal": np.array([[0.0, 2.0], [0.0, 8.0]]),
    }
    classifier.fit(fields)
    # Means of the differences [1, 0] and [3, -4] stand behind those of the vectors.
    assert classifier.normalize.centre.tolist() == [2.0, 3.0, 0.0, 0.0, 5.0, 2.0, -2.0]
    assert classifier(to_tensors(fields, torch.device("cpu"))).shape == (2,)


def test_relative_features_can_replace_the_vectors():
    specs = {
        "hand": FieldSpec(shape=(2,)),
        "goal": FieldSpec(shape=(2,)),
        "speed": FieldSpec(shape=(1,)),
    }
    config = ClassifierConfig(
        fields=tuple(specs), relative_features=(("hand", "goal"),), relative_only=True
    )
    classifier = SuccessClassifier(specs, config).eval()
    classifier.fit({"hand": np.eye(2), "goal": np.zeros((2, 2)), "speed": np.array([[1.0], [3.0]])})
    assert classifier.normalize.centre.tolist() == [2.0, 0.5, 0.5]
    here, there = (
        {
            "hand": torch.tensor([[0.1 + by, 0.2]]),
            "goal": torch.tensor([[by, 0.2]]),
            "speed": torch.ones(1, 1),
        }
        for by in (0.0, 8.0)
    )
    assert torch.allclose(classifier(here), classifier(there), atol=1e-5), (
        "the same success in another place"
    )


def test_a_difference_of_unknown_vectors_is_refused():
    with pytest.raises(HandoffError, match="'hand' and 'goal'"):
        SuccessClassifier(
            {"hand": FieldSpec(shape=(2,))},
            ClassifierConfig(fields=("hand",), relative_features=(("hand", "goal"),)),
        )


def test_scaled_features_are_added_through_tanh_after_the_rest():
    specs = {"hand": FieldSpec(shape=(2,)), "goal": FieldSpec(shape=(2,))}
    config = ClassifierConfig(
        fields=tuple(specs), relative_features=(("hand", "goal"),), scaled_features=(("goal", 0.5),)
    )
    classifier = SuccessClassifier(specs, config)
    fields = {"hand": np.zeros((2, 2)), "goal": np.array([[0.5, 100.0], [-0.5, 100.0]])}
    classifier.fit(fields)
    centre = classifier.normalize.centre.tolist()
    assert centre == pytest.approx([0.0, 0.0, 0.0, 100.0, 0.0, -100.0, 0.0, 1.0])
    assert classifier(to_tensors(fields, torch.device("cpu"))).shape == (2,)


@pytest.mark.parametrize("close_up", [("cube", 0.1), ("hand", 0.0)])
def test_an_impossible_scaled_feature_is_refused(close_up: tuple[str, float]):
    with pytest.raises(HandoffError, match="scaled feature"):
        SuccessClassifier(
            {"hand": FieldSpec(shape=(2,))},
            ClassifierConfig(fields=("hand",), scaled_features=(close_up,)),
        )


def test_a_frozen_trunk_encodes_every_image_once_and_is_a_part_of_the_classifier(
    lamps: LabelledSteps, tmp_path: Path
):
    behind = replace(TINY, trunk=TrunkConfig(stride=4))
    report = train_success(replace(CONFIG, classifier=behind), lamps, tmp_path, no_progress)
    assert report["precision"] > 0.9
    classifier, card = load_classifier(tmp_path)
    assert isinstance(classifier, SuccessClassifier)
    encoder = classifier.encoders["lamp"]
    assert isinstance(encoder, TrunkImageEncoder)
    pretrained = pretrained_trunk(4).state_dict()
    saved = encoder.trunk.state_dict()
    assert all(torch.equal(value, pretrained[name]) for name, value in saved.items())
    # Of the images themselves, as a session has them.
    model = classifier_to_onnx(classifier, card)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rows = {
        name: np.ascontiguousarray(values[:50].astype(values.dtype if name == "lamp" else "f4"))
        for name, values in lamps.fields.items()
    }
    exported = np.asarray(session.run(["probability"], rows)[0])
    np.testing.assert_allclose(exported, probabilities(classifier, rows), atol=1e-4)
    maps = with_maps(lamps, behind, 1).fields
    assert maps["lamp"].dtype == np.float16
    assert maps["lamp"].shape[1:] == (24, 3, 4)
    of_maps = probabilities(classifier, {name: values[:50] for name, values in maps.items()})
    np.testing.assert_allclose(exported, of_maps, atol=0.02)
