"""The recipes of tasks from pictures: nothing but cameras and the arm's own state is observed."""

from __future__ import annotations

import pytest

from flows.config.files import find_file, read_yaml, recipes
from robots.control.proprioception import proprioception_fields
from sim.make import find_task
from tests.flows.recipe_stages import options

NAMES = [name for name in recipes() if read_yaml(find_file(name)).get("defaults") == ["_cameras"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_observes_cameras_and_the_arms_own_state_alone(name: str) -> None:
    stages = options(name)
    demos, policy = stages["demos"], stages["trained"].policy
    assert name == f"{demos.task}_cameras"
    assert {stages[stage].protocol.task for stage in ("scores", "blind")} == {demos.task}
    assert {*policy.observation_fields} <= {*proprioception_fields(find_task(demos.task).robot)}
    cameras = demos.demonstrate.mujoco.cameras.names
    assert policy.image_fields == tuple(f"image_{camera}" for camera in cameras)


def test_the_tasks_with_a_recipe_from_cameras() -> None:
    assert NAMES == [
        "flip_switch_cameras",
        "open_drawer_cameras",
        "pick_cube_cameras",
        "stack_cube_cameras",
    ]
