import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.networks.config import BackboneConfig
from policies.networks.vlm import (
    Prefix,
    VisionLanguageModel,
    load_backbone,
    padded_image,
    positions,
    prefix_mask,
)
from robots.errors import HandoffError
from tests.policies.vlm_fixture import write_backbone

FAMILIES = ("smolvlm", "idefics3", "paligemma")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="module")
def backbone(folder: Path) -> VisionLanguageModel:
    torch.manual_seed(0)
    return load_backbone(BackboneConfig(folder=str(folder)), weights=True, state=[3])


def pictures(rows: int, *cameras: str, seed: int = 0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, 256, (rows, 1, 32, 32, 3), dtype=torch.uint8, generator=draw)
        for name in cameras
    }


def prefix_of(
    model: VisionLanguageModel,
    images: dict[str, Tensor],
    instruction: tuple[str, ...],
    state_BTO: Tensor,
) -> Prefix:
    """With the state as one token, where the model has one."""
    return model.prefix(
        images,
        model.tokens(instruction),
        [state_BTO.flatten(1)] if len(model.state_projections) else [],
    )


def weights(folder: Path, head: bool = False) -> dict[str, Tensor]:
    return load_backbone(BackboneConfig(folder=str(folder)), weights=True, head=head).state_dict()


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_transformers_on_the_same_images_and_text(
    family: str, tmp_path: Path
):
    from transformers import AutoModelForImageTextToText

    folder = write_backbone(tmp_path, family=family)
    own = load_backbone(BackboneConfig(folder=str(folder)), weights=True)
    images, instruction = pictures(1, "camera"), "push the red block to the left"
    prefix = prefix_of(own, images, (instruction,), torch.zeros(1, 1, 0))
    length = prefix.mask_BL.shape[1]
    # PaliGemma reads its prefix in both directions as pi0 does, the others from left to right.
    mask = (
        prefix_mask(prefix)
        if family == "paligemma"
        else torch.ones(1, length, length).bool().tril()
    )
    with torch.no_grad():
        hidden, _ = own.forward_text(prefix.embedding_BLW, mask, positions(prefix.mask_BL))

        theirs = AutoModelForImageTextToText.from_pretrained(folder, local_files_only=True)
        words = own.source.tokenizer.encode(instruction + "\n").ids
        pixels = images["camera"][:, 0].movedim(-1, 1).float() / 127.5 - 1.0
        expected = theirs.model(
            input_ids=torch.tensor([[1] * own.image_tokens + words]),
            pixel_values=pixels if family == "paligemma" else pixels[:, None],
            attention_mask=torch.ones(1, length, dtype=torch.long),
            **(
                {"token_type_ids": torch.zeros(1, length, dtype=torch.long)}
                if family == "paligemma"
                else {}
            ),
        ).last_hidden_state
    assert hidden.shape == expected.shape == (1, own.image_tokens + len(words), 32)
    assert torch.allclose(hidden, expected, atol=1e-5)
    assert expected.std() > 0.1


@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_those_of_transformers(tied: bool, tmp_path: Path):
    from transformers import AutoModelForImageTextToText

    folder = write_backbone(tmp_path, tied=tied)
    own = load_backbone(BackboneConfig(folder=str(folder)), weights=True, head=True)
    theirs = AutoModelForImageTextToText.from_pretrained(folder, local_files_only=True)
    hidden = torch.randn(2, 3, 32)
    assert torch.equal(own.logits(hidden), theirs.lm_head(hidden))


def test_tied_weights_stand_once_in_the_state_dictionary(tmp_path: Path):
    from safetensors.torch import save

    save(weights(write_backbone(tmp_path, tied=True), head=True))


