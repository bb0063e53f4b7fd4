"""Policies that see through the small convolutional encoder, which is trained with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from policies.augmentation.config import ImageAugmentationConfig
from policies.card import Shapes
from policies.checkpoint import read_weights
from policies.data.frames import FrameStorage
from policies.export.onnx import ExportConfig, export
from policies.imitation.objective import prepare
from policies.imitation.pretrain import pretrain
from policies.load import load_policy
from policies.networks.config import CnnEncoderConfig
from policies.networks.images.image_encoder import StridedCnn
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import ObservationTensors
from policies.policy_config import BehaviourCloningConfig, BesoConfig, DiffusionPolicyConfig
from robots.config import validate
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.nightly import in_every_run
from tests.policies.imitation.test_frozen_encoder import BESO, CONFIG, CPU, FLOW, POLICY, observed
from tests.policies.seeing import write_seeing_demonstrations

ENCODER = CnnEncoderConfig(channels=(16, 32), keypoints=4, features=8)
NOISE = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_demonstrations(tmp_path_factory.mktemp("demos"))


def test_every_convolution_halves_the_picture() -> None:
    cnn = StridedCnn((32, 64, 64), 5)
    assert cnn(torch.zeros(2, 3, 84, 97)).shape == (2, 64, 11, 13)
    # 5 x 5 x 3 x 32, 9 x 32 x 64 and 9 x 64 x 64 weights, and a scale and a shift per channel.
    assert sum(part.numel() for part in cnn.parameters()) == 2400 + 18432 + 36864 + 2 * 160


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(HandoffError, match=r"channels \(8,\), expected at least one, multiples"):
        StridedCnn((8,), 5)
    with pytest.raises(HandoffError, match="kernel 4, expected an odd number"):
        StridedCnn((16,), 4)


def test_pictures_are_cropped_and_changed_in_training_alone() -> None:
    augmentation = ImageAugmentationConfig(brightness=0.4)
    pictures = torch.randint(0, 256, (2, 1, 40, 40, 3), dtype=torch.uint8)
    obs = ObservationTensors(torch.zeros(2, 1, 0), {"front": pictures})
    for option in ({}, {"augmentation": augmentation, "crop_ratio": 1.0}):
        torch.manual_seed(0)
        model = BehaviourCloningConfig(
            observation_fields=(), image_fields=("front",), image_encoder=replace(ENCODER, **option)
        )
        encoder = ObservationEncoder(model, Shapes({}, 2, None, {"front": (40, 40, 3)}))
        seen = [encoder(obs, seed and np.random.default_rng(seed)) for seed in (None, 1, 1, 2)]
        assert torch.equal(seen[1], seen[2])
        assert not torch.equal(seen[0], seen[1])
        assert not torch.equal(seen[1], seen[3])


@pytest.mark.parametrize(
    "policy", in_every_run([POLICY, FLOW, BESO], BESO), ids=["bc", "flow", "beso"]
)
def test_it_trains_and_its_exported_file_takes_pictures(
    policy: BehaviourCloningConfig | DiffusionPolicyConfig | BesoConfig,
    demos: Path,
    tmp_path: Path,
) -> None:
    config = replace(CONFIG, policy=replace(policy, image_encoder=ENCODER))
    before = prepare(config, demos, FrameStorage(), CPU).module.state_dict()
    pretrain(config, demos, tmp_path, no_progress)
    name = "encoder.images.camera.trunk.layers.0.weight"
    assert not torch.equal(before[name], read_weights(tmp_path)[name])
    options = ExportConfig(action_interface="as_recorded")
    export(options, tmp_path, demos, tmp_path, no_progress, "policy", "demos")
    inputs = observed(demos, [0, 9, 20])
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    feeds = {"observation": inputs.vector, "noise": NOISE, "camera": inputs.sensors["camera"]}
    assert session.get_inputs()[2].type == "tensor(uint8)"
    action = np.asarray(session.run(["action"], feeds)[0])
    np.testing.assert_allclose(action, load_policy(tmp_path)(inputs, NOISE), atol=1e-4)


def test_the_kind_chooses_it() -> None:
    policy = validate(DiffusionPolicyConfig, {"image_encoder": {"kind": "cnn", "kernel": 7}})
    assert policy.image_encoder == CnnEncoderConfig(kernel=7)
