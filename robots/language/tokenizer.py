"""Tokenizes instructions of an exported policy with the tokenizers library, without torch.

`tokenizer.json` is that of the policy's backbone. The ONNX file contains its digest and the largest
number of tokens, so that a policy never receives tokens of another vocabulary.
`policies.networks.vlm` computes the same tokens in training.

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

from robots.config import Count, Whole, config, to_plain, validate
from robots.errors import HandoffError
from robots.extras import pip_install

TOKENIZER_KEY = "handoff.tokenizer"
"""Metadata key of the JSON of a `TokenizerSpec` inside the ONNX file."""
TOKENIZER_FILE = "tokenizer.json"
"""Name of the tokenizer's file, beside the ONNX file."""
TOKEN_INPUTS = ("tokens", "tokens_mask")
"""Inputs of a language-conditioned graph: int64 tokens and their bool mask, both (batch,
tokens)."""
_REMEMBERED = 256
"""Number of sentences whose tokens are cached, as a robot receives the same one repeatedly."""


@config
class TokenizerSpec:
    """Tokenizer of a language-conditioned policy, stored in the ONNX file."""

    tokenizer: str
    """Digest (hex sha256) of the bundle's `tokenizer.json`."""
    max_tokens: Count
    """Largest number of tokens of a sentence."""
    default_instruction: str | None = None
    """Default instruction of the policy; None if it has none."""
    suffix: str = "\n"
    """Text that is appended to a sentence unless it ends with it, before it is tokenized."""
    special_tokens: bool = True
    """Whether the tokenizer adds its special tokens, as its post-processor says; padding and
    truncation that the tokenizer's file sets are not applied."""
    pad_token: Whole = 0
    """Token that fills shorter sentences of a batch up at their end; its mask is False."""

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
                f"tokenizer spec: not JSON ({error}). Was the ONNX file made by another tool?"
            ) from None
        return validate(cls, values, "tokenizer")


class Tokens(NamedTuple):
    """Tokens of B sentences."""

    token_BL: np.ndarray
    """(B, L) int64 tokens."""
    mask_BL: np.ndarray
    """(B, L) bool; False for the padding at the end."""


class SentenceTokenizer:
    """Tokenizes instructions of one policy.

    Args:
        file: `tokenizer.json` of the bundle.
        spec: specification in the bundle's ONNX file.

    Raises:
        HandoffError: the file is missing or another bundle's, or the library is not installed.
    """

    def __init__(self, file: Path, spec: TokenizerSpec) -> None:
        self.spec = spec
        self._tokenizer = _opened(file, spec.tokenizer)
        self._numbers = lru_cache(_REMEMBERED)(self._encoded)

    def tokens(self, instructions: Sequence[str], rows: int) -> Tokens:
        """Tokens of the instructions, padded to the longest one.

        The suffix of the specification is appended to sentences without it, as in training.

        Args:
            instructions: one sentence per row, or none for the policy's default instruction.
            rows: number of rows B.

        Raises:
            HandoffError: the number of sentences differs from `rows`, there is none and no default,
                or one is too long.
        """
        sentences = tuple(instructions)
        if not sentences and self.spec.default_instruction is not None:
            sentences = (self.spec.default_instruction,) * rows
        if len(sentences) != rows or not rows:
            raise HandoffError(
                f"policy: {len(sentences)} instructions for {rows} observations, expected one each. Is an instruction "
                "missing, and was the policy exported without a default?"
            )
        suffix = self.spec.suffix
        numbers = [
            self._numbers(line if line.endswith(suffix) else f"{line}{suffix}")
            for line in sentences
        ]
        token_BL = np.full((rows, max(map(len, numbers))), self.spec.pad_token, np.int64)
        mask_BL = np.zeros(token_BL.shape, bool)
        for row, ids in enumerate(numbers):
            token_BL[row, : len(ids)] = ids
            mask_BL[row, : len(ids)] = True
        return Tokens(token_BL, mask_BL)

    def _encoded(self, line: str) -> list[int]:
        ids = self._tokenizer.encode(line, add_special_tokens=self.spec.special_tokens).ids
        if len(ids) > self.spec.max_tokens:
            raise HandoffError(
                f"policy: instruction {line.strip()[:60]!r} has {len(ids)} tokens, limit "
                f"{self.spec.max_tokens}. Shorten it."
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
            f"policy: {file.parent} is language-conditioned, and the library tokenizers is not installed. "
            f"{pip_install('vla')}, or tokenizers alone."
        ) from None
    if not file.is_file():
        raise HandoffError(
            f"policy: {file.parent} has no {file.name}. Was the bundle copied incompletely?"
        )
    data = file.read_bytes()
    actual = tokenizer_digest(data)
    if actual != digest:
        raise HandoffError(
            f"policy: {file} has digest {actual[:12]}, its graph needs {digest[:12]}. Are graph and tokenizer "
            "from different bundles?"
        )
    tokenizer = Tokenizer.from_str(data.decode())
    # Some files contain settings for batches of dialogues, which would silently pad or truncate an
    # instruction.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
