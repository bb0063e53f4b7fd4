"""Deployments: generated from the recipes, one each, for the pool that the recipe needs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from flows.config.files import recipes
from flows.orchestration.serving.registration import (
    AUTOMATIONS,
    Deployable,
    deployable,
    named_recipes,
    register,
)
from robots.errors import HandoffError

OWN = """# A recipe outside the repository. It has a second sentence.
name: lab_reach
stages:
  demos: {uses: scripted, with: {task: reach, episodes: 2}}
"""


@pytest.fixture(scope="module")
def deployments(
    prefect_server: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Deployable]]:
    """All recipes of Handoff and one of one's own, registered."""
    folder = tmp_path_factory.mktemp("lab")
    own = folder / "own.yaml"
    own.write_text(OWN)
    return folder, register(folder, named_recipes([str(own)]), robots=["fr3"])[1]


@pytest.fixture(scope="module")
def registered(deployments: tuple[Path, list[Deployable]]) -> Path:
    return deployments[0]


def test_every_recipe_but_correction_sessions_has_one_deployment(registered: Path) -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        found = client.read_deployments(limit=200)
        flow = client.read_flow_by_name("handoff").id
        pools = {pool.name for pool in client.read_work_pools()}
    mine = [deployment for deployment in found if deployment.flow_id == flow]
    expected = [name for name in recipes() if not name.startswith("hil/")]
    of_pools = ["in-cpu", "in-gpu", "in-robot-fr3"]
    names = sorted(deployment.name for deployment in mine)
    assert names == sorted([*expected, "lab_reach", *of_pools])
    assert pools >= {"cpu", "gpu", "robot-fr3"}
    for deployment in mine:
        (step,) = deployment.pull_steps or []
        assert step == {
            "prefect.deployments.steps.set_working_directory": {"directory": str(registered)}
        }
        schema = (deployment.parameter_openapi_schema or {})["properties"]
        assert set(schema) == {"recipe", "overrides", "until", "redo", "parallel", "fail_fast"}
        assert "demo" in schema["recipe"]["enum"]
        assert all(entry["description"] for entry in schema.values())
    by_name = {deployment.name: deployment for deployment in mine}
    assert by_name["push_t_image"].work_pool_name == "gpu"
    assert by_name["demo"].work_pool_name == "cpu"
    assert by_name["demo"].parameters == {"recipe": "demo"}
    assert by_name["lab_reach"].parameters == {"recipe": str(registered / "own.yaml")}
    assert by_name["lab_reach"].description == "A recipe outside the repository"
    assert set(by_name["drawer_expo"].tags) >= {"drawer_expo", "open_drawer"}


def test_registering_again_keeps_what_people_changed(registered: Path) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.schedules import CronSchedule

    with get_client(sync_client=True) as client:
        smoke = client.read_deployment_by_name("handoff/smoke")
        (schedule,) = smoke.schedules
        assert isinstance(schedule.schedule, CronSchedule)
        assert (schedule.schedule.cron, schedule.active) == ("0 2 * * *", False)
        client.update_deployment_schedule(smoke.id, schedule.id, active=True)
    register(registered, ["smoke"])
    with get_client(sync_client=True) as client:
        (schedule,) = client.read_deployment_by_name("handoff/smoke").schedules
        assert schedule.active


def test_lost_runs_are_marked_by_automations_that_exist_once(registered: Path) -> None:
    from prefect.client.orchestration import get_client

    expected = yaml.safe_load(AUTOMATIONS.read_text())["automations"]
    names = [entry["name"] for entry in expected]
    assert names == ["Mark crashed runs", "Mark runs that never begin"]
    for name in names:
        with get_client(sync_client=True) as client:
            (found,) = client.read_automations_by_name(name)
        assert found.enabled
        (action,) = found.actions
        assert action.state.value == "CRASHED"  # type: ignore[union-attr]


def test_a_recipe_of_ones_own_runs_by_its_path_in_the_pool_that_it_needs(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(OWN)
    found = deployable(str(own))
    assert (found.name, found.recipe, found.pool) == ("lab_reach", str(own), "cpu")
    assert found.tags == ("lab_reach", "reach")


def test_two_recipes_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(OWN)
    with pytest.raises(HandoffError, match="deployment 'lab_reach': 2 recipes have this name"):
        register(tmp_path, [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")])


def test_every_recipe_has_a_description_of_its_own(
    deployments: tuple[Path, list[Deployable]],
) -> None:
    descriptions = [deployment.about for deployment in deployments[1]]
    assert all(len(text) > 20 for text in descriptions)
    assert len(set(descriptions)) == len(descriptions)


def test_entrypoint_is_the_flow_and_leaves_the_import_path_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the path of a file, Prefect would put `flows/` ahead of the standard library."""
    from prefect.flows import load_flow_from_entrypoint

    from flows.orchestration.serving.registration import ENTRYPOINT

    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    assert load_flow_from_entrypoint(ENTRYPOINT).name == "handoff"
    assert sys.path == before
