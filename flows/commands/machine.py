"""Defines the commands about this machine, its cameras and its virtual environments: `doctor`,
`camera board`, `camera calibrate`, `envs create`, `envs list`, `envs check`, `envs usd`,
`envs listen`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.commands import completers
from flows.commands.parameters import NARROWEST, Debug, Flag
from robots.errors import HandoffError

Squares = Annotated[int, Parameter(validator=Number(gte=3, lte=20))]
Millimetres = Annotated[float, Parameter(validator=Number(gte=5.0, lte=500.0))]
VenvName = Annotated[
    str,
    Parameter(
        name="NAME",
        help="Name of a virtual environment, e.g. gym_hil, or path of its YAML file.",
        completer=completers.virtual_envs,
    ),
]
VenvFolder = Annotated[
    Path | None,
    Parameter(help="Its folder; default: NAME in $HANDOFF_ENVS or ~/.local/share/handoff/envs."),
]


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
        console.print(line, soft_wrap=True, highlight=False, markup=False)
        for further in further_lines(check):
            console.print(Text(further), soft_wrap=True, highlight=False, markup=False)
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


def envs_create(
    name: VenvName,
    /,
    *,
    python: str | None = None,
    folder: VenvFolder = None,
    again: Flag = False,
    debug: Debug = False,
) -> None:
    """Make the virtual environment of an engine that cannot be installed beside Handoff, and check
    it; an interrupted one is continued.

    Its packages are pinned, in configs/envs.

    Args:
        python: Python program from which it is made; default: the running one.
        again: Make it anew, from nothing.

    Examples:
        handoff envs create gym_hil
        handoff envs create isaaclab --python /usr/bin/python3.11 --folder /data/isaaclab
    """
    from flows.virtual_envs.command import create_command

    create_command(name, python=python, folder=folder, again=again, say=_print)


def envs_list(*, debug: Debug = False) -> None:
    """List the virtual environments that can be made, and those that exist.

    Examples:
        handoff envs list
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from flows.virtual_envs.command import venv_rows
    from sim.servers.venvs import venvs_folder

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, NARROWEST)
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("name", "state", "python", "about"):
        grid.add_column(heading, no_wrap=heading == "name")
    for row in venv_rows():
        grid.add_row(*(Text(cell) for cell in row))
    console.print(grid)
    console.print(f"\nThey are in {venvs_folder()}.", style="dim", highlight=False, markup=False)


def envs_check(name: VenvName, /, *, folder: VenvFolder = None, debug: Debug = False) -> None:
    """Check a virtual environment: versions, imports, and a few steps of its environments.

    Examples:
        handoff envs check gym_hil
    """
    from flows.virtual_envs.command import check_command

    check_command(name, folder=folder, say=_print)


def envs_usd(
    robot: Annotated[str, Parameter(name="ROBOT", help="Name of an arm, e.g. fr3.")] = "fr3",
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="Folder of the file; default: the cache of Isaac Lab's tasks.")
    ] = None,
    venv: Annotated[
        str, Parameter(help="Virtual environment with the converter, a name or its folder.")
    ] = "isaaclab",
    debug: Debug = False,
) -> None:
    """Convert an arm with its gripper to USD, for Isaac Lab, and print the path of the file.

    The tasks in Isaac Lab convert what they need themselves; this is for scenes of your own.
    Joints, limits, masses, gravity compensation and colours are those of the arm in MuJoCo.

    Examples:
        handoff envs usd fr3
        handoff envs usd panda --out usd
    """
    from flows.virtual_envs.usd import usd_command

    usd_command(robot, out=out, venv=venv, say=_print)


def envs_listen(
    address: str = "127.0.0.1:8770",
    /,
    *,
    most: Annotated[int, Parameter(validator=Number(gte=1, lte=1024))] = 16,
    debug: Debug = False,
) -> None:
    """Start environment servers for other machines that have the token in $HANDOFF_TOKEN.

    Where Handoff is not installed, `python -m sim.servers.listen` does the same; it needs NumPy and
    msgpack only.

    Args:
        address: Address to listen at, HOST:PORT.
        most: Largest number of servers at once.

    Examples:
        handoff envs listen
        handoff envs listen 0.0.0.0:8770 --most 4
    """
    from sim.servers.listen import listen

    listen(address, most, _print)


def _print(line: str) -> None:
    from rich.console import Console

    Console().print(line, highlight=False, markup=False, soft_wrap=True)
