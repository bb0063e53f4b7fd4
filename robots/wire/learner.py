"""Encodes the messages between an actor, which controls the robot, and a learner, which updates the
policy.

The actor connects (`Authorization: Api-Key <token>`) and sends `hello`; the learner answers
`taken`. Afterwards both send at any time: the actor `steps`, numbered without gaps; the learner
`taken` once they are on its disk, `parameters` of its policy, and `pause`. An error in a frame is
answered with text. Arrays are encoded as in `robots.wire.policy`.

The number of an episode is 2^24 times the number of the actor's start plus a count, and therefore
unique.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import numpy as np

from robots.config import Count, Finite, Index, Whole, config, to_plain, validate
from robots.errors import HandoffError
from robots.wire.policy import pack, unpack
from robots.wire.steps import Steps

PROTOCOL = "handoff-learning/1"
MAX_ROWS = 1024
"""Largest number of rows of a `steps` message."""
NO_ENTRY = -1
"""Number in `taken` before any entry of a journal was acknowledged."""
EPISODES_PER_START = 2**24
"""Largest number of episodes per start of an actor."""
RECENT_EPISODES = 20
"""Number of the newest training episodes over which success and interventions are reported."""
JOURNAL_NAME = re.compile(r"[0-9a-f]{16}")
"""Pattern of a journal's identity."""
_VECTORS = ("observation", "action", "next_observation", "proposed")
_FLAGS = ("terminated", "truncated", "intervention", "demo", "toggle")
_COUNTS = ("episode", "number", "policy_version")
_PICTURES = ("pictures", "next_pictures")


@config
class MlpCard:
    """A multi-layer perceptron of Linear, optional LayerNorm (epsilon 1e-6) and activation; the
    last layer is Linear only."""

    layers: tuple[Whole, ...]
    """Sizes of the input, of every hidden layer and of the output."""
    activation: Literal["tanh", "relu"]
    """Name of the activation function."""
    layer_norm: bool
    """Whether every hidden layer is normalised."""


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
class ActorCard:
    """Architecture of a published policy, sufficient to run it without torch.

    The continuous entries are a tanh-Gaussian. If there is a gripper critic (`hand`), the last
    entry of an action is the command with the highest value: -1 close, 0 hold or 1 open.
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
    maps: tuple[MapCard, ...] = ()
    """Cameras whose feature maps, of a frozen trunk, the networks read before the vector."""
    vector_width: Whole = 0
    """Features of the observation vector beside those of cameras; 0 without cameras, when the
    networks read the vector itself."""
    hand: MlpCard | None = None
    """Gripper critic, from features to the values of close, hold and open; None without gripper
    commands."""


class Hello(NamedTuple):
    """The first message of an actor."""

    journal: str
    """Identity of the journal, 16 hexadecimal digits that were drawn when it was created."""
    first: int
    """Number of the oldest entry in the journal, or of the next one if it is empty."""


class JournalEntry(NamedTuple):
    """An entry of an actor's journal, as sent to the learner in a `steps` message."""

    journal: str
    number: int
    """Number of the entry, consecutive within the journal, from 0."""
    steps: Steps


class Acknowledgement(NamedTuple):
    """The learner's acknowledgement (`taken`) of entries that are on its disk."""

    number: int
    """Number of the newest entry; all entries before it are on the disk as well. -1 if none is."""


class Parameters(NamedTuple):
    """A published policy."""

    version: int
    """Version, unique per weights: 10^9 times the number of the learner's start plus its number of
    updates."""
    card: ActorCard
    arrays: dict[str, np.ndarray]
    """float32 arrays: `centre`, `half_range` (O,); per layer i `actor.i.weight` (in, out) and
    `actor.i.bias` (out,), and with LayerNorm `actor.i.gain` and `actor.i.shift` (out,); the same
    for `hand.i.*`, the gripper critic. Per camera c `map.c.place` (E, C, rows, columns), and
    `map.c.weight`, `.bias`, `.gain` and `.shift` of the layer behind the sums; the same layer of the
    vector is `vector.*`."""


class Pause(NamedTuple):
    """The learner's request that the actor holds still, or resumes."""

    on: bool


Message = Hello | JournalEntry | Acknowledgement | Parameters | Pause


