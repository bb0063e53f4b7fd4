"""Ensembles of success classifiers: the least probability decides, in torch, in files and in ONNX;
a single member is the classifier of earlier builds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from policies.networks.config import TrunkConfig
from policies.networks.images.efficientnet_lite import EfficientNetLite0
from policies.rewards.config import ClassifierConfig, SuccessCard, TrainSuccessConfig
from policies.rewards.labelled_steps import LabelledSteps, split_steps
from policies.rewards.success_classifier import SuccessClassifier, probabilities
from policies.rewards.success_ensemble import SuccessEnsemble, pessimistic
from policies.rewards.success_files import (
    CARD,
    WEIGHTS,
    classifier_to_onnx,
    load_classifier,
    save_classifier,
)
from policies.rewards.train_success_classifier import fit_classifier, train_success
from policies.training.config import TrainingConfig
from real.deploy.onnx_success import OnnxSuccess
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from robots.success import SUCCESS_KEY, DetectorConfig, SuccessContract
from tests.policies.kill import run_until_killed

PLACE = {"place": FieldSpec(shape=(2,), unit="m")}
SMALL = ClassifierConfig(fields=("place",), vector_width=8, hidden=(8,))
CONFIG = TrainSuccessConfig(
    classifier=SMALL,
    members=3,
    training=TrainingConfig(
        steps=120,
        learning_rate=1e-2,
        batch_size=32,
        precision="fp32",
        warmup_steps=10,
        log_every=5,
        seed=4,
    ),
    precision=0.8,
)


def member(bias: float, observation: dict[str, FieldSpec] = PLACE) -> SuccessClassifier:
    """A classifier with the logit `bias` everywhere."""
    classifier = SuccessClassifier(observation, SMALL)
    logit = classifier.head[-1]
    assert isinstance(logit, torch.nn.Linear)
    with torch.no_grad():
        logit.weight.zero_()
        logit.bias.fill_(bias)
    return classifier.eval()


def card(members: int = 1, model: ClassifierConfig = SMALL) -> SuccessCard:
    return SuccessCard(
        task="walk",
        rate_hz=10.0,
        observation=PLACE,
        model=model,
        members=members,
        detector=DetectorConfig(),
        report={},
        training_data="",
    )


def places(episodes: int = 24) -> LabelledSteps:
    """Steps in the plane; within 0.5 of the origin the task is solved."""
    rng = np.random.default_rng(0)
    place = rng.uniform(-1.0, 1.0, (episodes * 20, 2)).astype(np.float32)
    number = np.repeat(np.arange(episodes), 20)
    solved = np.linalg.norm(place, axis=1) < 0.5
    return LabelledSteps({"place": place}, solved, number, number >= 4, "walk", 10.0, PLACE)


def folder(path: Path) -> Path:
    """A new folder."""
    path.mkdir()
    return path


def test_the_score_is_the_least_probability_of_the_members() -> None:
    ensemble = pessimistic([member(2.0), member(-1.0), member(0.5)])
    score = probabilities(ensemble, {"place": np.zeros((4, 2), np.float32)})
    assert score == pytest.approx([1.0 / (1.0 + np.exp(1.0))] * 4, rel=1e-6)


def test_the_least_member_is_another_at_every_step() -> None:
    torch.manual_seed(0)
    members = [SuccessClassifier(PLACE, SMALL).eval() for _ in range(3)]
    place = {"place": np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)}
    apart = np.stack([probabilities(one, place) for one in members])
    assert set(apart.argmin(axis=0).tolist()) == {0, 1, 2}
    assert np.array_equal(probabilities(pessimistic(members), place), apart.min(axis=0))


def test_a_single_member_is_no_ensemble() -> None:
    alone = member(0.0)
    assert pessimistic([alone]) is alone


def test_members_of_different_fields_are_refused() -> None:
    other = member(0.0, {"place": FieldSpec(shape=(3,), unit="m")})
    with pytest.raises(HandoffError, match="at least 2 members with the same fields"):
        SuccessEnsemble([member(0.0), other])


def test_a_single_member_has_the_weights_of_a_classifier_alone(tmp_path: Path) -> None:
    steps, one = places(), replace(CONFIG, members=1)
    train_success(one, steps, folder(tmp_path / "one"), no_progress)
    trained = steps.rows(split_steps(steps, one).train)
    alone = fit_classifier(one, trained, folder(tmp_path / "alone"), no_progress)
    loaded, _ = load_classifier(tmp_path / "one")
    for name, weight in alone.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name


def test_files_of_a_single_member_do_not_speak_of_members(tmp_path: Path) -> None:
    save_classifier(tmp_path, card(), member(0.0))
    assert "members" not in json.loads((tmp_path / CARD).read_text())
    loaded, read = load_classifier(tmp_path)
    assert read.members == 1
    contract = {one.key: one.value for one in classifier_to_onnx(loaded, read).metadata_props}
    assert "members" not in json.loads(contract[SUCCESS_KEY])
    assert SuccessContract.from_json(contract[SUCCESS_KEY]).members == 1


def test_the_first_of_several_members_is_the_single_one(tmp_path: Path) -> None:
    train_success(replace(CONFIG, members=1), places(), folder(tmp_path / "one"), no_progress)
    train_success(CONFIG, places(), folder(tmp_path / "three"), no_progress)
    one, three = load_classifier(tmp_path / "one")[0], load_classifier(tmp_path / "three")[0]
    assert isinstance(three, SuccessEnsemble)
    assert len(three.members) == 3
    weights = [list(part.state_dict().values()) for part in (one, *three.members)]
    assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
    assert not torch.equal(weights[1][2], weights[2][2])
    assert sorted(path.name for path in (tmp_path / "three").iterdir()) == sorted(
        path.name for path in (tmp_path / "one").iterdir()
    )


def train_places(out: Path) -> None:
    """Trains with a checkpoint at every entry of the curve."""
    training = replace(CONFIG.training, checkpoint_seconds=0.0)
    train_success(replace(CONFIG, training=training), places(), out, no_progress)


def train_until_killed(out: Path, progress: object) -> None:
    training = replace(CONFIG.training, checkpoint_seconds=0.0)
    train_success(replace(CONFIG, training=training), places(), out, progress)  # type: ignore[arg-type]


def test_a_killed_training_of_several_members_ends_with_the_same_weights(tmp_path: Path) -> None:
    train_places(folder(tmp_path / "whole"))
    run_until_killed(177, train_until_killed, folder(tmp_path / "killed"))
    train_places(tmp_path / "killed")
    assert (tmp_path / "killed" / WEIGHTS).read_bytes() == (
        tmp_path / "whole" / WEIGHTS
    ).read_bytes()


def test_an_exported_ensemble_answers_as_torch_at_the_arm(tmp_path: Path) -> None:
    train_success(CONFIG, places(), tmp_path, no_progress)
    ensemble, read = load_classifier(tmp_path)
    (tmp_path / "success.onnx").write_bytes(classifier_to_onnx(ensemble, read).SerializeToString())
    exported = OnnxSuccess(tmp_path / "success.onnx")
    assert (exported.contract.members, read.members) == (3, 3)
    for size in (1, 7, 100):
        observation = {"place": places().fields["place"][:size]}
        answer = exported(observation)
        assert np.abs(answer - probabilities(ensemble, observation)).max() <= 1e-5
        assert answer.shape == (size,)


def test_members_share_the_trunk_and_its_weights_are_saved_once(tmp_path: Path) -> None:
    config = replace(SMALL, fields=("image",), trunk=TrunkConfig(), embeddings=1, picture_width=4)
    image = {"image": FieldSpec(shape=(32, 32, 3), dtype="uint8", unit="u8")}
    torch.manual_seed(1)
    members = [SuccessClassifier(image, config).eval() for _ in range(2)]
    pictures = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    ensemble = SuccessEnsemble(members)
    trunks = {id(one) for one in ensemble.modules() if isinstance(one, EfficientNetLite0)}
    assert len(trunks) == 1
    about = replace(card(2, config), observation=image)
    save_classifier(tmp_path, about, ensemble)
    assert not [name for name in ensemble.own_state() if "members.1" in name and ".trunk." in name]
    loaded, _ = load_classifier(tmp_path)
    expected = np.stack([probabilities(one, {"image": pictures}) for one in members]).min(axis=0)
    assert np.array_equal(probabilities(loaded, {"image": pictures}), expected)
    model = classifier_to_onnx(loaded, about)
    assert len(model.SerializeToString()) < 1.2 * len(
        classifier_to_onnx(members[0], about).SerializeToString()
    )
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (answer,) = session.run(["probability"], {"image": pictures})
    assert np.asarray(answer) == pytest.approx(expected, abs=1e-5)


def test_a_missing_member_is_refused(tmp_path: Path) -> None:
    save_classifier(tmp_path, card(2), pessimistic([member(0.0), member(1.0)]))
    written = json.loads((tmp_path / CARD).read_text())
    (tmp_path / CARD).write_text(json.dumps(written | {"members": 3}))
    with pytest.raises(HandoffError, match="weights do not match"):
        load_classifier(tmp_path)
