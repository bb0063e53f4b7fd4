"""Stage `evaluate_*`: a policy under the published push-T protocol in gym-pusht."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from robots.config import config
from robots.types import Policy, Progress
from sim.evaluate import EvaluateConfig
from sim.rollout import Chunking


@config
class EvaluatePolicyConfig:
    """The protocol, and how the policy under test samples."""

    protocol: EvaluateConfig = field(default_factory=EvaluateConfig)
    denoising_steps: int | None = None
    """Sampler steps; None takes the policy's own."""


def run(config: EvaluatePolicyConfig, inputs: dict[str, Path], out: Path, progress: Progress) -> dict[str, Any]:
    """Evaluates `inputs["policy"]`."""
    from sim.evaluate import evaluate

    path = inputs["policy"]
    return evaluate(
        config.protocol, partial(load_one_threaded, path, config.denoising_steps), chunking_of(path), out, progress
    )


def chunking_of(policy: Path) -> Chunking:
    """How the saved policy wants to be executed."""
    from policies.checkpoint import read_card

    card = read_card(policy)
    return Chunking(
        fields=tuple(card.observation),
        action_size=card.action_size,
        n_obs_steps=card.model.n_obs_steps,
        horizon=card.model.horizon,
        n_action_steps=card.model.n_action_steps,
    )


def load_one_threaded(path: Path, steps: int | None) -> Policy:
    """The saved policy, on one thread of torch: two busy threads on two cores are slower than one."""
    import torch

    from policies.diffusion import load_policy

    torch.set_num_threads(1)
    return load_policy(path, steps)
