"""Names of other projects' data sets, with dots and slashes, pass through training and export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from policies.data.demonstrations import with_recorded_fields
from policies.export.onnx import ExportConfig, export
from policies.imitation.config import PretrainConfig
from policies.imitation.open_loop import open_loop_errors
from policies.imitation.pretrain import pretrain
from policies.load import load_policy, read_card
from policies.networks.config import BackboneConfig, MlpConfig, ResnetEncoderConfig, ScratchConfig
from policies.networks.field_modules import FieldModules
from policies.policy_config import (
    ActConfig,
    BehaviourCloningConfig,
    DiffusionPolicyConfig,
    PolicyConfig,
    VlaConfig,
)
from policies.training.config import TrainingConfig
from real.deploy.bundle_checks import golden_parity, read_golden
from real.deploy.onnx_policy import OnnxPolicy
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from robots.spec import FieldSpec

FRONT, WRIST = "observation.images.cam_high", "observation/wrist.left"
STATE, GRIPPER = "observation.state", "observation/gripper"
FIELDS = {
    STATE: FieldSpec(shape=(4,), unit="rad", role="observation"),
    GRIPPER: FieldSpec(shape=(1,), unit="m", role="observation"),
    FRONT: FieldSpec(shape=(24, 32, 3), dtype="uint8", unit="u8", role="observation"),
    WRIST: FieldSpec(shape=(24, 32, 3), dtype="uint8", unit="u8", role="observation"),
    "next.reward": FieldSpec(shape=(1,), role="outcome"),
    "action": FieldSpec(shape=(4,), unit="rad", role="action"),
}
ALL = {
    "observation_fields": ("*",),
    "image_fields": ("*",),
    "anchor_field": None,
    "horizon": 4,
    "n_action_steps": 2,
}
SMALL = ResnetEncoderConfig(crop=(20, 28), channels=(16, 16), keypoints=4, features=8)
FAMILIES: dict[str, PolicyConfig] = {
    "act": ActConfig(**ALL, width=32, heads=2, feedforward=32, encoder_layers=1, latent_layers=1),
    "diffusion": DiffusionPolicyConfig(
        **ALL, image_encoder=SMALL, network=MlpConfig(width=32, blocks=1), inference_steps=2
    ),
    "bc": BehaviourCloningConfig(**ALL, image_encoder=SMALL, hidden=(32,)),
    "vla": VlaConfig(
        **ALL,
        backbone=BackboneConfig(
            scratch=ScratchConfig(width=32, layers=2, heads=4, feedforward=48, picture=32)
        ),
        train_backbone="all",
        inference_steps=2,
    ),
}

TRAINING = TrainingConfig(
    steps=2,
    learning_rate=1e-3,
    warmup_steps=0,
    batch_size=4,
    precision="fp32",
    preflight_seconds=0.0,
)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demos")
    schema = EpisodeSchema(
        name="fold_towel", streams={"policy": StreamSpec(rate_hz=10.0, fields=FIELDS)}
    )
    rng = np.random.default_rng(0)
    with EpisodeStore.create(folder / "store.zarr", schema) as store:
        for length in (9, 12, 10):
            arrays = {
                name: (
                    rng.integers(256, size=(length, *spec.shape), dtype=np.uint8)
                    if spec.unit == "u8"
                    else rng.normal(size=(length, *spec.shape)).astype(np.float32)
                )
                for name, spec in FIELDS.items()
            }
            store.append({"policy": arrays}, {"instruction": "fold the towel"})
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_on_them_and_is_exported(
    demos: Path, tmp_path: Path, family: str
) -> None:
    config = PretrainConfig(policy=FAMILIES[family], training=TRAINING, validation_fraction=0.0)
    pretrain(config, demos, tmp_path, no_progress)
    card = read_card(tmp_path)
    assert card.model.observation_fields == (STATE, GRIPPER)
    assert card.model.image_fields == (FRONT, WRIST)
    (tmp_path / "bundle").mkdir()
    export(
        ExportConfig(action_interface="as_recorded", golden=4),
        tmp_path,
        demos,
        tmp_path / "bundle",
        no_progress,
        "policy",
        "demos",
    )
    policy = OnnxPolicy(tmp_path / "bundle/policy.onnx")
    assert set(policy.contract.sensors) == {FRONT, WRIST}
    golden = read_golden(tmp_path / "bundle/golden.npz")
    assert golden_parity(policy, golden).normalised < 1e-4


@pytest.mark.parametrize("family", ["act", "bc"])
def test_the_errors_on_recorded_actions_are_those_of_the_predicted_chunks(
    demos: Path, tmp_path: Path, family: str
) -> None:
    config = PretrainConfig(policy=FAMILIES[family], training=TRAINING, validation_fraction=0.0)
    pretrain(config, demos, tmp_path, no_progress)
    card, policy = read_card(tmp_path), load_policy(tmp_path)
    errors = open_loop_errors(policy, card, demos, no_progress)
    assert errors.policy_EKA.shape == (3, 4, 4)
    # Newest observations at the second step and later, whatever windows the family learns from.
    assert errors.windows_E.tolist() == [8, 11, 9]
    actions = EpisodeStore.open(demos / "store.zarr").read(0, "policy", ["action"])["action"]
    expected = np.mean([np.abs(actions[t - 1] - actions[t]) for t in range(1, 9)], axis=0)
    np.testing.assert_allclose(errors.control_EKA[0, 0], expected, rtol=1e-5)

    def perfect(observation: np.ndarray | PolicyInput, noise: np.ndarray) -> np.ndarray:
        assert isinstance(observation, PolicyInput)
        rows = [
            int(np.flatnonzero((states == row[-1, :4]).all(axis=1))[0])
            for row in observation.vector
        ]
        return np.stack(
            [actions_of[np.minimum(row + np.arange(4), len(actions_of) - 1)] for row in rows]
        )

    store = EpisodeStore.open(demos / "store.zarr")
    states = store.column("policy", STATE)
    actions_of = store.column("policy", "action")
    errors = open_loop_errors(perfect, card, demos, no_progress)
    assert np.nanmax(errors.policy_EKA) == 0.0


def test_a_pattern_without_a_field_is_refused() -> None:
    model = ActConfig(**{**ALL, "image_fields": ("observation.images.*", "camera_*")})
    with pytest.raises(HandoffError, match=r"no observed field is called 'camera_\*'"):
        with_recorded_fields("demos", model, FIELDS)
    outcomes = {"next.reward": FIELDS["next.reward"], "action": FIELDS["action"]}
    with pytest.raises(HandoffError, match="no field is observed"):
        with_recorded_fields("demos", ActConfig(**ALL), outcomes)


def test_modules_keep_names_with_dots_and_percent_signs() -> None:
    from torch import nn

    names = ["a.b", "a%2Eb", "a/b"]
    modules = FieldModules({name: nn.Linear(1, size + 1) for size, name in enumerate(names)})
    assert list(modules) == list(modules.keys()) == names
    assert "a.b" in modules
    assert "a" not in modules
    widths = {name: module.out_features for name, module in modules.items()}  # type: ignore[union-attr]
    assert widths == {"a.b": 1, "a%2Eb": 2, "a/b": 3}
