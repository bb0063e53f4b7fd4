"""Vision models from local folders as frozen trunks of image encoders."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from policies.networks.images.folder_trunk import FolderTrunk
from policies.networks.images.image_model import read_image_model
from policies.networks.images.onnx_function import onnx_function
from robots.errors import HandoffError
from tests.nightly import in_every_run
from tests.policies.image_models import MEAN, STD, write_image_model, write_processor

MAPS = {
    "dinov2": (16, 3, 4),
    "dinov2_with_registers": (16, 3, 3),
    "vit": (16, 3, 3),
    "siglip": (16, 3, 3),
    "resnet": (16, 3, 3),
}


def trunk_of(folder: Path) -> FolderTrunk:
    trunk = FolderTrunk(read_image_model(folder))
    trunk.load_pretrained()
    return trunk


def edited(folder: Path, name: str, **changes: Any) -> Path:
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


@pytest.mark.parametrize("family", in_every_run(MAPS, "dinov2", "resnet"))
def test_a_model_gives_maps_here_and_in_onnx_runtime(family: str, tmp_path: Path) -> None:
    trunk = trunk_of(write_image_model(tmp_path, family))
    images = torch.rand(3, 3, 30, 41, generator=torch.Generator().manual_seed(0))
    maps = trunk(images)
    assert tuple(maps.shape[1:]) == trunk.map_shape((30, 41)) == MAPS[family]
    assert maps.mean(dim=1).abs().max() < 1e-4
    assert (maps.var(dim=1, correction=0) - 1.0).abs().max() < 0.05
    assert (maps[0] - maps[1]).abs().max() > 1e-3
    function = onnx_function(trunk, torch.zeros(2, 3, 30, 41))
    assert (function(images) - maps).abs().max() < 1e-4


def test_tokens_lie_where_their_patches_do(tmp_path: Path) -> None:
    folder = write_image_model(tmp_path, "dinov2_with_registers")
    from transformers import Dinov2WithRegistersModel

    model = Dinov2WithRegistersModel.from_pretrained(folder).eval()
    images = torch.rand(1, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    with torch.no_grad():
        hidden = model(pixel_values=(images - mean) / std).last_hidden_state
    # A class token and three registers come first; the patch of row 1 and column 2 is the sixth.
    token = hidden[0, 4 + 5]
    expected = (token - token.mean()) / token.std(correction=0)
    assert (trunk_of(folder)(images)[0, :, 1, 2] - expected).abs().max() < 1e-3


def test_building_and_loading_leave_the_random_state_alone(tmp_path: Path) -> None:
    folder = write_image_model(tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    trunk_of(folder)
    assert torch.equal(torch.rand(4), expected)


def test_training_changes_no_statistics_and_no_weights(tmp_path: Path) -> None:
    trunk = trunk_of(write_image_model(tmp_path, "resnet"))
    before = trunk.identity()
    nn.Sequential(trunk).train()
    trunk(torch.rand(2, 3, 24, 24))
    assert trunk.identity() == before
    assert not any(parameter.requires_grad for parameter in trunk.parameters())


def test_its_identity_is_that_of_the_weights(tmp_path: Path) -> None:
    folder = write_image_model(tmp_path)
    trunk = FolderTrunk(read_image_model(folder))
    untrained = trunk.identity()
    trunk.load_pretrained()
    assert trunk.identity() != untrained
    assert trunk.identity() == trunk_of(folder).identity()


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_image_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["layernorm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(HandoffError, match=r"1 weights are missing .* layernorm\.weight"):
        trunk_of(folder)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    folder = write_image_model(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(HandoffError, match="the image encoder's weights cannot be read"):
        trunk_of(folder)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("config.json", {"model_type": "house"}, "model_type is 'house', which transformers"),
        ("config.json", {"backbone": "resnet50"}, "which is built on another model"),
        ("config.json", {"patch_size": 64}, "the model takes no images of 24 x 32 px"),
        ("preprocessor_config.json", {"image_mean": None}, "mean None and deviation"),
        ("preprocessor_config.json", {"image_std": [1, 1, 0]}, "the deviations above 0"),
        ("preprocessor_config.json", {"crop_size": {}}, r"size \(None, None\)"),
        ("preprocessor_config.json", {"rescale_factor": 1.0}, "rescaled by 1.0, expected 1/255"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = edited(write_image_model(tmp_path), name, **changes)
    with pytest.raises(HandoffError, match=message):
        trunk_of(folder)


def test_a_model_of_words_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig

    BertConfig(hidden_size=8, num_attention_heads=1, num_hidden_layers=1).save_pretrained(tmp_path)
    write_processor(tmp_path, {"height": 24, "width": 24})
    with pytest.raises(HandoffError, match=r"takes no images|cannot be built"):
        FolderTrunk(read_image_model(tmp_path))


def test_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="nowhere' is not a folder"):
        read_image_model(tmp_path / "nowhere")
    with pytest.raises(HandoffError, match=r"no config\.json, so the image encoder"):
        read_image_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(HandoffError, match=r"no preprocessor_config\.json"):
        read_image_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(HandoffError, match="a JSON list, expected an object"):
        read_image_model(tmp_path)


def test_pictures_that_are_not_normalised_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    write_processor(tmp_path, 32, do_normalize=False)
    model = read_image_model(tmp_path)
    assert (model.size, model.mean, model.std) == ((32, 32), (0.0,) * 3, (1.0,) * 3)


def timm_folder(folder: Path, architecture: str, **more: Any) -> Path:
    scaling = {"input_size": [3, 32, 32], "mean": MEAN, "std": STD}
    config = {"architecture": architecture, "pretrained_cfg": scaling, **more}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_timm_is_named_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(HandoffError, match=r"model of timm, which cannot be .*'\.\[timm\]'"):
        trunk_of(timm_folder(tmp_path, "resnet18"))


@pytest.mark.parametrize(
    ("architecture", "options"),
    [("hf-hub:some/model", {}), ("resnet18", {"checkpoint_path": "weights.pth"})],
)
def test_timm_is_asked_for_no_further_files(
    architecture: str, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_model(model_name: str, pretrained: bool, checkpoint_path: str, **kwargs: Any) -> Any:
        raise AssertionError("it was asked")

    known = SimpleNamespace(create_model=create_model, is_model=lambda name: name == "resnet18")
    monkeypatch.setitem(sys.modules, "timm", known)
    with pytest.raises(HandoffError, match="expected a name that timm knows"):
        trunk_of(timm_folder(tmp_path, architecture, model_args=options))


@pytest.mark.parametrize(
    ("architecture", "options", "shape"),
    [
        ("resnet10t", {}, (512, 1, 1)),
        ("vit_tiny_patch16_224", {"img_size": 32, "depth": 2}, (192, 2, 2)),
        ("vit_pwee_patch16_reg1_gap_256", {"img_size": 32, "depth": 2}, (256, 2, 2)),
    ],
)
def test_a_model_of_timm_gives_maps(
    architecture: str, options: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    timm = pytest.importorskip(
        "timm", reason="the extra [timm] is not installed", exc_type=ImportError
    )
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    model = timm.create_model(architecture, num_classes=5, **options).eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    trunk = trunk_of(timm_folder(tmp_path, architecture, model_args=options))
    images = torch.rand(3, 3, 40, 50)
    maps = trunk(images)
    assert tuple(maps.shape[1:]) == trunk.map_shape((40, 50)) == shape
    assert (onnx_function(trunk, torch.zeros(2, 3, 40, 50))(images) - maps).abs().max() < 1e-4
    weights = load_file(tmp_path / "model.safetensors")
    name = next(name for name in weights if name.startswith(("conv1", "patch_embed")))
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(HandoffError, match=f"1 weights are missing .* {name}"):
        trunk_of(tmp_path)
