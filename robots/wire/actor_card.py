"""Describes the architecture of a published policy, so that it runs without torch."""

from __future__ import annotations

from typing import Literal

from robots.config import Count, Finite, Index, Whole, config
from robots.errors import HandoffError

Activation = Literal["tanh", "relu", "elu", "leaky_relu"]
"""Name of an activation function; `leaky_relu` has a slope of 0.01 below 0."""


@config
class MlpCard:
    """A multi-layer perceptron of Linear, optional LayerNorm (epsilon 1e-6) and activation; the
    last layer is Linear only."""

    layers: tuple[Whole, ...]
    """Sizes of the input, of every hidden layer and of the output."""
    activation: Activation | tuple[Activation, ...]
    """Activation of all hidden layers, or of each in order."""
    layer_norm: bool
    """Whether every hidden layer is normalised."""

    def activations(self) -> tuple[Activation, ...]:
        """Activation of every hidden layer.

        Raises:
            HandoffError: their number is not that of the hidden layers.
        """
        hidden = len(self.layers) - 2
        if isinstance(self.activation, str):
            return (self.activation,) * hidden
        if len(self.activation) != hidden:
            raise HandoffError(
                f"card: {len(self.activation)} activations for {hidden} hidden layers, expected one "
                "for each."
            )
        return self.activation


@config
class MapCard:
    """Encoder of the feature map of one camera: learned spatial sums, then Linear, LayerNorm
    (epsilon 1e-6) and tanh."""

    field: str
    """Field of the observation with the pictures."""
    channels: Count
    """Channels C of a map."""
    rows: Count
    """Rows of a map."""
    columns: Count
    """Columns of a map."""
    embeddings: Count
    """Spatial sums E per channel."""
    width: Count
    """Features of the camera."""


@config
class CriticsCard:
    """Ensemble of critics over the actor's features and the continuous entries of an action, which
    a session's actor evaluates to warn a person."""

    members: Count
    """Critics in the ensemble, E."""
    network: MlpCard
    """Layers of a critic, whose output is one value."""


@config
class ActorCard:
    """Architecture of a published policy, sufficient to run it without torch.

    The continuous entries are a Gaussian that is brought into [-1, 1]. If there is a gripper critic
    (`hand`), the last entry of an action is the command with the highest value: -1 close, 0 hold or
    1 open.
    """

    observation: Whole
    """Number of entries of the observation vector, O."""
    action: Whole
    """Number of entries of an action including the gripper's, A."""
    relative_features: tuple[tuple[Whole, Index, Whole, Finite], ...] = ()
    """Pairs of entries whose differences are additional features; see
    `policies.rl.replay.transitions.Sizes`."""
    scaled_features: tuple[tuple[Whole, Index, Whole, Finite], ...] = ()
    """Entries that are additional features at another scale; see
    `policies.rl.replay.transitions.Sizes`."""
    actor: MlpCard
    """Network from features to means, followed by log standard deviations unless these are
    fixed."""
    log_std_min: Finite
    """Lower bound of the log standard deviation."""
    log_std_max: Finite
    """Upper bound of the log standard deviation."""
    fixed_log_std: Finite | None = None
    """Log standard deviation that does not depend on the observation; None takes the network's."""
    bound: Literal["tanh", "clip"] = "tanh"
    """Function that brings the samples of the Gaussian, or its mean, into [-1, 1]."""
    maps: tuple[MapCard, ...] = ()
    """Cameras whose feature maps, of a frozen trunk, the networks read before the vector."""
    vector_width: Whole = 0
    """Features of the observation vector beside those of cameras; 0 without cameras, when the
    networks read the vector itself."""
    hand: MlpCard | None = None
    """Gripper critic, from features to the values of close, hold and open; None without gripper
    commands."""
    critics: CriticsCard | None = None
    """Critics that are published with the actor of a running session; None for saved policies."""


def array_shapes(card: ActorCard) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the arrays of a policy.

    Raises:
        HandoffError: sizes of the card contradict one another.
    """
    size = card.observation
    features = size + sum(
        count for _, _, count, _ in (*card.relative_features, *card.scaled_features)
    )
    continuous = card.action - (card.hand is not None)
    outputs = continuous * (1 if card.fixed_log_std is not None else 2)
    for name, features_of_kind in (
        ("relative feature", card.relative_features),
        ("scaled feature", card.scaled_features),
    ):
        for begin, other, count, scale in features_of_kind:
            if min(begin, other + 1, count) < 0 or max(begin, other) + count > size or not scale:
                raise HandoffError(
                    f"card: {name} {(begin, other, count, scale)} lies outside the {size} entries of the "
                    "observation, or has scale 0."
                )
    shapes: dict[str, tuple[int, ...]] = {"centre": (size,), "half_range": (size,)}
    if card.maps:
        shapes |= _encoder_shapes(card, features)
        features = card.vector_width + sum(camera.width for camera in card.maps)
    shapes |= _mlp_shapes("actor", card.actor, features, outputs)
    if card.hand is not None:
        shapes |= _mlp_shapes("hand", card.hand, features, 3)
    if card.critics is not None:
        critic = _mlp_shapes("critic", card.critics.network, features + continuous, 1)
        shapes |= {name: (card.critics.members, *shape) for name, shape in critic.items()}
    return shapes


def _mlp_shapes(name: str, mlp: MlpCard, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the arrays of a network."""
    widths = mlp.layers
    if len(widths) < 2 or min(widths) < 1 or (widths[0], widths[-1]) != (inputs, outputs):
        raise HandoffError(
            f"card: {name} has layers {widths}, expected {inputs} entries in and {outputs} out."
        )
    mlp.activations()
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(len(widths) - 1):
        shapes |= {
            f"{name}.{i}.weight": (widths[i], widths[i + 1]),
            f"{name}.{i}.bias": (widths[i + 1],),
        }
        if mlp.layer_norm and i < len(widths) - 2:
            shapes |= {
                f"{name}.{i}.gain": (widths[i + 1],),
                f"{name}.{i}.shift": (widths[i + 1],),
            }
    return shapes


def _encoder_shapes(card: ActorCard, features: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the arrays of the encoders of cameras and of the vector with its
    features."""
    shapes: dict[str, tuple[int, ...]] = {}
    layers = [("vector", features, card.vector_width)]
    for index, camera in enumerate(card.maps):
        shapes[f"map.{index}.place"] = (
            camera.embeddings,
            camera.channels,
            camera.rows,
            camera.columns,
        )
        layers.append((f"map.{index}", camera.embeddings * camera.channels, camera.width))
    for name, inputs, outputs in layers:
        shapes[f"{name}.weight"] = (inputs, outputs)
        shapes |= {f"{name}.{part}": (outputs,) for part in ("bias", "gain", "shift")}
    return shapes
