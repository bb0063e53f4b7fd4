"""Defines the command `tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from flows.commands.parameters import Debug


def tune(
    store: Path,
    /,
    *overrides: Annotated[
        str,
        Parameter(
            name="OVERRIDES",
            help="Options of the stage tune, KEY=VALUE, e.g. parameters.kind=per_joint.",
        ),
    ],
    out: Path = Path("runs/tune"),
    debug: Debug = False,
) -> None:
    """Tune the simulated arm to recorded motions of a robot.

    Writes dynamics.json and report.html, and prints what the motions do not determine. An
    interrupted search resumes.

    Args:
        store: Episode store of recorded motions, or the folder of an artifact that has one.
        out: Folder of the results.

    Examples:
        handoff tune recordings/store.zarr
        handoff tune recordings parameters.kind=per_joint --out runs/tuned
    """
    from flows.tune import tune_command

    tune_command(store, out, overrides)
