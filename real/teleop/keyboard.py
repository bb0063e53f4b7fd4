"""A person at the keys of a terminal: takes over by holding a key, tells how the episode went.

Takeover is held, not toggled: while any key that moves, closes, opens or holds still is down, and
for as long after as a terminal needs to tell a held key from a released one (`hold_time`, the
dead-man time-out). Labels are LeRobot's keys. A terminal repeats the last key alone, so one
direction at a time can be held; others can be tapped beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Protocol

import numpy as np

from real.teleop.takeover import Hand, Takeover, TakeoverConfig, base_twist
from real.teleop.terminal import ESCAPE, Keys, Terminal
from robots.config import config
from robots.interfaces import Intervention, Label, Observation, Requests
from robots.spec import ActionSpec

MOVES: dict[str, tuple[int, float]] = {
    "up": (0, 1.0),
    "down": (0, -1.0),
    "left": (1, 1.0),
    "right": (1, -1.0),
    "i": (2, 1.0),
    "k": (2, -1.0),
    "n": (3, 1.0),
    "m": (3, -1.0),
    "t": (4, -1.0),
    "g": (4, 1.0),
    "j": (5, 1.0),
    "l": (5, -1.0),
}
"""Entry of the twist in the person's axes (forward, left, up, and rotation about these) and its
sign."""
GRIPS = {"c": -1, "o": 1}
STILL = "space"
LABELS = {
    "s": Label.SUCCESS,
    "enter": Label.SUCCESS,
    "q": Label.FAILURE,
    "r": Label.REDO,
    "d": Label.DISCARD,
    "backspace": Label.DISCARD,
}
PAUSE, STOP = "p", ESCAPE


@config
class KeyboardConfig:
    """Keys and what they come to."""

    hold_time: float = 0.7
    """Dead-man time-out: a first press keeps the arm for so long [s]. Above the keyboard's delay
    before repetition, which is 500 ms on most desktops and 660 ms on plain X11."""
    repeat_time: float = 0.15
    """Likewise every press of a held key, and the time for which a press moves the arm [s]."""
    takeover: TakeoverConfig = field(
        default_factory=lambda: TakeoverConfig(translation=0.6, rotation=0.6)
    )
    """Keys know no half deflection, so full speed is less than a SpaceMouse's."""


class KeySource(Protocol):
    """Where presses come from; `real.teleop.terminal.Terminal` is one."""

    def read(self) -> list[str]:
        """Names of the keys pressed since the last call."""
        ...

    def close(self) -> None:
        """Lets the keyboard go."""
        ...


class LabelKeys:
    """Labels, pause and stop, for any device: what a hand on the keyboard says of the episode."""

    def __init__(self) -> None:
        self.paused, self._stop, self._label = False, False, Label.NONE
        self.last = Label.NONE
        """The last label said, in this episode or before."""

    def press(self, keys: Sequence[str]) -> None:
        """Takes presses in."""
        for key in keys:
            if key in LABELS:
                self._label = self.last = LABELS[key]
            elif key == PAUSE:
                self.paused = not self.paused
            elif key == STOP:
                self._stop = True

    def requests(self) -> Requests:
        """See `robots.interfaces.Operator.requests`."""
        label, self._label = self._label, Label.NONE
        return Requests(label, self.paused, self._stop)

    def status(self, engaged: bool) -> str:
        """See `robots.interfaces.Operator.status`."""
        mode = "PAUSED" if self.paused else "YOU" if engaged else "policy"
        return mode if self.last is Label.NONE else f"{mode}, last label {self.last.name.lower()}"


class KeyboardOperator:
    """Implements `robots.interfaces.Operator` for one world.

    Args:
        spec: of the world's actions.
        operator: the person's name.
        config: how.
        keys: where presses come from; None takes this process's terminal.
        now: time [s].

    Raises:
        HandoffError: no terminal, or actions that are not Cartesian steps.
    """

    def __init__(
        self,
        spec: ActionSpec,
        operator: str,
        config: KeyboardConfig | None = None,
        keys: KeySource | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        config = config or KeyboardConfig()
        self._takeover = Takeover(spec, config.takeover, operator, "keyboard", now)
        self._keys = Keys(config.hold_time, config.repeat_time, now)
        self._labels = LabelKeys()
        self._source = keys or Terminal()

    def reset(self, seeds: Sequence[int], worlds: Sequence[int] | None = None) -> None:
        """See `robots.interfaces.Operator`; keys held from the episode before are let go."""
        self._poll()
        self._keys.release()
        self._takeover.reset()

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        """See `robots.interfaces.Operator`.

        Raises:
            HandoffError: more than one world, or the terminal is gone.
        """
        self._poll()
        return self._takeover.intervene(proposed, observation, self._hand())

    def requests(self) -> Requests:
        """See `robots.interfaces.Operator`."""
        self._poll()
        return self._labels.requests()

    def status(self) -> str:
        """See `robots.interfaces.Operator`."""
        return self._labels.status(self._takeover.engaged)

    def close(self) -> None:
        """See `robots.interfaces.Operator`."""
        self._source.close()

    def _poll(self) -> None:
        pressed = self._source.read()
        self._keys.press(pressed)
        self._labels.press(pressed)

    def _hand(self) -> Hand:
        keys, twist = self._keys, np.zeros(6)
        for key, (entry, sign) in MOVES.items():
            twist[entry] += sign * keys.moving(key)
        engaged = any(keys.held(key) for key in (*MOVES, *GRIPS, STILL))
        grip = sum(sign * keys.moving(key) for key, sign in GRIPS.items())
        return Hand(engaged, np.clip(twist, -1.0, 1.0), grip)


def bindings(view_yaw: float = 0.0) -> list[tuple[str, str]]:
    """(keys, what they do) for a screen; directions are named in the base's axes, as `view_yaw`
    [rad] makes them."""
    arrows = [
        f"{arrow} {_axis(key, view_yaw)}"
        for key, arrow in zip(("up", "down", "left", "right"), "↑↓←→", strict=True)
    ]
    return [
        ("hold a key", "take the arm over; let go and the policy has it again"),
        ("arrows", ", ".join(arrows) + " (base axes)"),
        ("i k", "up, down"),
        ("j l", "turn left, right about the vertical"),
        ("t g", "tilt back, forward"),
        ("n m", "tilt right, left"),
        ("c o", "close, open the hand"),
        ("space", "hold still"),
        ("s or enter, q", "the episode succeeded, failed"),
        ("r, d", "drop the episode: same start again, next start"),
        ("p", "pause and go on"),
        ("escape", "end the session; run the same command to go on"),
    ]


def _axis(key: str, view_yaw: float) -> str:
    """The base axis, signed, along which a key moves mostly."""
    entry, sign = MOVES[key]
    twist = np.zeros(6)
    twist[entry] = sign
    moved = base_twist(twist, view_yaw)[:2]
    axis = int(np.argmax(np.abs(moved)))
    return f"{'+' if moved[axis] > 0 else '-'}{'xy'[axis]}"
