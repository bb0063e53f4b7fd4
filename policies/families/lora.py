"""Low-rank adapters (LoRA, Hu et al., ICLR 2022) in the linear layers of a module, through peft.

A linear layer W x becomes W x + (alpha / rank) B A x with B initialised to zero, so that an adapted
module initially computes the same outputs. The state dictionary contains the adapters' weights and
the frozen ones.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from policies.networks.config import LoraConfig
from robots.errors import HandoffError

_PRODUCTS = ("lora_A", "lora_B")


def add_adapters(module: nn.Module, config: LoraConfig) -> None:
    """Adds adapters in place to the linear layers named by `config`, and freezes everything else in
    `module`.

    Raises:
        HandoffError: a rank below 1, or a target that is not a linear layer of `module`.
    """
    import peft

    if config.rank < 1:
        raise HandoffError(f"lora: rank is {config.rank}, expected at least 1.")
    linear = {
        name.rpartition(".")[2]
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear)
    }
    unknown = sorted(set(config.targets) - linear)
    if unknown or not config.targets:
        raise HandoffError(
            f"lora: targets {unknown} are not linear layers; available are {', '.join(sorted(linear))}."
        )
    module.requires_grad_(False)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]
        lora_dropout=config.dropout,
        target_modules=list(config.targets),
    )
    peft.inject_adapter_in_model(settings, module)


def adapters(module: nn.Module) -> dict[str, nn.Module]:
    """The adapted layers of `module` by their names."""
    return {
        name: part
        for name, part in module.named_modules()
        if all(hasattr(part, factor) for factor in _PRODUCTS)
    }


def merge_adapters(module: nn.Module) -> int:
    """Merges every adapter into the weights of its layer and restores plain linear layers, in
    place.

    The module computes the same outputs, slightly faster. Its adapters can no longer be trained,
    and its state dictionary no longer fits an adapted module.

    Returns:
        Number of merged adapters.
    """
    adapted_layers = adapters(module)
    for name, layer in adapted_layers.items():
        adapted: Any = layer
        adapted.merge()
        parent, _, layer_name = name.rpartition(".")
        setattr(module.get_submodule(parent), layer_name, adapted.get_base_layer())
    return len(adapted_layers)
