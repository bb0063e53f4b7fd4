"""The frozen sentence encoder: a BERT, the mean of its tokens, and normalisation to length 1.

This follows Sentence-BERT (Reimers and Gurevych, EMNLP 2019) as sentence-transformers computes it
for models with these three modules, such as all-MiniLM-L6-v2. The encoder is not trained, so every
distinct sentence is encoded once, alone and in float32, and its embedding is kept: a training
update costs no pass through the transformer.

Shape suffixes: B batch, L tokens, W width of the embedding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from policies.language.config import SentenceEncoderConfig
from policies.language.pretrained_folder import load_pretrained
from robots.errors import HandoffError
from robots.language.tokenizer import (
    TOKENIZER_FILE,
    SentenceTokenizer,
    TokenizerSpec,
    tokenizer_digest,
)

FAMILIES = ("bert",)
"""Supported values of `model_type` in `config.json`."""
FOLDER = "language"
"""Folder, next to a policy's weights, with the encoder's files."""
_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_POOLING = "1_Pooling/config.json"
_MODULES = "modules.json"
_MEAN, _FIRST = "pooling_mode_mean_tokens", "pooling_mode_cls_token"
_REMEMBERED = 65_536
"""Number of sentences whose embeddings are kept: 100 MB for an embedding of 384 numbers."""


class SentenceModel(nn.Module):
    """Tokens to the embedding of their sentence.

    Args:
        transformer: model of transformers, in evaluation mode.
        mean: whether the embedding is the mean of the tokens; otherwise it is the first token's.
    """

    def __init__(self, transformer: Any, mean: bool) -> None:
        super().__init__()
        self.transformer = transformer
        self.mean = mean
        self.width: int = transformer.config.hidden_size

    def forward(self, tokens_BL: Tensor, mask_BL: Tensor) -> Tensor:
        """(B, W) of length 1.

        Args:
            tokens_BL: int64.
            mask_BL: bool, False for padding.
        """
        output = self.transformer(input_ids=tokens_BL, attention_mask=mask_BL.long())
        hidden_BLW = output.last_hidden_state
        if not self.mean:
            return normalize(hidden_BLW[:, 0], dim=-1)
        weight_BL1 = mask_BL.unsqueeze(-1).to(hidden_BLW.dtype)
        sum_BW = (hidden_BLW * weight_BL1).sum(dim=1)
        return normalize(sum_BW / weight_BL1.sum(dim=1).clamp(min=1.0), dim=-1)


class SentenceEncoder:
    """Embeddings of sentences, on the CPU.

    It is no module: its weights are not part of a policy's, which trainings save often, but a file
    beside them.

    Args:
        options: longest sentence.
        folder: folder with the encoder's files.

    Raises:
        HandoffError: files that are missing or damaged, or an unsupported encoder.
    """

    def __init__(self, options: SentenceEncoderConfig, folder: Path) -> None:
        self.files: Mapping[str, bytes] = _read_files(folder)
        """Contents of its files by name, from which it can be loaded again."""
        mean = _checked(folder, self.files)
        self.model = SentenceModel(_load_transformer(folder), mean).eval().requires_grad_(False)
        self.tokenizer = SentenceTokenizer(
            folder / TOKENIZER_FILE,
            TokenizerSpec(
                tokenizer=tokenizer_digest(self.files[TOKENIZER_FILE]),
                max_tokens=options.max_tokens,
                suffix="",
                pad_token=_padding(folder, self.files),
            ),
        )
        longest = self.model.transformer.config.max_position_embeddings
        if options.max_tokens > longest:
            raise HandoffError(
                f"language: max_tokens is {options.max_tokens}, expected at most {longest}, the positions of the "
                f"encoder in {folder}."
            )
        self._embedding = lru_cache(_REMEMBERED)(self._encoded)

    @property
    def width(self) -> int:
        """W, size of an embedding."""
        return self.model.width

    def embeddings(self, sentences: Sequence[str]) -> Tensor:
        """Embeddings (B, W) of B sentences, each of length 1.

        Raises:
            HandoffError: a sentence that is too long.
        """
        return torch.stack([self._embedding(sentence) for sentence in sentences])

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The encoder itself, as it never changes."""
        return self

    def _encoded(self, sentence: str) -> Tensor:
        tokens = self.tokenizer.tokens((sentence,), 1)
        # Kept for trainings, whose gradients accept no tensor of an inference mode.
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            arrays = (torch.from_numpy(array) for array in tokens)
            return self.model(*arrays)[0]


def _read_files(folder: Path) -> dict[str, bytes]:
    files = {name: _read(folder / name) for name in (_CONFIG, _WEIGHTS, TOKENIZER_FILE)}
    optional = (name for name in (_POOLING, _MODULES) if (folder / name).is_file())
    return files | {name: (folder / name).read_bytes() for name in optional}


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise HandoffError(
            f"{file.parent}: no {file.name}, so the sentence encoder is incomplete. Was it copied incompletely?"
        ) from None


def _checked(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Whether the embedding is the mean of the tokens.

    Raises:
        HandoffError: an encoder of another kind.
    """
    family = _parsed(folder, files, _CONFIG).get("model_type")
    if family not in FAMILIES:
        raise HandoffError(
            f"{folder}: model_type is '{family}', supported sentence encoders are {', '.join(FAMILIES)}."
        )
    if _MODULES in files:
        types = [entry["type"].rsplit(".", 1)[-1] for entry in _parsed(folder, files, _MODULES)]
        if not set(types) <= {"Transformer", "Pooling", "Normalize"}:
            raise HandoffError(
                f"{folder}: the encoder's modules are {types}, supported are Transformer, Pooling and Normalize."
            )
    if _POOLING not in files:
        return True
    pooling = _parsed(folder, files, _POOLING)
    modes = [name for name, on in pooling.items() if name.startswith("pooling_mode_") and on]
    if modes not in ([_MEAN], [_FIRST]):
        raise HandoffError(
            f"{folder}: {_POOLING} asks for {modes}, supported are {_MEAN} and {_FIRST}, one of them."
        )
    return modes == [_MEAN]


def _parsed(folder: Path, files: Mapping[str, bytes], name: str) -> Any:
    try:
        return json.loads(files[name])
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HandoffError(
            f"{folder / name}: not JSON ({error}). Was the file cut short by a copy?"
        ) from None


def _padding(folder: Path, files: Mapping[str, bytes]) -> int:
    """Token that fills sentences up, which the mask hides."""
    return int(_parsed(folder, files, _CONFIG).get("pad_token_id") or 0)


def _load_transformer(folder: Path) -> Any:
    from transformers import AutoModel

    # The random state of a training stays as it is.
    with torch.random.fork_rng(devices=[]):
        read = AutoModel.from_pretrained
        return load_pretrained(read, folder, "sentence encoder", add_pooling_layer=False).eval()
