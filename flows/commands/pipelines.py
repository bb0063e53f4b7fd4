"""Defines the commands that run recipes: `plan`, `run`, `show`, `profile`, and those of a Prefect
server: `server`, `register`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.commands.parameters import (
    LOOPBACK,
    Debug,
    FailFast,
    Flag,
    Parallel,
    Port,
    RecipeName,
    RecipeOverride,
    Redo,
    RunPath,
    Until,
)
from robots.errors import HandoffError

if TYPE_CHECKING:
    from flows.runner.stage import Stage

OwnRecipe = Annotated[
    tuple[str, ...],
    Parameter(
        name="--recipe",
        help="Path of a recipe of your own, deployed as well; may be repeated.",
        show_default=False,
    ),
]
RobotName = Annotated[
    tuple[str, ...],
    Parameter(
        name="--robot",
        help="Name of a robot, whose runs have a work pool of their own, robot-NAME; may be repeated.",
        show_default=False,
    ),
]
Folder = Annotated[
    Path,
    Parameter(
        help="Folder in which the recipes run, and to which paths such as runs refer.",
        show_default=False,
    ),
]


def run(
    recipe: RecipeName,
    /,
    *overrides: RecipeOverride,
    until: Until = None,
    redo: Redo = (),
    parallel: Parallel = None,
    fail_fast: FailFast = False,
    debug: Debug = False,
) -> None:
    """Run a recipe; stages that are cached are skipped.

    Ends with a summary, and with a report in runs/NAME. An interrupted run resumes. After a failure
    the stages that do not need the failed one go on.

    Examples:
        handoff run demo
        handoff run demo teacher.training.steps=2000 seed=1
        handoff run my_recipe.yaml --until teacher
        handoff run demo --redo gate
    """
    from flows.run import run as run_recipe

    path = run_recipe(
        recipe,
        overrides,
        until=until,
        redo=redo,
        parallel=parallel,
        fail_fast=fail_fast,
        debug=debug,
        announce=print_missing,
    )
    print_summary(path)


def print_missing(pending: Sequence[Stage]) -> None:
    """Prints what this computer lacks before hours have passed; stages of other work pools run
    elsewhere."""
    from flows.commands.requirements import missing

    for sentence, names in missing([stage for stage in pending if not stage.pool]).items():
        print(f"missing  {sentence} ({', '.join(names)})", file=sys.stderr)  # noqa: T201


def show(run: RunPath, /, *, debug: Debug = False) -> None:
    """Print the summary of a finished run again.

    Examples:
        handoff show demo
        handoff show runs/hil/reach
    """
    from flows.reports.run_records.reading import SUMMARY, find_run, read_run
    from flows.reports.run_records.run_text import unfinished

    folder = find_run(run, files=(SUMMARY,))
    print_summary(folder / SUMMARY)
    for line in unfinished(read_run(folder)):
        print(line)  # noqa: T201  a result, as the table above it


def plan(
    recipe: RecipeName, /, *overrides: RecipeOverride, until: Until = None, debug: Debug = False
) -> None:
    """Print the stages of a recipe: what would run and why, how long, and what is missing here.

    Time, memory and disk are those of earlier runs on this machine. Nothing is run or downloaded.

    Examples:
        handoff plan demo
        handoff plan vla_ppo teacher.rollouts=10
    """
    from flows.commands.planning import print_plan

    print_plan(recipe, overrides, until)


def profile(
    recipe: RecipeName,
    /,
    *overrides: RecipeOverride,
    seconds: Annotated[
        float,
        Parameter(
            help="Duration of the measurements [s]; each is made three times at least.",
            validator=Number(gt=0.0),
        ),
    ] = 60.0,
    json: Annotated[Flag, Parameter(help="Print one JSON object instead of tables.")] = False,
    debug: Debug = False,
) -> None:
    """Predict the speed of a recipe by placement, or by the number of environments.

    Examples:
        handoff profile vla_ppo
        handoff profile vla_ppo teacher.num_envs=200 --seconds 30 --json
        handoff profile reach_ppo
    """
    from flows.commands.requirements import missing
    from flows.profiling.command import profile_command

    def check(measured: Sequence[Stage]) -> None:
        lacking = missing(measured)
        if lacking:
            raise HandoffError(f"profile: {' '.join(lacking)}")

    profile_command(recipe, overrides, seconds, json, check)


def server(
    *,
    host: Annotated[
        str,
        Parameter(
            help="Address to listen at; other addresses than loopback need "
            "$PREFECT_SERVER_API_AUTH_STRING."
        ),
    ] = LOOPBACK,
    port: Port = 4200,
    results_port: Annotated[Port, Parameter(help="Port at which the results are served.")] = 4201,
    folder: Folder = Path(),
    recipe: OwnRecipe = (),
    robot: RobotName = (),
    limit: Annotated[
        int | None,
        Parameter(
            help="Number of recipes that run at once in each work pool; default: 1 in a new one.",
            validator=Number(gte=1),
        ),
    ] = None,
    no_workers: Annotated[Flag, Parameter(help="Run nothing here; workers elsewhere do.")] = False,
    debug: Debug = False,
) -> None:
    """Run a Prefect server with every recipe deployed, a worker, and a page of the results.

    Ends with Ctrl-C. Work pools: cpu, gpu (a worker where there is a GPU), and one per robot.

    Examples:
        handoff server
        handoff server --port 4300 --results-port 4301 --recipe my_recipe.yaml
        handoff server --robot fr3
    """
    from rich.console import Console

    from flows.orchestration.serving.server import ServerOptions, serve_prefect

    screen = Console()

    options = ServerOptions(
        host=host,
        port=port,
        results_port=results_port,
        folder=folder,
        recipes=recipe,
        robots=robot,
        limit=limit,
        workers=not no_workers,
    )
    serve_prefect(
        options, lambda line: screen.print(line, highlight=False, markup=False, soft_wrap=True)
    )


def register(
    *,
    folder: Folder = Path(),
    recipe: OwnRecipe = (),
    robot: RobotName = (),
    debug: Debug = False,
) -> None:
    """Create or update work pools, deployments and automations on the server of $PREFECT_API_URL.

    Schedules and options of work pools that people have changed stay.

    Examples:
        handoff register
        handoff register --recipe my_recipe.yaml --robot fr3
    """
    from rich.console import Console

    from flows.orchestration.reachable import check_configured
    from flows.orchestration.serving.registration import named_recipes
    from flows.orchestration.serving.registration import register as register_recipes

    check_configured()
    pools, deployments = register_recipes(folder.resolve(), named_recipes(recipe), robot)
    screen = Console()
    screen.print(f"pools  {', '.join(pools)}", highlight=False, markup=False)
    for deployment in deployments:
        line = f"handoff/{deployment.name:<24} {deployment.pool:<5} {deployment.about}"
        screen.print(line, highlight=False, markup=False, soft_wrap=True)


def print_summary(path: Path) -> None:
    """Prints a `summary.json` as a table, with the paths of the results."""
    import json

    from rich.console import Console

    from flows.reports.summary import table

    try:
        summary = json.loads(path.read_bytes())
        metrics = summary["metrics"]
        grid = table(summary["stages"])
        share, memory = metrics.get("prefect_share"), metrics["peak_memory_gb"]
        parts = [f"{metrics['total_seconds']:.1f} s in total"]
    except (ValueError, KeyError, TypeError) as error:
        raise HandoffError(
            f"{path}: not the summary of a run ({error!r}). Was it edited?"
        ) from None
    parts += [] if share is None else [f"Prefect {100 * share:.1f} %"]
    parts += [f"peak memory {memory:.2f} GB"] if memory else []
    console = Console()
    console.print()
    console.print(grid)
    console.print(f"\n{summary['source']}", highlight=False, markup=False)
    console.print(", ".join(parts), highlight=False, markup=False)
    console.print(
        f"summary  {path}\nreport   {path.with_name('report.html')}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
