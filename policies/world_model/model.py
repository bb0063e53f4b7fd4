"""A recurrent latent world model of recorded vectors: what an action will be followed by, with its
chance.

DreamerV2's recurrent state-space model (Hafner et al., arXiv 2010.02193), which DiWA trains once on
play and freezes (Nematollahi et al., CoRL 2025). A latent is a recurrent vector h and categorical
variables z: h follows from the latent and the action before, z is drawn from what h foretells, or,
where something is seen, from what both tell together. The loss is the likelihood of what is seen,
less the divergence of the two, balanced.

What differs, for vectors in place of pictures: the latent also holds x, what was seen last or is
imagined to be seen, and the decoder tells by how much it changes, with a linear path of its own
from x and the action: an arm that is told to go five millimetres goes about five millimetres, and
the networks need only tell what is beyond that. Where DreamerV2 asks for pictures of unit variance,
here `noise` is stated in deviations of a step's change.

Shape suffixes: B batch, L steps of a sequence, O entries of an observation, A of an action, H
recurrent, Z = S * C entries of S variables with C classes each, F = H + Z + O features.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.normalize import StandardNormalizer
from policies.world_model.config import WorldModelCard, WorldModelSizes
from robots.config import to_plain, validate
from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.spec import FieldSpec
from robots.storage.durable import explain_write_errors, write_atomically

CARD, WEIGHTS = "world_model.json", "world_model.safetensors"
ASTRAY = 10.0
"""Error alone from which its pull stops growing [of `noise`]."""
_STARTS = "starts"
LEAST_CHANGE = 1e-3
"""Deviation of a step's change that an entry which never changes is given [normalised]."""


class ScaledFeature(NamedTuple):
    """A part of an observation vector that is shown at a scale of its own, too."""

    begin: int
    end: int
    scale: float


class Latent(NamedTuple):
    """The state of B imagined worlds."""

    recurrent_BH: Tensor
    drawn_BZ: Tensor
    """One-hot variables side by side."""
    seen_BO: Tensor
    """What was seen last, or is imagined to be, normalised."""

    @property
    def features(self) -> Tensor:
        """(B, F)."""
        return torch.cat(self, dim=-1)

    def rows(self, which: Tensor) -> Latent:
        """Some of them."""
        return Latent(*(part[which] for part in self))


class Sequences(NamedTuple):
    """Observed steps 1 to L - 1 of B sequences."""

    foretold: Tensor
    """(B, L - 1, O) what the latents tell of each step without x at it."""
    prior: Tensor
    """(B, L - 1, S, C) logarithms of probabilities, before it was seen."""
    posterior: Tensor
    """Likewise, afterwards."""


