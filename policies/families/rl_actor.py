"""The actor of a reinforcement learner as a policy like any other: evaluated, served and exported
by the same means.

It answers one action, its mode: tanh of the mean, and where the hand has a critic of its own the
command that this critic values most, written as the world's entry
(`robots.control.gripper_commands`). Noise has no part in it. Normalisation is the learner's own, so
the normalisers of `ChunkPolicy` stay what they are when new, the identity.

Shape suffixes: B batch, T observed steps, O observation, F features, H horizon (1), A action.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from policies.card import PolicyCard, Shapes
from policies.checkpoint import save_policy
from policies.policy import Batch, ChunkPolicy, ObservationTensors
from policies.policy_config import LearnedActorConfig
from policies.rl.networks.ensemble import shown_features
from robots.errors import HandoffError
from robots.wire.learner import MlpCard, Parameters

WIDTH_TARGET = "width_target"
_EPSILON = 1e-6
"""Of LayerNorm, as the learner has it."""


class LearnedActor(ChunkPolicy):
    """Implements `ChunkPolicy` for an actor whose form its configuration tells.

    Raises:
        HandoffError: more than one step, a vector or an action of another size, or a hand whose
            target is not seen.
    """

    centre: Tensor
    half_range: Tensor

    def __init__(self, config: LearnedActorConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        card = config.card
        if (card.observation, card.action) != (
            shapes.observation,
            shapes.action,
        ) or config.horizon != 1:
            raise HandoffError(
                f"learned actor: made for {card.observation} observed entries, {card.action} of an action and horizon "
                f"1, got {shapes.observation}, {shapes.action} and {config.horizon}. Another task?"
            )
        if card.hand is not None and WIDTH_TARGET not in shapes.entries:
            raise HandoffError(
                f"learned actor: its hand is commanded, so it must see '{WIDTH_TARGET}'; it sees "
                f"{sorted(shapes.entries)}."
            )
        self.card = card
        self.width_max = config.gripper_width_max
        self.target_entry = shapes.entries[WIDTH_TARGET][0] if card.hand is not None else 0
        self.register_buffer("centre", torch.zeros(card.observation))
        self.register_buffer("half_range", torch.ones(card.observation))
        self.actor = _network(card.actor)
        self.hand = None if card.hand is None else _network(card.hand)

    def sample(self, observed: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """(B, 1, A) in the world's actions; the noise is not looked at."""
        vector_BO = observed.vector_BTO[:, -1]
        features_BF = self._features(vector_BO)
        continuous = self.card.action - (self.hand is not None)
        action_BA = torch.tanh(self.actor(features_BF)[:, :continuous])
        if self.hand is not None:
            command_B = self.hand(features_BF).argmax(dim=1) - 1
            told_B = vector_BO[:, self.target_entry]
            hold_B = (2.0 * told_B / self.width_max - 1.0).clamp(-1.0, 1.0)
            entry_B = torch.where(command_B == 0, hold_B, command_B.to(hold_B.dtype))
            action_BA = torch.cat([action_BA, entry_B[:, None]], dim=1)
        return action_BA[:, None]

    def loss(self, batch: Batch, draw: np.random.Generator) -> Tensor:
        """There is none.

        Raises:
            HandoffError: always.
        """
        raise HandoffError(
            "learned actor: it is not pretrained from demonstrations. Train it with `handoff hil`."
        )

    def _features(self, vector_BO: Tensor) -> Tensor:
        normalised_BO = (vector_BO - self.centre) / self.half_range
        return shown_features(vector_BO, normalised_BO, self.card.differences, self.card.close_ups)


def weights_of(parameters: Parameters) -> dict[str, Tensor]:
    """State of a `LearnedActor`'s networks for a policy as it was published."""
    card, arrays = parameters.card, parameters.arrays
    state = {name: torch.from_numpy(arrays[name]) for name in ("centre", "half_range")}
    for part, form in (("actor", card.actor), ("hand", card.hand)):
        if form is None:
            continue
        place = 0
        for layer in range(len(form.layers) - 1):
            state[f"{part}.{place}.weight"] = torch.from_numpy(
                arrays[f"{part}.{layer}.weight"]
            ).T.contiguous()
            state[f"{part}.{place}.bias"] = torch.from_numpy(arrays[f"{part}.{layer}.bias"])
            if form.layer_norm and layer < len(form.layers) - 2:
                state[f"{part}.{place + 1}.weight"] = torch.from_numpy(
                    arrays[f"{part}.{layer}.gain"]
                )
                state[f"{part}.{place + 1}.bias"] = torch.from_numpy(
                    arrays[f"{part}.{layer}.shift"]
                )
            place += 3 if form.layer_norm else 2
    return state


def save_actor(path: Path, card: PolicyCard, parameters: Parameters) -> None:
    """Writes a published policy into the directory `path` as a policy that `handoff evaluate` and
    export take.

    Args:
        path: exists.
        card: its model is a `LearnedActorConfig` of the same form.
        parameters: as published.

    Raises:
        HandoffError: card and parameters disagree, or a full disk.
    """
    if not isinstance(card.model, LearnedActorConfig) or card.model.card != parameters.card:
        raise HandoffError(
            f"{path}: the card tells of another network than was published. Was its task changed?"
        )
    actor = LearnedActor(card.model, card.shapes)
    # The normalisers around it are not published: they stay the identity.
    actor.load_state_dict(actor.state_dict() | weights_of(parameters))
    save_policy(path, card, actor.state_dict())


def _network(card: MlpCard) -> nn.Sequential:
    layers: list[nn.Module] = []
    last = len(card.layers) - 2
    for layer, (before, after) in enumerate(pairwise(card.layers)):
        layers.append(nn.Linear(before, after))
        if layer < last:
            layers += [nn.LayerNorm(after, eps=_EPSILON)] if card.layer_norm else []
            layers.append(nn.Tanh() if card.activation == "tanh" else nn.ReLU())
    return nn.Sequential(*layers)
