"""Messages between pages, server and the robot's side, checked before they mean anything.

A page sends JSON: `hello`, `inputs`, `press`, `claim`, `give`, `bind`, `restore`. The robot's side
and its cameras send msgpack maps (`robots.wire.policy`), never pickle: `hello`, `step`, `end`,
`scene`, `frame`, and get `command` and `scene`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from real.console.arbiter import Command, Mode
from real.console.bindings import ACTIONS, MOST_AXES, MOST_BUTTONS, MOST_KEYS, Inputs
from real.teleop.takeover import Hand
from robots.errors import HandoffError
from robots.interfaces import Label

LARGEST_WORD = 4096
"""Characters of a page's message."""
LONGEST_NAME = 40
"""Characters of a person's name."""
_KINDS = ("hello", "inputs", "press", "claim", "give", "bind", "restore")


def read_word(text: str) -> dict[str, Any]:
    """A page's message.

    Raises:
        HandoffError: too long, no JSON map, or of no known kind.
    """
    if len(text) > LARGEST_WORD:
        raise HandoffError(f"message of {len(text)} characters, limit {LARGEST_WORD}.")
    try:
        word = json.loads(text)
    except (ValueError, RecursionError):
        raise HandoffError("message that is not JSON.") from None
    if not isinstance(word, dict) or word.get("kind") not in _KINDS:
        raise HandoffError(f"message that is none of {', '.join(_KINDS)}.")
    return word


def read_inputs(word: Mapping[str, Any]) -> tuple[Inputs, int, bool]:
    """The inputs, their number, and whether the page is visible.

    Raises:
        HandoffError: something in it is not what it should be.
    """
    keys = word.get("keys", [])
    if (
        not isinstance(keys, list)
        or len(keys) > MOST_KEYS
        or not all(isinstance(key, str) for key in keys)
    ):
        raise HandoffError(f"inputs: keys are not a list of at most {MOST_KEYS} codes.")
    held = word.get("held", [])
    if not isinstance(held, list) or not all(
        isinstance(action, str) and action in ACTIONS for action in held
    ):
        raise HandoffError("inputs: held is not a list of actions.")
    stick = word.get("stick")
    sequence, visible = word.get("sequence"), word.get("visible")
    if isinstance(sequence, bool) or not isinstance(sequence, int) or not isinstance(visible, bool):
        raise HandoffError("inputs: without a sequence (int) or visible (bool).")
    inputs = Inputs(
        keys=frozenset(keys),
        axes=_numbers(word.get("axes", []), MOST_AXES, -1.0, "axes"),
        buttons=_numbers(word.get("buttons", []), MOST_BUTTONS, 0.0, "buttons"),
        held=frozenset(held),
        stick=None if stick is None else _four(_numbers(stick, 4, -1.0, "stick")),
    )
    return inputs, sequence, visible


def read_text(word: Mapping[str, Any], key: str, longest: int = LONGEST_NAME) -> str:
    """A short text of a message.

    Raises:
        HandoffError: it is missing, no text, or longer.
    """
    text = word.get(key)
    if not isinstance(text, str) or len(text) > longest or not text.isprintable():
        raise HandoffError(
            f"message: '{key}' is no printable text of at most {longest} characters."
        )
    return text.strip()


def command_word(command: Command) -> dict[str, Any]:
    """A command as it travels to the robot's side."""
    return {
        "kind": "command",
        "mode": command.mode.value,
        "engaged": command.hand.engaged,
        "twist": [float(value) for value in command.hand.twist],
        "grip": command.hand.grip,
        "person": command.person,
        "sequence": command.sequence,
        "label": int(command.label),
        "said": command.said,
    }


def read_command(word: Mapping[str, Any]) -> Command:
    """The inverse of `command_word`.

    Raises:
        HandoffError: not a command.
    """
    try:
        twist = np.array(word["twist"], dtype=np.float64)
        command = Command(
            mode=Mode(word["mode"]),
            hand=Hand(bool(word["engaged"]), twist, int(word["grip"])),
            person=str(word["person"]),
            sequence=int(word["sequence"]),
            label=Label(word["label"]),
            said=int(word["said"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HandoffError(
            f"console: a command that cannot be read ({error}). Another version?"
        ) from None
    if twist.shape != (6,) or not np.isfinite(twist).all() or np.abs(twist).max() > 1.0:
        raise HandoffError(
            f"console: a command with the twist {twist}, expected 6 numbers in [-1, 1]."
        )
    return command


def _numbers(values: Any, most: int, low: float, name: str) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) > most:
        raise HandoffError(f"inputs: {name} are not a list of at most {most} numbers.")
    for value in values:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise HandoffError(f"inputs: {name} hold {value!r}, expected a number.")
    return tuple(min(1.0, max(low, float(value))) for value in values)


def _four(values: tuple[float, ...]) -> tuple[float, float, float, float]:
    if len(values) != 4:
        raise HandoffError(
            f"inputs: a stick of {len(values)} numbers, expected forward, left, up and turn."
        )
    forward, left, up, turn = values
    return forward, left, up, turn
