"""Exploration that differs from world to world: in some it hardly strays from what is known, in
others far.

So that no single deviation has to be found for a task, FastTD3 (arXiv 2505.22642) draws every
world's anew with every episode, and PQL (arXiv 2307.12983) spreads them over the worlds for good.
Both are followed as released; noise is normal, drawn anew at every step, and actions are clipped to
their bounds, as in PQL: FastTD3 leaves that to its worlds.

Shape suffixes: N worlds, A action.
"""

from __future__ import annotations

import numpy as np

from policies.rl.off_policy.fast_td3_config import MixedNoiseConfig
from robots.errors import HandoffError


def ladder(config: MixedNoiseConfig, worlds: int) -> np.ndarray:
    """(N,) deviations that rise from `low` in the first world to `high` in the last; a single world
    has `high`.

    PQL: s_i = low + (i - 1) / (N - 1) (high - low); geometric: low (high / low)^((i - 1) / (N -
    1)).

    Args:
        config: bounds; `spread` says whether differences or ratios are even.
        worlds: N.
    """
    if worlds == 1:
        return np.array([config.high])
    if config.spread == "geometric":
        return np.geomspace(config.low, config.high, worlds)
    return np.linspace(config.low, config.high, worlds)


class MixedNoise:
    """The deviations of N worlds, and the noise that they make.

    Args:
        config: bounds and spread.
        worlds: N.

    Raises:
        HandoffError: no worlds.
    """

    def __init__(self, config: MixedNoiseConfig, worlds: int) -> None:
        if worlds < 1:
            raise HandoffError(f"noise: {worlds} worlds, expected at least 1.")
        self.config = config
        self.deviation_N = ladder(config, worlds)
        """[action units]; with a uniform spread drawn when episodes begin."""

    def begin(self, began_N: np.ndarray, draw: np.random.Generator) -> None:
        """Episodes begin in the worlds `began_N` (N,) bool: with a uniform spread their deviations
        are drawn anew.

        As many numbers are drawn whatever worlds these are, so that one world's chance does not
        hang on another's end.
        """
        if self.config.spread == "uniform":
            drawn_N = draw.uniform(self.config.low, self.config.high, len(self.deviation_N))
            self.deviation_N = np.where(began_N, drawn_N, self.deviation_N)

    def added(self, action_NA: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """(N, A) float32: the actions with noise, in [-1, 1].

        Raises:
            HandoffError: actions of another number of worlds.
        """
        if len(action_NA) != len(self.deviation_N):
            raise HandoffError(
                f"noise: actions of {len(action_NA)} worlds, made for {len(self.deviation_N)}. To act without "
                "exploring, pass no `draw`."
            )
        noise_NA = draw.standard_normal(action_NA.shape) * self.deviation_N[:, None]
        return np.clip(action_NA + noise_NA, -1.0, 1.0).astype(np.float32)
