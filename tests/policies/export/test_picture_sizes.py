"""Every family with cameras sees small and large pictures, and its exported file computes from them
what torch does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from policies.card import Shapes
from policies.checkpoint import save_policy
from policies.data.demonstrations import read_demonstrations
from policies.export.onnx import ExportConfig, export
from policies.load import new_module
from policies.networks.config import (
    BackboneConfig,
    MlpConfig,
    ResnetEncoderConfig,
    ScratchConfig,
)
from policies.normalize import MinMaxStatistics
from policies.policy import Batch, ChunkPolicy, ObservationTensors
from policies.policy_config import (
    ActConfig,
    BehaviourCloningConfig,
    DiffusionPolicyConfig,
    PolicyConfig,
    TokenVlaConfig,
    VlaConfig,
)
from real.deploy.bundle_checks import golden_parity, read_golden
from real.deploy.onnx_policy import OnnxPolicy
from robots.contract import Precision
from robots.episodes.write_episodes import write_episodes
from robots.interfaces import no_progress
from tests.nightly import in_every_run

ALL = {
    "observation_fields": ("q",),
    "image_fields": ("*",),
    "anchor_field": None,
    "horizon": 4,
    "n_action_steps": 2,
}
ENCODER = ResnetEncoderConfig(channels=(16, 16), keypoints=4, features=8)
BACKBONE = BackboneConfig(
    scratch=ScratchConfig(width=32, layers=1, heads=4, feedforward=48, picture=32)
)
DIFFUSION = DiffusionPolicyConfig(
    **ALL,
    image_encoder=ENCODER,
    network=MlpConfig(width=32, blocks=1),
    train_timesteps=10,
    inference_steps=1,
)
FAMILIES: dict[str, PolicyConfig] = {
    "act": ActConfig(**ALL, width=32, heads=2, feedforward=32, encoder_layers=1, latent_layers=1),
    "bc": BehaviourCloningConfig(**ALL, image_encoder=ENCODER, head="mse", hidden=(32,)),
    "diffusion": DIFFUSION,
    "token_vla": TokenVlaConfig(**ALL, backbone=BACKBONE, train_backbone="all"),
    "vla": VlaConfig(**ALL, backbone=BACKBONE, train_backbone="all", inference_steps=1),
}
SIZES = {"front": (480, 640), "wrist": (60, 80)}
"""Height and width of the pictures of two cameras."""


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two episodes with both cameras."""
    folder, draw = tmp_path_factory.mktemp("demos"), np.random.default_rng(0)
    episodes = [
        {
            "q": draw.normal(size=(6, 3)).astype(np.float32),
            "cube": draw.normal(size=(6, 2)).astype(np.float32),
            **{
                name: draw.integers(256, size=(6, *size, 3), dtype=np.uint8)
                for name, size in SIZES.items()
            },
            "action": draw.normal(size=(6, 3)).astype(np.float32),
        }
        for _ in range(2)
    ]
    write_episodes(folder / "store.zarr", episodes, task="fold", rate_hz=10.0)
    return folder


def save_untrained(model: PolicyConfig, demos: Path, folder: Path) -> None:
    torch.manual_seed(0)
    data = read_demonstrations(demos, model)
    module = new_module(data.card.model, data.card.shapes)
    statistics = MinMaxStatistics(data.card.observation_size)
    statistics.update(data.observation_MO)
    module.normalize_observation.fit(statistics)
    save_policy(folder, data.card, module.state_dict(), module.extra_files())


def exported(demos: Path, folder: Path, precision: Precision = "float32") -> OnnxPolicy:
    config = ExportConfig(action_interface="as_recorded", golden=4, precision=precision)
    export(config, folder, demos, folder, no_progress, "p" * 64, "d" * 64)
    return OnnxPolicy(folder / "policy.onnx")


