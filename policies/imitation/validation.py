"""Computes the loss of a policy on held-out windows."""

from __future__ import annotations

import torch

from policies.data.windows import Windows
from policies.policy import ChunkPolicy
from policies.random_streams import RandomStream
from policies.training.loop import rng
from robots.interfaces import Progress, no_progress

_DRAWS = 4
"""Noise samples per held-out window."""
_ROWS = 256
"""Largest number of rows per forward pass."""
_FRAMES = 2**25
"""Largest size of their frames [bytes], as a network needs about forty times as much memory."""


@torch.no_grad()
def validation_loss(
    module: ChunkPolicy, windows: Windows, seed: int, progress: Progress = no_progress
) -> float:
    """Loss on held-out windows, each with several noise samples, in fp32 and without dropout or
    random crops. Of frames so large that fewer than `_ROWS` windows fit into memory,
    each window has one noise sample.

    Args:
        module: the policy.
        windows: the held-out windows.
        seed: seed of the noise.
        progress: called with the number of rows, if large frames make it take long.
    """
    was_training = module.training
    module.eval()
    rows = min(_ROWS, max(1, _FRAMES // max(1, windows.frame_bytes)))
    large = rows < _ROWS
    window_N = torch.arange(len(windows)).repeat(1 if large else _DRAWS)
    total = 0.0
    for number, windows_B in enumerate(window_N.split(rows)):
        if large:
            progress(number * rows, len(window_N), "validation")
        batch = windows.batch(windows_B, rng(seed, RandomStream.VALIDATION_GOAL + number))
        error = module.loss(batch, rng(seed, RandomStream.VALIDATION + number))
        total += float(error) * len(windows_B)
    module.train(was_training)
    return total / len(window_N)
