"""The diffusion policy: normaliser, denoiser, sampler and un-normaliser in one module, physical units outside.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from policies.checkpoint import read_card, read_weights
from policies.config import DiffusionPolicyConfig, MlpConfig, NetworkConfig, PolicyCard, TransformerConfig, UnetConfig
from policies.generative import ddim_sample, ddim_steps
from policies.networks.mlp import MlpDenoiser
from policies.networks.transformer import TransformerDenoiser
from policies.networks.unet import UnetDenoiser
from policies.normalize import MinMaxNormalizer, StandardNormalizer
from robots.errors import HandoffError
from robots.types import Policy


class DiffusionPolicy(nn.Module):
    """A chunk as a pure function of observation, noise and weights.

    Args:
        config: sizes and sampler.
        observation_size: O.
        action_size: A.
        anchor: entry of the observation from which on the A entries stand that actions are relative to, or None.
    """

    def __init__(
        self, config: DiffusionPolicyConfig, observation_size: int, action_size: int, anchor: int | None
    ) -> None:
        super().__init__()
        self.config = config
        self.anchor = anchor
        self.observation_shape = (config.n_obs_steps, observation_size)
        self.chunk_shape = (config.horizon, action_size)
        self.normalize_observation = MinMaxNormalizer(observation_size)
        self.normalize_action = StandardNormalizer(self.chunk_shape)
        self.denoiser = new_denoiser(config.network, self.chunk_shape, self.observation_shape, config.train_timesteps)
        self.steps = ddim_steps(config.train_timesteps, config.inference_steps)

    def forward(self, observation_BTO: Tensor, noise_BHA: Tensor) -> Tensor:
        """Actions (B, H, A) in physical units.

        Args:
            observation_BTO: physical units, newest step last.
            noise_BHA: standard normal.
        """
        chunk_BHA = self.normalize_action.inverse(self.sample(self.normalize_observation(observation_BTO), noise_BHA))
        if self.anchor is None:
            return chunk_BHA
        return chunk_BHA + observation_BTO[:, -1:, self.anchor : self.anchor + self.chunk_shape[1]]

    def sample(self, observation_BTO: Tensor, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A)."""

        def denoise(noisy_BHA: Tensor, timestep_B: Tensor) -> Tensor:
            return self.denoiser(noisy_BHA, timestep_B, observation_BTO)

        return ddim_sample(denoise, noise_BHA, self.steps, self.config.clip)


def new_denoiser(
    network: NetworkConfig, chunk: tuple[int, int], observation: tuple[int, int], timesteps: int
) -> nn.Module:
    """An untrained network: noisy chunk (B, H, A), noise level (B,), observation (B, T, O) to velocity (B, H, A).

    Args:
        network: which, and its sizes.
        chunk: (H, A).
        observation: (T, O).
        timesteps: noise levels of the schedule.

    Raises:
        HandoffError: the sizes do not fit together.
    """
    match network:
        case MlpConfig():
            return MlpDenoiser(chunk, observation, timesteps, network.width, network.blocks, network.time_embedding)
        case UnetConfig():
            return UnetDenoiser(chunk, observation, timesteps, network)
        case TransformerConfig():
            return TransformerDenoiser(chunk, observation, timesteps, network)


def load_module(path: Path, steps: int | None = None, device: str = "cpu") -> tuple[DiffusionPolicy, PolicyCard]:
    """The policy in the directory `path`, ready for inference, and its card.

    Args:
        path: what `pretrain` or `distil` wrote.
        steps: denoising steps; None takes the policy's own.
        device: of torch.

    Raises:
        HandoffError: no policy there, a damaged one, or steps that do not divide the schedule.
    """
    card = read_card(path)
    module = DiffusionPolicy(card.model, card.observation_size, card.action_size, card.anchor)
    try:
        module.load_state_dict(read_weights(path))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise HandoffError(f"{path}: weights and config.json disagree: {reason}. Was one of them replaced?") from None
    if steps is not None:
        module.steps = ddim_steps(card.model.train_timesteps, steps)
    return module.eval().requires_grad_(False).to(device), card


def load_policy(path: Path, steps: int | None = None, device: str = "cpu") -> Policy:
    """The policy in the directory `path` as a function of NumPy arrays; arguments and errors of `load_module`."""
    module, _ = load_module(path, steps, device)

    @torch.no_grad()
    def policy(observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        _check("observation", observation, module.observation_shape, len(noise))
        _check("noise", noise, module.chunk_shape, len(observation))
        inputs = (torch.from_numpy(np.ascontiguousarray(a, np.float32)).to(device) for a in (observation, noise))
        return module(*inputs).cpu().numpy()

    return policy


def _check(name: str, array: np.ndarray, shape: tuple[int, int], rows: int) -> None:
    if array.shape != (rows, *shape):
        raise HandoffError(
            f"policy: {name} has shape {array.shape}, expected ({rows}, {shape[0]}, {shape[1]}). "
            "Does it belong to another task, or lack the batch dimension?"
        )
    if not np.isfinite(array).all():
        raise HandoffError(f"policy: {name} holds a value that is not finite. Was a sensor lost?")
