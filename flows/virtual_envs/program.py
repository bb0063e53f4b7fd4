"""Runs a short program of another Python, and says in one line why it failed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from robots.errors import HandoffError


def run_program(
    command: Sequence[str],
    seconds: float,
    *,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Runs a program to its end; returns what it printed.

    Args:
        command: the program and its arguments.
        seconds: time limit [s].
        folder: its working directory; None takes this process's.
        variables: its environment variables; None takes this process's.

    Raises:
        HandoffError: it takes longer, or fails; the message is the last line of its errors, to
            follow what it was to do.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            cwd=folder,
            env=variables,
        )
    except subprocess.TimeoutExpired:
        raise HandoffError(f"it takes more than {seconds:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise HandoffError(lines[-1])
    return done.stdout
