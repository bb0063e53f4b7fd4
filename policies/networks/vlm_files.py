"""Configuration, tokenizer and image-processor files of a vision-language model.

The files of a pretrained model are read from a local folder, never from a hub; those of a small
model from scratch are generated here. They are saved with every policy that uses the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from policies.networks.config import BackboneConfig, ScratchConfig
from robots.errors import HandoffError

FAMILIES = {
    "smolvlm": ("text_model", "vision_model", "connector"),
    "idefics3": ("text_model", "vision_model", "connector"),
    "paligemma": ("language_model", "vision_tower", "multi_modal_projector"),
}
"""Supported values of `model_type` in `config.json`, with transformers' names of text model, vision
tower and connector."""
TEXT_FAMILIES = ("llama", "gemma")
"""Supported values of `model_type` of the text layers; Gemma 2 is not, because its masks differ by
layer."""

_CONFIG, _TOKENIZER = "config.json", "tokenizer.json"
_MIN_VOCABULARY = 260
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class ModelFiles:
    """Files of a model other than its weights."""

    config: Any
    """Configuration of transformers, with the number of text layers that are kept."""
    tokenizer: Any
    """Tokenizer of the tokenizers library."""
    mean: Sequence[float]
    """Per-channel mean of images in [0, 1]."""
    std: Sequence[float]
    """Per-channel standard deviation of images in [0, 1]."""
    files: Mapping[str, bytes]
    """Contents of the files by name."""


def read_source(config: BackboneConfig) -> ModelFiles:
    """Reads the model's files, or generates those of a model from scratch; errors are those of
    `load_backbone`."""
    if (config.folder is None) == (config.scratch is None):
        raise HandoffError(
            f"backbone: folder is {config.folder!r} and scratch {'given' if config.scratch else 'not given'}, expected "
            "one of them. Set backbone.folder to a downloaded model, or backbone.scratch to the sizes of a small one."
        )
    if config.scratch is None:
        return _read_folder(Path(str(config.folder)), config)
    with TemporaryDirectory() as folder:
        for name, data in scratch_files(config.scratch).items():
            (Path(folder) / name).write_bytes(data)
        return _read_folder(Path(folder), config)


def scratch_files(config: ScratchConfig) -> dict[str, bytes]:
    """Generates the files of a small model other than its weights, by name.

    Raises:
        HandoffError: incompatible sizes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    # Check the sizes.
    sizes = (
        config.width,
        config.layers,
        config.heads,
        config.feedforward,
        config.picture,
        config.vision_layers,
    )
    fits = min(sizes) >= 1 and config.width % (2 * config.heads) == 0 and config.picture % 16 == 0
    if not fits or config.vocabulary < _MIN_VOCABULARY:
        raise HandoffError(
            f"backbone: width, layers, heads, feedforward, picture, vision_layers are {sizes}, vocabulary "
            f"{config.vocabulary}; expected at least 1 each, a width that is a multiple of twice the heads, a picture "
            f"that is a multiple of 16 and a vocabulary of at least {_MIN_VOCABULARY}."
        )
    # Train the tokenizer on the sentences.
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        special_tokens=["<|endoftext|>", "<image>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f"{sentence}\n" for sentence in config.sentences], trainer)
    # Configuration of the text layers and the vision tower.
    shared = {
        "num_attention_heads": config.heads,
        "hidden_size": config.width,
        "intermediate_size": config.feedforward,
    }
    text = shared | {
        "model_type": "llama",
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.heads,
        "rms_norm_eps": 1e-5,
        # The usual 0.02, meant for widths of a thousand, lets so narrow a model ignore its
        # instruction for a long time.
        "initializer_range": config.width**-0.5,
        "max_position_embeddings": 512,
        "vocab_size": tokenizer.get_vocab_size(),
        "tie_word_embeddings": True,
    }
    vision = shared | {
        "num_hidden_layers": config.vision_layers,
        "image_size": config.picture,
        "patch_size": 8,
    }
    model_config = {
        "model_type": "smolvlm",
        "text_config": text,
        "vision_config": vision,
        "scale_factor": 2,
    }
    model_config |= {"image_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": True}
    return {
        _CONFIG: json.dumps(model_config, indent=1).encode(),
        _TOKENIZER: tokenizer.to_str().encode(),
    }


def _read_folder(folder: Path, config: BackboneConfig) -> ModelFiles:
    from tokenizers import Tokenizer
    from transformers import AutoConfig

    if not folder.is_dir():
        raise HandoffError(
            f"backbone: '{folder}' is not a folder. Models are not downloaded from a hub: download it, then set "
            "the folder that contains config.json."
        )
    # Read the files and check the family.
    files = {name: _read(folder / name) for name in (_CONFIG, _TOKENIZER)}
    files |= {name: _read(folder / name) for name in _PROCESSORS if (folder / name).exists()}
    model_config = _parsed(folder / _CONFIG, files[_CONFIG])
    family, text = (
        model_config.get("model_type"),
        model_config.get("text_config", {}).get("model_type", ""),
    )
    if family not in FAMILIES or text not in (*TEXT_FAMILIES, ""):
        raise HandoffError(
            f"{folder}: model_type is '{family}' with text layers '{text}', supported are {', '.join(FAMILIES)} with "
            f"{' or '.join(TEXT_FAMILIES)}."
        )
    # Limit the number of text layers.
    transformers_config = AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    if config.layers is not None:
        if not 1 <= config.layers <= transformers_config.text_config.num_hidden_layers:
            raise HandoffError(
                f"backbone: layers is {config.layers}, expected 1 to "
                f"{transformers_config.text_config.num_hidden_layers}, the number of layers in {folder}."
            )
        transformers_config.text_config.num_hidden_layers = config.layers
    # Image scaling and tokenizer.
    mean, std = _scaling(folder, files)
    try:
        tokenizer = Tokenizer.from_str(files[_TOKENIZER].decode())
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise HandoffError(
            f"{folder / _TOKENIZER}: not a tokenizer ({error}). Was the file cut short by a copy?"
        ) from None
    # Some tokenizer files contain padding or truncation settings, which would change instructions.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return ModelFiles(transformers_config, tokenizer, mean, std, files)


def _scaling(folder: Path, files: Mapping[str, bytes]) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of the model's images; 0.5 and 0.5, which scale to [-1, 1], by
    default."""
    processor: dict[str, Any] = {}
    for name in _PROCESSORS:
        if name in files and not processor:
            values = _parsed(folder / name, files[name])
            processor = values.get("image_processor", values)
    return processor.get("image_mean") or (0.5, 0.5, 0.5), processor.get("image_std") or (
        0.5,
        0.5,
        0.5,
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise HandoffError(
            f"{file.parent}: no {file.name}, so the backbone is incomplete. Was it copied incompletely?"
        ) from None


def _parsed(file: Path, data: bytes) -> dict[str, Any]:
    try:
        return json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HandoffError(
            f"{file}: not JSON ({error}). Was the file cut short by a copy?"
        ) from None
