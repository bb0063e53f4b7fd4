"""Reads key presses from the terminal in focus, without a listener on the whole desktop.

A terminal reports presses, never releases: a held key is one press, silence for the keyboard's
delay (250 to 660 ms, set by the desktop), then about thirty presses per second. `Keys` derives from
them which keys are held.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import termios
import threading
import tty
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from robots.errors import HandoffError

ESCAPE = "escape"
END = "end"
_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
    b"\x1b[F": END,
    b"\x1bOF": END,
    b"\x1b[4~": END,
    b"\x1b[8~": END,
}
_NAMES = {b" ": "space", b"\r": "enter", b"\n": "enter", b"\x7f": "backspace", b"\x08": "backspace"}
_FATAL = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end the process at once; the terminal is restored first."""


class Terminal:
    """A terminal in character mode; `close`, the end of the interpreter, SIGTERM and SIGHUP restore
    its mode.

    Ctrl-C and Ctrl-Z keep their meaning. SIGKILL leaves the mode as it is: run `stty sane` in the
    shell.

    Args:
        path: path of the terminal; `/dev/tty` is the process's terminal, even if its standard input
            is another file.

    Raises:
        HandoffError: the process has no terminal.
    """

    def __init__(self, path: Path | str = "/dev/tty") -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY)
            self._saved: list[Any] = termios.tcgetattr(self._descriptor)
        except (OSError, termios.error) as error:
            raise HandoffError(
                f"{path}: no terminal ({error}). Was the session started without one, such as by a service?"
            ) from None
        self._open = True
        self._rest = b""
        """Bytes that may begin another key."""
        self._handlers: dict[int, Any] = {}
        atexit.register(self.close)
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in _FATAL}
        tty.setcbreak(self._descriptor, termios.TCSANOW)

    def read(self) -> list[str]:
        """Names of the keys pressed since the last call, in order; never waits.

        Raises:
            HandoffError: the terminal is gone.
        """
        data = b""
        while select.select([self._descriptor], [], [], 0.0)[0]:
            try:
                part = os.read(self._descriptor, 1024)
            except OSError as error:
                raise HandoffError(
                    f"keyboard: the terminal is gone ({error}). Was its window closed?"
                ) from None
            if not part:
                raise HandoffError("keyboard: the terminal is gone. Was its window closed?")
            data += part
        keys, self._rest = parse_keys(self._rest, data)
        return keys

    def write(self, text: str) -> None:
        """Writes `text` to the terminal."""
        os.write(self._descriptor, text.encode())

    def close(self) -> None:
        """Restores the terminal's mode; a second call does nothing."""
        if not self._open:
            return
        self._open = False
        # The terminal of a closed window has no mode to restore.
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._saved)
        os.close(self._descriptor)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        atexit.unregister(self.close)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.close()
        # The handlers are restored, so the signal now has its original effect.
        os.kill(os.getpid(), number)


def parse_keys(rest: bytes, data: bytes) -> tuple[list[str], bytes]:
    """Names of the keys in a terminal's bytes, and the last bytes, which may begin another key.

    Args:
        rest: bytes that the call before returned; if no new ones follow, they are the key Escape.
        data: new bytes.
    """
    waiting = rest + data
    if not data and rest:
        return [ESCAPE], b""
    keys = []
    while waiting:
        if waiting[:1] == b"\x1b":
            known = [sequence for sequence in _SEQUENCES if waiting.startswith(sequence)]
            if known:
                keys.append(_SEQUENCES[known[0]])
                waiting = waiting[len(known[0]) :]
            elif any(sequence.startswith(waiting) for sequence in _SEQUENCES):
                return keys, waiting
            elif waiting[1:2] in (b"[", b"O"):
                waiting = _after_sequence(waiting)
            else:
                keys.append(ESCAPE)
                waiting = waiting[1:]
            continue
        keys.append(_NAMES.get(waiting[:1], waiting[:1].decode("latin-1").lower()))
        waiting = waiting[1:]
    return keys, b""


def _after_sequence(waiting: bytes) -> bytes:
    """The bytes behind an escape sequence of an unused key, such as a function key's."""
    for place, byte in enumerate(waiting[2:], 2):
        if 0x40 <= byte <= 0x7E:
            return waiting[place + 1 :]
    return b""


class Keys:
    """Derives which keys are held from presses and their repetition.

    Args:
        hold_time: time for which a single press counts as held [s]; longer than the keyboard's
            delay before repetition.
        repeat_time: time for which a repeated press counts as held, and for which any press moves
            something [s].
        now: returns the time [s].
    """

    def __init__(self, hold_time: float, repeat_time: float, now: Callable[[], float]) -> None:
        self._hold_time = hold_time
        self._repeat_time = repeat_time
        self._now = now
        self._pressed: dict[str, float] = {}
        """Time of each key's last press [s]."""
        self._until: dict[str, float] = {}
        """Time until which each key counts as held [s]."""

    def press(self, keys: Sequence[str]) -> None:
        """Takes presses, in their order."""
        now = self._now()
        for key in keys:
            # A held key is silent for the keyboard's delay after its first press, and repeats
            # quickly afterwards.
            repeated = now - self._pressed.get(key, -self._hold_time) < self._repeat_time
            until = now + (self._repeat_time if repeated else self._hold_time)
            self._until[key] = max(until, self._until.get(key, until))
            self._pressed[key] = now

    def held(self, key: str) -> bool:
        """Whether the key counts as held."""
        return self._now() < self._until.get(key, -1.0)

    def moving(self, key: str) -> bool:
        """Whether the key was pressed within `repeat_time`: a short tap is a small step."""
        return self._now() < self._pressed.get(key, -1.0) + self._repeat_time

    def release(self) -> None:
        """Releases all keys."""
        self._pressed.clear()
        self._until.clear()