def test_weights_in_shards_are_those_in_one_file(folder: Path, tmp_path: Path):
    write_backbone(tmp_path, shard="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    one, other = weights(folder), weights(tmp_path)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_weights_in_half_precision_become_single(folder: Path, tmp_path: Path):
    write_backbone(tmp_path, dtype=torch.bfloat16)
    rounded = weights(tmp_path)
    assert {value.dtype for value in rounded.values()} == {torch.float32}
    assert all(
        torch.equal(rounded[name], value.bfloat16().float())
        for name, value in weights(folder).items()
    )


def test_the_first_layers_are_kept(folder: Path):
    whole = weights(folder)
    short = load_backbone(BackboneConfig(folder=str(folder), layers=1), weights=True)
    assert (len(short.text_layers()), short.layers) == (1, 1)
    kept = short.state_dict()
    assert kept.keys() == {name for name in whole if "text.layers.1" not in name}
    assert all(torch.equal(kept[name], whole[name]) for name in kept)


def test_without_weights_the_structure_is_the_same(folder: Path):
    sizes = {name: value.shape for name, value in weights(folder).items()}
    blank = load_backbone(BackboneConfig(folder=str(folder)), weights=False).state_dict()
    assert {name: value.shape for name, value in blank.items()} == sizes


def test_a_prefix_is_image_then_text_tokens_then_one_state(backbone: VisionLanguageModel):
    prefix = prefix_of(
        backbone, pictures(2, "a", "b"), ("go", "open the drawer"), torch.randn(2, 1, 3)
    )
    tokens, instruction = backbone.tokens(("go", "open the drawer"))
    # 32 px in patches of 8 px are 16, of which the connector makes 4 tokens per camera.
    assert prefix.embedding_BLW.shape == (2, 4 + 4 + tokens.shape[1] + 1, 32)
    assert prefix.mask_BL.tolist() == [[True] * 8 + row + [True] for row in instruction.tolist()]
    assert instruction.sum(dim=1).tolist() == [3, 4]
    assert torch.equal(prefix.embedding_BLW[:, 8:-1], backbone.text.embed_tokens(tokens))


def test_cameras_are_read_in_the_order_of_their_names(backbone: VisionLanguageModel):
    images, state = pictures(1, "a", "b"), torch.zeros(1, 1, 3)
    turned = prefix_of(backbone, {"b": images["b"], "a": images["a"]}, ("go",), state)
    assert torch.equal(
        turned.embedding_BLW, prefix_of(backbone, images, ("go",), state).embedding_BLW
    )


def test_the_newest_picture_is_read(backbone: VisionLanguageModel):
    old, new = (pictures(1, "a", seed=seed)["a"] for seed in (1, 2))
    both = {"a": torch.cat([old, new], dim=1)}
    state = torch.zeros(1, 1, 3)
    images = prefix_of(backbone, both, ("go",), state).embedding_BLW
    assert torch.equal(images, prefix_of(backbone, {"a": new}, ("go",), state).embedding_BLW)


def test_an_instruction_ends_with_one_newline(backbone: VisionLanguageModel):
    assert backbone.tokens(("go",))[0].tolist() == backbone.tokens(("go\n",))[0].tolist()


def test_padding_and_truncation_of_the_tokenizer_are_left_out(folder: Path, tmp_path: Path):
    from tokenizers import Tokenizer

    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=10)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    model = load_backbone(BackboneConfig(folder=str(tmp_path)), weights=True)
    assert model.tokens(("go",))[0].shape == (1, 3)


def test_padding_has_no_position():
    mask = torch.tensor([[True, True, False, False, True]])
    assert positions(mask)[0, [0, 1, 4]].tolist() == [0, 1, 2]


def test_image_and_text_tokens_attend_to_each_other_and_the_state_to_all(
    backbone: VisionLanguageModel,
):
    prefix = prefix_of(backbone, pictures(1, "a"), ("go",), torch.zeros(1, 1, 3))
    # Four tokens of the picture, three of the words, one of the state.
    assert prefix_mask(prefix)[0].int().tolist() == [[1] * 7 + [0]] * 7 + [[1] * 8]


