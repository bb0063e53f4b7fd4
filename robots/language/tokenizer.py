"""Tokenizes the sentences of an exported policy with the tokenizers library alone.

`tokenizer.json` is that of the policy's backbone. The ONNX file says which one it is and how long a
sentence may be, so that a graph never reads the tokens of another vocabulary.
`policies.networks.vlm` makes the same tokens in training.

Shape suffixes: B batch, L tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.config import config, to_plain, validate
from robots.errors import HandoffError

READING_KEY = "handoff.reading"
"""Metadata key of the JSON of a `TokenizerSpec` inside the ONNX file."""
TOKENIZER = "tokenizer.json"
"""Beside the ONNX file."""
WORDS = ("tokens", "tokens_mask")
"""Inputs of a graph that reads: int64 and bool, both (batch, words)."""
_REMEMBERED = 256
"""Sentences whose tokens are kept: a robot hears the same one again and again."""


@config
class TokenizerSpec:
    """What a graph that reads says of its words."""

    tokenizer: str
    """Digest (hex sha256) of the bundle's `tokenizer.json`."""
    longest: int
    """Most tokens of a sentence."""
    said: str | None = None
    """The policy's own words, where nobody says anything; None: it has none."""

    def to_json(self) -> str:
        """JSON; `from_json` reads it back."""
        return json.dumps(to_plain(self))

    @classmethod
    def from_json(cls, text: str) -> TokenizerSpec:
        """Reads `to_json` back.

        Raises:
            HandoffError: not JSON, or unknown or missing keys.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise HandoffError(
                f"reading: not JSON ({error}). Was the ONNX file made by another tool?"
            ) from None
        return validate(cls, values, "reading")


class Tokens(NamedTuple):
    """Sentences as a graph reads them."""

    token_BL: np.ndarray
    """int64."""
    mask_BL: np.ndarray
    """bool; False for padding, which stands behind."""


class Reader:
    """Makes tokens of sentences.

    Args:
        file: `tokenizer.json` of the bundle.
        reading: what the bundle's graph says of it.

    Raises:
        HandoffError: no such file, that of another bundle, or no library to read it with.
    """

    def __init__(self, file: Path, reading: TokenizerSpec) -> None:
        self.reading = reading
        self._tokenizer = _opened(file, reading.tokenizer)
        self._numbers = lru_cache(_REMEMBERED)(self._encoded)

    def tokens(self, instructions: Sequence[str], rows: int) -> Tokens:
        """Of every sentence, which ends with a newline, padded to the longest; of the policy's own
        words for all rows where there are no sentences.

        Args:
            instructions: as many as rows, or none.
            rows: B.

        Raises:
            HandoffError: another number of sentences, none and no words of the policy's own, or one
                that is too long.
        """
        told = tuple(instructions)
        if not told and self.reading.said is not None:
            told = (self.reading.said,) * rows
        if len(told) != rows or not rows:
            raise HandoffError(
                f"policy: {len(told)} instructions for {rows} observations, expected one each. Does nobody say what is "
                "to be done, and was the policy exported without words of its own?"
            )
        numbers = [self._numbers(line if line.endswith("\n") else f"{line}\n") for line in told]
        token_BL = np.zeros((rows, max(map(len, numbers))), np.int64)
        mask_BL = np.zeros(token_BL.shape, bool)
        for row, ids in enumerate(numbers):
            token_BL[row, : len(ids)] = ids
            mask_BL[row, : len(ids)] = True
        return Tokens(token_BL, mask_BL)

    def _encoded(self, line: str) -> list[int]:
        ids = self._tokenizer.encode(line).ids
        if len(ids) > self.reading.longest:
            raise HandoffError(
                f"policy: instruction {line.strip()[:60]!r} has {len(ids)} tokens, at most {self.reading.longest} are "
                "read. Say it in fewer words."
            )
        return ids


def tokenizer_digest(data: bytes) -> str:
    """Digest (hex sha256) of the contents of a `tokenizer.json`."""
    return hashlib.sha256(data).hexdigest()


def _opened(file: Path, digest: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise HandoffError(
            f"policy: {file.parent} reads language and the library tokenizers is not installed. "
            "pip install 'handoff[vla]', or tokenizers alone."
        ) from None
    if not file.is_file():
        raise HandoffError(
            f"policy: {file.parent} has no {file.name}, by which its graph reads. Was the bundle copied in part?"
        )
    data = file.read_bytes()
    found = tokenizer_digest(data)
    if found != digest:
        raise HandoffError(
            f"policy: {file} has digest {found[:12]}, its graph was made for {digest[:12]}. Are graph and tokenizer "
            "those of two bundles?"
        )
    tokenizer = Tokenizer.from_str(data.decode())
    # Some files bring settings for batches of dialogues, which would pad or cut an instruction
    # unseen.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
