"""Registers recipes on a Prefect server: work pools, one deployment per recipe, and automations.

Deployments are made from the recipes themselves, so a new recipe needs no other file. Registering
again updates them; schedules that people have made stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from flows.config.files import find_file, first_comment
from flows.config.files import recipes as shipped_recipes
from flows.orchestration.flow import make_flow
from flows.orchestration.pools import DEPLOYMENT
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.runner.stage import Stage
from robots.errors import HandoffError

CPU, GPU = "cpu", "gpu"
"""Work pools of computers without and with a GPU."""
ROBOT = "robot-{}"
"""Work pool of a robot's computer, by the name of the robot."""
POOL_TYPE = "process"
"""Type of the work pools: a worker starts a process for each run."""
NEW_LIMIT = 1
"""Number of runs at once in a new work pool; each runs several stages at once."""
ENTRYPOINT = "flows.deployments.handoff"
FLOW = "handoff"
ATTENDED = "hil/"
"""Beginning of the names of recipes that need a person at the terminal; they have no deployment."""
AUTOMATIONS = Path(__file__).with_name("automations.yaml")
MOST_DEPLOYMENTS = 200
"""Number of deployments that are read from the server, the largest that it gives at once."""
NIGHTLY = ("smoke", "0 2 * * *")
"""Recipe with an example of a schedule, which is not active, and its time."""


@dataclass(frozen=True)
class Deployable:
    """A recipe as a deployment."""

    name: str
    """Name of the deployment."""
    recipe: str
    """Name of the recipe, or path of its file."""
    about: str
    pool: str
    tags: tuple[str, ...]


def deployable(recipe: str) -> Deployable:
    """Describes the deployment of a recipe: its pool is `gpu` if a stage needs one.

    Args:
        recipe: name of a recipe, or path of a YAML file.

    Raises:
        HandoffError: the recipe cannot be read.
    """
    read = read_recipe(recipe)
    declared = stages(read, fetch=None)
    tasks = sorted({task for stage in declared if (task := _task(stage))})
    pool = GPU if any(_needs_gpu(stage.config) for stage in declared) else CPU
    path = str(Path(recipe).resolve()) if recipe.endswith((".yaml", ".yml")) else recipe
    return Deployable(read.name, path, first_comment(find_file(recipe)), pool, (read.name, *tasks))


def named_recipes(own: Sequence[str] = ()) -> list[str]:
    """Returns the recipes that a worker can run: those of Handoff without correction sessions, and
    `own`, paths of YAML files."""
    return [*(name for name in shipped_recipes() if not name.startswith(ATTENDED)), *own]


def register(
    folder: Path, recipes: Sequence[str], robots: Sequence[str] = (), limit: int | None = None
) -> tuple[list[str], list[Deployable]]:
    """Registers work pools, deployments and automations on the server of `PREFECT_API_URL`.

    Args:
        folder: folder in which a worker runs recipes; relative paths such as `runs` refer to it.
        recipes: names of recipes and paths of YAML files.
        robots: names of robots, each of which gets a work pool for one run at a time.
        limit: largest number of runs at once in each of the other work pools; None gives new ones
            `NEW_LIMIT` and leaves others as they are.

    Returns:
        The names of the work pools, and the deployments.

    Raises:
        HandoffError: a recipe cannot be read, two have one name, or the server refused a request.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    found = [deployable(recipe) for recipe in recipes]
    for deployment in found:
        others = [other.recipe for other in found if other.name == deployment.name]
        if len(others) > 1:
            raise HandoffError(
                f"deployment '{deployment.name}': {len(others)} recipes have this name "
                f"({', '.join(others)}). Give one of them another 'name:'."
            )
    pools = {CPU: limit, GPU: limit} | {ROBOT.format(name): 1 for name in robots}
    try:
        with get_client(sync_client=True) as client:
            _create_pools(client, pools)
            _create_deployments(client, found, folder, pools)
            _create_automations(client)
    except PrefectHTTPStatusError as error:
        raise HandoffError(f"Prefect's server refused a request: {error}") from None
    return list(pools), found


def _create_pools(client: Any, pools: Mapping[str, int | None]) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    for name, limit in pools.items():
        pool = WorkPoolCreate(
            name=name,
            type=POOL_TYPE,
            base_job_template=template,
            concurrency_limit=limit or NEW_LIMIT,
        )
        try:
            client.create_work_pool(pool)
        except ObjectAlreadyExists:
            # People may have changed its options.
            if limit is not None:
                client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=limit))


def _create_deployments(
    client: Any, found: Sequence[Deployable], folder: Path, pools: Collection[str]
) -> None:
    from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.utilities.callables import parameter_schema

    schema = parameter_schema(make_flow()).model_dump_for_openapi()
    # The form offers the recipes as a choice.
    schema["properties"]["recipe"]["enum"] = [
        *named_recipes(),
        *(deployment.recipe for deployment in found if deployment.recipe not in named_recipes()),
    ]
    flow = client.create_flow_from_name(FLOW)
    existing = {
        entry.name: entry.id
        for entry in client.read_deployments(limit=MOST_DEPLOYMENTS)
        if entry.flow_id == flow
    }
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}
    of_pools = [
        Deployable(
            DEPLOYMENT.format(pool), "", f"Stages that recipes send to {pool}", pool, (pool,)
        )
        for pool in pools
    ]
    for deployment in (*found, *of_pools):
        options = {
            "description": deployment.about,
            "parameters": {"recipe": deployment.recipe} if deployment.recipe else {},
            "parameter_openapi_schema": schema,
            # A stage of a recipe that only another computer has registered may be sent here.
            "enforce_parameter_schema": bool(deployment.recipe),
            "entrypoint": ENTRYPOINT,
            "pull_steps": [step],
            "work_pool_name": deployment.pool,
            "tags": list(deployment.tags),
        }
        if deployment.name in existing:
            # Creating it again would remove its schedules.
            client.update_deployment(existing[deployment.name], DeploymentUpdate(**options))
            continue
        cron = CronSchedule(cron=NIGHTLY[1], timezone="UTC")
        example = [DeploymentScheduleCreate(schedule=cron, active=False)]
        client.create_deployment(
            flow_id=flow,
            name=deployment.name,
            schedules=example if deployment.name == NIGHTLY[0] else None,
            **options,
        )


def _create_automations(client: Any) -> None:
    import yaml
    from prefect.events.schemas.automations import AutomationCore

    for entry in yaml.safe_load(AUTOMATIONS.read_text())["automations"]:
        automation = AutomationCore.model_validate(entry)
        known = client.read_automations_by_name(automation.name)
        if known:
            client.update_automation(known[0].id, automation)
        else:
            client.create_automation(automation)


def _task(stage: Stage) -> str | None:
    """Returns the task of a stage, if it has one."""
    for name in ("protocol", "env", "table"):
        task = getattr(getattr(stage.config, name, None), "task", None)
        if isinstance(task, str):
            return task
    task = getattr(stage.config, "task", None)
    return task if isinstance(task, str) else None


def _needs_gpu(value: Any) -> bool:
    """Whether an option `device` in a configuration is a GPU."""
    if isinstance(value, list | tuple):
        return any(_needs_gpu(item) for item in value)
    if not is_dataclass(value):
        return False
    for field in fields(value):
        option = getattr(value, field.name)
        if field.name == "device" and isinstance(option, str) and option.startswith("cuda"):
            return True
        if _needs_gpu(option):
            return True
    return False
