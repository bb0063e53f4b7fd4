"""DDPM as a grid of steps, a reference for the samplers; no policy uses it."""

from __future__ import annotations

from policies.samplers.ddim import DiffusionGrid, Prediction, ddim_grid


def ddpm_grid(timesteps: int, clip: float, prediction: Prediction = "v") -> DiffusionGrid:
    """Ancestral sampling over all levels of the cosine schedule (Ho et al. 2020), with the
    posterior's variance."""
    return ddim_grid(timesteps, timesteps, 1.0, clip, prediction, renoise=True)
