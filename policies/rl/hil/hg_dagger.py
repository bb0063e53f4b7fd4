"""HG-DAgger: imitation of what a person did while they had control (Kelly et al., arXiv
1810.02890).

What it learns from is decided by whoever draws the batches: demonstrations and the steps of
interventions. The paper's doubt (disagreement of an ensemble) warns the person and is left out
here.

Shape suffixes: N worlds, B batch, O observation, A action.
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
    """Least squares on the person's actions; a hand with a critic of its own elsewhere is here a
    choice of three.

    Args:
        config: options.
        sizes: of the data.
        seed: of the weights and of exploration.
    """

    def __init__(self, config: HgDaggerConfig, sizes: Sizes, seed: int = 0) -> None:
        self.config, self.sizes = config, sizes
        self.continuous = sizes.action - config.hand
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            features = Features(sizes)
            outputs = self.continuous + 3 * config.hand
            self.networks = nn.ModuleDict(
                {
                    "features": features,
                    "actor": EnsembleMlp(1, features.size, config.network, outputs),
                }
            )
        self.optimizer = torch.optim.Adam(self.networks["actor"].parameters(), config.learning_rate)
        self.updates = 0

    def update(self, minibatches: Sequence[Transitions]) -> dict[str, Tensor]:
        """One step per minibatch."""
        loss = torch.zeros(())
        for batch in minibatches:
            move_BA, hand_B3 = self._outputs(batch.seen.vector_BO)
            loss = (move_BA - batch.action_BA[:, : self.continuous]).square().mean()
            if self.config.hand:
                loss = loss + cross_entropy(hand_B3, (batch.action_BA[:, -1].round() + 1).long())
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
        self.updates += 1
        return {"loss": loss.detach()}

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, draw: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observations (N, O); it does not explore, so `draw` has no
        say."""
        move_NA, hand_N3 = self._outputs(
            torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))
        )
        if not self.config.hand:
            return move_NA.numpy()
        command_N1 = hand_N3.argmax(dim=1, keepdim=True) - 1
        return torch.cat([move_NA, command_N1.to(move_NA.dtype)], dim=1).numpy()

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser and the count."""
        return {
            "networks": self.networks.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` over."""
        self.networks.load_state_dict(state["networks"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]

    def _outputs(self, vector_BO: Tensor) -> tuple[Tensor, Tensor]:
        """Moves in (-1, 1) and the logits of the hand's three commands, none of them without a
        hand."""
        out = self.networks["actor"](self.networks["features"](vector_BO))[0]
        return torch.tanh(out[:, : self.continuous]), out[:, self.continuous :]
