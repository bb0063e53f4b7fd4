"""An ensemble of world models of the same play, whose disagreement tells where nobody played.

The members differ in their initial weights and minibatches, so that their predictions agree where
play determines them and differ elsewhere (Chua et al., PETS, NeurIPS 2018; MOPO, Yu et al.,
NeurIPS 2020; LOMPO, Rafailov et al., L4DC 2021, with latent states). In every imagined episode one
member leads: it alone draws the next observation, from the first step to the last, so that an
episode stays with one outcome where play had several (TS-infinity of PETS). The other members
observe what the leader imagined, as they would observe a recording; so each has a latent state of
its own, and can be asked what it would have predicted.

The disagreement of a step is the root mean square, over the entries that change, of the standard
deviation of the members' most likely predictions, in standard deviations of a step's change.

Shape suffixes as in `policies.world_model.model`; M members.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.training.members import member_folder
from policies.world_model.config import WorldModelCard
from policies.world_model.model import Latent, WorldModel, load_world_model

MAX_MULTIPLES = 10.0
"""Multiples of the usual disagreement above which a step costs no more; the predictions of models
that have left their data differ without limit, and a value function must learn the reward."""


class WorldModelEnsemble:
    """At least one world model of the same play.

    Args:
        members: models with the same normalisation.
    """

    def __init__(self, members: Sequence[WorldModel]) -> None:
        self.members = list(members)
        first = self.members[0]
        self.stochastic = first.stochastic
        """Z."""
        self._change = first.change
        self._moves = first.moves > 0.0

    def __len__(self) -> int:
        return len(self.members)

    def initial(self, obs_BO: Tensor, noise_BMZ: Tensor) -> list[Latent]:
        """Initial latents of the members from one normalised observation and Gumbel noise."""
        return [
            member.initial_latent(obs_BO, noise_BMZ[:, number])
            for number, member in enumerate(self.members)
        ]

    def imagine(
        self, latents: Sequence[Latent], action_BA: Tensor, noise_BMZ: Tensor, leader_B: Tensor
    ) -> list[Latent]:
        """Draws the next observation by the leader of every environment; the others observe it.

        Args:
            latents: latent states of the members.
            action_BA: normalised actions.
            noise_BMZ: Gumbel noise.
            leader_B: number of the leading member, int64.

        Returns:
            Next latent states of the members, which share the observation.
        """
        if len(self) == 1:
            return [self.members[0].imagine(latents[0], action_BA, noise_BMZ[:, 0])]
        obs_BO = torch.empty_like(latents[0].obs_BO)
        drawn: list[tuple[Tensor, Latent]] = []
        for number, member in enumerate(self.members):
            rows = torch.nonzero(leader_B == number)[:, 0]
            own = latents[number].rows(rows)
            imagined = member.imagine(own, action_BA[rows], noise_BMZ[rows, number])
            obs_BO[rows] = imagined.obs_BO
            drawn.append((rows, imagined))
        following = self.observe(latents, action_BA, obs_BO, noise_BMZ)
        for observed, (rows, imagined) in zip(following, drawn, strict=True):
            observed.recurrent_BH[rows] = imagined.recurrent_BH
            observed.stochastic_BZ[rows] = imagined.stochastic_BZ
        return following

    def observe(
        self, latents: Sequence[Latent], action_BA: Tensor, obs_BO: Tensor, noise_BMZ: Tensor
    ) -> list[Latent]:
        """Latents of the members after a normalised action and the next observation."""
        return [
            member.observe(latent, action_BA, obs_BO, noise_BMZ[:, number])
            for number, (member, latent) in enumerate(zip(self.members, latents, strict=True))
        ]

    def predictions(self, latents: Sequence[Latent], action_BA: Tensor) -> Tensor:
        """Most likely next observation of every member, (M, B, O)."""
        without_noise = action_BA.new_zeros(len(action_BA), self.stochastic)
        return torch.stack(
            [
                member.imagine(latent, action_BA, without_noise).obs_BO
                for member, latent in zip(self.members, latents, strict=True)
            ]
        )

    def disagreement(self, latents: Sequence[Latent], action_BA: Tensor) -> Tensor:
        """Disagreement (B,) of the members about the step that a normalised action makes."""
        return self.spread(self.predictions(latents, action_BA))

    def spread(self, prediction_MBO: Tensor) -> Tensor:
        """Disagreement (B,) of predictions."""
        variance_BO = (prediction_MBO / self._change).var(dim=0, correction=0)
        return variance_BO[:, self._moves].mean(dim=1).sqrt()

    def distance(self, one_BO: Tensor, other_BO: Tensor) -> Tensor:
        """Root mean square difference (B,) of observations in the unit of the disagreement."""
        difference_BO = (one_BO - other_BO) / self._change
        return difference_BO[:, self._moves].square().mean(dim=1).sqrt()

    def noise(self, rng: np.random.Generator, rows: int) -> Tensor:
        """Gumbel noise (rows, M, Z) of one step."""
        noise = rng.gumbel(size=(rows, len(self), self.stochastic))
        return torch.from_numpy(noise.astype(np.float32))


class LoadedEnsemble(NamedTuple):
    """An ensemble that was loaded from a folder."""

    models: WorldModelEnsemble
    cards: list[WorldModelCard]
    """Metadata of the members; the first is that of the ensemble."""
    starts: Tensor
    """Recorded initial observations (E, O)."""


def load_ensemble(path: Path) -> LoadedEnsemble:
    """Loads a world model with all its members: frozen, in evaluation mode, on the CPU.

    Raises:
        HandoffError: a member is missing, damaged or of another version.
    """
    model, card, starts = load_world_model(path)
    members, cards = [model], [card]
    for number in range(1, card.members):
        member, member_card, _ = load_world_model(member_folder(path, number))
        members.append(member)
        cards.append(member_card)
    return LoadedEnsemble(WorldModelEnsemble(members), cards, starts)


def penalties(disagreement_B: np.ndarray, usual: float, weight: float) -> np.ndarray:
    """Rewards (B,) lost by disagreement: `weight` for every multiple of `usual` above one, of
    which at most `MAX_MULTIPLES` count."""
    return weight * np.clip(disagreement_B / usual - 1.0, 0.0, MAX_MULTIPLES)
