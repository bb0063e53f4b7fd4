"""Turns gradients into updates: learning rate, weight decay, running mean of the weights.

Weight decay by group follows diffusion_policy's transformer (`get_optim_groups`): matrices decay,
biases, norms, embeddings and positions do not. nanoGPT, which tells them apart by their dimensions
alone, lets embeddings decay too.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from policies.training.config import TrainingConfig


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Rate of update number `step`, counted from 0.

    `plateau` reaches the peak in update `warmup_steps - 1`, and falls over the last
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
    """Share of the old average that update number `step` keeps; 0 at first (Karras;
    diffusion_policy's `EMAModel`)."""
    return min(maximum, 1.0 - (1.0 + step) ** -power)


def new_optimizer(config: TrainingConfig, model: nn.Module) -> torch.optim.AdamW:
    """AdamW over the trainable parameters of `model`."""
    trainable: list[Tensor] = [
        parameter for parameter in model.parameters() if parameter.requires_grad
    ]
    groups: list[dict[str, Any]] = [{"params": trainable}]
    if config.decay == "matrices":
        matrices = {id(matrix) for matrix in decayed(model).values()}
        spared = [parameter for parameter in trainable if id(parameter) not in matrices]
        groups = [
            {"params": [parameter for parameter in trainable if id(parameter) in matrices]},
            {"params": spared, "weight_decay": 0.0},
        ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )


def decayed(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters on which weight decay falls with `decay: matrices`.

    They are called `weight`, such as that of attention `in_proj_weight`, and have two dimensions or
    more; positions, which have as many, are called otherwise.
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