def test_what_a_policy_estimates_is_no_input_of_the_exported_file(
    demos: Path, tmp_path: Path
) -> None:
    estimating = replace(FAMILIES["bc"], observation_fields=("*",), estimated_fields=("cube",))
    save_untrained(estimating, demos, tmp_path)
    policy = exported(demos, tmp_path)
    assert set(policy.contract.observation) == {"q"}
    assert golden_parity(policy, read_golden(tmp_path / "golden.npz")).normalised < 1e-5
    weights = onnx.load(tmp_path / "policy.onnx").graph.initializer
    assert any("estimator" in weight.name for weight in weights)


# The other families' files, which contain no crop, are computed in test_families.py and
# test_language.py.
@pytest.mark.parametrize("family", in_every_run(["bc", "diffusion"], "diffusion"))
def test_the_exported_file_computes_what_torch_does(
    family: str, demos: Path, tmp_path: Path
) -> None:
    save_untrained(FAMILIES[family], demos, tmp_path)
    policy = exported(demos, tmp_path)
    shapes = {name: spec.shape[:2] for name, spec in policy.contract.sensors.items()}
    assert shapes == SIZES
    assert golden_parity(policy, read_golden(tmp_path / "golden.npz")).normalised < 1e-5


@pytest.mark.parametrize(
    ("precision", "limit"), in_every_run([("float16", 1e-3), ("int8", 0.1)], ("int8", 0.1))
)
def test_large_pictures_are_resized_in_float32_in_any_precision(
    precision: Precision, limit: float, demos: Path, tmp_path: Path
) -> None:
    save_untrained(FAMILIES["bc"], demos, tmp_path)
    policy = exported(demos, tmp_path, precision)
    assert 0.0 < golden_parity(policy, read_golden(tmp_path / "golden.npz")).normalised < limit
    graph = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "policy.onnx")).graph
    (resize,) = (node for node in graph.node if node.op_type == "Resize")
    types = {entry.name: entry.type.tensor_type.elem_type for entry in graph.value_info}
    assert types[resize.output[0]] == onnx.TensorProto.FLOAT


def untrained(model: PolicyConfig, sizes: Mapping[str, tuple[int, int]]) -> ChunkPolicy:
    torch.manual_seed(0)
    sensors = {name: (*size, 3) for name, size in sizes.items()}
    named = replace(model, image_fields=tuple(sizes))
    return new_module(named, Shapes({"q": (0, 3)}, 3, None, sensors)).eval()


def loss(module: ChunkPolicy, front: torch.Tensor) -> torch.Tensor:
    """Loss of one chunk of zeros, with black pictures of the camera wrist."""
    wrist = torch.zeros(1, 1, *module.shapes.sensors["wrist"], dtype=torch.uint8)
    obs = ObservationTensors(
        torch.zeros(1, 1, 3), {"front": front[None, None], "wrist": wrist}, ("fold",)
    )
    padded = torch.zeros(1, module.chunk_shape[0], dtype=torch.bool)
    batch = Batch(obs, torch.zeros(1, *module.chunk_shape), padded)
    return module.loss(batch, np.random.default_rng(0))


@pytest.mark.parametrize("size", [(60, 80), (96, 96), (480, 640)])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_sees_the_corner_of_pictures_of_every_size(
    family: str, size: tuple[int, int]
) -> None:
    module = untrained(FAMILIES[family], {"front": size, "wrist": (70, 50)})
    front = torch.zeros(*size, 3, dtype=torch.uint8)
    black = loss(module, front)
    # From where the centred crop begins, a sixteenth from the edges, an eighth of either side.
    top, left = size[0] // 16, size[1] // 16
    front[top : 3 * top, left : 3 * left] = 255
    assert loss(module, front) != black


@pytest.mark.parametrize("family", ["act", "bc", "diffusion"])
def test_one_pixel_near_the_corner_of_480_x_640_matters(family: str) -> None:
    module = untrained(FAMILIES[family], SIZES)
    front = torch.zeros(480, 640, 3, dtype=torch.uint8)
    # The gradient of the first layer; a loss of .25 does not resolve what one pixel changes.
    weights = next(w for name, w in module.named_parameters() if "trunk" in name)
    (black,) = torch.autograd.grad(loss(module, front), weights)
    front[32, 42] = 255
    (changed,) = torch.autograd.grad(loss(module, front), weights)
    assert not torch.equal(changed, black)
