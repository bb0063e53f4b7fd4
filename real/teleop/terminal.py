"""Keys from a terminal, one by one, without a listener on the whole desktop: only the terminal in
focus is read.

A terminal tells presses, never releases: a held key is one press, silence for the keyboard's delay
(250 to 660 ms, as the desktop has it), then some thirty presses per second. `Keys` makes holding
out of that.
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
_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
}
_NAMES = {b" ": "space", b"\r": "enter", b"\n": "enter", b"\x7f": "backspace", b"\x08": "backspace"}
_FATAL = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end the process without running anything; the terminal is put right first."""


class Terminal:
    """A terminal in character mode, left as it was by `close`, by the interpreter's end, and by
    SIGTERM and SIGHUP.

    Ctrl-C and Ctrl-Z keep their meaning. After SIGKILL the shell's `stty sane` helps, as after any
    program.

    Args:
        path: of the terminal; a process that was started with another standard input still has
            `/dev/tty`.

    Raises:
        HandoffError: there is none.
    """

    def __init__(self, path: Path | str = "/dev/tty") -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY)
            self._saved: list[Any] = termios.tcgetattr(self._descriptor)
        except (OSError, termios.error) as error:
            raise HandoffError(
                f"{path}: no terminal ({error}). Was the session started without one, such as by a service?"
            ) from None
        self._open, self._rest = True, b""
        self._handlers: dict[int, Any] = {}
        atexit.register(self.close)
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in _FATAL}
        tty.setcbreak(self._descriptor, termios.TCSANOW)

    def read(self) -> list[str]:
        """Names of the keys that were pressed since the last call, in order; never waits.

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
        """Puts the terminal back; a second call does nothing."""
        if not self._open:
            return
        self._open = False
        # A window that was closed has nothing left to be put right.
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._saved)
        os.close(self._descriptor)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        atexit.unregister(self.close)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.close()
        # What would have happened without a terminal happens now.
        os.kill(os.getpid(), number)


def parse_keys(rest: bytes, data: bytes) -> tuple[list[str], bytes]:
    """Names of keys in what a terminal sent, and the bytes that may be the beginning of one more.

    Args:
        rest: left over by the call before; where nothing follows it, an escape byte was the key.
        data: new bytes.
    """
    waiting = rest + data
    if not data and rest:
        return [ESCAPE], b""
    keys = []
    while waiting:
        if waiting[:1] == b"\x1b":
            if waiting[:3] in _SEQUENCES:
                keys.append(_SEQUENCES[waiting[:3]])
                waiting = waiting[3:]
            elif len(waiting) < 3 and any(sequence.startswith(waiting) for sequence in _SEQUENCES):
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
    """What follows an escape sequence that no key here is bound to, such as a function key's."""
    for place, byte in enumerate(waiting[2:], 2):
        if 0x40 <= byte <= 0x7E:
            return waiting[place + 1 :]
    return b""


class Keys:
    """Which keys are held, made out of presses and their repetition.

    Args:
        first: time for which a single press counts as held [s]; longer than the keyboard's delay
            before repetition.
        again: time for which a repeated press does [s].
        now: time [s].
    """

    def __init__(self, first: float, again: float, now: Callable[[], float]) -> None:
        self._first, self._again, self._now = first, again, now
        self._pressed: dict[str, float] = {}
        """When each key was last pressed [s]."""
        self._until: dict[str, float] = {}

    def press(self, keys: Sequence[str]) -> None:
        """Takes presses in, in their order."""
        now = self._now()
        for key in keys:
            # After a lone press the next one of a held key is long in coming, after a repeated one
            # it is not.
            repeated = now - self._pressed.get(key, -self._first) < self._again
            kept = now + (self._again if repeated else self._first)
            self._until[key] = max(kept, self._until.get(key, kept))
            self._pressed[key] = now

    def held(self, key: str) -> bool:
        """Whether the key counts as held."""
        return self._now() < self._until.get(key, -1.0)

    def moving(self, key: str) -> bool:
        """Whether it was pressed so lately that it moves something: a short tap is a small step."""
        return self._now() < self._pressed.get(key, -1.0) + self._again

    def release(self) -> None:
        """Nothing is held any more."""
        self._pressed.clear()
        self._until.clear()
