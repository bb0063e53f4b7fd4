"""Encodes the messages between an actor, which has the robot, and a learner, which has the
gradients.

The actor connects (`Authorization: Api-Key <token>`) and says `hello`; the learner answers `taken`,
and from then on both speak when they have something to say: the actor sends `steps`, numbered
without gaps, the learner `taken` once they are on its disk, `parameters` of its policy, and
`pause`. What is wrong with a frame comes back as text. The encoding of arrays is that of
`robots.wire.policy`.

An episode's number is 2^24 times the number of the actor's start plus a count, so none is used
twice.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import numpy as np

from robots.config import config, to_plain, validate
from robots.errors import HandoffError
from robots.wire.policy import pack, unpack
from robots.wire.steps import Steps

PROTOCOL = "handoff-learning/1"
MAX_ROWS = 1024
"""Rows of one `steps` message."""
NONE = -1
"""`taken` of a journal of which nothing has been taken."""
EPISODES_PER_START = 2**24
"""Episodes that one start of an actor can number."""
RECENT_EPISODES = 20
"""Newest episodes of training over which success and interventions are reported."""
JOURNAL_NAME = re.compile(r"[0-9a-f]{16}")
"""Of a journal's identity."""
_VECTORS = ("observation", "action", "next_observation", "proposed")
_FLAGS = ("terminated", "truncated", "intervention", "demo", "toggle")
_COUNTS = ("episode", "number", "policy_version")
_PICTURES = ("pictures", "next_pictures")


@config
class MlpCard:
    """A plain network: Linear, LayerNorm (epsilon 1e-6) if any, activation; the last layer is
    Linear alone."""

    layers: tuple[int, ...]
    """Entries of the input, of every hidden layer and of the output."""
    activation: Literal["tanh", "relu"]
    """Name of the activation function."""
    layer_norm: bool
    """Whether every hidden layer is normalised."""


@config
class ActorCard:
    """What a published policy is, apart from its numbers: enough to run it without torch.

    A Gaussian through tanh for the continuous entries; where the hand has a critic of its own, the
    last entry of an action is the command -1 close, 0 hold or 1 open that this critic values most.
    """

    observation: int
    """Entries of the observation vector, O."""
    action: int
    """Entries of an action, the gripper's included, A."""
    differences: tuple[tuple[int, int, int, float], ...] = ()
    """Pairs of entries whose differences are features too; see
    `policies.rl.replay.transitions.Sizes`."""
    close_ups: tuple[tuple[int, int, int, float], ...] = ()
    """Entries that are features a second time at another scale; see
    `policies.rl.replay.transitions.Sizes`."""
    actor: MlpCard
    """Network from features to means, followed by log standard deviations unless these are
    fixed."""
    log_std_min: float
    """Lower bound of the log standard deviation."""
    log_std_max: float
    """Upper bound of the log standard deviation."""
    fixed_log_std: float | None = None
    """Log standard deviation that does not depend on the observation; None takes the network's."""
    hand: MlpCard | None = None
    """Network from features to the values of close, hold and open; None without a gripper
    command."""


class Hello(NamedTuple):
    """An actor's first word."""

    journal: str
    """16 hexadecimal digits, drawn when the journal was made."""
    first: int
    """Number of the oldest entry that the journal still has, or of the next one."""


class Sent(NamedTuple):
    """Steps on their way."""

    journal: str
    number: int
    """Consecutive within the journal, from 0."""
    steps: Steps


class Taken(NamedTuple):
    """What a learner has on its disk."""

    number: int
    """Of the newest entry; all before it are there too. -1: none."""


class Parameters(NamedTuple):
    """A policy as it is published."""

    version: int
    """Different for different weights: 10^9 times the number of the learner's start, plus its
    updates."""
    card: ActorCard
    arrays: dict[str, np.ndarray]
    """float32: `centre`, `half_range` (O,); per layer i `actor.i.weight` (in, out), `actor.i.bias`
    (out,), and where it is normalised `actor.i.gain`, `actor.i.shift` (out,); likewise
    `hand.i.*`."""


