"""The trained projection of an instruction's embedding.

Shape suffixes: B batch, W width of the embedding, F features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from policies.language.sentence_encoder import SentenceEncoder
from robots.errors import HandoffError


class InstructionFeatures(nn.Module):
    """One linear layer on the embedding, whose entries are scaled to a mean square of 1.

    Args:
        sentences: the frozen encoder.
        features: F, size of the projection.
        default: instruction used where none is given.
        noise: see `SentenceEncoderConfig.noise`.
    """

    def __init__(
        self, sentences: SentenceEncoder, features: int, default: str | None, noise: float = 0.0
    ) -> None:
        super().__init__()
        self.sentences = sentences
        self.default = default
        self.noise = noise
        self.projection = nn.Linear(sentences.width, features)

    def forward(
        self,
        instructions: Sequence[str],
        rows: int,
        embedding_BW: Tensor | None = None,
        generator: np.random.Generator | None = None,
    ) -> Tensor:
        """Features (B, F) of the instructions.

        Args:
            instructions: B sentences, or none for the default.
            rows: B.
            embedding_BW: embeddings by the sentence encoder, in place of the instructions.
            generator: source of the noise; None adds none.

        Raises:
            HandoffError: no instruction, or one that is too long.
        """
        if embedding_BW is None:
            lines = given_instructions(instructions, rows, self.default)
            embedding_BW = self.sentences.embeddings(lines).to(self.projection.weight.device)
        scaled_BW = embedding_BW * self.sentences.width**0.5
        if generator is not None and self.noise:
            draws = torch.Generator().manual_seed(int(generator.integers(1 << 62)))
            noise_BW = torch.randn(scaled_BW.shape, generator=draws)
            scaled_BW = scaled_BW + self.noise * noise_BW.to(scaled_BW.device)
        return self.projection(scaled_BW)


def given_instructions(
    instructions: Sequence[str], rows: int, default: str | None
) -> tuple[str, ...]:
    """One instruction per row: those given, or the default where there are none.

    Raises:
        HandoffError: the number of instructions is not that of the rows.
    """
    if not instructions and default is not None:
        return (default,) * rows
    if len(instructions) != rows:
        raise HandoffError(
            f"policy: {len(instructions)} instructions for {rows} observations. Do the data have an instruction "
            "per episode, or the policy a default instruction?"
        )
    return tuple(instructions)
