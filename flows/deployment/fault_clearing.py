"""Implements `handoff clear-fault HOST`: a person clears the kept fault of an arm."""

from __future__ import annotations

import sys

from robots.errors import HandoffError


def clear_fault_command(host: str, person: str | None, cause: str | None) -> None:
    """Shows the kept fault of the arm at `host`, asks for what is not given, and clears it.

    Args:
        host: name or address of the robot's control.
        person: the person who found the cause; None asks in this terminal.
        cause: the cause; None asks in this terminal.

    Raises:
        HandoffError: no fault is kept, the arm is in use, or a part is missing without a terminal.
    """
    from rich.console import Console

    from real.franka.kept_faults import clear_fault, faults_file, kept_fault
    from real.franka.slot import robot_slot

    screen = Console()
    # Not while a session is running, which would not notice.
    with robot_slot(host, "arm"):
        fault = kept_fault(host)
        if fault is not None:
            screen.print(str(fault), highlight=False, soft_wrap=True, markup=False)
            person = _answer("--person", "Your name", person)
            cause = _answer("--cause", "Cause of the fault", cause)
        clear_fault(host, person or "", cause or "")
    screen.print(
        f"cleared  {host}, recorded in {faults_file(host)}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def _answer(option: str, question: str, given: str | None) -> str:
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise HandoffError(f"clear-fault: {option} is missing, and there is no terminal to ask in.")
    return input(f"{question}: ")
