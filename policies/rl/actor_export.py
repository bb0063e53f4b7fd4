"""Exports a learner's actor as a card and named float32 arrays, which robots run in NumPy
(`real.hil`)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from policies.rl.mrq.learner import Mrq
from policies.rl.networks.ensemble import EnsembleMlp, Features
from policies.rl.networks.image_encoder import Encoder, MapEncoder
from policies.rl.off_policy.fast_td3 import FastTd3Updates
from policies.rl.off_policy.gsde import GsdeSac
from policies.rl.off_policy.sac import Sac
from policies.rl.off_policy.tanh_gaussian import TanhGaussian
from policies.rl.replay.transitions import Sizes
from policies.rl.streaming.running_scales import sample_deviation
from policies.rl.streaming.stream_ac import StreamAc
from robots.errors import HandoffError
from robots.wire.actor_card import ActorCard, CriticsCard, MapCard, MlpCard

MIN_STD = 1e-6
"""Lower bound of an exported standard deviation, whose logarithm must be finite."""


def sac_actor(learner: Any) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """Card and arrays of a SAC learner's actor (RLPD, HIL-SERL, RLIF, WSRL), with its gripper
    critic if it has one.

    Raises:
        HandoffError: another learner, or an actor other than a plain tanh-Gaussian on a vector
            (gSDE, images without a frozen trunk); see `gsde_actor`.
    """
    if (
        not isinstance(learner, Sac)
        or type(learner.networks.actor) is not TanhGaussian
        or learner.sizes.pictures
    ):
        raise HandoffError(
            f"publish: {type(learner).__name__} is not SAC with a tanh-Gaussian actor on a vector. Only such actors "
            "run in NumPy on a robot; pass your own function as `publish`, or encode images by a frozen trunk."
        )
    config = learner.config
    sizes = learner.sizes
    net = learner.networks
    arrays = {
        "centre": _array(net.features.centre),
        "half_range": _array(net.features.half_range),
    }
    actor, gripper = net.acting()
    arrays |= _layers("actor", actor.network)
    maps: tuple[MapCard, ...] = ()
    vector_width = 0
    if isinstance(net.features, Encoder):
        arrays |= _encoder(net.features)
        maps = tuple(
            MapCard(
                field=name,
                channels=channels,
                rows=rows,
                columns=columns,
                embeddings=config.encoder.embeddings,
                width=config.encoder.picture_width,
            )
            for name, channels, rows, columns in sizes.maps
        )
        vector_width = config.encoder.vector_width
    gripper_card = None
    if gripper is not None:
        gripper_card = _card(gripper)
        arrays |= _layers("hand", gripper)
    card = ActorCard(
        observation=sizes.observation,
        action=sizes.action,
        relative_features=sizes.relative_features,
        scaled_features=sizes.scaled_features,
        actor=_card(actor.network),
        log_std_min=config.log_std_min,
        log_std_max=config.log_std_max,
        fixed_log_std=actor.fixed,
        maps=maps,
        vector_width=vector_width,
        hand=gripper_card,
    )
    return card, arrays


def sac_actor_and_critics(learner: Any) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """Card and arrays of a SAC learner's actor, with its ensemble of critics; see `sac_actor`.

    The critics are those that training updates, not their targets.
    """
    card, arrays = sac_actor(learner)
    critic = learner.networks.critic
    card = replace(card, critics=CriticsCard(members=critic.members, network=_card(critic)))
    return card, arrays | _members("critic", critic)


def fast_td3_actor(learner: Any) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """Card and arrays of a FastTD3 actor. Sampling from it in NumPy adds noise before tanh, with
    the largest standard deviation of training.

    Raises:
        HandoffError: a learner other than FastTD3.
    """
    if not isinstance(learner, FastTd3Updates):
        raise HandoffError(
            f"publish: {type(learner).__name__} is not FastTD3. Pass your own function as `publish`."
        )
    log_std = math.log(max(learner.config.noise.high, MIN_STD))
    net = learner.networks
    return network_actor(net.features, net.actor, learner.sizes, log_std)


def mrq_actor(learner: Any) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """Card and arrays of an MR.Q policy: the layers of the state encoder and of the policy as one
    network. Sampling from it in NumPy adds noise before tanh, with the largest standard deviation
    of training.

    Raises:
        HandoffError: a learner other than MR.Q.
    """
    if not isinstance(learner, Mrq):
        raise HandoffError(
            f"publish: {type(learner).__name__} is not MR.Q. Pass your own function as `publish`."
        )
    net, sizes = learner.networks, learner.sizes
    encoder, policy = net.encoder.state_layers, net.policy
    layers = [layer for layer in (*encoder.layers, *policy.layers) if isinstance(layer, nn.Linear)]
    arrays = {"centre": _array(net.features.centre), "half_range": _array(net.features.half_range)}
    for number, layer in enumerate(layers):
        arrays[f"actor.{number}.weight"] = _array(layer.weight.T)
        arrays[f"actor.{number}.bias"] = _array(layer.bias)
    for number, layer in enumerate(layers[:-1]):
        # LayerNorm without a trained gain and shift.
        arrays[f"actor.{number}.gain"] = np.ones(layer.out_features, np.float32)
        arrays[f"actor.{number}.shift"] = np.zeros(layer.out_features, np.float32)
    hidden = len(policy.layers) - 1
    activations = (encoder.activation,) * len(encoder.layers) + (policy.activation,) * hidden
    widths = (layers[0].in_features, *(layer.out_features for layer in layers))
    log_std = math.log(max(learner.config.noise.high, MIN_STD))
    card = ActorCard(
        observation=sizes.observation,
        action=sizes.action,
        relative_features=sizes.relative_features,
        scaled_features=sizes.scaled_features,
        actor=MlpCard(layers=widths, activation=activations, layer_norm=True),
        log_std_min=log_std,
        log_std_max=log_std,
        fixed_log_std=log_std,
    )
    return card, arrays


def network_actor(
    features: Features, network: EnsembleMlp, sizes: Sizes, log_std: float
) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """Card and arrays of a network whose tanh is the action.

    Args:
        features: normalised inputs of the network.
        network: ensemble of one, from features to actions before tanh.
        sizes: sizes of observations and actions.
        log_std: log standard deviation before tanh with which it is sampled.
    """
    arrays = {"centre": _array(features.centre), "half_range": _array(features.half_range)}
    arrays |= _layers("actor", network)
    card = ActorCard(
        observation=sizes.observation,
        action=sizes.action,
        relative_features=sizes.relative_features,
        scaled_features=sizes.scaled_features,
        actor=_card(network),
        log_std_min=log_std,
        log_std_max=log_std,
        fixed_log_std=log_std,
    )
    return card, arrays


def gsde_actor(learner: Any) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """Card and arrays of the mean of a gSDE actor. Sampling from it in NumPy adds almost no noise,
    because a card has no noise that depends on the state.

    Raises:
        HandoffError: a learner without gSDE, or with a gripper critic or images.
    """
    if (
        not isinstance(learner, GsdeSac)
        or learner.networks.gripper
        or isinstance(learner.networks.features, Encoder)
    ):
        raise HandoffError(
            f"publish: {type(learner).__name__} is not SAC with gSDE on a vector, without a gripper critic."
        )
    return network_actor(
        learner.networks.features, learner.actor.network, learner.sizes, math.log(MIN_STD)
    )


def stream_actor(learner: StreamAc) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """Card and arrays of the clipped mean of a stream AC(lambda) actor. Sampling from it in NumPy
    adds almost no noise, because a card has no standard deviation of its form."""
    sizes, network = learner.sizes, learner.actor
    statistics = learner.normaliser.statistics
    arrays = {
        "centre": np.array(statistics.mean, np.float32),
        "half_range": sample_deviation(statistics).astype(np.float32),
    }
    widths = (*network.widths[:-1], sizes.action)
    for layer, size in enumerate(widths[1:]):
        # The output layer has the standard deviation after the mean.
        arrays[f"actor.{layer}.weight"] = _array(network.weights[layer][:size].t())
        arrays[f"actor.{layer}.bias"] = _array(network.biases[layer][:size])
    for layer, size in enumerate(network.widths[1:-1]):
        # The learner's LayerNorm has no parameters.
        arrays[f"actor.{layer}.gain"] = np.ones(size, np.float32)
        arrays[f"actor.{layer}.shift"] = np.zeros(size, np.float32)
    log_std = math.log(MIN_STD)
    card = ActorCard(
        observation=sizes.observation,
        action=sizes.action,
        actor=MlpCard(layers=widths, activation="leaky_relu", layer_norm=True),
        log_std_min=log_std,
        log_std_max=log_std,
        fixed_log_std=log_std,
        bound="clip",
    )
    return card, arrays


def _card(network: EnsembleMlp) -> MlpCard:
    widths = (network.weights[0].shape[1], *(weight.shape[2] for weight in network.weights))
    return MlpCard(
        layers=widths, activation=network.sizes.activation, layer_norm=network.sizes.layer_norm
    )


def _encoder(encoder: Encoder) -> dict[str, np.ndarray]:
    """Named arrays of the encoders of feature maps and of the vector."""
    arrays: dict[str, np.ndarray] = {}
    reductions = {"vector": encoder.reduce_vector}
    for index, camera in enumerate(encoder.pictures.values()):
        assert isinstance(camera, MapEncoder)
        arrays[f"map.{index}.place"] = _array(camera.embeddings.place_ECHW)
        reductions[f"map.{index}"] = camera.reduce
    for name, reduction in reductions.items():
        linear, norm = reduction[0], reduction[1]
        arrays |= {
            f"{name}.weight": _array(linear.weight.T),
            f"{name}.bias": _array(linear.bias),
            f"{name}.gain": _array(norm.weight),
            f"{name}.shift": _array(norm.bias),
        }
    return arrays


def _layers(name: str, network: EnsembleMlp) -> dict[str, np.ndarray]:
    """Named arrays of an ensemble with one member."""
    return {key: array[0] for key, array in _members(name, network).items()}


def _members(name: str, network: EnsembleMlp) -> dict[str, np.ndarray]:
    """Named arrays of an ensemble, whose first dimension is the member's."""
    arrays = {f"{name}.{i}.weight": _array(weight) for i, weight in enumerate(network.weights)}
    rows = {"bias": network.biases, "gain": network.gains, "shift": network.shifts}
    for part, parameters in rows.items():
        arrays |= {f"{name}.{i}.{part}": _array(row[:, 0]) for i, row in enumerate(parameters)}
    return arrays


def _array(tensor: Any) -> np.ndarray:
    """float32 copy, which later updates do not change."""
    return np.array(tensor.detach().cpu().numpy(), np.float32)