def encode(message: Message) -> bytes:
    """Encodes a message as one frame.

    Raises:
        HandoffError: see `check_steps` and `check_parameters`.
    """
    match message:
        case Hello():
            return pack({"kind": "hello", "protocol": PROTOCOL, **message._asdict()})
        case JournalEntry():
            check_steps(message.steps)
            columns = message.steps._asdict() | {
                name: dict(getattr(message.steps, name)) for name in _PICTURES
            }
            return pack(
                {"kind": "steps", "journal": message.journal, "entry": message.number, **columns}
            )
        case Acknowledgement():
            return pack({"kind": "taken", "number": message.number})
        case Parameters():
            check_parameters(message)
            return pack({"kind": "parameters", **message._asdict(), "card": to_plain(message.card)})
        case Pause():
            return pack({"kind": "pause", "on": message.on})


def decode(frame: str | bytes) -> Message:
    """Decodes the message in one frame.

    Raises:
        HandoffError: the frame is text, which is an error of the peer and quoted, or no valid
            message.
    """
    if isinstance(frame, str):
        raise HandoffError(f"the peer reports: {frame[:2000]}")
    fields = unpack(frame)
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise HandoffError(f"message: {type(fields).__name__}, expected a map whose keys are text.")
    kind = fields.pop("kind", None)
    match kind:
        case "hello":
            _keys(fields, {"protocol", "journal", "first"})
            if fields["protocol"] != PROTOCOL:
                raise HandoffError(
                    f"message: protocol {str(fields['protocol'])[:40]!r}, expected {PROTOCOL!r}."
                )
            return Hello(_journal(fields["journal"]), _count("first", fields["first"]))
        case "steps":
            return _steps(fields)
        case "taken":
            _keys(fields, {"number"})
            return Acknowledgement(_count("number", fields["number"], NO_ENTRY))
        case "parameters":
            return _parameters(fields)
        case "pause":
            _keys(fields, {"on"})
            if not isinstance(fields["on"], bool):
                raise HandoffError("pause: 'on' is neither true nor false.")
            return Pause(fields["on"])
    raise HandoffError(
        f"message: kind {str(kind)[:40]!r}, expected hello, steps, taken, parameters or pause."
    )


def check_steps(steps: Steps) -> None:
    """Checks dtypes, shapes and values of steps, and that there are at most `MAX_ROWS`.

    Raises:
        HandoffError: a column is invalid.
    """
    n = len(steps.reward) if isinstance(steps.reward, np.ndarray) and steps.reward.ndim == 1 else 0
    if not 1 <= n <= MAX_ROWS:
        raise HandoffError(f"steps: {n} rows, expected 1 to {MAX_ROWS}.")
    for name in _VECTORS:
        _column(name, getattr(steps, name), np.float32, n, 2)
    _column("reward", steps.reward, np.float32, n, 1)
    for name in _FLAGS:
        _column(name, getattr(steps, name), np.bool_, n, 1)
    for name in _COUNTS:
        _column(name, getattr(steps, name), np.int64, n, 1)
    if (
        steps.observation.shape != steps.next_observation.shape
        or steps.action.shape != steps.proposed.shape
    ):
        raise HandoffError(
            f"steps: observations {steps.observation.shape} and {steps.next_observation.shape}, actions "
            f"{steps.action.shape} and {steps.proposed.shape}; the shapes of each pair must be equal."
        )
    if np.abs(steps.action).max(initial=0.0) > 1.0 + 1e-5:
        raise HandoffError(
            f"action: an entry of magnitude {np.abs(steps.action).max():.3g}, limit 1. Is it in the "
            "environment's units, not the learner's?"
        )
    if (steps.episode < 0).any() or (steps.number < 0).any():
        raise HandoffError("steps: a negative episode or step number, expected counts from 0.")
    for names in _PICTURES:
        for name, picture in getattr(steps, names).items():
            is_map = isinstance(picture, np.ndarray) and picture.dtype == np.float16
            _column(name, picture, np.float16 if is_map else np.uint8, n, 4)
    if steps.pictures.keys() != steps.next_pictures.keys():
        raise HandoffError(
            f"steps: pictures of {sorted(steps.pictures)} before, of {sorted(steps.next_pictures)} after."
        )


