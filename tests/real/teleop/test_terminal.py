"""The terminal, on a pseudo-terminal: keys come one by one, and it is left as it was on any
exit."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import numpy as np
import pytest

from real.teleop.keyboard import KeyboardOperator
from real.teleop.terminal import Terminal, parse_keys
from robots.errors import HandoffError
from tests.real.teleop.hands import SPEC


@pytest.fixture
def line() -> Iterator[tuple[int, str]]:
    """Our end of a pseudo-terminal, and the path of the other."""
    ours, theirs = pty.openpty()
    yield ours, os.ttyname(theirs)
    os.close(ours)
    os.close(theirs)


def local_flags(path: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY)
    try:
        return termios.tcgetattr(descriptor)[3]
    finally:
        os.close(descriptor)


def typed(terminal: Terminal, count: int) -> list[str]:
    keys: list[str] = []
    deadline = time.monotonic() + 5.0
    while len(keys) < count and time.monotonic() < deadline:
        keys += terminal.read()
    return keys


def test_keys_arrive_without_enter_and_without_echo(line: tuple[int, str]) -> None:
    ours, path = line
    terminal = Terminal(path)
    os.write(ours, b"\x1b[A s\r")
    assert typed(terminal, 4) == ["up", "space", "s", "enter"]
    assert not local_flags(path) & (termios.ICANON | termios.ECHO)
    assert local_flags(path) & termios.ISIG, "Ctrl-C must keep its meaning"
    terminal.close()


def test_closing_twice_leaves_the_terminal_as_it_was(line: tuple[int, str]) -> None:
    before = local_flags(line[1])
    terminal = Terminal(line[1])
    terminal.close()
    terminal.close()
    assert local_flags(line[1]) == before


@pytest.mark.parametrize(
    "ending", ["raise SystemExit(3)", "raise ValueError('broken')", "os.kill(os.getpid(), 15)"]
)
def test_any_exit_leaves_the_terminal_as_it_was(line: tuple[int, str], ending: str) -> None:
    before = local_flags(line[1])
    code = f"import os; from real.teleop.terminal import Terminal; t = Terminal({line[1]!r}); print('raw'); {ending}"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.stdout == "raw\n" or result.returncode == -signal.SIGTERM
    assert result.returncode != 0
    assert local_flags(line[1]) == before


def test_a_terminal_that_is_none_is_refused(tmp_path: object) -> None:
    with pytest.raises(HandoffError, match="no terminal"):
        Terminal("/dev/null")


@pytest.mark.parametrize("sequence", [b"\x1b[F", b"\x1bOF", b"\x1b[4~", b"\x1b[8~"])
def test_the_end_key_is_read_from_every_terminal(sequence: bytes) -> None:
    assert parse_keys(b"", sequence + b"s") == (["end", "s"], b"")
    assert parse_keys(b"", sequence[:2]) == ([], sequence[:2])


def test_a_split_escape_sequence_is_one_key() -> None:
    assert parse_keys(b"", b"\x1b") == ([], b"\x1b")
    assert parse_keys(b"\x1b", b"[D") == (["left"], b"")


def test_an_escape_that_nothing_follows_is_the_escape_key() -> None:
    assert parse_keys(b"\x1b", b"") == (["escape"], b"")
    assert parse_keys(b"", b"\x1bs") == (["escape", "s"], b"")


def test_sequences_of_other_keys_are_passed_over() -> None:
    assert parse_keys(b"", b"\x1b[3~S\x1b[1;5A") == (["s"], b"")


def test_a_person_at_a_terminal_moves_the_arm(line: tuple[int, str]) -> None:
    ours, path = line
    operator = KeyboardOperator(SPEC, "ada", keys=Terminal(path), width_max=0.08)
    operator.reset([0])
    os.write(ours, b"\x1b[Cq")
    deadline, event = time.monotonic() + 5.0, None
    while time.monotonic() < deadline:
        event = operator.intervene(np.zeros((1, 5)), {"width_target": np.array([[0.08]])})
        if event.executed[0, 1] < 0.0:
            break
    assert event is not None
    assert event.intervening[0]
    assert event.executed[0, 1] < 0.0
    assert event.device == "keyboard"
    assert operator.requests().label.name == "FAILURE"
    operator.close()
