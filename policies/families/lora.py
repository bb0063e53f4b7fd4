"""Low-rank adapters (LoRA, Hu et al., ICLR 2022) in the linear layers of a module, through peft.

A linear layer W x becomes W x + (alpha / rank) B A x with B zero at first, so that an adapted
module starts as it was. The adapters' weights stand in the module's state dictionary beside the
frozen ones.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from policies.networks.config import LoraConfig
from robots.errors import HandoffError

_PRODUCTS = ("lora_A", "lora_B")


def add_adapters(module: nn.Module, config: LoraConfig) -> None:
    """Gives the linear layers that `config` names an adapter, in place; nothing else in `module` is
    trained then.

    Raises:
        HandoffError: a rank below 1, or a target that is no linear layer of `module`.
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
            f"lora: targets {unknown} are no linear layers; there are {', '.join(sorted(linear))}."
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
    """Adds every adapter's product to the weights it adapts and puts plain linear layers back, in
    place.

    The module answers as before, a little faster, but its adapters can no longer be trained, nor
    its weights be loaded as those of an adapted one.

    Returns:
        How many there were.
    """
    found = adapters(module)
    for name, layer in found.items():
        adapted: Any = layer
        adapted.merge()
        parent, _, own = name.rpartition(".")
        setattr(module.get_submodule(parent), own, adapted.get_base_layer())
    return len(found)
