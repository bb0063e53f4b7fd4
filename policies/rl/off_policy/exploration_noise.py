"""Adds Gaussian exploration noise with a different standard deviation in each environment.

This avoids tuning a single standard deviation per task. FastTD3 (arXiv 2505.22642) samples one per
environment at the start of each episode; PQL (arXiv 2307.12983) assigns fixed ones to the
environments. Both follow the released code. Noise is independent at every step, and actions are
clipped to their bounds, as in PQL; FastTD3 leaves clipping to its environments.

`DeviceNoise` is the same with tensors and a random generator of a device.

Shape suffixes: N environments, A action.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from policies.rl.off_policy.fast_td3_config import PerEnvNoiseConfig
from robots.errors import HandoffError


def env_deviations(config: PerEnvNoiseConfig, num_envs: int) -> np.ndarray:
    """(N,) standard deviations from `low` in the first environment to `high` in the last; a single
    environment has `high`.

    Linear (PQL): s_i = low + (i - 1) / (N - 1) (high - low); geometric: low (high / low)^((i - 1) /
    (N - 1)).

    Args:
        config: bounds and `spread`.
        num_envs: number of environments N.

    Raises:
        HandoffError: `num_envs` is below 1.
    """
    if num_envs < 1:
        raise HandoffError(f"noise: {num_envs} environments, expected at least 1.")
    if num_envs == 1:
        return np.array([config.high])
    if config.spread == "geometric":
        return np.geomspace(config.low, config.high, num_envs)
    return np.linspace(config.low, config.high, num_envs)


class PerEnvNoise:
    """Exploration noise with one standard deviation per environment.

    Args:
        config: bounds and spread of the standard deviations.
        num_envs: number of environments N.

    Raises:
        HandoffError: `num_envs` is below 1.
    """

    def __init__(self, config: PerEnvNoiseConfig, num_envs: int) -> None:
        self.config = config
        self.deviation_N = env_deviations(config, num_envs)
        """Standard deviation of each environment [action units]; with a uniform spread, sampled at
        the start of each episode."""

    def begin_episodes(self, began_N: np.ndarray, rng: np.random.Generator) -> None:
        """Resamples the standard deviations of environments where an episode begins, if the spread
        is uniform.

        The number of random numbers does not depend on `began_N`, so that the noise of an
        environment does not depend on episode ends in others.

        Args:
            began_N: (N,) bool mask of environments where an episode begins.
            rng: random number generator.
        """
        if self.config.spread == "uniform":
            drawn_N = rng.uniform(self.config.low, self.config.high, len(self.deviation_N))
            self.deviation_N = np.where(began_N, drawn_N, self.deviation_N)

    def add_noise(self, action_NA: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(N, A) float32 actions with noise, clipped to [-1, 1].

        Raises:
            HandoffError: the number of actions is not that of the environments.
        """
        if len(action_NA) != len(self.deviation_N):
            raise HandoffError(
                f"noise: actions of {len(action_NA)} environments, expected {len(self.deviation_N)}. To act without "
                "exploration, pass no `rng`."
            )
        noise_NA = rng.standard_normal(action_NA.shape) * self.deviation_N[:, None]
        return np.clip(action_NA + noise_NA, -1.0, 1.0).astype(np.float32)

    def state(self) -> Tensor:
        """(N,) present standard deviations, for `load_state`."""
        return torch.from_numpy(self.deviation_N.copy())

    def load_state(self, deviation_N: Tensor, learner: str) -> None:
        """Restores a `state`.

        Args:
            deviation_N: the state.
            learner: name of the learner in messages.

        Raises:
            HandoffError: the state has another number of environments.
        """
        if len(deviation_N) != len(self.deviation_N):
            raise HandoffError(
                f"{learner}: the state has {len(deviation_N)} environments, expected {len(self.deviation_N)}."
            )
        self.deviation_N = deviation_N.numpy().copy()


class DeviceNoise:
    """`PerEnvNoise` as tensors of a device, in single precision; nothing is copied to the host.

    Args:
        config: bounds and spread of the standard deviations.
        num_envs: number of environments N.
        device: device of the environments.

    Raises:
        HandoffError: `num_envs` is below 1.
    """

    def __init__(self, config: PerEnvNoiseConfig, num_envs: int, device: torch.device) -> None:
        self.config = config
        self.deviation_N = torch.from_numpy(env_deviations(config, num_envs)).float().to(device)
        """See `PerEnvNoise.deviation_N`."""

    def begin_episodes(self, began_N: Tensor, generator: torch.Generator) -> None:
        """See `PerEnvNoise.begin_episodes`; `generator` supplies the randomness."""
        if self.config.spread == "uniform":
            low, high = self.config.low, self.config.high
            share_N = torch.rand(began_N.shape, generator=generator, device=self.deviation_N.device)
            self.deviation_N = torch.where(began_N, low + (high - low) * share_N, self.deviation_N)

    def add_noise(self, action_NA: Tensor, generator: torch.Generator) -> Tensor:
        """(N, A) actions with noise, clipped to [-1, 1]; `generator` supplies the randomness."""
        noise_NA = torch.randn(action_NA.shape, generator=generator, device=action_NA.device)
        return (action_NA + noise_NA * self.deviation_N[:, None]).clamp(-1.0, 1.0)
