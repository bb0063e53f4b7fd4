"""Saves and restores learners: weights, optimisers and number of updates, which seeds their random
numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


def learner_state(
    networks: nn.Module, optimizers: Mapping[str, Any], updates: int
) -> dict[str, Any]:
    """Complete state of a learner, for `load_learner_state`."""
    return {
        "networks": networks.state_dict(),
        "optimizers": {name: optimizer.state_dict() for name, optimizer in optimizers.items()},
        "updates": updates,
    }


def load_learner_state(
    state: Mapping[str, Any], networks: nn.Module, optimizers: Mapping[str, Any]
) -> int:
    """Restores networks and optimisers from a `learner_state`; returns the number of updates."""
    networks.load_state_dict(state["networks"])
    for name, optimizer in optimizers.items():
        optimizer.load_state_dict(state["optimizers"][name])
    return state["updates"]
