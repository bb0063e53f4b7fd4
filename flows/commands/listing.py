"""Defines the command `list`: tables of what there is, each entry with a phrase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, get_args

from flows.commands.catalog import (
    Rows,
    algorithm_rows,
    format_rows,
    policy_rows,
    protocol_rows,
    recipe_rows,
    robot_rows,
    stage_rows,
    task_rows,
)
from flows.commands.parameters import NARROWEST, Debug

Topic = Literal[
    "recipes", "stages", "tasks", "policies", "algorithms", "protocols", "formats", "robots"
]


class Listing(NamedTuple):
    """One table."""

    headings: tuple[str, ...]
    rows: Callable[[], Rows]
    usage: str
    """How an entry is used, one line."""


def list_known(topic: Topic = "recipes", /, *, debug: Debug = False) -> None:
    """List recipes, kinds of stages, tasks, policies, algorithms, protocols, formats of data sets
    or robots, each with a phrase.

    Args:
        topic: What to list.

    Examples:
        handoff list
        handoff list stages
        handoff list algorithms
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    listing = listings()[topic]
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, NARROWEST)
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for heading in listing.headings:
        grid.add_column(heading, no_wrap=heading is listing.headings[0])
    for row in listing.rows():
        grid.add_row(*(Text(cell) for cell in row))
    console.print(grid)
    others = ", ".join(name for name in get_args(Topic) if name != topic)
    console.print(f"\n{listing.usage}", style="dim", highlight=False)
    if topic == "recipes":
        console.print(f"'handoff list TOPIC' lists {others}.", style="dim", highlight=False)


def listings() -> Mapping[str, Listing]:
    """Returns every table, by topic."""
    return {
        "recipes": Listing(
            ("recipe", "about"), recipe_rows, "'handoff run RECIPE' runs one, 'plan' plans it."
        ),
        "stages": Listing(
            ("stage", "inputs", "makes", "about"),
            stage_rows,
            "A recipe names one by 'uses'; '?' marks an optional input, '..' a list.",
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
            ("format", "about"), format_rows, "The stage 'ingest' recognises the format by itself."
        ),
        "robots": Listing(("robot", "about"), robot_rows, "The key 'robot' of a stage."),
    }
