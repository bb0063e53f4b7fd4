"""Learning-rate schedules, optimiser with weight-decay groups, and EMA decay.

Weight-decay groups follow diffusion_policy's transformer (`get_optim_groups`): matrices decay;
biases, norms, embeddings and positions do not. nanoGPT distinguishes them by their number of
dimensions only, so its embeddings decay too.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from policies.training.config import TrainingConfig


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Learning rate of update `step`, counted from 0.

    `plateau` reaches the peak in update `warmup_steps - 1`, and decays over the last
    `decay_fraction` of the updates. `cosine` is diffusers' `get_cosine_schedule_with_warmup`: its
    first update has rate 0, and update `warmup_steps` the peak.
    """
    warmup, steps = config.warmup_steps, config.steps
    if config.schedule == "plateau":
        decay = (steps - step) / max(1.0, config.decay_fraction * steps)
        return config.learning_rate * min(1.0, (step + 1) / max(1, warmup), decay)
    if step < warmup:
        return config.learning_rate * step / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return config.learning_rate * max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))


def ema_decay(step: int, power: float, maximum: float) -> float:
    """EMA decay of update `step`; 0 at the first (Karras; diffusion_policy's `EMAModel`)."""
    return min(maximum, 1.0 - (1.0 + step) ** -power)


def new_optimizer(config: TrainingConfig, model: nn.Module) -> torch.optim.AdamW:
    """AdamW over the trainable parameters of `model`."""
    trainable: list[Tensor] = [
        parameter for parameter in model.parameters() if parameter.requires_grad
    ]
    groups: list[dict[str, Any]] = [{"params": trainable}]
    if config.decay == "matrices":
        matrices = {id(matrix) for matrix in decayed_parameters(model).values()}
        undecayed = [parameter for parameter in trainable if id(parameter) not in matrices]
        groups = [
            {"params": [parameter for parameter in trainable if id(parameter) in matrices]},
            {"params": undecayed, "weight_decay": 0.0},
        ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )


def decayed_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters with weight decay under `decay: matrices`.

    These are parameters with two or more dimensions whose name ends in `weight`, such as
    attention's `in_proj_weight`, except embeddings; positions have other names.
    """
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and parameter.dim() >= 2
        and name.rpartition(".")[2].endswith("weight")
        and id(parameter) not in embeddings
    }