def test_padding_after_a_shorter_instruction_changes_nothing(
    backbone: VisionLanguageModel,
):
    state, images = torch.randn(1, 1, 3), pictures(1, "a")
    alone = prefix_of(backbone, images, ("go",), state)
    beside = prefix_of(
        backbone,
        {"a": images["a"].expand(2, -1, -1, -1, -1)},
        ("go", "lift the cup and put it on"),
        state.expand(2, -1, -1),
    )
    assert beside.mask_BL.shape[1] > alone.mask_BL.shape[1]
    with torch.no_grad():
        pairs = zip(backbone.forward_prefix(alone), backbone.forward_prefix(beside), strict=True)
    for short, long in pairs:
        for one, other in zip(short, long, strict=True):
            assert torch.allclose(one[0], other[0][:, beside.mask_BL[0]], atol=1e-5)


def test_the_state_changes_no_key_before_it(backbone: VisionLanguageModel):
    with torch.no_grad():
        one, other = (
            backbone.forward_prefix(
                prefix_of(backbone, pictures(1, "a"), ("go",), torch.full((1, 1, 3), value))
            )
            for value in (0.0, 1.0)
        )
    for (key, _), (changed, _) in zip(one, other, strict=True):
        assert torch.equal(key[:, :, :-1], changed[:, :, :-1])
        assert (key[:, :, -1] - changed[:, :, -1]).abs().max() > 1e-2


def test_a_frozen_backbone_gives_the_state_the_gradient_of_a_trained_one(folder: Path):
    gradients, keys = [], []
    for trained in (False, True):
        torch.manual_seed(0)
        model: Any = load_backbone(BackboneConfig(folder=str(folder)), weights=True, state=[3])
        model.text.requires_grad_(trained)
        model.vision.requires_grad_(trained)
        model.connector.requires_grad_(trained)
        prefix = prefix_of(model, pictures(2, "a"), ("go", "open the drawer"), torch.ones(2, 1, 3))
        key_values = model.forward_prefix(prefix)
        torch.stack([part.square().sum() for pair in key_values for part in pair]).sum().backward()
        gradients.append(model.state_projections[0].weight.grad)
        keys.append(key_values)
        assert (model.vision.embeddings.patch_embedding.weight.grad is not None) == trained
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-5)
    for frozen, trained in zip(*keys, strict=True):
        assert all(
            torch.allclose(one, other, atol=1e-5)
            for one, other in zip(frozen, trained, strict=True)
        )


def test_a_second_call_continues_from_the_keys_of_the_first(backbone: VisionLanguageModel):
    embedding, causal = torch.randn(1, 6, 32), torch.ones(1, 6, 6).bool().tril()
    order = torch.arange(6)[None]
    with torch.no_grad():
        whole, _ = backbone.forward_text(embedding, causal, order)
        _, past = backbone.forward_text(embedding[:, :4], causal[:, :4, :4], order[:, :4])
        rest, _ = backbone.forward_text(embedding[:, 4:], causal[:, 4:], order[:, 4:], past)
    assert torch.allclose(rest, whole[:, 4:], atol=1e-5)


def test_a_wide_picture_is_scaled_to_the_width_and_black_above():
    white = torch.ones(1, 1, 2, 4)
    assert padded_image(white, 4)[0, 0].tolist() == [[0.0] * 4, [0.0] * 4, [1.0] * 4, [1.0] * 4]
    # Halved: 1 x 2 px at the bottom.
    assert padded_image(white, 2)[0, 0].tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_a_high_picture_is_black_at_the_left():
    assert padded_image(torch.ones(1, 1, 3, 1), 3)[0, 0].tolist() == [[0.0, 0.0, 1.0]] * 3


