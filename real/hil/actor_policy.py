"""Runs the learner's actor in NumPy, so that the robot's process needs no torch.

Shape suffixes: N rows, O observation, F features, A action, E critics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from robots.wire.actor_card import Activation, MlpCard
from robots.wire.learner import Parameters


class Evaluation(NamedTuple):
    """Values of actions by an ensemble of critics."""

    value: np.ndarray
    """(N,) mean of the ensemble: the expected discounted reward from the action on."""
    spread: np.ndarray
    """(N,) standard deviation within the ensemble, in the same unit."""


class ActorPolicy:
    """A Gaussian actor, bounded by tanh or by a clip, and, for a gripper with commands, its critic;
    equal to `policies.rl.off_policy.sac.Sac.act` or `policies.rl.streaming.stream_ac.StreamAc.act`.

    Args:
        parameters: parameters from the learner, already checked.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.version = parameters.version
        self.card = parameters.card
        self._arrays = parameters.arrays
        self._continuous = self.card.action - (self.card.hand is not None)
        self._input: tuple[np.ndarray, np.ndarray] | None = None
        """The newest observation vector, and its features."""

    def act(
        self,
        vector_NO: np.ndarray,
        rng: np.random.Generator | None = None,
        maps: Mapping[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        """(N, A) float32 actions in [-1, 1] for observations (N, O), and the feature maps of their
        pictures (N, C, h, w) by field: samples with `rng`, the policy's mode without."""
        card = self.card
        features = self._encode(vector_NO, maps)
        self._input = vector_NO, features
        out = _forward(features, card.actor, self._arrays, "actor")
        mean_NA = out[:, : self._continuous]
        if rng is not None:
            noise = rng.standard_normal(mean_NA.shape, dtype=np.float32)
            if card.fixed_log_std is None:
                log_std = np.clip(out[:, self._continuous :], card.log_std_min, card.log_std_max)
            else:
                log_std = np.full_like(mean_NA, card.fixed_log_std)
            mean_NA = mean_NA + np.exp(log_std) * noise
        action = np.tanh(mean_NA) if card.bound == "tanh" else np.clip(mean_NA, -1.0, 1.0)
        if card.hand is not None:
            command = _forward(features, card.hand, self._arrays, "hand").argmax(axis=1) - 1
            action = np.concatenate([action, command[:, None].astype(np.float32)], axis=1)
        return action

    def evaluate(
        self,
        vector_NO: np.ndarray,
        action_NA: np.ndarray,
        maps: Mapping[str, np.ndarray] | None = None,
    ) -> Evaluation | None:
        """Values of the continuous entries of actions (N, A) in [-1, 1] at observations (N, O);
        equal to `policies.rl.off_policy.sac.SacNetworks.critic`. None if no critics came with the
        actor."""
        critics = self.card.critics
        if critics is None:
            return None
        # The features of the observation for which `act` has just been called.
        known = self._input is not None and self._input[0] is vector_NO
        features = self._input[1] if self._input and known else self._encode(vector_NO, maps)
        action = np.asarray(action_NA[:, : self._continuous], np.float32)
        inputs_NF = np.concatenate([features, action], axis=1)
        value_EN = _forward(inputs_NF, critics.network, self._arrays, "critic")[..., 0]
        return Evaluation(value_EN.mean(axis=0), value_EN.std(axis=0))

    def distance(self, vector_NO: np.ndarray) -> np.ndarray:
        """(N,) distance of observations (N, O) from the range of the demonstrations, of the entry
        that is farthest outside [widths of its range; 2 units for a constant entry]; 0
        inside."""
        offset = np.abs(vector_NO - self._arrays["centre"]) / self._arrays["half_range"]
        return np.maximum(offset.max(axis=1) - 1.0, 0.0) / 2.0

    def _encode(self, vector_NO: np.ndarray, maps: Mapping[str, np.ndarray] | None) -> np.ndarray:
        """(N, F) inputs of the networks."""
        features = self._features(np.asarray(vector_NO, np.float32))
        return self._encoded(features, maps or {}) if self.card.maps else features

    def _features(self, vector_NO: np.ndarray) -> np.ndarray:
        parts = [(vector_NO - self._arrays["centre"]) / self._arrays["half_range"]]
        parts += [_scaled(vector_NO, *feature) for feature in self.card.relative_features]
        parts += [np.tanh(_scaled(vector_NO, *feature)) for feature in self.card.scaled_features]
        return np.concatenate(parts, axis=1)

    def _encoded(self, features: np.ndarray, maps: Mapping[str, np.ndarray]) -> np.ndarray:
        """(N, F) features of the cameras in order, then of the vector."""
        parts = []
        for index, camera in enumerate(self.card.maps):
            map_NCP = maps[camera.field].astype(np.float32)
            map_NCP = map_NCP.reshape(len(map_NCP), camera.channels, -1)
            place = self._arrays[f"map.{index}.place"]
            place_CPE = place.reshape(camera.embeddings, camera.channels, -1).transpose(1, 2, 0)
            # One product per channel, of all rows at once.
            sums_CNE = map_NCP.transpose(1, 0, 2) @ place_CPE
            sums_NEC = sums_CNE.transpose(1, 2, 0).reshape(len(map_NCP), -1)
            parts.append(self._reduced(sums_NEC, f"map.{index}"))
        return np.concatenate([*parts, self._reduced(features, "vector")], axis=1)

    def _reduced(self, inputs: np.ndarray, name: str) -> np.ndarray:
        arrays = self._arrays
        hidden = inputs @ arrays[f"{name}.weight"] + arrays[f"{name}.bias"]
        return np.tanh(_normalised(hidden, arrays[f"{name}.gain"], arrays[f"{name}.shift"]))


def _normalised(hidden: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> np.ndarray:
    centred = hidden - hidden.mean(axis=-1, keepdims=True)
    scale = 1.0 / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(1e-6))
    return centred * scale * gain + shift


def _scaled(vector_NO: np.ndarray, begin: int, other: int, count: int, scale: float) -> np.ndarray:
    part_NC = vector_NO[:, begin : begin + count]
    return (part_NC if other < 0 else part_NC - vector_NO[:, other : other + count]) / np.float32(
        scale
    )


def _forward(
    hidden: np.ndarray, card: MlpCard, arrays: dict[str, np.ndarray], name: str
) -> np.ndarray:
    """(N, out), or (E, N, out) of an ensemble, for inputs (N, in)."""
    activations = card.activations()
    for i in range(len(card.layers) - 1):
        hidden = hidden @ arrays[f"{name}.{i}.weight"] + arrays[f"{name}.{i}.bias"][..., None, :]
        if i == len(activations):
            break
        if card.layer_norm:
            gain, shift = arrays[f"{name}.{i}.gain"], arrays[f"{name}.{i}.shift"]
            hidden = _normalised(hidden, gain[..., None, :], shift[..., None, :])
        hidden = _ACTIVATIONS[activations[i]](hidden)
    return hidden


def _elu(hidden: np.ndarray) -> np.ndarray:
    return np.where(hidden > 0.0, hidden, np.expm1(np.minimum(hidden, 0.0)))


_ACTIVATIONS: dict[Activation, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda hidden: np.maximum(hidden, 0.0),
    "elu": _elu,
    "leaky_relu": lambda hidden: np.maximum(hidden, np.float32(0.01) * hidden),
}
