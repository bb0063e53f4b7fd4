"""Recurrent state-space model of recorded vectors: predicts the distribution of the next
observation.

This is DreamerV2's model (Hafner et al., arXiv 2010.02193), which DiWA trains once on play and
freezes (Nematollahi et al., CoRL 2025). A latent is a recurrent vector h and categorical variables
z: h is a function of the previous latent and action; z is drawn from the prior given h, or from the
posterior given h and the observation. The loss is the negative log-likelihood of the observations
plus the balanced KL divergence of posterior and prior.

Differences, for vectors instead of images: the latent also contains x, the last observed or
imagined observation, and the decoder predicts the change of x, with an additional linear path from
x and the action. An arm commanded to move by five millimetres moves by about that, and the networks
predict the remainder. Where DreamerV2 assumes images of unit variance, `noise` is here given in
standard deviations of a step's change.

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
HUBER_DELTA = 10.0
"""Threshold of the Huber loss of the open-loop error [multiples of `noise`]."""
_STARTS = "starts"
MIN_CHANGE = 1e-3
"""Lower bound on the standard deviation of a step's change, for constant entries [normalised
units]."""


class ScaledFeature(NamedTuple):
    """Range of the observation vector with an additional input tanh(value / scale)."""

    begin: int
    end: int
    scale: float


class Latent(NamedTuple):
    """Latent state of B environments."""

    recurrent_BH: Tensor
    stochastic_BZ: Tensor
    """Concatenated one-hot categorical variables z."""
    obs_BO: Tensor
    """Last observed or imagined observation x, normalised."""

    @property
    def features(self) -> Tensor:
        """Concatenated features (B, F)."""
        return torch.cat(self, dim=-1)

    def rows(self, which: Tensor) -> Latent:
        """The latents of the environments `which`."""
        return Latent(*(part[which] for part in self))


class Sequences(NamedTuple):
    """Results for steps 1 to L - 1 of B recorded sequences."""

    prediction: Tensor
    """Predicted observations (B, L - 1, O), from the previous x."""
    prior: Tensor
    """Log-probabilities (B, L - 1, S, C) of the prior, before observing the step."""
    posterior: Tensor
    """Log-probabilities (B, L - 1, S, C) of the posterior, after observing the step."""


class WorldModel(nn.Module):
    """Networks of the world model.

    Args:
        observation: O.
        action: A.
        sizes: sizes of the networks.
        scaled_features: additional inputs.
    """

    change: Tensor
    moves: Tensor

    def __init__(
        self,
        observation: int,
        action: int,
        sizes: WorldModelSizes,
        scaled_features: Sequence[ScaledFeature] = (),
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self._scaled_features = tuple(scaled_features)
        recurrent_size = sizes.recurrent
        stochastic = sizes.latents * sizes.classes
        hidden = sizes.hidden
        self.stochastic = stochastic
        """Z."""
        self.normalize_observation = StandardNormalizer((observation,))
        self.normalize_action = StandardNormalizer((action,))
        self.register_buffer("change", torch.ones(observation))
        self.register_buffer("moves", torch.ones(observation))
        inputs = observation + sum(feature.end - feature.begin for feature in scaled_features)
        self.enter = nn.Sequential(
            nn.Linear(stochastic + action + inputs, recurrent_size), nn.SiLU()
        )
        self.recur = nn.GRUCell(recurrent_size, recurrent_size)
        self.foretell = _mlp(recurrent_size + inputs, hidden, stochastic)
        self.recognise = _mlp(recurrent_size + inputs + observation, hidden, stochastic)
        self.decode = _mlp(recurrent_size + stochastic + inputs + action, hidden, observation)
        self.follow = nn.Linear(inputs + action, observation)
        # The initial prediction is that nothing changes.
        for layer in (cast(nn.Linear, self.decode[-1]), self.follow):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    @property
    def features(self) -> int:
        """F."""
        return self.sizes.recurrent + self.stochastic + len(self.change)

    def gumbel(self, rows: int, generator: torch.Generator) -> Tensor:
        """Gumbel noise (rows, Z) of one step, on the generator's device."""
        return (
            -torch.empty(rows, self.stochastic, device=generator.device)
            .exponential_(generator=generator)
            .log()
        )

    def initial_latent(self, obs_BO: Tensor, noise_BZ: Tensor) -> Latent:
        """Initial latents from one normalised observation and Gumbel noise."""
        recurrent_BH = obs_BO.new_zeros(len(obs_BO), self.sizes.recurrent)
        logits = self.recognise(
            torch.cat([recurrent_BH, self._inputs(obs_BO), torch.zeros_like(obs_BO)], dim=1)
        )
        return Latent(recurrent_BH, self._sample(self._log_probs(logits), noise_BZ), obs_BO)

    def imagine(self, latent: Latent, action_BA: Tensor, noise_BZ: Tensor) -> Latent:
        """Samples the next latent from the prior, given a normalised action."""
        inputs = self._inputs(latent.obs_BO)
        recurrent_BH = self._recur(latent, inputs, action_BA)
        prior_BSC = self._log_probs(self.foretell(torch.cat([recurrent_BH, inputs], dim=1)))
        stochastic_BZ = self._sample(prior_BSC, noise_BZ)
        change_BO = self._change(recurrent_BH, stochastic_BZ, inputs, action_BA)
        return Latent(recurrent_BH, stochastic_BZ, latent.obs_BO + change_BO)

    def observe(
        self, latent: Latent, action_BA: Tensor, obs_BO: Tensor, noise_BZ: Tensor
    ) -> Latent:
        """Samples the next latent from the posterior, given a normalised action and the next
        observation."""
        recurrent_BH, log_probs = self._posterior(
            latent, self._inputs(latent.obs_BO), action_BA, obs_BO
        )
        return Latent(recurrent_BH, self._sample(log_probs, noise_BZ), obs_BO)

    def sequences(
        self, obs_BLO: Tensor, action_BLA: Tensor, generator: torch.Generator
    ) -> Sequences:
        """Filters recorded sequences; `generator` draws the latents."""
        rows, steps = len(obs_BLO), obs_BLO.shape[1] - 1
        inputs = self._inputs(obs_BLO[:, :-1].flatten(0, 1)).unflatten(0, (rows, steps))
        latent = self.initial_latent(obs_BLO[:, 0], self.gumbel(rows, generator))
        recurrent = []
        stochastic = []
        posterior = []
        for step in range(steps):
            recurrent_BH, log_probs = self._posterior(
                latent, inputs[:, step], action_BLA[:, step], obs_BLO[:, step + 1]
            )
            latent = Latent(
                recurrent_BH,
                self._sample(log_probs, self.gumbel(rows, generator)),
                obs_BLO[:, step + 1],
            )
            recurrent.append(recurrent_BH)
            stochastic.append(latent.stochastic_BZ)
            posterior.append(log_probs)
        # Prior and prediction do not affect later steps, so they are computed for all steps at
        # once.
        flat_recurrent, flat_stochastic = (
            torch.stack(parts, dim=1).flatten(0, 1) for parts in (recurrent, stochastic)
        )
        flat_inputs, action = inputs.flatten(0, 1), action_BLA[:, :-1].flatten(0, 1)
        prior = self._log_probs(self.foretell(torch.cat([flat_recurrent, flat_inputs], dim=1)))
        change = self._change(flat_recurrent, flat_stochastic, flat_inputs, action).unflatten(
            0, (rows, steps)
        )
        return Sequences(
            obs_BLO[:, :-1] + change,
            prior.unflatten(0, (rows, steps)),
            torch.stack(posterior, dim=1),
        )

    def imagine_sequence(
        self, obs_BLO: Tensor, action_BLA: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Open-loop prediction (B, L - 1, O) of steps 1 to L - 1 from the first observation.

        Gradients do not flow between steps: each step learns to predict correctly from states that
        contain the model's own errors.
        """
        latent = self.initial_latent(obs_BLO[:, 0], self.gumbel(len(obs_BLO), generator))
        predictions = []
        for step in range(obs_BLO.shape[1] - 1):
            latent = self.imagine(latent, action_BLA[:, step], self.gumbel(len(obs_BLO), generator))
            predictions.append(latent.obs_BO)
            latent = Latent(*(part.detach() for part in latent))
        return torch.stack(predictions, dim=1)

    def _recur(self, latent: Latent, inputs: Tensor, action_BA: Tensor) -> Tensor:
        embedded = self.enter(torch.cat([latent.stochastic_BZ, action_BA, inputs], dim=1))
        return self.recur(embedded, latent.recurrent_BH)

    def _posterior(
        self, latent: Latent, inputs: Tensor, action_BA: Tensor, obs_BO: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Recurrent vector, and log-probabilities (B, S, C) of the posterior."""
        recurrent_BH = self._recur(latent, inputs, action_BA)
        gap_BO = ((obs_BO - latent.obs_BO) / self.change).clamp(-10.0, 10.0)
        return recurrent_BH, self._log_probs(
            self.recognise(torch.cat([recurrent_BH, inputs, gap_BO], dim=1))
        )

    def _change(
        self, recurrent_BH: Tensor, stochastic_BZ: Tensor, inputs: Tensor, action_BA: Tensor
    ) -> Tensor:
        """Predicted change (B, O) of the observation, normalised."""
        change = self.decode(torch.cat([recurrent_BH, stochastic_BZ, inputs, action_BA], dim=1))
        return (
            self.change * self.moves * (change + self.follow(torch.cat([inputs, action_BA], dim=1)))
        )

    def _inputs(self, obs_BO: Tensor) -> Tensor:
        """Observation with its scaled features."""
        if not self._scaled_features:
            return obs_BO
        physical_BO = self.normalize_observation.inverse(obs_BO)
        scaled = [
            torch.tanh(physical_BO[:, feature.begin : feature.end] / feature.scale)
            for feature in self._scaled_features
        ]
        return torch.cat([obs_BO, *scaled], dim=1)

    def _log_probs(self, logits_BZ: Tensor) -> Tensor:
        """Log-probabilities (B, S, C), mixed with the uniform distribution."""
        probs = functional.softmax(
            logits_BZ.unflatten(1, (self.sizes.latents, self.sizes.classes)), dim=-1
        )
        return ((1.0 - self.sizes.uniform) * probs + self.sizes.uniform / self.sizes.classes).log()

    def _sample(self, log_probs_BSC: Tensor, noise_BZ: Tensor) -> Tensor:
        """One-hot samples (B, Z) with straight-through gradients."""
        number_BS = (log_probs_BSC + noise_BZ.view_as(log_probs_BSC)).argmax(dim=-1)
        hot = functional.one_hot(number_BS, self.sizes.classes).to(log_probs_BSC.dtype)
        probs = log_probs_BSC.exp()
        return (hot + probs - probs.detach()).flatten(1)


def likelihood_loss(
    model: WorldModel,
    obs_BLO: Tensor,
    action_BLA: Tensor,
    generator: torch.Generator,
    *,
    noise: float,
    balance: float,
    weight: float,
    alone: float,
) -> Tensor:
    """Negative evidence lower bound of normalised sequences per step and entry, plus the open-loop
    loss.

    Args:
        model: model in training.
        obs_BLO: observations.
        action_BLA: actions taken at these observations.
        generator: draws the latents.
        noise: see `WorldModelConfig.noise`.
        balance: see `WorldModelConfig.kl_balance`.
        weight: see `WorldModelConfig.kl_weight`.
        alone: see `WorldModelConfig.alone`.
    """
    result = model.sequences(obs_BLO, action_BLA, generator)
    error = (result.prediction - obs_BLO[:, 1:]) / (noise * model.change)
    prior_divergence = categorical_divergence(result.posterior.detach(), result.prior).mean()
    posterior_divergence = categorical_divergence(result.posterior, result.prior.detach()).mean()
    divergence = balance * prior_divergence + (1.0 - balance) * posterior_divergence
    loss = 0.5 * error.square().mean() + weight * divergence / obs_BLO.shape[2]
    if alone > 0.0:
        open_loop_error = (
            model.imagine_sequence(obs_BLO, action_BLA, generator) - obs_BLO[:, 1:]
        ) / (noise * model.change)
        # The Huber loss limits the gradient of predictions that have diverged.
        loss = loss + alone * functional.huber_loss(
            open_loop_error, torch.zeros_like(open_loop_error), delta=HUBER_DELTA
        )
    return loss


def categorical_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL divergence of categorical variables (..., S, C), summed over S."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=(-2, -1))


def save_world_model(path: Path, card: WorldModelCard, model: WorldModel, starts: Tensor) -> None:
    """Writes the model into the directory `path`; the card is written last, so that a folder with a
    card is complete.

    Args:
        path: existing directory.
        card: metadata of the model.
        model: trained model.
        starts: recorded initial observations (E, O) of imagined episodes.
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
    """Loads a saved world model: frozen, in evaluation mode, on the CPU.

    Raises:
        HandoffError: the model is missing, damaged or of another version.
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
    scaled_features = locate_scaled_features(card.observation, card.scaled_features)
    model = WorldModel(observation_size(card), prod(card.action.shape), card.sizes, scaled_features)
    try:
        starts = weights.pop(_STARTS)
        model.load_state_dict(weights)
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise HandoffError(f"{path / WEIGHTS}: weights do not match {CARD} ({reason}).") from None
    return model.requires_grad_(False).eval(), card, starts


def locate_scaled_features(
    observation: Mapping[str, FieldSpec], features: Sequence[tuple[str, float]]
) -> tuple[ScaledFeature, ...]:
    """Ranges of the fields of `WorldModelConfig.scaled_features` in the observation vector.

    Raises:
        HandoffError: an unknown field, or a scale that is not positive.
    """
    ranges: dict[str, tuple[int, int]] = {}
    end = 0
    for name, spec in observation.items():
        ranges[name] = (end, end + prod(spec.shape))
        end += prod(spec.shape)
    for name, scale in features:
        if name not in ranges or scale <= 0.0:
            raise HandoffError(
                f"world model: scaled feature '{name}' with scale {scale}, expected one of "
                f"{sorted(ranges)} and a positive scale."
            )
    return tuple(ScaledFeature(*ranges[name], scale) for name, scale in features)


def as_fields(observation: Mapping[str, FieldSpec], flat_NO: np.ndarray) -> Observation:
    """Splits vectors (N, O) into their fields."""
    fields, end = {}, 0
    for name, spec in observation.items():
        begin, end = end, end + prod(spec.shape)
        fields[name] = flat_NO[:, begin:end].reshape(len(flat_NO), *spec.shape)
    return fields


def observation_size(card: WorldModelCard) -> int:
    """Size of the observation vector, O."""
    return sum(prod(spec.shape) for spec in card.observation.values())


def _mlp(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.SiLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))
