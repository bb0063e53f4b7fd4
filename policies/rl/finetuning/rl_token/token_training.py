"""Learns the RL token: an encoder compresses the features of a frozen policy into one token from
which a decoder reconstructs them.

Source: the bottleneck of Xu et al., arXiv 2604.23073, the variant with a frozen policy. The paper's
decoder is autoregressive and is given the features before the one that it reconstructs; ours gets
the token and the place alone, so that nothing but the token carries what an observation is. The
paper trains on demonstrations, here the states are those that the frozen policy visits.

Shape suffixes: B batch, N states, L feature tokens, W their width, E width of the RL token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from policies.random_streams import ChunkSelectionStream, sequence_seed
from policies.rl.finetuning.rl_token.config import TokenTrainingConfig
from policies.samplers.chunk_actor import PolicyFeatures, TokenEncoder, place_embedding
from policies.training.loop import STATE, Objective, train
from policies.training.plots import draw_curve
from robots.interfaces import Progress


class FeatureTokens(NamedTuple):
    """Feature tokens of N states."""

    token_NLW: Tensor
    """float16"""
    mask_NL: Tensor
    """False for padding."""


class Bottleneck(nn.Module):
    """An untrained encoder of the RL token with its decoder.

    Args:
        config: sizes.
        features: W.
    """

    def __init__(self, config: TokenTrainingConfig, features: int) -> None:
        super().__init__()
        self.encoder = TokenEncoder(config.encoder(features))
        hidden = 4 * config.width
        self.decoder = nn.Sequential(
            nn.Linear(2 * config.width, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, features),
        )

    def reconstruct(self, token_BE: Tensor, mask_BL: Tensor) -> Tensor:
        """(B, L, W) normalised feature tokens, from the RL token and the place of each."""
        place_BLE = place_embedding(mask_BL, token_BE.shape[1])
        shared_BLE = token_BE[:, None].expand(-1, mask_BL.shape[1], -1)
        return self.decoder(torch.cat([shared_BLE, place_BLE], dim=-1))

    def loss(self, token_BLW: Tensor, mask_BL: Tensor) -> Tensor:
        """Mean squared error of the normalised feature tokens, without padding; 1 for a token that
        says nothing."""
        found_BLW = self.reconstruct(self.encoder(token_BLW, mask_BL), mask_BL)
        error_BL = (found_BLW - self.encoder.normalised(token_BLW)).square().mean(dim=-1)
        return error_BL[mask_BL].mean()


def joined(parts: Sequence[PolicyFeatures]) -> FeatureTokens:
    """Feature tokens of all parts, which may have different numbers of them."""
    longest = max(part.mask_BL.shape[1] for part in parts)
    missing = [longest - part.mask_BL.shape[1] for part in parts]
    tokens = [
        pad(part.token_BLW.half(), (0, 0, 0, count))
        for part, count in zip(parts, missing, strict=True)
    ]
    masks = [pad(part.mask_BL, (0, count)) for part, count in zip(parts, missing, strict=True)]
    return FeatureTokens(torch.cat(tokens), torch.cat(masks))


@torch.enable_grad()
def train_token(
    config: TokenTrainingConfig,
    model: Bottleneck,
    states: FeatureTokens,
    seed: int,
    identity: str,
    out: Path,
    progress: Progress,
) -> None:
    """Trains encoder and decoder in place, and leaves the averaged weights; a killed training
    resumes."""
    model.encoder.fit(states.token_NLW[states.mask_NL].float())
    count, stream = len(states.mask_NL), ChunkSelectionStream.TOKEN

    def batch(step: int) -> FeatureTokens:
        rng = np.random.default_rng(sequence_seed(seed, step, stream))
        rows = torch.from_numpy(rng.integers(0, count, config.training.batch_size))
        return FeatureTokens(states.token_NLW[rows].float(), states.mask_NL[rows])

    def loss(rows: FeatureTokens, step: int) -> Tensor:
        return model.loss(*rows)

    # The identity covers the states.
    job = f"{identity} token {count} {float(states.token_NLW.double().sum())!r}"
    trained = train(config.training, model, Objective(batch, loss), job, out, progress)
    model.load_state_dict(trained.average)
    draw_curve(out, "reconstruction error")
    (out / STATE).unlink()
