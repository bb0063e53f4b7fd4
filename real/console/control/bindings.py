"""Maps keys, axes and buttons to actions: one map for the page, the server and the documentation.

The page sends the inputs that are down at a moment, never events: the codes of the keys (`KeyW` is
the key at W's place on an American keyboard), a gamepad's axes and buttons in the standard layout
of browsers, the deflection of the stick on the screen. The actions are derived here, so a lost
message cannot leave a key down forever.

Defaults follow LeRobot where it has any: arrows move, S and Q label success and failure, R drops
the episode, the right shoulder button of a gamepad is the dead-man switch.

Escape holds the arm still on every map, and every map has a key for hold still, undo, success and
failure: a map without them is refused, wherever it comes from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from real.teleop.spacemouse import SpaceMouseReport, with_dead_zone
from real.teleop.takeover import HandInput
from robots.control.actions import AXES
from robots.errors import HandoffError
from robots.interfaces import Label

MOVES: dict[str, tuple[int, float]] = {
    "forward": (0, 1.0),
    "back": (0, -1.0),
    "left": (1, 1.0),
    "right": (1, -1.0),
    "up": (2, 1.0),
    "down": (2, -1.0),
    "roll right": (3, 1.0),
    "roll left": (3, -1.0),
    "tilt forward": (4, 1.0),
    "tilt back": (4, -1.0),
    "turn left": (5, 1.0),
    "turn right": (5, -1.0),
}
"""Entry of the twist, in the person's axes (forward, left, up, and rotation about these), and its
sign, by action."""
GRIPS = {"close hand": -1, "open hand": 1}
"""Gripper command, -1 close or 1 open, by action."""
DEAD_MAN = "hold the arm"
"""Action that takes the arm over and moves nothing; a gamepad's axes count only while it is
down."""
SLOW = "slow"
"""Action that slows the motion down while it is down, and takes nothing over by itself."""
SLOW_SPEED = 0.2
"""Speed of slow motion, relative to the usual one."""
MOVING = frozenset((DEAD_MAN, *MOVES, *GRIPS))
"""Actions that take the arm over."""
HELD = MOVING | {SLOW}
"""Actions that count while they are down, and not when they are pressed."""
LABELS = {
    "success": Label.SUCCESS,
    "failure": Label.FAILURE,
    "redo": Label.REDO,
    "discard": Label.DISCARD,
}
"""Labels of the episode, by action."""
UNDO = "undo"
HOLD = "hold still"
RESUME = "go on"
HOME = "home"
LIMP = "limp"
END = "end session"
ACTIONS = (*MOVES, *GRIPS, DEAD_MAN, SLOW, *LABELS, UNDO, HOLD, RESUME, HOME, LIMP, END)
"""All actions, in the order of the page."""
STOP_KEY = "key Escape"
"""Input that holds the arm still on every map. On the page it also cancels dialogs, so it cannot be
bound to another action."""
FOCUS_KEY = "key Tab"
"""Input that cannot be bound: it moves the focus between the page's controls."""
NEEDED = (HOLD, UNDO, "success", "failure")
"""Actions that have a key on every map."""

