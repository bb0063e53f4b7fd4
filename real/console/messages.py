"""Reads and writes the messages between pages, server and the robot's process, and checks each.

A page sends JSON: `hello`, `inputs`, `press`, `claim`, `give`, `recover`, `answer`, `instruct`,
`bind`, `restore`. The robot's process and its cameras send msgpack maps (`robots.wire.policy`),
never pickle: `hello`, `begin`, `step`, `hint`, `end`, `reset`, `still`, `progress`, `facts`,
`hold`, `fault`, `finish`, `scene`, `frame`, and receive `command` and `scene`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from real.console.control.bindings import ACTIONS, MOST_AXES, MOST_BUTTONS, MOST_KEYS, Inputs
from real.console.control.commands import (
    RESET_MODES,
    ControlCommand,
    Instruction,
    Mode,
    Recovery,
    ResetAnswer,
)
from real.console.control.reset_offer import ResetQuestion
from real.teleop.spacemouse import SpaceMouseReport
from real.teleop.takeover import HandInput
from robots.errors import HandoffError
from robots.interfaces import Label

LONGEST_MESSAGE = 4096
"""Largest number of characters in a page's message."""
LONGEST_NAME = 40
"""Largest number of characters in a person's name."""
LONGEST_REASON = 400
"""Largest number of characters in the cause of a fault or of a hold, or in a hint."""
MOST_COUNTS = 32768.0
"""Largest count of a SpaceMouse's report, which has 16 bits."""
OLDEST = 3600.0
"""Age of a SpaceMouse's newest report above which ages are no longer told apart [s]."""
MOST_CHOICES = 12
"""Largest number of answers to a question."""
LONGEST_INSTRUCTION = 200
"""Largest number of characters in an instruction."""
_KINDS = (
    "hello",
    "inputs",
    "press",
    "claim",
    "give",
    "recover",
    "answer",
    "instruct",
    "bind",
    "restore",
)


def read_message(text: str) -> dict[str, Any]:
    """A page's message as a map with the key `kind`.

    Raises:
        HandoffError: the text is too long, no JSON map, or of an unknown kind.
    """
    if len(text) > LONGEST_MESSAGE:
        raise HandoffError(f"message of {len(text)} characters, limit {LONGEST_MESSAGE}.")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise HandoffError("message that is not JSON.") from None
    if not isinstance(message, dict) or message.get("kind") not in _KINDS:
        raise HandoffError(f"message that is none of {', '.join(_KINDS)}.")
    return message


def read_inputs(message: Mapping[str, Any]) -> tuple[Inputs, int, bool]:
    """The inputs in a message, their number, and whether the page is visible.

    Raises:
        HandoffError: an entry of the wrong type or size.
    """
    keys = message.get("keys", [])
    if (
        not isinstance(keys, list)
        or len(keys) > MOST_KEYS
        or not all(isinstance(key, str) for key in keys)
    ):
        raise HandoffError(f"inputs: keys are not a list of at most {MOST_KEYS} codes.")
    held = message.get("held", [])
    if not isinstance(held, list) or not all(
        isinstance(action, str) and action in ACTIONS for action in held
    ):
        raise HandoffError("inputs: held is not a list of actions.")
    stick = message.get("stick")
    sequence = message.get("sequence")
    visible = message.get("visible")
    if isinstance(sequence, bool) or not isinstance(sequence, int) or not isinstance(visible, bool):
        raise HandoffError("inputs: without a sequence (int) or visible (bool).")
    inputs = Inputs(
        keys=frozenset(keys),
        axes=_numbers(message.get("axes", []), MOST_AXES, -1.0, "axes"),
        buttons=_numbers(message.get("buttons", []), MOST_BUTTONS, 0.0, "buttons"),
        held=frozenset(held),
        stick=None if stick is None else _four(_numbers(stick, 4, -1.0, "stick")),
        spacemouse=_read_spacemouse(message.get("spacemouse")),
    )
    return inputs, sequence, visible


def read_text(message: Mapping[str, Any], key: str, longest: int = LONGEST_NAME) -> str:
    """A short text in a message.

    Raises:
        HandoffError: the text is missing, not printable, or has more than `longest` characters.
    """
    text = message.get(key)
    if not isinstance(text, str) or len(text) > longest or not text.isprintable():
        raise HandoffError(
            f"message: '{key}' is no printable text of at most {longest} characters."
        )
    return text.strip()


def read_hint(text: Any) -> str:
    """The text of a hint by the robot's process; empty removes it.

    Raises:
        HandoffError: no printable text, or one of more than `LONGEST_REASON` characters.
    """
    if not isinstance(text, str) or len(text) > LONGEST_REASON or not text.isprintable():
        raise HandoffError(
            f"console: a hint that is no printable text of at most {LONGEST_REASON} characters. Another version?"
        )
    return text


def read_refusals(about: Mapping[str, Any]) -> dict[str, str] | None:
    """Why a robot's process offers no `home` or `limp` between two episodes, as
    `ResetOffer.refusals`; None if its greeting does not say.

    Raises:
        HandoffError: another key, or no printable texts of at most `LONGEST_REASON` characters.
    """
    if "reset" not in about:
        return None
    known = {mode.value for mode in RESET_MODES}
    refusals = about["reset"]
    if not isinstance(refusals, dict) or not known.issuperset(refusals):
        raise HandoffError(
            f"console: a greeting whose 'reset' is {refusals!r}, expected texts for {', '.join(sorted(known))}."
        )
    return {name: read_text(refusals, name, LONGEST_REASON) for name in refusals}


