"""A learner's actor as it is sent to robots: a card and named float32 arrays; `real.corrections`
runs them in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from policies.rl.networks.ensemble import EnsembleMlp
from policies.rl.off_policy.fast_td3 import FastTd3
from policies.rl.off_policy.sac import Sac
from policies.rl.off_policy.tanh_gaussian import TanhGaussian
from robots.errors import HandoffError
from robots.wire.learner import ActorCard, MlpCard

SMALLEST = 1e-6
"""Deviation told of one that does not explore: a logarithm must be finite."""


def sac_actor(learner: Any) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """The actor of a SAC learner (RLPD, HIL-SERL, RLIF, WSRL), and the critic of its hand if it has
    one.

    Raises:
        HandoffError: another learner, or an actor that is no plain tanh-Gaussian on a vector (gSDE,
            pictures).
    """
    if (
        not isinstance(learner, Sac)
        or type(learner.networks.actor) is not TanhGaussian
        or learner.sizes.pictures
    ):
        raise HandoffError(
            f"publish: {type(learner).__name__} is not SAC with a tanh-Gaussian actor on a vector. Only such actors "
            "run in NumPy beside a robot; pass a function of its own as `publish`."
        )
    config, sizes, net = learner.config, learner.sizes, learner.networks
    arrays = {
        "centre": _numbers(net.features.centre),
        "half_range": _numbers(net.features.half_range),
    }
    actor, gripper = net.acting()
    arrays |= _layers("actor", actor.network)
    hand = None
    if gripper is not None:
        hand = _card(gripper)
        arrays |= _layers("hand", gripper)
    card = ActorCard(
        observation=sizes.observation,
        action=sizes.action,
        differences=sizes.differences,
        close_ups=sizes.close_ups,
        actor=_card(actor.network),
        log_std_min=config.log_std_min,
        log_std_max=config.log_std_max,
        fixed_log_std=actor.fixed,
        hand=hand,
    )
    return card, arrays


def fast_td3_actor(learner: Any) -> tuple[ActorCard, dict[str, np.ndarray]]:
    """The actor of FastTD3; whoever draws from it in NumPy explores before tanh, by the largest
    deviation of practice.

    Raises:
        HandoffError: another learner.
    """
    if not isinstance(learner, FastTd3):
        raise HandoffError(
            f"publish: {type(learner).__name__} is not FastTD3. Pass a function of its own as `publish`."
        )
    sizes, net = learner.sizes, learner.networks
    arrays = {
        "centre": _numbers(net.features.centre),
        "half_range": _numbers(net.features.half_range),
    }
    arrays |= _layers("actor", net.actor)
    log_std = math.log(max(learner.config.noise.high, SMALLEST))
    card = ActorCard(
        observation=sizes.observation,
        action=sizes.action,
        differences=sizes.differences,
        close_ups=sizes.close_ups,
        actor=_card(net.actor),
        log_std_min=log_std,
        log_std_max=log_std,
        fixed_log_std=log_std,
    )
    return card, arrays


def _card(network: EnsembleMlp) -> MlpCard:
    widths = (network.weights[0].shape[1], *(weight.shape[2] for weight in network.weights))
    return MlpCard(
        layers=widths, activation=network.sizes.activation, layer_norm=network.sizes.layer_norm
    )


def _layers(name: str, network: EnsembleMlp) -> dict[str, np.ndarray]:
    """Of a network with one member."""
    found: dict[str, np.ndarray] = {}
    for i, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        found |= {
            f"{name}.{i}.weight": _numbers(weight[0]),
            f"{name}.{i}.bias": _numbers(bias[0, 0]),
        }
    for i, (gain, shift) in enumerate(zip(network.gains, network.shifts, strict=True)):
        found |= {
            f"{name}.{i}.gain": _numbers(gain[0, 0]),
            f"{name}.{i}.shift": _numbers(shift[0, 0]),
        }
    return found


def _numbers(tensor: Any) -> np.ndarray:
    """A copy, which the next update does not change."""
    return np.array(tensor.detach().cpu().numpy(), np.float32)
