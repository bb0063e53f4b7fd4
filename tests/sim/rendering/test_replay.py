"""Pictures of observations: the same as the environment itself draws, and an error where they do
not tell enough."""

from contextlib import closing

import numpy as np
import pytest

from robots.errors import HandoffError
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.make import find_task
from sim.rendering.replay import render_observations
from sim.scene.cameras import CamerasConfig

pytestmark = pytest.mark.needs("opengl")


@pytest.mark.parametrize("name", ["open_drawer", "flip_switch"])
def test_what_is_drawn_of_an_observation_is_what_the_environment_shows(name: str) -> None:
    task = find_task(name)
    config = MujocoConfig(cameras=CamerasConfig(names=("front",), height=96, width=96))
    with closing(MujocoEngine(task, 3, config)) as engine:
        engine.reset(np.arange(3), np.arange(3))
        for _ in range(25):
            engine.step(engine.to_action(task.expert(engine.view)), np.ones(3, bool))
        observation = engine.read().observation
    drawn = render_observations(
        task, {key: value for key, value in observation.items() if key != "image_front"}, size=96
    )
    assert drawn.shape == (3, 96, 96, 3)
    apart = np.abs(drawn.astype(int) - observation["image_front"].astype(int))
    # Observations are float32: an edge may fall on the next pixel.
    assert (apart > 8).mean() < 0.002


def test_another_place_is_another_picture() -> None:
    task = find_task("open_drawer")
    with closing(MujocoEngine(task, 1)) as engine:
        engine.reset(np.arange(1), np.arange(1))
        observation = engine.read().observation
    opened = {**observation, "opening": observation["opening"] + 0.15}
    first, second = (
        render_observations(task, one, size=96)[0].astype(int) for one in (observation, opened)
    )
    assert (np.abs(first - second) > 8).mean() > 0.01


def test_a_task_that_cannot_be_drawn_or_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(HandoffError, match="reach: its observations do not determine all joints"):
        render_observations(find_task("reach"), {})
    with pytest.raises(HandoffError, match="open_drawer: field 'cabinet_pose' is not observed"):
        render_observations(find_task("open_drawer"), {"q": np.zeros((1, 7))})