class Pause(NamedTuple):
    """The learner's wish that the actor holds still."""

    on: bool


Message = Hello | Sent | Taken | Parameters | Pause


def encode(message: Message) -> bytes:
    """One frame.

    Raises:
        HandoffError: what `check_steps` and `check_parameters` find.
    """
    match message:
        case Hello():
            return pack({"kind": "hello", "protocol": PROTOCOL, **message._asdict()})
        case Sent():
            check_steps(message.steps)
            columns = message.steps._asdict() | {
                name: dict(getattr(message.steps, name)) for name in _PICTURES
            }
            return pack(
                {"kind": "steps", "journal": message.journal, "entry": message.number, **columns}
            )
        case Taken():
            return pack({"kind": "taken", "number": message.number})
        case Parameters():
            check_parameters(message)
            return pack({"kind": "parameters", **message._asdict(), "card": to_plain(message.card)})
        case Pause():
            return pack({"kind": "pause", "on": message.on})


def decode(frame: str | bytes) -> Message:
    """The message in one frame.

    Raises:
        HandoffError: text (the other side's complaint, which is quoted), or anything else that is
            no sound message.
    """
    if isinstance(frame, str):
        raise HandoffError(f"the other side says: {frame[:2000]}")
    told = unpack(frame)
    if not isinstance(told, dict) or not all(isinstance(name, str) for name in told):
        raise HandoffError(f"message: {type(told).__name__}, expected a map whose keys are text.")
    kind = told.pop("kind", None)
    match kind:
        case "hello":
            _keys(told, {"protocol", "journal", "first"})
            if told["protocol"] != PROTOCOL:
                raise HandoffError(
                    f"message: protocol {str(told['protocol'])[:40]!r}, expected {PROTOCOL!r}."
                )
            return Hello(_journal(told["journal"]), _count("first", told["first"]))
        case "steps":
            return _steps(told)
        case "taken":
            _keys(told, {"number"})
            return Taken(_count("number", told["number"], NONE))
        case "parameters":
            return _parameters(told)
        case "pause":
            _keys(told, {"on"})
            if not isinstance(told["on"], bool):
                raise HandoffError("pause: 'on' is neither true nor false.")
            return Pause(told["on"])
    raise HandoffError(
        f"message: kind {str(kind)[:40]!r}, expected hello, steps, taken, parameters or pause."
    )


