"""The scene as a person at the console sees it."""

from __future__ import annotations

import numpy as np
import pytest

from flows.session.viewed_scene import (
    AXES_AT,
    CAMERAS,
    HIDDEN,
    SHOULDER,
    SHOULDER_SIZE,
    SIZE,
    PersonsCameras,
    grasp_site,
    placed,
    viewed_model,
)
from sim.engines.mujoco import build_model
from sim.make import TASKS, find_task


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_is_seen_over_the_shoulder_with_its_own_state(name: str):
    task = find_task(name)
    model = viewed_model(task)
    assert model.nq == build_model(task, task.actions).nq
    names = [model.camera(number).name for number in range(model.ncam)]
    assert {SHOULDER, *CAMERAS} <= set(names)
    own = (model.nmocap - 2) // 2
    assert model.body("drop_line").mocapid[0] == own + 1
    assert [model.body(f"goal_line_{n}").mocapid[0] for n in range(own)] == list(
        range(own + 2, model.nmocap)
    )
    assert grasp_site(model) >= 0


def test_goals_and_their_lines_are_placed_and_missing_goals_are_at_zero():
    model = viewed_model(find_task("pick_cube"))
    goal, grasp = np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0, 7.0])
    own, axes, line, below = placed(model, goal, grasp)
    np.testing.assert_array_equal([own, line, below], [[1, 2, 3], [5, 6, 7], [1, 2, 3]])
    np.testing.assert_array_equal(axes, AXES_AT)
    np.testing.assert_array_equal(placed(model, np.array([1.0]), grasp)[0], [1, 0, 0])
    plain = placed(model, goal, grasp, aids=False)
    np.testing.assert_array_equal(plain, [[1, 2, 3], HIDDEN, HIDDEN, HIDDEN])


def test_the_line_drops_from_the_grasp_point_in_the_persons_picture():
    model = viewed_model(find_task("reach"))
    cameras = PersonsCameras.if_possible(model)
    if cameras is None:
        pytest.skip("no OpenGL on this machine")
    assert cameras.names == (SHOULDER, *CAMERAS)

    def seen(place: tuple[float, float, float]) -> dict[str, np.ndarray]:
        goal = np.array([0.5, 0.0, 0.3])
        return dict(cameras.images(model.qpos0.copy(), goal, np.array(place)))

    left, right = seen((0.5, 0.2, 0.4)), seen((0.5, -0.2, 0.4))
    assert left[SHOULDER].shape == (*SHOULDER_SIZE, 3)
    assert left["front"].shape == left["wrist"].shape == (*SIZE, 3)
    np.testing.assert_array_equal(left["front"], right["front"])
    changed = np.abs(left[SHOULDER].astype(int) - right[SHOULDER]).max(axis=2) > 20
    columns = np.flatnonzero(changed.any(axis=0))
    # Left of the person is left in the picture.
    assert columns[0] < SHOULDER_SIZE[1] / 2 < columns[-1]
    orange = (left[SHOULDER][..., 0] > left[SHOULDER][..., 2].astype(int) + 60) & changed
    assert np.flatnonzero(orange.any(axis=0)).mean() < columns.mean()
