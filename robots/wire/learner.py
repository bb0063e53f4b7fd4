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
from typing import Any, NamedTuple

import numpy as np

from robots.config import to_plain, validate
from robots.errors import HandoffError
from robots.wire.actor_card import ActorCard, array_shapes
from robots.wire.policy import pack, unpack
from robots.wire.steps import Steps

PROTOCOL = "handoff-learning/3"
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
    own_pictures: np.ndarray | None = None
    """(M,) int64 rows whose picture before the step is in `steps.pictures`, which then has M rows;
    that of any other row is the picture after the preceding step of its episode
    (`robots.wire.shared_pictures`). None: `steps.pictures` has all rows."""


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
    for `hand.i.*`, the gripper critic, and with a leading dimension of E members for
    `critic.i.*`, the critics of a session with hints to the person. Per camera c `map.c.place`
    (E, C, rows, columns), and `map.c.weight`, `.bias`, `.gain` and `.shift` of the layer behind
    the sums; the same layer of the vector is `vector.*`."""


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
            check_steps(message.steps, message.own_pictures)
            columns = message.steps._asdict() | {
                name: dict(getattr(message.steps, name)) for name in _PICTURES
            }
            own = {} if message.own_pictures is None else {"own_pictures": message.own_pictures}
            entry = {"journal": message.journal, "entry": message.number}
            return pack({"kind": "steps", **entry, **own, **columns})
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


def check_steps(steps: Steps, own_pictures: np.ndarray | None = None) -> None:
    """Checks dtypes, shapes and values of steps, and that there are at most `MAX_ROWS`.

    Args:
        steps: the steps.
        own_pictures: rows of `steps.pictures`; see `JournalEntry`.

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
    rows = n if own_pictures is None else _checked_rows(own_pictures, n)
    for images, count in ((steps.pictures, rows), (steps.next_pictures, n)):
        for name, picture in images.items():
            is_map = isinstance(picture, np.ndarray) and picture.dtype == np.float16
            _column(name, picture, np.float16 if is_map else np.uint8, count, 4)
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
    own_pictures = fields.pop("own_pictures", None)
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
    check_steps(steps, own_pictures)
    return JournalEntry(journal, number, steps, own_pictures)


def _parameters(fields: dict[str, Any]) -> Parameters:
    _keys(fields, {"version", "card", "arrays"})
    if not isinstance(fields["card"], dict) or not isinstance(fields["arrays"], dict):
        raise HandoffError("parameters: card or arrays is no map.")
    card = validate(ActorCard, fields["card"], "card")
    parameters = Parameters(_count("version", fields["version"]), card, fields["arrays"])
    check_parameters(parameters)
    return parameters


def _checked_rows(rows: Any, limit: int) -> int:
    """Number of `own_pictures`, which ascend below `limit`."""
    valid = isinstance(rows, np.ndarray) and rows.dtype == np.int64 and rows.ndim == 1
    if not valid or (len(rows) and not (rows[0] >= 0 and rows[-1] < limit)):
        raise HandoffError(f"own_pictures: expected int64 rows from 0 to {limit - 1}.")
    if (np.diff(rows) <= 0).any():
        raise HandoffError("own_pictures: the rows do not ascend.")
    return len(rows)


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