def check_steps(steps: Steps) -> None:
    """Checks that steps are whole: dtypes, shapes, finite numbers, and no more than `MAX_ROWS` of
    them.

    Raises:
        HandoffError: names the column.
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
            f"{steps.action.shape} and {steps.proposed.shape}; each pair must agree."
        )
    if np.abs(steps.action).max(initial=0.0) > 1.0 + 1e-5:
        raise HandoffError(
            f"action: {np.abs(steps.action).max():.3g} in size, limit 1. Is it in the world's units, not the learner's?"
        )
    if (steps.episode < 0).any() or (steps.number < 0).any():
        raise HandoffError("steps: a negative episode or step number, expected counts from 0.")
    for names in _PICTURES:
        for name, picture in getattr(steps, names).items():
            _column(name, picture, np.uint8, n, 4)
    if steps.pictures.keys() != steps.next_pictures.keys():
        raise HandoffError(
            f"steps: pictures of {sorted(steps.pictures)} before, of {sorted(steps.next_pictures)} after."
        )


def check_parameters(parameters: Parameters) -> None:
    """Checks that the arrays are those that the card tells of, float32 and finite.

    Raises:
        HandoffError: names the array.
    """
    expected = shapes(parameters.card)
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
                f"parameters: {name} holds a value that is not finite. Has the training diverged?"
            )


def shapes(card: ActorCard) -> dict[str, tuple[int, ...]]:
    """Name and shape of every array that belongs to a card.

    Raises:
        HandoffError: sizes that do not fit one another.
    """
    size = card.observation
    features = size + sum(count for _, _, count, _ in (*card.differences, *card.close_ups))
    continuous = card.action - (card.hand is not None)
    outputs = continuous * (1 if card.fixed_log_std is not None else 2)
    for name, taken in (("difference", card.differences), ("close-up", card.close_ups)):
        for begin, other, count, scale in taken:
            if min(begin, other + 1, count) < 0 or max(begin, other) + count > size or not scale:
                raise HandoffError(
                    f"card: {name} {(begin, other, count, scale)} of {size} entries cannot be taken."
                )
    found: dict[str, tuple[int, ...]] = {"centre": (size,), "half_range": (size,)}
    for name, mlp, last in (("actor", card.actor, outputs), ("hand", card.hand, 3)):
        if mlp is None:
            continue
        widths = mlp.layers
        if len(widths) < 2 or min(widths) < 1 or (widths[0], widths[-1]) != (features, last):
            raise HandoffError(
                f"card: {name} has layers {widths}, expected {features} entries in and {last} out."
            )
        for i in range(len(widths) - 1):
            found |= {
                f"{name}.{i}.weight": (widths[i], widths[i + 1]),
                f"{name}.{i}.bias": (widths[i + 1],),
            }
            if mlp.layer_norm and i < len(widths) - 2:
                found |= {
                    f"{name}.{i}.gain": (widths[i + 1],),
                    f"{name}.{i}.shift": (widths[i + 1],),
                }
    return found


def steps_limit(observation: int, action: int, picture_bytes: int = 0, rows: int = MAX_ROWS) -> int:
    """Bytes of the largest `steps` frame.

    Args:
        observation: O.
        action: A.
        picture_bytes: of all cameras at one moment.
        rows: of the frame.
    """
    return 65536 + rows * (8 * observation + 8 * action + 2 * picture_bytes + 64)


def _steps(told: dict[str, Any]) -> Sent:
    journal, number = _journal(told.pop("journal", None)), _count("entry", told.pop("entry", None))
    _keys(told, set(Steps._fields))
    for name in Steps._fields:
        if name in _PICTURES:
            pictures = told[name]
            sound = isinstance(pictures, dict) and all(
                isinstance(key, str) and isinstance(value, np.ndarray)
                for key, value in pictures.items()
            )
            if not sound:
                raise HandoffError(f"{name}: expected a map from cameras to arrays.")
        elif not isinstance(told[name], np.ndarray):
            raise HandoffError(f"{name}: {type(told[name]).__name__}, expected an array.")
    steps = Steps(**told)
    check_steps(steps)
    return Sent(journal, number, steps)


def _parameters(told: dict[str, Any]) -> Parameters:
    _keys(told, {"version", "card", "arrays"})
    if not isinstance(told["card"], dict) or not isinstance(told["arrays"], dict):
        raise HandoffError("parameters: card and arrays are to be maps.")
    card = validate(ActorCard, told["card"], "card")
    found = Parameters(_count("version", told["version"]), card, told["arrays"])
    check_parameters(found)
    return found


def _column(name: str, value: Any, dtype: type[np.generic], rows: int, dimensions: int) -> None:
    sound = isinstance(value, np.ndarray) and value.dtype == dtype and value.ndim == dimensions
    if not sound or len(value) != rows:
        kind = (
            f"{value.dtype} of shape {value.shape}"
            if isinstance(value, np.ndarray)
            else type(value).__name__
        )
        raise HandoffError(
            f"{name}: {kind}, expected {rows} rows of {dimensions} dimensions, {np.dtype(dtype)}."
        )
    if dtype is np.float32 and not np.isfinite(value).all():
        raise HandoffError(f"{name}: holds a value that is not finite. Was a sensor lost?")


def _keys(told: dict[str, Any], expected: set[str]) -> None:
    if told.keys() != expected:
        raise HandoffError(
            f"message: missing or unknown entries {sorted(told.keys() ^ expected)[:8]}."
        )


def _count(name: str, value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 2**63:
        raise HandoffError(
            f"{name}: {str(value)[:40]}, expected an integer from {least} to 2^63 - 1."
        )
    return value


def _journal(value: Any) -> str:
    if not isinstance(value, str) or not JOURNAL_NAME.fullmatch(value):
        raise HandoffError(f"journal: {str(value)[:40]!r}, expected 16 hexadecimal digits.")
    return value
