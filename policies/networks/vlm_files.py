"""The small files of a vision-language model: its configuration, tokenizer and picture settings.

Those of a pretrained one are read from a local folder, never from a hub; those of a small one from
scratch are made here. They travel with every policy that was trained on the model.
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
"""The supported values of `model_type` in `config.json`, and what transformers calls the three
parts there."""
TEXT_FAMILIES = ("llama", "gemma")
"""The same of the text layers; those of Gemma 2, which mask by layer, are not."""

_CONFIG, _TOKENIZER = "config.json", "tokenizer.json"
_LEAST_VOCABULARY = 260
_PICTURES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class ModelFiles:
    """What a model's folder says of it beside the weights."""

    config: Any
    """Of transformers, with the text layers that are kept."""
    tokenizer: Any
    """Of the tokenizers library."""
    mean: Sequence[float]
    """Per channel, subtracted from pictures of 0 to 1."""
    std: Sequence[float]
    """Per channel, they are then divided by it."""
    files: Mapping[str, bytes]
    """By name, the files all this was read from."""


def read_source(config: BackboneConfig) -> ModelFiles:
    """What the folder says of its model beside the weights, or what one from scratch would; errors
    of `load_backbone`."""
    if (config.folder is None) == (config.scratch is None):
        raise HandoffError(
            f"backbone: folder is {config.folder!r} and scratch {'given' if config.scratch else 'not given'}, expected "
            "one of them. Set backbone.folder to a downloaded model, or backbone.scratch to the sizes of a small one."
        )
    if config.scratch is None:
        return _read_folder(Path(str(config.folder)), config)
    with TemporaryDirectory() as place:
        for name, data in scratch_files(config.scratch).items():
            (Path(place) / name).write_bytes(data)
        return _read_folder(Path(place), config)


def scratch_files(config: ScratchConfig) -> dict[str, bytes]:
    """By name, what a folder of the small model would hold beside its weights.

    Raises:
        HandoffError: sizes that do not fit together.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    sizes = (
        config.width,
        config.layers,
        config.heads,
        config.feedforward,
        config.picture,
        config.vision_layers,
    )
    fits = min(sizes) >= 1 and config.width % (2 * config.heads) == 0 and config.picture % 16 == 0
    if not fits or config.vocabulary < _LEAST_VOCABULARY:
        raise HandoffError(
            f"backbone: width, layers, heads, feedforward, picture, vision_layers are {sizes}, vocabulary "
            f"{config.vocabulary}; expected at least 1 each, a width that twice the heads divides, a picture that 16 "
            f"divides and a vocabulary of at least {_LEAST_VOCABULARY}."
        )
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
        # 0.02, as usual for widths of a thousand, leaves so narrow a model almost deaf to its words
        # for long.
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
    said = {
        "model_type": "smolvlm",
        "text_config": text,
        "vision_config": vision,
        "scale_factor": 2,
    }
    said |= {"image_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": True}
    return {_CONFIG: json.dumps(said, indent=1).encode(), _TOKENIZER: tokenizer.to_str().encode()}


def _read_folder(folder: Path, config: BackboneConfig) -> ModelFiles:
    from tokenizers import Tokenizer
    from transformers import AutoConfig

    if not folder.is_dir():
        raise HandoffError(
            f"backbone: '{folder}' is no folder. Models are never fetched from a hub: download it, then name "
            "the folder that holds config.json."
        )
    files = {name: _read(folder / name) for name in (_CONFIG, _TOKENIZER)}
    files |= {name: _read(folder / name) for name in _PICTURES if (folder / name).exists()}
    said = _parsed(folder / _CONFIG, files[_CONFIG])
    family, text = said.get("model_type"), said.get("text_config", {}).get("model_type", "")
    if family not in FAMILIES or text not in (*TEXT_FAMILIES, ""):
        raise HandoffError(
            f"{folder}: model_type is '{family}' with text layers '{text}', supported are {', '.join(FAMILIES)} with "
            f"{' or '.join(TEXT_FAMILIES)}."
        )
    read = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if config.layers is not None:
        if not 1 <= config.layers <= read.text_config.num_hidden_layers:
            raise HandoffError(
                f"backbone: layers is {config.layers}, expected 1 to {read.text_config.num_hidden_layers}, as many as "
                f"{folder} has."
            )
        read.text_config.num_hidden_layers = config.layers
    mean, std = _scaling(folder, files)
    try:
        tokenizer = Tokenizer.from_str(files[_TOKENIZER].decode())
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise HandoffError(
            f"{folder / _TOKENIZER}: no tokenizer ({error}). Was the file cut short by a copy?"
        ) from None
    # Some files bring settings for batches of dialogues, which would pad or cut an instruction
    # unseen.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return ModelFiles(read, tokenizer, mean, std, files)


def _scaling(folder: Path, files: Mapping[str, bytes]) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and deviation of the model's pictures; 0.5 and 0.5, which scale to -1..1, where nothing
    is said."""
    said: dict[str, Any] = {}
    for name in _PICTURES:
        if name in files and not said:
            values = _parsed(folder / name, files[name])
            said = values.get("image_processor", values)
    return said.get("image_mean") or (0.5, 0.5, 0.5), said.get("image_std") or (0.5, 0.5, 0.5)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise HandoffError(
            f"{file.parent}: no {file.name}, so no whole backbone is here. Was it copied in part?"
        ) from None


def _parsed(file: Path, data: bytes) -> dict[str, Any]:
    try:
        return json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HandoffError(
            f"{file}: not JSON ({error}). Was the file cut short by a copy?"
        ) from None
