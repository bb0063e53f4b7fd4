"""Draws the noise of a chunk by seed and number, so that evaluator, recorder and robot draw the
same."""

from __future__ import annotations

import numpy as np


def chunk_noise(seed: int, index: int, horizon: int, action_size: int) -> np.ndarray:
    """Standard normal noise `(horizon, action_size)` float32 of chunk `index` of the episode with
    `seed`.

    Counter-based (Philox; Salmon et al., SC 2011), so it depends on nothing but its arguments.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, index]))
    return generator.standard_normal((horizon, action_size), dtype=np.float32)
