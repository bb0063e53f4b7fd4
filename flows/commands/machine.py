"""Defines the commands about this machine and its cameras: `doctor`, `camera board`, `camera
calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.commands.parameters import Debug, Flag
from robots.errors import HandoffError

Squares = Annotated[int, Parameter(validator=Number(gte=3, lte=20))]
Millimetres = Annotated[float, Parameter(validator=Number(gte=5.0, lte=500.0))]


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


def camera_board(
    out: Path = Path("board.pdf"),
    /,
    *,
    columns: Squares = 7,
    rows: Squares = 5,
    square_mm: Millimetres = 35.0,
    debug: Debug = False,
) -> None:
    """Write the board for the calibration of cameras, to be printed at its stated size.

    It is a ChArUco board; the usual one fits on A4.

    Args:
        out: File to write, .pdf or .png.
        columns: Number of squares along the width.
        rows: Number of squares along the height.
        square_mm: Side of a square [mm].

    Examples:
        handoff camera board
        handoff camera board large.png --columns 10 --rows 7 --square-mm 50
    """
    from real.cameras.calibration.board import BoardConfig, save_board

    _print(save_board(BoardConfig(columns=columns, rows=rows, square=square_mm / 1e3), out))


def camera_calibrate(
    camera: str,
    /,
    *,
    episodes: Path | None = None,
    mount: Literal["gripper", "table"] = "gripper",
    columns: Squares = 7,
    rows: Squares = 5,
    square_mm: Millimetres = 35.0,
    views: Annotated[int, Parameter(validator=Number(gte=10, lte=40))] = 25,
    seconds: Annotated[float, Parameter(validator=Number(gt=0.0, lte=3600.0))] = 180.0,
    out: Path = Path("cameras.json"),
    debug: Debug = False,
) -> None:
    """Calibrate a camera by views of the board; with recorded episodes also its pose.

    Args:
        camera: Name and source of the camera, NAME=SOURCE; with --episodes the name alone.
        episodes: Recorded episodes with the arm's poses, in which the arm rests before the board.
        mount: Place of the camera: on the gripper, with the board on the table, or on the table,
            with the board in the gripper; for --episodes.
        columns: Number of the board's squares along the width.
        rows: Number of the board's squares along the height.
        square_mm: Side of a square as measured on the print [mm].
        views: Number of views that a camera is to give.
        seconds: Time limit for a camera [s].
        out: File of calibrated cameras, to which this one is added.

    Examples:
        handoff camera calibrate front=0 --square-mm 34.8
        handoff camera calibrate front=board.mp4 --out lab.json
        handoff camera calibrate wrist --episodes runs/record/board/demos.zarr
        handoff camera calibrate front --episodes runs/record/held/demos.zarr --mount table
    """
    from flows.datasets import find_store
    from flows.deployment.cameras.calibrate import calibrate_command
    from real.cameras.calibration.board import BoardConfig

    calibrate_command(
        camera,
        BoardConfig(columns=columns, rows=rows, square=square_mm / 1e3),
        out,
        episodes=None if episodes is None else find_store(episodes),
        mount=mount,
        views=views,
        seconds=seconds,
        say=_print,
    )


def _print(line: str) -> None:
    from rich.console import Console

    Console().print(line, highlight=False, markup=False, soft_wrap=True)
