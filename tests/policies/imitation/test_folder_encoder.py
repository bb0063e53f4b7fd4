"""Policies that see through a model from a folder: trained, saved with it, exported, distilled."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from policies.checkpoint import read_weights
from policies.data.frames import FrameStorage
from policies.distillation.regression import one_step_student
from policies.export.onnx import ExportConfig, export
from policies.families.diffusion import DiffusionPolicy
from policies.imitation.objective import prepare
from policies.imitation.pretrain import pretrain
from policies.load import load_module, load_policy
from policies.networks.config import FolderEncoderConfig
from policies.networks.images.folder_trunk import FolderTrunk
from policies.networks.images.image_model import read_image_model
from policies.policy_config import BehaviourCloningConfig, BesoConfig, DiffusionPolicyConfig
from robots.interfaces import no_progress
from tests.nightly import in_every_run
from tests.policies.image_models import write_image_model
from tests.policies.imitation.test_frozen_encoder import BESO, CONFIG, CPU, FLOW, POLICY, observed
from tests.policies.seeing import write_seeing_demonstrations

NOISE = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_demonstrations(tmp_path_factory.mktemp("demos"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> FolderEncoderConfig:
    folder = write_image_model(tmp_path_factory.mktemp("model"))
    return FolderEncoderConfig(folder=str(folder), channels=4, keypoints=4, features=8)


@pytest.mark.parametrize(
    "policy", in_every_run([POLICY, FLOW, BESO], FLOW), ids=["bc", "flow", "beso"]
)
def test_it_trains_and_its_exported_file_takes_pictures(
    policy: BehaviourCloningConfig | DiffusionPolicyConfig | BesoConfig,
    encoder: FolderEncoderConfig,
    demos: Path,
    tmp_path: Path,
) -> None:
    config = replace(CONFIG, policy=replace(policy, image_encoder=encoder))
    pretrain(config, demos, tmp_path, no_progress)
    options = ExportConfig(action_interface="as_recorded")
    export(options, tmp_path, demos, tmp_path, no_progress, "policy", "demos")
    inputs = observed(demos, [0, 9, 20])
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    feeds = {"observation": inputs.vector, "noise": NOISE, "camera": inputs.sensors["camera"]}
    action = np.asarray(session.run(["action"], feeds)[0])
    np.testing.assert_allclose(action, load_policy(tmp_path)(inputs, NOISE), atol=1e-4)


def test_the_saved_policy_needs_the_folder_no_more(demos: Path, tmp_path: Path) -> None:
    folder = write_image_model(tmp_path / "model")
    expected = FolderTrunk(read_image_model(folder))
    expected.load_pretrained()
    policy = replace(FLOW, image_encoder=FolderEncoderConfig(folder=str(folder), channels=4))
    (tmp_path / "policy").mkdir()
    pretrain(replace(CONFIG, policy=policy), demos, tmp_path / "policy", no_progress)
    shutil.rmtree(folder)
    module, card = load_module(tmp_path / "policy")
    assert card.model == policy
    trunk = next(part for part in module.modules() if isinstance(part, FolderTrunk))
    assert trunk.identity() == expected.identity()
    assert module.extra_files().keys() == {
        "image_encoder/config.json",
        "image_encoder/preprocessor_config.json",
    }
    # Its one-step student is built from the teacher alone.
    assert isinstance(module, DiffusionPolicy)
    student = one_step_student(module)
    assert student.extra_files() == module.extra_files()


def test_maps_of_another_model_are_computed_again(
    demos: Path, encoder: FolderEncoderConfig, tmp_path: Path
) -> None:
    other = write_image_model(tmp_path / "model", "vit")
    storage = FrameStorage(0.0, tmp_path)
    frames = []
    for image_encoder in (encoder, replace(encoder, folder=str(other))):
        policy = replace(POLICY, image_encoder=image_encoder)
        setup = prepare(replace(CONFIG, policy=policy), demos, storage, CPU)
        frames.append(setup.split.train.sensors["camera"])
    assert [each.step_shape for each in frames] == [(16, 3, 4), (16, 3, 3)]
    assert frames[0].steps(torch.arange(4)).dtype == torch.float16


def test_the_read_out_alone_is_trained(
    demos: Path, encoder: FolderEncoderConfig, tmp_path: Path
) -> None:
    config = replace(CONFIG, policy=replace(POLICY, image_encoder=encoder))
    before = prepare(config, demos, FrameStorage(), CPU).module.state_dict()
    pretrain(config, demos, tmp_path, no_progress)
    after = read_weights(tmp_path)
    trunk = [name for name in after if ".trunk." in name]
    assert len(trunk) > 20
    assert all(torch.equal(before[name], after[name]) for name in trunk)
    read_out = "encoder.images.camera.reduce.weight"
    assert not torch.equal(before[read_out], after[read_out])


def test_training_reads_the_models_folder(encoder: FolderEncoderConfig) -> None:
    config = replace(FLOW, image_encoder=encoder)
    assert config.external_folders == {"image encoder": encoder.folder}
    assert replace(config, image_fields=()).external_folders == {}
