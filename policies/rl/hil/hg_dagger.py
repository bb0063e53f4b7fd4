"""Implements HG-DAgger: imitation of a person's actions during interventions (Kelly et al., arXiv
1810.02890).

The minibatch sampler determines the training data: demonstrations and interventions. The paper's
uncertainty estimate (disagreement of an ensemble), which warns the person, is left out.

Shape suffixes: N environments, B batch, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from policies.rl.hil.config import HgDaggerConfig
from policies.rl.networks.ensemble import EnsembleMlp, Features
from policies.rl.replay.transitions import Sizes, Transitions


class HgDagger:
    """HG-DAgger learner: mean squared error on the person's actions, and a three-class
    cross-entropy on gripper commands.

    Args:
        config: options.
        sizes: sizes of observations and actions.
        seed: seed of the initial weights.
    """

    def __init__(self, config: HgDaggerConfig, sizes: Sizes, seed: int = 0) -> None:
        self.config = config
        self.sizes = sizes
        self.continuous = sizes.action - config.gripper
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            features = Features(sizes)
            outputs = self.continuous + 3 * config.gripper
            self.networks = nn.ModuleDict(
                {
                    "features": features,
                    "actor": EnsembleMlp(1, features.size, config.network, outputs),
                }
            )
        self.optimizer = torch.optim.Adam(self.networks["actor"].parameters(), config.learning_rate)
        self.updates = 0

    def update(self, minibatches: Sequence[Transitions]) -> dict[str, Tensor]:
        """One gradient step per minibatch."""
        loss = torch.zeros(())
        for batch in minibatches:
            continuous_BA, gripper_B3 = self._outputs(batch.obs.vector_BO)
            loss = (continuous_BA - batch.action_BA[:, : self.continuous]).square().mean()
            if self.config.gripper:
                loss = loss + cross_entropy(gripper_B3, (batch.action_BA[:, -1].round() + 1).long())
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
        self.updates += 1
        return {"loss": loss.detach()}

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observation vectors (N, O); there is no exploration, so
        `rng` is ignored."""
        continuous_NA, gripper_N3 = self._outputs(
            torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))
        )
        if not self.config.gripper:
            return continuous_NA.numpy()
        command_N1 = gripper_N3.argmax(dim=1, keepdim=True) - 1
        return torch.cat([continuous_NA, command_N1.to(continuous_NA.dtype)], dim=1).numpy()

    def state_dict(self) -> dict[str, Any]:
        """Complete state: weights, optimiser and number of updates."""
        return {
            "networks": self.networks.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.networks.load_state_dict(state["networks"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]

    def _outputs(self, vector_BO: Tensor) -> tuple[Tensor, Tensor]:
        """Continuous entries of actions in (-1, 1), and logits of the three gripper commands, which
        are empty without a gripper."""
        out = self.networks["actor"](self.networks["features"](vector_BO))[0]
        return torch.tanh(out[:, : self.continuous]), out[:, self.continuous :]
