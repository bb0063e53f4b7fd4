"""What `ps` shows of a process, for tests; empty where it has ended or belongs to somebody else."""

from __future__ import annotations

import psutil


def title(process: psutil.Process) -> str:
    """Command line of a process, or its title."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def variable(process: psutil.Process, name: str) -> str:
    """Environment variable of a process; a title hides them."""
    try:
        return process.environ().get(name, "")
    except psutil.Error:
        return ""
