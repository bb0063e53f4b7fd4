"""Makes a person at the keys of a terminal an operator, who takes over by holding a key.

A takeover lasts while any key that moves, closes, opens or holds still is down, and for as long
after as a terminal needs to tell a held key from a released one (`hold_time`, the dead-man
time-out). Labels have LeRobot's keys. A terminal repeats only the last key, so one direction can be
held at a time; others can be tapped beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Protocol

import numpy as np

from real.teleop.takeover import HandInput, Takeover, TakeoverConfig, base_twist
from real.teleop.terminal import END, ESCAPE, Keys, Terminal
from robots.config import Delay, config
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
"""Entry of the twist, in the person's axes (forward, left, up, and rotation about these), and its
sign, by key."""
GRIPS = {"c": -1, "o": 1}
"""Gripper command, -1 close or 1 open, by key."""
STILL = "space"
"""Key that takes the arm over and moves nothing."""
LABELS = {
    "s": Label.SUCCESS,
    "q": Label.FAILURE,
    "r": Label.REDO,
    "d": Label.DISCARD,
}
"""Labels of the episode, by key; the same keys as at the console."""
HOLD = ESCAPE
RESUME = "enter"
AGAIN_SECONDS = 2.0
"""Time in which the key that ends the session is pressed again for the session to end [s]; a
terminal cannot tell that a key is held."""


@config
class KeyboardConfig:
    """Time limits of held keys, and scaling of the motion."""

    hold_time: Delay = 0.7
    """Time for which a first press keeps the arm, the dead-man time-out [s]. It must exceed the
    keyboard's delay before repetition, which is 500 ms on most desktops and 660 ms on plain X11."""
    repeat_time: Delay = 0.15
    """Time for which a repeated press keeps the arm, and for which any press moves it [s]."""
    takeover: TakeoverConfig = field(
        default_factory=lambda: TakeoverConfig(translation=0.6, rotation=0.6)
    )
    """Scaling and axes of the motion. A key is always fully deflected, so full speed is less than a
    SpaceMouse's."""


class KeySource(Protocol):
    """A source of key presses; `real.teleop.terminal.Terminal` is one."""

    def read(self) -> list[str]:
        """Names of the keys pressed since the last call."""
        ...

    def close(self) -> None:
        """Releases the keyboard."""
        ...


class LabelKeys:
    """Labels, hold and end by the keyboard, beside any device that moves the arm.

    Args:
        now: returns the time [s].
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._end_pressed = -AGAIN_SECONDS
        self.paused = False
        self._stop = False
        self._label = Label.NONE
        self.last = Label.NONE
        """The last label given, in this episode or before."""

    def press(self, keys: Sequence[str]) -> None:
        """Takes key presses, in their order."""
        for key in keys:
            if key in LABELS:
                self._label = LABELS[key]
                self.last = LABELS[key]
            elif key == HOLD:
                self.paused = True
            elif key == RESUME:
                self.paused = False
            elif key == END:
                self._stop |= self._ending
                self.paused = True
                self._end_pressed = self._now()

    @property
    def _ending(self) -> bool:
        return self._now() - self._end_pressed < AGAIN_SECONDS

    def requests(self) -> Requests:
        """See `robots.interfaces.Operator.requests`."""
        label = self._label
        self._label = Label.NONE
        return Requests(label, self.paused, self._stop)

    def status(self, engaged: bool) -> str:
        """See `robots.interfaces.Operator.status`."""
        if self._ending:
            return "HOLD, End again ends the session, Enter resumes"
        mode = "HOLD, Enter resumes" if self.paused else "YOU" if engaged else "policy"
        return mode if self.last is Label.NONE else f"{mode}, last label {self.last.name.lower()}"


class KeyboardOperator:
    """Implements `robots.interfaces.Operator` for one environment.

    Args:
        spec: actions of the environment.
        operator: name of the person.
        config: time limits and scaling; None takes the defaults.
        keys: source of key presses; None takes this process's terminal.
        now: returns the time [s].
        width_max: largest opening of the gripper [m]; None if actions have no entry for one.

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
        width_max: float | None = None,
    ) -> None:
        config = config or KeyboardConfig()
        self._takeover = Takeover(spec, config.takeover, operator, "keyboard", now, width_max)
        self._keys = Keys(config.hold_time, config.repeat_time, now)
        self._labels = LabelKeys(now)
        self._source = keys or Terminal()

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> None:
        """See `robots.interfaces.Operator`; keys that are still held count as released."""
        self._poll()
        self._keys.release()
        self._takeover.reset()

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        """See `robots.interfaces.Operator`.

        Raises:
            HandoffError: more than one environment, or the terminal is gone.
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

    def _hand(self) -> HandInput:
        keys, twist = self._keys, np.zeros(6)
        for key, (entry, sign) in MOVES.items():
            twist[entry] += sign * keys.moving(key)
        engaged = any(keys.held(key) for key in (*MOVES, *GRIPS, STILL))
        grip = sum(sign * keys.moving(key) for key, sign in GRIPS.items())
        return HandInput(engaged, np.clip(twist, -1.0, 1.0), grip)


def bindings(view_yaw: float = 0.0) -> list[tuple[str, str]]:
    """Keys and their meaning, for a screen; directions are named in base axes, for a person who
    looks along `view_yaw` [rad]."""
    arrows = [
        f"{arrow} {_axis(key, view_yaw)}"
        for key, arrow in zip(("up", "down", "left", "right"), "↑↓←→", strict=True)
    ]
    return [
        ("hold a key", "take over the arm; release it to give the arm back"),
        ("arrows", ", ".join(arrows) + " (base axes)"),
        ("i k", "up, down"),
        ("j l", "turn left, right about the vertical"),
        ("t g", "tilt back, forward"),
        ("n m", "tilt right, left"),
        ("c o", "close, open the gripper"),
        ("space", "take over the arm and keep it still"),
        ("s, q", "label the episode: success, failure"),
        ("r, d", "drop the episode: repeat its start, take the next start"),
        ("escape, enter", "hold the arm, resume"),
        ("end, end", "end the session; run the same command to continue"),
    ]


def _axis(key: str, view_yaw: float) -> str:
    """The base axis, with its sign, along which a key moves the gripper most."""
    entry, sign = MOVES[key]
    twist = np.zeros(6)
    twist[entry] = sign
    moved = base_twist(twist, view_yaw)[:2]
    axis = int(np.argmax(np.abs(moved)))
    return f"{'+' if moved[axis] > 0 else '-'}{'xy'[axis]}"