DEFAULTS: dict[str, tuple[str, ...]] = {
    "forward": ("key ArrowUp", "axis 1-"),
    "back": ("key ArrowDown", "axis 1+"),
    "left": ("key ArrowLeft", "axis 0-"),
    "right": ("key ArrowRight", "axis 0+"),
    "up": ("key KeyI", "axis 3-"),
    "down": ("key KeyK", "axis 3+"),
    "roll right": ("key KeyN", "button 15"),
    "roll left": ("key KeyM", "button 14"),
    "tilt forward": ("key KeyG", "button 12"),
    "tilt back": ("key KeyT", "button 13"),
    "turn left": ("key KeyJ", "axis 2-"),
    "turn right": ("key KeyL", "axis 2+"),
    "close hand": ("key KeyC", "button 6"),
    "open hand": ("key KeyO", "button 7"),
    "hold the arm": ("key Space", "button 5"),
    "slow": ("key ShiftLeft", "button 10"),
    "success": ("key KeyS", "button 3"),
    "failure": ("key KeyQ", "button 0"),
    "redo": ("key KeyR", "button 2"),
    "discard": ("key KeyD", "button 1"),
    "undo": ("key KeyZ", "key Backspace", "button 8"),
    "hold still": ("key Escape", "button 4"),
    "go on": ("key Enter", "button 9"),
    "home": ("key KeyH",),
    "limp": ("key KeyF",),
    "end session": ("key End",),
}
"""Inputs of every action: `key <code>`, `button <number>`, `axis <number><sign>`."""
MOST_KEYS = 32
"""Largest number of keys in a page's message."""
MOST_AXES = 16
"""Largest number of axes in a page's message."""
MOST_BUTTONS = 32
"""Largest number of buttons in a page's message."""
_INPUT = re.compile(r"key [A-Za-z0-9]{1,24}|button \d{1,2}|axis \d{1,2}[+-]")
_ARROWS = {"ArrowUp": "↑", "ArrowDown": "↓", "ArrowLeft": "←", "ArrowRight": "→"}
_DOWN = 0.5
"""Value of a button, which may be a trigger, above which it is down."""


class Inputs(NamedTuple):
    """The state of a page's keys, gamepad and screen controls at one moment."""

    keys: frozenset[str] = frozenset()
    """Codes of the keys that are down."""
    axes: tuple[float, ...] = ()
    """Axes of the gamepad, in [-1, 1]; right and down are positive."""
    buttons: tuple[float, ...] = ()
    """Buttons of the gamepad, in [0, 1]."""
    held: frozenset[str] = frozenset()
    """Actions whose buttons on the screen are down."""
    stick: tuple[float, float, float, float] | None = None
    """Deflection of the stick on the screen: forward, left, up, turn left, in [-1, 1]; None if
    nobody touches it."""
    spacemouse: SpaceMouseReport | None = None
    """State of a SpaceMouse that the page reads; None without one."""


class RefusedBindingError(HandoffError):
    """A binding that is not allowed; the message is a sentence for the page.

    Args:
        why: the message.
        swap: whether the two actions that claim the input may exchange their inputs.
    """

    def __init__(self, why: str, *, swap: bool = False) -> None:
        super().__init__(why)
        self.swap = swap