def read_entries(about: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Names of the entries of the actions in a greeting of the robot's process; None without.

    Raises:
        HandoffError: they are no texts.
    """
    names = about.get("actions")
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise HandoffError(f"console: a greeting whose 'actions' are {names!r}, expected names.")
    return tuple(names)


def read_progress(message: Mapping[str, Any]) -> float:
    """The share of a motion that is done, in [0, 1].

    Raises:
        HandoffError: no such number.
    """
    share = message.get("share")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 <= share <= 1.0:
        raise HandoffError(f"console: a share of {share!r} of a motion, expected one in [0, 1].")
    return float(share)


def read_question(message: Mapping[str, Any]) -> ResetQuestion | None:
    """The question of a `reset` message; None without.

    Raises:
        HandoffError: no number, text and list of texts, or too many of them.
    """
    asked = message.get("question")
    if asked is None:
        return None
    if not isinstance(asked, dict) or not isinstance(asked.get("number"), int):
        raise HandoffError(f"console: a question {asked!r}, expected number, text and choices.")
    choices = asked.get("choices")
    if not isinstance(choices, list | tuple) or not 1 <= len(choices) <= MOST_CHOICES:
        raise HandoffError(
            f"console: a question with the choices {choices!r}, expected 1 to {MOST_CHOICES} texts."
        )
    texts = {str(place): text for place, text in enumerate(choices)}
    return ResetQuestion(
        asked["number"],
        read_text(asked, "text", LONGEST_REASON),
        tuple(read_text(texts, place) for place in texts),
    )


def read_choice(message: Mapping[str, Any]) -> int:
    """The index in a page's answer.

    Raises:
        HandoffError: no whole number.
    """
    choice = message.get("choice")
    if isinstance(choice, bool) or not isinstance(choice, int):
        raise HandoffError("answer: without a choice (int).")
    return choice


def command_message(command: ControlCommand) -> dict[str, Any]:
    """A command as a message to the robot's process."""
    return {
        "kind": "command",
        "mode": command.mode.value,
        "engaged": command.hand.engaged,
        "twist": [float(value) for value in command.hand.twist],
        "grip": command.hand.grip,
        "person": command.person,
        "sequence": command.sequence,
        "label": int(command.label),
        "said": command.label_number,
        "episode": command.episode,
        "recovery": list(command.recovery),
        "answer": list(command.answer),
        "instruction": list(command.instruction),
    }


def read_command(message: Mapping[str, Any]) -> ControlCommand:
    """The command in a message, as the inverse of `command_message`.

    Raises:
        HandoffError: the message is no command.
    """
    try:
        fault, who, cause = message["recovery"]
        question, choice = message["answer"]
        statement, text, teller = message["instruction"]
        twist = np.array(message["twist"], dtype=np.float64)
        command = ControlCommand(
            mode=Mode(message["mode"]),
            hand=HandInput(bool(message["engaged"]), twist, int(message["grip"])),
            person=str(message["person"]),
            sequence=int(message["sequence"]),
            label=Label(message["label"]),
            label_number=int(message["said"]),
            episode=int(message["episode"]),
            recovery=Recovery(int(fault), str(who), str(cause)),
            answer=ResetAnswer(int(question), int(choice)),
            instruction=Instruction(int(statement), str(text), str(teller)),
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


def _read_spacemouse(state: Any) -> SpaceMouseReport | None:
    """The state of a SpaceMouse at a page; None without one."""
    if state is None:
        return None
    if not isinstance(state, dict):
        raise HandoffError("inputs: spacemouse is no map of counts, buttons and age.")
    name = "the spacemouse's {}"
    counts = _numbers(state.get("counts"), 6, -MOST_COUNTS, name.format("counts"), MOST_COUNTS)
    buttons = _numbers(state.get("buttons"), MOST_BUTTONS, 0.0, name.format("buttons"))
    age = _numbers([state.get("age")], 1, 0.0, name.format("age"), OLDEST)
    if len(counts) != 6:
        raise HandoffError(f"inputs: a spacemouse with {len(counts)} counts, expected 6.")
    return SpaceMouseReport(counts, tuple(value > 0.5 for value in buttons), age[0])


def _numbers(values: Any, most: int, low: float, name: str, high: float = 1.0) -> tuple[float, ...]:
    """At most `most` numbers, clipped to [`low`, `high`]."""
    if not isinstance(values, list) or len(values) > most:
        raise HandoffError(f"inputs: {name} are not a list of at most {most} numbers.")
    for value in values:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            # Not math.isfinite, which fails on an integer that no float holds.
            or not abs(value) <= sys.float_info.max
        ):
            raise HandoffError(f"inputs: {name} hold {value!r}, expected a number.")
    return tuple(min(high, max(low, float(value))) for value in values)


def _four(values: tuple[float, ...]) -> tuple[float, float, float, float]:
    if len(values) != 4:
        raise HandoffError(
            f"inputs: a stick of {len(values)} numbers, expected forward, left, up and turn."
        )
    forward, left, up, turn = values
    return forward, left, up, turn