@pytest.mark.parametrize("file", ["preprocessor_config.json", "processor_config.json"])
def test_pictures_are_scaled_as_the_model_says(folder: Path, tmp_path: Path, file: str):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    said = {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]}
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / file).write_text(
        json.dumps(said if file.startswith("pre") else {"image_processor": said})
    )
    usual, other = (
        load_backbone(BackboneConfig(folder=str(path)), weights=True) for path in (folder, tmp_path)
    )
    # 153 / 255 = 0.6 is 0.2 between -1 and 1; 51 / 255 = 0.2 as it is.
    bright, dark = (torch.full((1, 32, 32, 3), value, dtype=torch.uint8) for value in (153, 51))
    assert torch.allclose(usual.image_embeddings(bright), other.image_embeddings(dark), atol=1e-5)


def test_a_name_on_a_hub_is_refused_without_asking_it():
    with pytest.raises(
        HandoffError,
        match=r"'HuggingFaceTB/SmolVLM-256M-Instruct' is not a folder\. Models are not",
    ):
        load_backbone(BackboneConfig(folder="HuggingFaceTB/SmolVLM-256M-Instruct"), weights=True)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named(folder: Path, tmp_path: Path, file: str):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / file).unlink()
    with pytest.raises(HandoffError, match=f"no {file}, so the backbone is incomplete"):
        load_backbone(BackboneConfig(folder=str(tmp_path)), weights=False)


def test_a_damaged_tokenizer_is_named(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(HandoffError, match=r"tokenizer\.json: not a tokenizer"):
        load_backbone(BackboneConfig(folder=str(tmp_path)), weights=False)


@pytest.mark.parametrize(
    "change", [{"model_type": "qwen2_vl"}, {"text_config": {"model_type": "gemma2"}}]
)
def test_another_family_is_refused(folder: Path, tmp_path: Path, change: dict[str, object]):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | change))
    with pytest.raises(
        HandoffError, match=r"supported are smolvlm, idefics3, paligemma with llama or gemma"
    ):
        load_backbone(BackboneConfig(folder=str(tmp_path)), weights=False)


def test_more_layers_than_there_are_are_refused(folder: Path):
    with pytest.raises(HandoffError, match="layers is 3, expected 1 to 2"):
        load_backbone(BackboneConfig(folder=str(folder), layers=3), weights=True)


def test_weights_cut_short_are_refused(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(HandoffError, match="weights cannot be read"):
        load_backbone(BackboneConfig(folder=str(tmp_path)), weights=True)


def test_a_missing_shard_is_refused(tmp_path: Path):
    write_backbone(tmp_path, shard="50KB")
    next(tmp_path.glob("model-00002-*")).unlink()
    with pytest.raises(HandoffError, match="weights cannot be read"):
        load_backbone(BackboneConfig(folder=str(tmp_path)), weights=True)


def test_a_missing_weight_is_named(folder: Path, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    values = load_file(tmp_path / "model.safetensors")
    del values["model.text_model.layers.1.mlp.up_proj.weight"]
    save_file(values, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        HandoffError, match=r"1 weights are missing .*\.layers\.1\.mlp\.up_proj\.weight"
    ):
        load_backbone(BackboneConfig(folder=str(tmp_path)), weights=True)


def test_a_long_instruction_is_refused(folder: Path):
    model = load_backbone(BackboneConfig(folder=str(folder), instruction_tokens=3), weights=True)
    assert model.tokens(("go",))[0].shape == (1, 3)
    with pytest.raises(
        HandoffError, match="instruction 'open the drawer' has 4 tokens, the maximum is 3"
    ):
        model.tokens(("go", "open the drawer"))


def test_an_observation_without_a_picture_is_refused(backbone: VisionLanguageModel):
    with pytest.raises(HandoffError, match="got 0 cameras, but has a vision tower"):
        prefix_of(backbone, {}, ("go",), torch.zeros(1, 1, 3))


def test_a_head_that_was_not_kept_is_missed(backbone: VisionLanguageModel):
    with pytest.raises(HandoffError, match="head was not kept"):
        backbone.logits(torch.zeros(1, 1, 32))
