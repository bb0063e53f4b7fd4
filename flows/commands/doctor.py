"""Defines the command `doctor`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.commands.parameters import Debug, Flag
from robots.errors import HandoffError


def doctor(
    *,
    robot: Annotated[
        str | None,
        Parameter(
            help="Address of the arm that this computer controls: what the arm needs is then a "
            "failure if it is missing, and its controller is asked for its version. Not for use "
            "beside a session."
        ),
    ] = None,
    seconds: Annotated[float, Parameter(validator=Number(gte=0.0, lte=3600.0))] = 5.0,
    json: Flag = False,
    debug: Debug = False,
) -> None:
    """Check this machine: one line per check, OK or what to do.

    Looks at packages, graphics, disk, memory, ports, clock, Prefect, recipes, and what an arm's
    1 kHz loop needs. Changes nothing. The exit code is 1 if a check failed; warnings do not fail.

    Args:
        seconds: Duration of the measurement of wake-ups [s]; 0 leaves it out.
        json: Print one JSON object instead of lines.

    Examples:
        handoff doctor
        handoff doctor --seconds 60 --json
        handoff doctor --robot 172.16.0.2
    """
    from rich.console import Console
    from rich.text import Text

    from flows.doctor.examine import examine
    from flows.doctor.report import (
        STYLES,
        as_json,
        failed_names,
        further_lines,
        status_cell,
        text_line,
    )

    console = Console()
    checks = []
    for check in examine(robot, seconds):
        checks.append(check)
        if json:
            continue
        line = Text.assemble((status_cell(check), STYLES[check.status]), text_line(check))
        console.print(line, soft_wrap=True, highlight=False)
        for further in further_lines(check):
            console.print(Text(further), soft_wrap=True, highlight=False)
    if json:
        console.print(as_json(checks), soft_wrap=True, highlight=False, markup=False)
    failed = failed_names(checks)
    if failed:
        raise HandoffError(f"doctor: {len(failed)} of {len(checks)} failed: {', '.join(failed)}.")
