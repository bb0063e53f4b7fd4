"""Saves the networks of an offline learner, as the stage `offline` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from policies.checkpoint import save_state
from policies.rl.off_policy.sac import Sac
from policies.rl.off_policy.wsrl import OFFLINE_STATE


def save_offline(
    folder: Path, learner: Sac, fields: Sequence[str], half_range: float = 1.0
) -> None:
    """Writes the file from which WSRL goes on; the learner's actions are scaled by `half_range`."""
    actions = learner.sizes.action
    state = {
        "identity": OFFLINE_STATE,
        "networks": learner.networks.state_dict(),
        "fields": list(fields),
        "action_centre": torch.zeros(actions),
        "action_half_range": torch.full((actions,), half_range),
    }
    save_state(folder / OFFLINE_STATE, state)
