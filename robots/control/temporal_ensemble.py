"""Averages all chunks that predicted the current step (temporal ensembling, Zhao et al., RSS 2023).

As in the released ACT code and in the paper, the oldest chunk has the largest weight.

Shape suffixes: K chunks, N environments or arms, H horizon, A action.
"""

from __future__ import annotations

import numpy as np

from robots.errors import HandoffError


def temporal_ensemble(
    chunks_KNHA: np.ndarray, coefficient: float = 0.01, first: int = 0
) -> np.ndarray:
    """The action (N, A) of the present step: the mean of all predictions, in which the i-th oldest
    chunk has the weight exp(-coefficient * i).

    Args:
        chunks_KNHA: chunks predicted at the last K steps, oldest first, the last one at the present
            step.
        coefficient: decay of the weights; 0 weights all chunks equally, the published value is
            0.01.
        first: index in a chunk of the step at which it was predicted, `n_obs_steps - 1`.

    Raises:
        HandoffError: no chunk, or more than contain the present step.
    """
    count, _, horizon, _ = chunks_KNHA.shape
    if not 1 <= count <= horizon - first:
        raise HandoffError(
            f"temporal ensemble: {count} chunks of {horizon} actions from index {first} on, expected "
            f"1..{horizon - first}. Were expired chunks kept?"
        )
    entry_K = first + np.arange(count)[::-1]
    weight_K = np.exp(-coefficient * np.arange(count))
    predicted_KNA = chunks_KNHA[np.arange(count), :, entry_K]
    return np.tensordot(weight_K / weight_K.sum(), predicted_KNA, axes=1).astype(chunks_KNHA.dtype)
