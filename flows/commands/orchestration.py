"""Defines the commands for Prefect: `server`, `register`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from flows.commands.parameters import LOOPBACK, Debug, Flag, Port

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
    limit: Annotated[int, Parameter(help="Number of recipes that run at once.")] = 1,
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

    from flows.orchestration.server import ServerOptions, serve_prefect

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
    serve_prefect(options, lambda line: screen.print(line, highlight=False, soft_wrap=True))


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
    from flows.orchestration.registration import named_recipes
    from flows.orchestration.registration import register as register_recipes

    check_configured()
    pools, deployments = register_recipes(folder.resolve(), named_recipes(recipe), robot)
    screen = Console()
    screen.print(f"pools  {', '.join(pools)}", highlight=False)
    for deployment in deployments:
        line = f"handoff/{deployment.name:<24} {deployment.pool:<5} {deployment.about}"
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
