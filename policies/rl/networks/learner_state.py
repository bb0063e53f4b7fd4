"""Saves a learner: weights, optimisers and the number of its updates, which determines its random
numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


def learner_state(
    networks: nn.Module, optimizers: Mapping[str, Any], updates: int
) -> dict[str, Any]:
    """All that a learner's next update depends on, for `load_learner_state`."""
    return {
        "networks": networks.state_dict(),
        "optimizers": {name: optimizer.state_dict() for name, optimizer in optimizers.items()},
        "updates": updates,
    }


def load_learner_state(
    state: Mapping[str, Any], networks: nn.Module, optimizers: Mapping[str, Any]
) -> int:
    """Puts `learner_state` into networks and optimisers; returns the number of updates."""
    networks.load_state_dict(state["networks"])
    for name, optimizer in optimizers.items():
        optimizer.load_state_dict(state["optimizers"][name])
    return state["updates"]
