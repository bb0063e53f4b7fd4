"""Draws the noise of a chunk by seed and index, the same in evaluation, recording and
deployment."""

from __future__ import annotations

import numpy as np


def chunk_noise(seed: int, index: int, horizon: int, action_size: int) -> np.ndarray:
    """Standard normal noise `(horizon, action_size)` float32 of chunk `index` of the episode with
    `seed`.

    The generator is counter-based (Philox; Salmon et al., SC 2011), so the noise depends only on
    the arguments.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, index]))
    return generator.standard_normal((horizon, action_size), dtype=np.float32)