class Bindings:
    """A map from inputs to actions, and the actions and motion that inputs ask for under it.

    Args:
        inputs: inputs by action; actions that are left out keep their defaults.
        dead_zone: deflection of an axis, in [0, 1], below which it counts as centred.

    Raises:
        HandoffError: an unknown action or input, one input for two actions, Escape for another
            action than 'hold still', Tab for any action, or no key for an action of `NEEDED`.
    """

    def __init__(
        self, inputs: Mapping[str, Sequence[str]] | None = None, dead_zone: float = 0.12
    ) -> None:
        self.inputs = {
            action: tuple((inputs or {}).get(action, DEFAULTS[action])) for action in ACTIONS
        }
        self._dead_zone = dead_zone
        self._live: set[str] = set()
        """Axes that have been centred since the dead-man switch went down."""
        unknown = sorted(set(inputs or {}) - set(ACTIONS))
        if unknown:
            raise HandoffError(
                f"bindings: unknown actions {unknown}, there are {', '.join(ACTIONS)}."
            )
        _check(self.inputs)

    def bound(self, action: str, name: str, *, swap: bool = False) -> Bindings:
        """A map in which the input `name` does `action`, in place of the action's other inputs of
        that kind.

        Args:
            action: to be bound.
            name: of the input.
            swap: whether an action that has the input gets the inputs it replaces.

        Raises:
            RefusedBindingError: the input is reserved, or another action has it.
            HandoffError: an unknown action or input.
        """
        if action not in ACTIONS:
            raise HandoffError(
                f"bindings: unknown action {action!r}, there are {', '.join(ACTIONS)}."
            )
        holder = next(
            (other for other, bound in self.inputs.items() if name in bound and other != action),
            None,
        )
        if name == FOCUS_KEY:
            raise RefusedBindingError(
                "Tab moves between the page's controls. Choose another input."
            )
        if holder == HOLD:
            raise RefusedBindingError(
                f"{_spoken(name)} is bound to Hold, which keeps its inputs. Choose another input."
            )
        # The new input replaces the action's inputs of the same kind: key, button or axis.
        kind = name.split(" ")[0]
        current = self.inputs[action]
        replaced = [
            bound for bound in current if bound.startswith(kind) and bound not in (name, STOP_KEY)
        ]
        unchanged = [bound for bound in current if bound not in (name, *replaced)]
        changed = {**self.inputs, action: (name, *unchanged)}
        # An action that has the input gets the replaced inputs for it, if the person agrees.
        if holder is not None:
            changed[holder] = (
                *replaced,
                *(bound for bound in self.inputs[holder] if bound != name),
            )
            if holder in NEEDED and not _has_key(changed[holder]):
                raise RefusedBindingError(
                    f"{_spoken(name)} is the only key of {_label(holder)}. Choose another input."
                )
            if not swap:
                raise RefusedBindingError(
                    f"{_spoken(name)} is bound to {_label(holder)}. Swap?", swap=True
                )
        return Bindings(changed, self._dead_zone)

    def restored(self) -> Bindings:
        """The map of the defaults."""
        return Bindings(dead_zone=self._dead_zone)

    def key(self, action: str) -> str:
        """Name of the first key of an action, for sentences on the page; the action's name if it
        has none."""
        names = [name for name in self.inputs[action] if name.startswith("key ")]
        return _spoken(names[0]) if names else _label(action)

    def down(self, inputs: Inputs) -> frozenset[str]:
        """Actions whose keys or buttons are down; axes do not count."""
        names = {f"key {key}" for key in inputs.keys}
        names |= {
            f"button {number}" for number, value in enumerate(inputs.buttons) if value > _DOWN
        }
        return (
            frozenset(action for action, bound in self.inputs.items() if names.intersection(bound))
            | inputs.held
        )

    def hand(self, inputs: Inputs, without: frozenset[str] = frozenset()) -> HandInput:
        """The motion that the inputs ask for. Keys and buttons that move, and the stick, take the
        arm over by themselves.

        Args:
            inputs: state of the page's inputs.
            without: actions that the session does not have, whose inputs do nothing.

        An axis that is off centre at the takeover moves nothing until it has been centred: a
        deflection that was meant for something else must not become a motion.
        """
        down = self.down(inputs) - without
        twist = np.zeros(6)
        for action, (entry, sign) in MOVES.items():
            twist[entry] += sign * (action in down)
        if DEAD_MAN in down:
            twist += self._deflected(inputs.axes)
        else:
            self._live.clear()
        if inputs.stick is not None:
            forward, left, up, turn = inputs.stick
            twist += np.array([forward, left, up, 0.0, 0.0, turn])
        twist = np.clip(twist, -1.0, 1.0)
        # Deflections of axes and stick along what the session does not have.
        for action in without & MOVES.keys():
            twist[MOVES[action][0]] = 0.0
        engaged = inputs.stick is not None or not down.isdisjoint(MOVING)
        if SLOW in down:
            twist *= SLOW_SPEED
        grip = sum(sign for action, sign in GRIPS.items() if action in down)
        return HandInput(engaged, twist, grip)

    def _deflected(self, axes: tuple[float, ...]) -> np.ndarray:
        """(6,) twist that the axes ask for, in [-1, 1]."""
        twist = np.zeros(6)
        values = with_dead_zone(np.array(axes, dtype=np.float64), self._dead_zone)
        for action, (entry, sign) in MOVES.items():
            for name in self.inputs[action]:
                if not name.startswith("axis "):
                    continue
                number = int(name[5:-1])
                direction = 1.0 if name[-1] == "+" else -1.0
                value = max(0.0, direction * float(values[number])) if number < len(values) else 0.0
                if value == 0.0:
                    self._live.add(name)
                elif name in self._live:
                    twist[entry] += sign * value
        return twist


