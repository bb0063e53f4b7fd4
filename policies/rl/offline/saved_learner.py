"""Saves the policy of an offline learner on state vectors, and beside it the learner itself, from
which online RL goes on.

The folder is a saved policy of the family `actor` (`config.json`, `policy.safetensors`) with
`offline.pt`, a file of `policies.checkpoint.save_state`:

- `identity`: the text `offline.pt`.
- `networks`: state dictionary of `policies.rl.off_policy.sac.Sac.networks`, with which WSRL starts.
  That of Cal-QL is its own; IQL, XQL and f-DVL give their critics and their actor, whose standard
  deviation then holds before tanh, and a temperature of 1.
- `fields`: names of the fields of the observation vector, in order, then of the cameras.
- `learner`: state dictionary of `policies.rl.offline.iql.IqlNetworks`; empty for Cal-QL.
- `algorithm`: JSON of the algorithm's options, with `kind`.
- `observation`, `action`: entries O and A.
- `action_centre`, `action_half_range`: (A,) action of the environment = centre + half range *
  action of the learner.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from policies.card import PolicyCard
from policies.checkpoint import read_state, save_policy, save_state
from policies.families.rl_actor import LearnedActor, weights_of
from policies.policy_config import LearnedActorConfig
from policies.rl.actor_export import sac_actor
from policies.rl.offline.calql import CalQl
from policies.rl.offline.config import (
    CalQlConfig,
    FDvlConfig,
    IqlConfig,
    StateAlgorithm,
    XqlConfig,
)
from policies.rl.offline.iql import Iql
from policies.rl.offline.recorded import ActionScale
from policies.rl.replay.transitions import Sizes
from robots.config import to_plain, validate
from robots.errors import HandoffError
from robots.wire.actor_card import ActorCard, MlpCard
from robots.wire.learner import Parameters

LEARNER = "offline.pt"
"""File with the learner, beside its policy."""
_KINDS = {"iql": IqlConfig, "xql": XqlConfig, "f_dvl": FDvlConfig, "cal_ql": CalQlConfig}


class SavedLearner(NamedTuple):
    """A learner with the weights that it had after offline training."""

    learner: Iql | CalQl
    config: StateAlgorithm
    """Options of the offline training."""
    sizes: Sizes
    scale: ActionScale
    """Map between actions of the environment and of the learner."""


def new_learner(config: StateAlgorithm, sizes: Sizes, seed: int) -> Iql | CalQl:
    """An untrained learner of the algorithm."""
    if isinstance(config, CalQlConfig):
        return CalQl(config, sizes, seed)
    return Iql(config, sizes, seed)


def save_learner(
    out: Path,
    learner: Iql | CalQl,
    config: StateAlgorithm,
    scale: ActionScale,
    card: PolicyCard,
    stream: str,
) -> None:
    """Writes policy and learner into the folder `out`; the policy is complete last.

    Args:
        out: existing folder.
        learner: trained learner.
        config: its options.
        scale: map between actions of the environment and of the learner.
        card: card of the demonstrations, of which the model is replaced.
        stream: stream of the episodes.
    """
    state: dict[str, Any] = {
        "identity": LEARNER,
        "networks": online_networks(learner),
        "fields": [*config.observation_fields, *card.sensors],
        "learner": {} if isinstance(learner, CalQl) else learner.networks.state_dict(),
        "algorithm": json.dumps(to_plain(config)),
        "observation": learner.sizes.observation,
        "action": learner.sizes.action,
        "action_centre": torch.from_numpy(scale.centre_A),
        "action_half_range": torch.from_numpy(scale.half_range_A),
    }
    save_state(out / LEARNER, state)
    actor_card, arrays = (
        sac_actor(learner) if isinstance(learner, CalQl) else in_sample_actor(learner)
    )
    model = LearnedActorConfig(
        stream=stream,
        observation_fields=config.observation_fields,
        image_fields=tuple(card.sensors),
        image_features=config.image_features,
        action_field=card.model.action_field,
        card=actor_card,
    )
    card = replace(card, model=model)
    actor = LearnedActor(model, card.shapes)
    if actor.pictures is not None:
        actor.pictures.load_pretrained()
    weights = actor.state_dict() | weights_of(Parameters(learner.updates, actor_card, arrays))
    weights |= {
        "normalize_action.centre": torch.from_numpy(scale.centre_A)[None],
        "normalize_action.scale": torch.from_numpy(scale.half_range_A)[None],
    }
    actor.load_state_dict(weights)
    save_policy(out, card, actor.state_dict())


def load_learner(folder: Path) -> SavedLearner:
    """The learner in a folder written by `save_learner`, without the state of its optimisers.

    Raises:
        HandoffError: the folder holds no offline learner, or a damaged one.
    """
    state = read_state(folder / LEARNER, LEARNER)
    if state is None:
        raise HandoffError(
            f"{folder}: no {LEARNER}, so no critics are here to go on from. Expected the folder of the stage "
            "'offline' with iql, xql, f_dvl, cal_ql or trajectory_weighting."
        )
    options = json.loads(state["algorithm"])
    config = validate(_KINDS[options["kind"]], options, f"{folder / LEARNER}: algorithm")
    sizes = Sizes(observation=state["observation"], action=state["action"])
    learner = new_learner(config, sizes, seed=0)
    learner.networks.load_state_dict(state["learner"] or state["networks"])
    scale = ActionScale(np.asarray(state["action_centre"]), np.asarray(state["action_half_range"]))
    return SavedLearner(learner, config, sizes, scale)


def online_networks(learner: Iql | CalQl) -> dict[str, Tensor]:
    """State dictionary of the networks of SAC with the learner's actor, critics and normalisation.

    SAC must have the same layers, as many critics, no gripper critic and no average of the actor.
    """
    if isinstance(learner, CalQl):
        return learner.networks.state_dict()
    actor = learner.networks.actor
    state = {
        name: weight
        for name, weight in learner.networks.state_dict().items()
        if name.startswith(("features.", "critic.", "critic_target."))
    }
    last = len(actor.layers) - 1
    for i, layer in enumerate(actor.layers):
        assert isinstance(layer, nn.Linear)
        weight, bias = layer.weight.detach().T, layer.bias.detach()
        if i == last:
            # SAC's network also predicts log standard deviations, here constant.
            weight = torch.cat([weight, torch.zeros_like(weight)], dim=1)
            bias = torch.cat([bias, actor.log_std().detach()])
        state[f"actor.network.weights.{i}"] = weight[None].contiguous()
        state[f"actor.network.biases.{i}"] = bias[None, None]
    for i, norm in enumerate(actor.norms):
        assert isinstance(norm, nn.LayerNorm)
        state[f"actor.network.gains.{i}"] = norm.weight.detach()[None, None]
        state[f"actor.network.shifts.{i}"] = norm.bias.detach()[None, None]
    return state | {"log_temperature": torch.zeros(())}


def in_sample_actor(learner: Iql) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """Card and arrays of an actor of IQL, XQL or f-DVL, whose mean is a tanh as that of SAC."""
    sizes, actor = learner.sizes, learner.networks.actor
    features = learner.networks.features
    arrays = {"centre": _array(features.centre), "half_range": _array(features.half_range)}
    for i, layer in enumerate(actor.layers):
        assert isinstance(layer, nn.Linear)
        arrays[f"actor.{i}.weight"] = _array(layer.weight.T)
        arrays[f"actor.{i}.bias"] = _array(layer.bias)
    for i, norm in enumerate(actor.norms):
        assert isinstance(norm, nn.LayerNorm)
        arrays[f"actor.{i}.gain"] = _array(norm.weight)
        arrays[f"actor.{i}.shift"] = _array(norm.bias)
    card = ActorCard(
        observation=sizes.observation,
        action=sizes.action,
        relative_features=sizes.relative_features,
        scaled_features=sizes.scaled_features,
        actor=MlpCard(
            layers=(features.size, *actor.sizes.hidden, sizes.action),
            activation=actor.sizes.activation,
            layer_norm=actor.sizes.layer_norm,
        ),
        log_std_min=actor.bounds[0],
        log_std_max=actor.bounds[1],
        fixed_log_std=float(actor.log_std().detach().mean()),
    )
    return card, arrays


def _array(tensor: Tensor) -> np.ndarray:
    return np.array(tensor.detach().numpy(), np.float32)
