"""Defines the command `list`: tables of what there is, each entry with a phrase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, NamedTuple, get_args

from cyclopts import Parameter

from flows.commands import completers
from flows.commands.catalog import (
    Rows,
    algorithm_rows,
    claim_rows,
    format_rows,
    option_rows_of,
    policy_rows,
    protocol_rows,
    recipe_rows,
    robot_rows,
    stage_rows,
    task_rows,
)
from flows.commands.parameters import NARROWEST, Debug
from robots.errors import HandoffError

Topic = Literal[
    "recipes",
    "stages",
    "tasks",
    "policies",
    "algorithms",
    "protocols",
    "formats",
    "robots",
    "claims",
]


class Listing(NamedTuple):
    """One table."""

    headings: tuple[str, ...]
    rows: Callable[[], Rows]
    usage: str
    """How an entry is used, one line."""


def list_known(
    topic: Topic = "recipes",
    stage: Annotated[str | None, Parameter(completer=completers.stage_kinds)] = None,
    /,
    *,
    debug: Debug = False,
) -> None:
    """List recipes, kinds of stages, tasks, policies, algorithms, protocols, formats of data sets,
    robots or claims of the results, each with a phrase; `stages STAGE` lists the options of one.

    Args:
        topic: What to list.
        stage: With 'stages': a kind of stage whose options are listed, or those below a path of
            it, e.g. pretrain.training.

    Examples:
        handoff list
        handoff list stages
        handoff list stages pretrain
        handoff list stages offline.algorithm
        handoff list algorithms
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if stage is not None and topic != "stages":
        raise HandoffError(f"'{stage}': only 'handoff list stages' takes a name.")
    listing = listings()[topic] if stage is None else options_of(stage)
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, NARROWEST)
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for heading in listing.headings:
        grid.add_column(heading, no_wrap=heading is listing.headings[0] and stage is None)
    for row in listing.rows():
        grid.add_row(*(Text(cell) for cell in row))
    console.print(grid)
    others = ", ".join(name for name in get_args(Topic) if name != topic)
    console.print(f"\n{listing.usage}", style="dim", highlight=False, markup=False)
    if topic == "recipes":
        console.print(
            f"'handoff list TOPIC' lists {others}.", style="dim", highlight=False, markup=False
        )


def options_of(stage: str) -> Listing:
    """Returns the table of the options of a kind of stage, e.g. `pretrain`, or of those below a
    path of it, e.g. `pretrain.training`.

    Raises:
        HandoffError: no such kind, or nothing at that path.
    """
    headings = ("option", "type", "default", "meaning")
    usage = "A recipe sets one below 'with' of the stage, an override as STAGE.OPTION=VALUE."
    return Listing(headings, lambda: option_rows_of(stage), usage)


def listings() -> Mapping[str, Listing]:
    """Returns every table, by topic."""
    return {
        "recipes": Listing(
            ("recipe", "about"), recipe_rows, "'handoff run RECIPE' runs one, 'plan' plans it."
        ),
        "stages": Listing(
            ("stage", "inputs", "makes", "about"),
            stage_rows,
            "A recipe names one by 'uses'; '?' marks an optional input, '..' a list; 'handoff list "
            "stages STAGE' lists the options of one.",
        ),
        "tasks": Listing(
            ("task", "about"), task_rows, "Tasks of an arm, by the key 'task' of an environment."
        ),
        "policies": Listing(
            ("policy", "about"),
            policy_rows,
            "'policy: {kind: POLICY}' of a stage; configs/policy has named settings.",
        ),
        "algorithms": Listing(
            ("stage", "algorithm", "about"),
            algorithm_rows,
            "'algorithm: {kind: ALGORITHM}' of the stage.",
        ),
        "protocols": Listing(
            ("protocol", "about"),
            protocol_rows,
            "'handoff evaluate PROTOCOL', or the key 'protocol'.",
        ),
        "formats": Listing(
            ("format", "about"),
            format_rows,
            "'handoff episodes info DATA' and the stage 'ingest' recognise the format by themselves.",
        ),
        "robots": Listing(("robot", "about"), robot_rows, "The key 'robot' of a stage."),
        "claims": Listing(
            ("claim", "about"), claim_rows, "'handoff reproduce --claim CLAIM' repeats one."
        ),
    }
