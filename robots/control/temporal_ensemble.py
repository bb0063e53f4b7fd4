"""Averages all chunks that predicted the current step (temporal ensembling, Zhao et al., RSS 2023).

Followed is the released act: the oldest chunk weighs most; the paper's text has it the same way.

Shape suffixes: K chunks, N worlds or arms, H horizon, A action.
"""

from __future__ import annotations

import numpy as np

from robots.errors import HandoffError


def temporal_ensemble(
    chunks_KNHA: np.ndarray, coefficient: float = 0.01, first: int = 0
) -> np.ndarray:
    """The action (N, A) for the present step, a mean with weight exp(-coefficient * i) of the i-th
    oldest chunk's.

    Args:
        chunks_KNHA: predicted at the last K steps, one a step, oldest first, the last one now.
        coefficient: 0 weighs all alike; the published one is 0.01.
        first: entry of a chunk that belongs to the step at which it was predicted:
            `n_obs_steps - 1`.

    Raises:
        HandoffError: no chunk, or more than reach the present step.
    """
    count, _, horizon, _ = chunks_KNHA.shape
    if not 1 <= count <= horizon - first:
        raise HandoffError(
            f"temporal ensemble: {count} chunks of {horizon} actions from index {first} on, expected "
            f"1..{horizon - first}. Are chunks kept that have run out?"
        )
    entry_K = first + np.arange(count)[::-1]
    weight_K = np.exp(-coefficient * np.arange(count))
    foreseen_KNA = chunks_KNHA[np.arange(count), :, entry_K]
    return np.tensordot(weight_K / weight_K.sum(), foreseen_KNA, axes=1).astype(chunks_KNHA.dtype)
