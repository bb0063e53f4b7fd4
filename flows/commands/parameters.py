"""Names the parameters that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from flows.commands import completers

COMMON = Group("Common", sort_key=9)
"""Parameters that every command has."""
NARROWEST = 120
"""Minimum width of a table in a file or a pipe [characters]."""
LOOPBACK = "127.0.0.1"
"""Default of `--host`."""

Flag = Annotated[bool, Parameter(show_default=False)]
"""A switch that is off unless it is given."""
Debug = Annotated[Flag, Parameter(group=COMMON, help="Show tracebacks, and Prefect's log.")]
RecipeName = Annotated[
    str,
    Parameter(
        name="RECIPE",
        help="Name of a recipe, e.g. demo, or path of a YAML file; 'handoff list' prints the names.",
        completer=completers.recipes,
    ),
]
RecipeOverride = Annotated[
    str,
    Parameter(
        name="OVERRIDES",
        help="Changes of options: STAGE.KEY=VALUE, e.g. teacher.training.steps=2000, seed=1, or "
        "~STAGE, which removes a stage.",
        completer=completers.overrides,
    ),
]
Until = Annotated[
    str | None,
    Parameter(
        help="Run only this stage and the stages that it needs.",
        completer=completers.stage_names,
    ),
]
Redo = Annotated[
    tuple[str, ...],
    Parameter(
        help="Compute this stage again although it is cached; may be repeated.",
        show_default=False,
        completer=completers.stage_names,
    ),
]
Parallel = Annotated[
    int | None,
    Parameter(help="Number of stages that run at once; default: one per core, at most 8."),
]
FailFast = Annotated[Flag, Parameter(help="Stop all stages after the first failure.")]
Host = Annotated[
    str,
    Parameter(help="Address to listen at; other addresses than loopback need $HANDOFF_TOKEN."),
]
Port = Annotated[
    int,
    Parameter(help="Port to listen at; 0 takes a free one.", validator=Number(gte=0, lte=65535)),
]
Person = Annotated[
    str | None,
    Parameter(
        help="Name of the operator, recorded unless one at the console has given theirs; default: "
        "the login."
    ),
]
OperatorName = Literal["simulated", "keyboard", "spacemouse", "console"]
"""Operators of a correction session; a copy of `flows.session.config.OperatorKind`, whose module
is slow to import."""
Numbers = Annotated[int, Parameter(name="EPISODES", help="Numbers of episodes.", required=True)]
Format = Annotated[
    str | None,
    Parameter(help="Format of the data set, or dotted path of your own; default: recognised."),
]
NewStore = Annotated[Path, Parameter(help="Folder of the new store, which must not exist.")]
ReviewList = Literal[
    "all",
    "unreviewed",
    "changed",
    "unlabelled",
    "failures",
    "contradicted",
    "corrected",
    "faults",
    "dropped",
    "short",
]
"""Lists of a review; a copy of `flows.review.episode_rows.Shown`, whose module imports NumPy."""
By = Annotated[str, Parameter(help="Person who edits; default: the login.", show_default=False)]
Reason = Annotated[str, Parameter(help="Reason for the edit, for the record.", show_default=False)]
RunPath = Annotated[
    Path,
    Parameter(
        name="RUN",
        help="Name of a run, e.g. demo, or its folder, e.g. runs/demo.",
        completer=completers.finished_runs,
    ),
]
DataPath = Annotated[
    Path,
    Parameter(
        name="DATA",
        help="File or folder of a data set in any known format, or the artifact of a stage.",
        completer=completers.artifacts,
    ),
]
StorePath = Annotated[
    Path,
    Parameter(
        name="STORE",
        help="Episode store, or the artifact of a stage that holds one.",
        completer=completers.artifacts,
    ),
]
StorePaths = Annotated[
    Path,
    Parameter(
        name="STORES",
        required=True,
        help="Episode stores, or artifacts that hold one.",
        completer=completers.artifacts,
    ),
]