class WorldModel(nn.Module):
    """The networks.

    Args:
        observation: O.
        action: A.
        sizes: of the networks.
        close_ups: what is shown beside the observation.
    """

    change: Tensor
    moves: Tensor

    def __init__(
        self,
        observation: int,
        action: int,
        sizes: WorldModelSizes,
        close_ups: Sequence[ScaledFeature] = (),
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self._close_ups = tuple(close_ups)
        wide, drawn, hidden = sizes.recurrent, sizes.latents * sizes.classes, sizes.hidden
        self.drawn = drawn
        """Z."""
        self.normalize_observation = StandardNormalizer((observation,))
        self.normalize_action = StandardNormalizer((action,))
        self.register_buffer("change", torch.ones(observation))
        self.register_buffer("moves", torch.ones(observation))
        shown = observation + sum(one.end - one.begin for one in close_ups)
        self.enter = nn.Sequential(nn.Linear(drawn + action + shown, wide), nn.SiLU())
        self.recur = nn.GRUCell(wide, wide)
        self.foretell = _mlp(wide + shown, hidden, drawn)
        self.recognise = _mlp(wide + shown + observation, hidden, drawn)
        self.decode = _mlp(wide + drawn + shown + action, hidden, observation)
        self.follow = nn.Linear(shown + action, observation)
        # To begin with nothing changes.
        for last in (cast(nn.Linear, self.decode[-1]), self.follow):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    @property
    def features(self) -> int:
        """F."""
        return self.sizes.recurrent + self.drawn + len(self.change)

    def gumbel(self, rows: int, draw: torch.Generator) -> Tensor:
        """(rows, Z) noise of one step, on the generator's device."""
        return -torch.empty(rows, self.drawn, device=draw.device).exponential_(generator=draw).log()

    def begin(self, seen_BO: Tensor, noise_BZ: Tensor) -> Latent:
        """Latents of worlds of which one normalised observation is known; the noise is Gumbel's, as
        of all draws."""
        recurrent_BH = seen_BO.new_zeros(len(seen_BO), self.sizes.recurrent)
        told = self.recognise(
            torch.cat([recurrent_BH, self._shown(seen_BO), torch.zeros_like(seen_BO)], dim=1)
        )
        return Latent(recurrent_BH, self._drawn(self._log_probs(told), noise_BZ), seen_BO)

    def imagine(self, latent: Latent, action_BA: Tensor, noise_BZ: Tensor) -> Latent:
        """What a normalised action may lead to."""
        shown = self._shown(latent.seen_BO)
        recurrent_BH = self._recur(latent, shown, action_BA)
        prior_BSC = self._log_probs(self.foretell(torch.cat([recurrent_BH, shown], dim=1)))
        drawn_BZ = self._drawn(prior_BSC, noise_BZ)
        change_BO = self._changed(recurrent_BH, drawn_BZ, shown, action_BA)
        return Latent(recurrent_BH, drawn_BZ, latent.seen_BO + change_BO)

    def observe(
        self, latent: Latent, action_BA: Tensor, seen_BO: Tensor, noise_BZ: Tensor
    ) -> Latent:
        """What a normalised action led to, now that it is seen."""
        recurrent_BH, told = self._recognised(
            latent, self._shown(latent.seen_BO), action_BA, seen_BO
        )
        return Latent(recurrent_BH, self._drawn(told, noise_BZ), seen_BO)

    def sequences(self, seen_BLO: Tensor, action_BLA: Tensor, draw: torch.Generator) -> Sequences:
        """All steps of recorded sequences; `draw` is of the latents."""
        rows, steps = len(seen_BLO), seen_BLO.shape[1] - 1
        shown = self._shown(seen_BLO[:, :-1].flatten(0, 1)).unflatten(0, (rows, steps))
        latent = self.begin(seen_BLO[:, 0], self.gumbel(rows, draw))
        recurrent, drawn, posterior = [], [], []
        for step in range(steps):
            recurrent_BH, told = self._recognised(
                latent, shown[:, step], action_BLA[:, step], seen_BLO[:, step + 1]
            )
            latent = Latent(
                recurrent_BH, self._drawn(told, self.gumbel(rows, draw)), seen_BLO[:, step + 1]
            )
            recurrent.append(recurrent_BH)
            drawn.append(latent.drawn_BZ)
            posterior.append(told)
        # What no later step hangs on is worked out for all steps at once.
        wide, chosen = (torch.stack(parts, dim=1).flatten(0, 1) for parts in (recurrent, drawn))
        flat, action = shown.flatten(0, 1), action_BLA[:, :-1].flatten(0, 1)
        prior = self._log_probs(self.foretell(torch.cat([wide, flat], dim=1)))
        change = self._changed(wide, chosen, flat, action).unflatten(0, (rows, steps))
        return Sequences(
            seen_BLO[:, :-1] + change,
            prior.unflatten(0, (rows, steps)),
            torch.stack(posterior, dim=1),
        )

    def alone(self, seen_BLO: Tensor, action_BLA: Tensor, draw: torch.Generator) -> Tensor:
        """(B, L - 1, O) steps 1 to L - 1 as they are imagined from the first alone.

        Every step's gradient ends with it: what is learned is to go on rightly from where its own
        errors have led.
        """
        latent = self.begin(seen_BLO[:, 0], self.gumbel(len(seen_BLO), draw))
        found = []
        for step in range(seen_BLO.shape[1] - 1):
            latent = self.imagine(latent, action_BLA[:, step], self.gumbel(len(seen_BLO), draw))
            found.append(latent.seen_BO)
            latent = Latent(*(part.detach() for part in latent))
        return torch.stack(found, dim=1)

    def _recur(self, latent: Latent, shown: Tensor, action_BA: Tensor) -> Tensor:
        entered = self.enter(torch.cat([latent.drawn_BZ, action_BA, shown], dim=1))
        return self.recur(entered, latent.recurrent_BH)

    def _recognised(
        self, latent: Latent, shown: Tensor, action_BA: Tensor, seen_BO: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The recurrent vector, and logarithms of probabilities (B, S, C) now that the step is
        seen."""
        recurrent_BH = self._recur(latent, shown, action_BA)
        gap_BO = ((seen_BO - latent.seen_BO) / self.change).clamp(-10.0, 10.0)
        return recurrent_BH, self._log_probs(
            self.recognise(torch.cat([recurrent_BH, shown, gap_BO], dim=1))
        )

    def _changed(
        self, recurrent_BH: Tensor, drawn_BZ: Tensor, shown: Tensor, action_BA: Tensor
    ) -> Tensor:
        """(B, O) by how much what is seen changes, normalised."""
        told = self.decode(torch.cat([recurrent_BH, drawn_BZ, shown, action_BA], dim=1))
        return self.change * self.moves * (told + self.follow(torch.cat([shown, action_BA], dim=1)))

    def _shown(self, seen_BO: Tensor) -> Tensor:
        """What is seen, with its close-ups."""
        if not self._close_ups:
            return seen_BO
        own_BO = self.normalize_observation.inverse(seen_BO)
        near = [torch.tanh(own_BO[:, one.begin : one.end] / one.scale) for one in self._close_ups]
        return torch.cat([seen_BO, *near], dim=1)

    def _log_probs(self, told_BZ: Tensor) -> Tensor:
        """(B, S, C), each mixed with a little of the uniform distribution."""
        probs = functional.softmax(
            told_BZ.unflatten(1, (self.sizes.latents, self.sizes.classes)), dim=-1
        )
        return ((1.0 - self.sizes.uniform) * probs + self.sizes.uniform / self.sizes.classes).log()

    def _drawn(self, log_probs_BSC: Tensor, noise_BZ: Tensor) -> Tensor:
        """(B, Z) one-hot draws, whose gradient is that of the probabilities (straight through)."""
        number_BS = (log_probs_BSC + noise_BZ.view_as(log_probs_BSC)).argmax(dim=-1)
        hot = functional.one_hot(number_BS, self.sizes.classes).to(log_probs_BSC.dtype)
        probs = log_probs_BSC.exp()
        return (hot + probs - probs.detach()).flatten(1)


def likelihood_loss(
    model: WorldModel,
    seen_BLO: Tensor,
    action_BLA: Tensor,
    draw: torch.Generator,
    *,
    noise: float,
    balance: float,
    weight: float,
    alone: float,
) -> Tensor:
    """Negative evidence lower bound of normalised sequences, per step and entry, and how far it
    goes astray alone.

    Args:
        model: learns.
        seen_BLO: what was seen at every step.
        action_BLA: what was done on seeing it.
        draw: of the latents.
        noise: see `WorldModelConfig.noise`.
        balance: see `WorldModelConfig.kl_balance`.
        weight: of the divergence.
        alone: see `WorldModelConfig.alone`.
    """
    told = model.sequences(seen_BLO, action_BLA, draw)
    error = (told.foretold - seen_BLO[:, 1:]) / (noise * model.change)
    towards_seen = categorical_divergence(told.posterior.detach(), told.prior).mean()
    towards_prior = categorical_divergence(told.posterior, told.prior.detach()).mean()
    apart = balance * towards_seen + (1.0 - balance) * towards_prior
    loss = 0.5 * error.square().mean() + weight * apart / seen_BLO.shape[2]
    if alone > 0.0:
        astray = (model.alone(seen_BLO, action_BLA, draw) - seen_BLO[:, 1:]) / (
            noise * model.change
        )
        # Huber's: what has gone quite another way is not called back at any price.
        loss = loss + alone * functional.huber_loss(astray, torch.zeros_like(astray), delta=ASTRAY)
    return loss


def categorical_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL of categorical variables (..., S, C), summed over S."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=(-2, -1))


def save_world_model(path: Path, card: WorldModelCard, model: WorldModel, starts: Tensor) -> None:
    """Writes the model into the directory `path`; the card, which makes it one, last.

    Args:
        path: existing.
        card: what it says of itself.
        model: trained.
        starts: (E, O) as recorded, from which dreams begin.
    """
    from safetensors.torch import save

    state = {
        name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()
    }
    state[_STARTS] = starts.contiguous()
    with explain_write_errors(path, "the world model was not saved"):
        write_atomically(path / WEIGHTS, save(state))
        write_atomically(path / CARD, json.dumps(to_plain(card), indent=2).encode())


def load_world_model(path: Path) -> tuple[WorldModel, WorldModelCard, Tensor]:
    """Reads `save_world_model` back, the model frozen, in evaluation mode, on the CPU.

    Raises:
        HandoffError: none is there, it is damaged or of another version.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        card = validate(WorldModelCard, json.loads((path / CARD).read_text()), CARD)
        weights = load_file(path / WEIGHTS)
    except FileNotFoundError as error:
        missing = Path(str(error.filename or WEIGHTS)).name
        raise HandoffError(
            f"{path}: no {missing}. Did the training of the world model finish?"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise HandoffError(
            f"{path}: damaged world model ({error}). Was a file cut short by a copy?"
        ) from None
    if card.version != 1:
        raise HandoffError(
            f"{path / CARD}: version {card.version}, this build reads 1. Train it again."
        )
    close_ups = close_ups_of(card.observation, card.close_ups)
    model = WorldModel(observation_size(card), prod(card.action.shape), card.sizes, close_ups)
    try:
        starts = weights.pop(_STARTS)
        model.load_state_dict(weights)
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise HandoffError(
            f"{path / WEIGHTS}: other weights than {CARD} describes ({reason})."
        ) from None
    return model.requires_grad_(False).eval(), card, starts


def close_ups_of(
    observation: Mapping[str, FieldSpec], named: Sequence[tuple[str, float]]
) -> tuple[ScaledFeature, ...]:
    """Where the fields of `WorldModelConfig.close_ups` stand in the vector.

    Raises:
        HandoffError: a field that is not there, or a scale that is not positive.
    """
    parts: dict[str, tuple[int, int]] = {}
    end = 0
    for name, spec in observation.items():
        parts[name] = (end, end + prod(spec.shape))
        end += prod(spec.shape)
    for name, scale in named:
        if name not in parts or scale <= 0.0:
            raise HandoffError(
                f"world model: close-up of '{name}' at {scale}, expected one of {sorted(parts)} and a positive scale."
            )
    return tuple(ScaledFeature(*parts[name], scale) for name, scale in named)


def as_fields(observation: Mapping[str, FieldSpec], flat_NO: np.ndarray) -> Observation:
    """Vectors (N, O) as the fields that they are made of."""
    found, end = {}, 0
    for name, spec in observation.items():
        begin, end = end, end + prod(spec.shape)
        found[name] = flat_NO[:, begin:end].reshape(len(flat_NO), *spec.shape)
    return found


def observation_size(card: WorldModelCard) -> int:
    """O."""
    return sum(prod(spec.shape) for spec in card.observation.values())


def _mlp(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.SiLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))
