"""Implements HG-DAgger: imitation of a person's actions during interventions (Kelly et al., arXiv
1810.02890).

The minibatch sampler determines the training data: demonstrations and interventions. The paper's
uncertainty estimate (disagreement of an ensemble), which warns the person, is left out.

Shape suffixes: N environments, B batch, O observation, A action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from policies.rl.hil.config import HgDaggerConfig
from policies.rl.networks.ensemble import EnsembleMlp, Features
from policies.rl.replay.transitions import Sizes, Transitions
from robots.errors import HandoffError
from robots.wire.actor_card import ActorCard, MlpCard

STD = 1e-6
"""Standard deviation of the exported actor, which does not explore; its logarithm must be
finite."""


class HgDagger:
    """HG-DAgger learner: mean squared error on the person's actions, and a three-class
    cross-entropy on gripper commands.

    Args:
        config: options.
        sizes: sizes of observations and actions.
        seed: seed of the initial weights.
        gripper: whether the last entry of an action is a gripper command: -1 close, 0 hold, 1 open.
    """

    def __init__(
        self, config: HgDaggerConfig, sizes: Sizes, seed: int = 0, *, gripper: bool = False
    ) -> None:
        self.config = config
        self.sizes = sizes
        self.gripper = gripper
        self.continuous = sizes.action - gripper
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            features = Features(sizes)
            outputs = self.continuous + 3 * gripper
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
            if self.gripper:
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
        if not self.gripper:
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


def hg_dagger_actor(learner: Any) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """Card and arrays of an HG-DAgger policy, which robots run in NumPy as that of SAC
    (`policies.rl.actor_export.sac_actor`).

    The exported gripper network repeats the hidden layers, which the learner shares.

    Raises:
        HandoffError: a learner other than HG-DAgger.
    """
    if not isinstance(learner, HgDagger):
        raise HandoffError(f"publish: {type(learner).__name__} is not HG-DAgger.")
    sizes = learner.sizes
    features: Features = learner.networks["features"]  # type: ignore[assignment]
    network: EnsembleMlp = learner.networks["actor"]  # type: ignore[assignment]
    arrays = {
        "centre": _array(features.centre),
        "half_range": _array(features.half_range),
    }
    parts = {"actor": slice(0, learner.continuous)}
    if learner.gripper:
        parts["hand"] = slice(learner.continuous, None)
    cards: dict[str, MlpCard] = {}
    for name, outputs in parts.items():
        layers = [
            (_array(weight[0]), _array(bias[0, 0]))
            for weight, bias in zip(network.weights, network.biases, strict=True)
        ]
        last_weight, last_bias = layers[-1]
        layers[-1] = (last_weight[:, outputs], last_bias[outputs])
        for i, (weight, bias) in enumerate(layers):
            arrays[f"{name}.{i}.weight"] = np.ascontiguousarray(weight)
            arrays[f"{name}.{i}.bias"] = np.ascontiguousarray(bias)
        for i, (gain, shift) in enumerate(zip(network.gains, network.shifts, strict=True)):
            arrays[f"{name}.{i}.gain"] = _array(gain[0, 0])
            arrays[f"{name}.{i}.shift"] = _array(shift[0, 0])
        cards[name] = MlpCard(
            layers=(layers[0][0].shape[0], *(len(bias) for _, bias in layers)),
            activation=network.sizes.activation,
            layer_norm=network.sizes.layer_norm,
        )
    log_std = math.log(STD)
    card = ActorCard(
        observation=sizes.observation,
        action=sizes.action,
        relative_features=sizes.relative_features,
        scaled_features=sizes.scaled_features,
        actor=cards["actor"],
        log_std_min=log_std,
        log_std_max=log_std,
        fixed_log_std=log_std,
        hand=cards.get("hand"),
    )
    return card, arrays


def _array(tensor: Any) -> np.ndarray:
    """float32 copy, which later updates do not change."""
    return np.array(tensor.detach().cpu().numpy(), np.float32)