def check_parameters(parameters: Parameters) -> None:
    """Checks that the arrays match the card, are float32 and finite.

    Raises:
        HandoffError: an array is missing, unknown or invalid.
    """
    expected = array_shapes(parameters.card)
    if parameters.arrays.keys() != expected.keys():
        different = sorted(parameters.arrays.keys() ^ expected.keys())
        raise HandoffError(
            f"parameters: missing or unknown {different[:8]}. Is the card another network's?"
        )
    for name, shape in expected.items():
        array = parameters.arrays[name]
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != np.float32:
            raise HandoffError(
                f"parameters: {name} is not float32 of shape {shape}. Is the card another network's?"
            )
        if not np.isfinite(array).all():
            raise HandoffError(
                f"parameters: {name} has a non-finite value. Has the training diverged?"
            )


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
    for name, mlp, last in (("actor", card.actor, outputs), ("hand", card.hand, 3)):
        if mlp is None:
            continue
        widths = mlp.layers
        if len(widths) < 2 or min(widths) < 1 or (widths[0], widths[-1]) != (features, last):
            raise HandoffError(
                f"card: {name} has layers {widths}, expected {features} entries in and {last} out."
            )
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


def max_steps_bytes(
    observation: int, action: int, picture_bytes: int = 0, rows: int = MAX_ROWS
) -> int:
    """Largest size of a `steps` frame [bytes].

    Args:
        observation: number of entries of the observation vector, O.
        action: number of entries of an action, A.
        picture_bytes: size of the images of all cameras in one step [bytes].
        rows: largest number of rows of the frame.
    """
    return 65536 + rows * (8 * observation + 8 * action + 2 * picture_bytes + 64)


def _steps(fields: dict[str, Any]) -> JournalEntry:
    journal, number = (
        _journal(fields.pop("journal", None)),
        _count("entry", fields.pop("entry", None)),
    )
    _keys(fields, set(Steps._fields))
    for name in Steps._fields:
        if name in _PICTURES:
            pictures = fields[name]
            valid = isinstance(pictures, dict) and all(
                isinstance(key, str) and isinstance(value, np.ndarray)
                for key, value in pictures.items()
            )
            if not valid:
                raise HandoffError(f"{name}: expected a map from cameras to arrays.")
        elif not isinstance(fields[name], np.ndarray):
            raise HandoffError(f"{name}: {type(fields[name]).__name__}, expected an array.")
    steps = Steps(**fields)
    check_steps(steps)
    return JournalEntry(journal, number, steps)


def _parameters(fields: dict[str, Any]) -> Parameters:
    _keys(fields, {"version", "card", "arrays"})
    if not isinstance(fields["card"], dict) or not isinstance(fields["arrays"], dict):
        raise HandoffError("parameters: card or arrays is no map.")
    card = validate(ActorCard, fields["card"], "card")
    parameters = Parameters(_count("version", fields["version"]), card, fields["arrays"])
    check_parameters(parameters)
    return parameters


def _column(name: str, value: Any, dtype: type[np.generic], rows: int, dimensions: int) -> None:
    valid = isinstance(value, np.ndarray) and value.dtype == dtype and value.ndim == dimensions
    if not valid or len(value) != rows:
        kind = (
            f"{value.dtype} of shape {value.shape}"
            if isinstance(value, np.ndarray)
            else type(value).__name__
        )
        raise HandoffError(
            f"{name}: {kind}, expected {rows} rows of {dimensions} dimensions, {np.dtype(dtype)}."
        )
    if dtype in (np.float32, np.float16) and not np.isfinite(value).all():
        raise HandoffError(f"{name}: has a non-finite value. Was a sensor lost?")


def _keys(fields: dict[str, Any], expected: set[str]) -> None:
    if fields.keys() != expected:
        raise HandoffError(
            f"message: missing or unknown entries {sorted(fields.keys() ^ expected)[:8]}."
        )


def _count(name: str, value: Any, minimum: int = 0) -> int:
    if type(value) is not int or not minimum <= value < 2**63:
        raise HandoffError(
            f"{name}: {str(value)[:40]}, expected an integer from {minimum} to 2^63 - 1."
        )
    return value


def _journal(value: Any) -> str:
    if not isinstance(value, str) or not JOURNAL_NAME.fullmatch(value):
        raise HandoffError(f"journal: {str(value)[:40]!r}, expected 16 hexadecimal digits.")
    return value