def actions_without(names: Sequence[str] | None) -> frozenset[str]:
    """Actions of `MOVES` and `GRIPS` that a session does not have.

    Args:
        names: names of the entries of the session's actions, such as `x` and `gripper`; None if the
            session does not say, and has all.
    """
    if names is None:
        return frozenset()
    missing = {action for action, (entry, _) in MOVES.items() if AXES[entry] not in names}
    return frozenset(missing if "gripper" in names else {*missing, *GRIPS})


def stored_bindings(path: Path) -> Bindings:
    """The map in a file, or the default map if the file does not exist.

    Raises:
        HandoffError: the file cannot be read, or its map is refused.
    """
    if not path.exists():
        return Bindings()
    try:
        return Bindings(_completed(json.loads(path.read_text())))
    except HandoffError as error:
        raise HandoffError(f"{path}: {error} Delete the file for the default bindings.") from None
    except (ValueError, AttributeError, TypeError) as error:
        raise HandoffError(
            f"{path}: cannot be read ({error}). Delete the file for the default bindings."
        ) from None


def _completed(stored: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """A stored map with the actions that came after it, without inputs that it gives to others."""
    taken = {name for bound in stored.values() for name in bound}
    added = {
        action: tuple(name for name in DEFAULTS[action] if name not in taken)
        for action in (SLOW, HOME, LIMP)
        if action not in stored
    }
    return {**stored, **added}


def _check(inputs: Mapping[str, Sequence[str]]) -> None:
    """Refuses a map that is ambiguous, or that has no key for an action of `NEEDED`."""
    taken: dict[str, str] = {}
    for action, bound in inputs.items():
        for name in bound:
            if not _INPUT.fullmatch(name):
                raise HandoffError(
                    f"bindings: {name!r} of '{action}' is no input, expected one such as 'key KeyW', 'button 5' or "
                    "'axis 1-'."
                )
            if name in taken:
                raise HandoffError(
                    f"bindings: {name!r} does '{taken[name]}' and '{action}', expected one of them."
                )
            taken[name] = action
    if taken.get(STOP_KEY) != HOLD:
        raise HandoffError(
            f"bindings: {STOP_KEY!r} does {_quoted(taken.get(STOP_KEY))}, expected '{HOLD}': it stops on every map."
        )
    if FOCUS_KEY in taken:
        raise HandoffError(
            f"bindings: {FOCUS_KEY!r} does '{taken[FOCUS_KEY]}', expected nothing: it moves between the page's "
            "controls."
        )
    for action in NEEDED:
        if not _has_key(inputs[action]):
            raise HandoffError(
                f"bindings: '{action}' has no key, expected at least one for {', '.join(NEEDED)}."
            )


def _has_key(bound: Sequence[str]) -> bool:
    return any(name.startswith("key ") for name in bound)


def _quoted(action: str | None) -> str:
    return "nothing" if action is None else f"'{action}'"


def _label(action: str) -> str:
    """Name of an action on the page; stored maps have older names."""
    if action in GRIPS:
        return action.replace("hand", "gripper").capitalize()
    return {HOLD: "Hold", RESUME: "Start, resume"}.get(action, action.capitalize())


def _spoken(name: str) -> str:
    """Name of an input at the beginning of a sentence: `S` for `key KeyS`, `Button 3` for
    `button 3`."""
    code = re.sub(r"^key (Key|Digit)?", "", name)
    code = re.sub(r"^(Shift|Control|Alt)(Left|Right)$", r"\1", code)
    return _ARROWS.get(code, code[:1].upper() + code[1:])
