"""What a person at the console can do from its pictures alone."""

from __future__ import annotations

import numpy as np
import pytest

from flows.session.viewed_scene import SHOULDER
from tests.person.eyes import Eyes, room
from tests.person.hands import SLOW, Hands, Steering
from tests.person.lockstep import attempts, shown, shown_board
from tests.person.tee import BoardEyes, PushT


@pytest.fixture(scope="module")
def opengl() -> None:
    from flows.session.viewed_scene import PersonsCameras, viewed_model
    from sim.make import find_task

    if PersonsCameras.if_possible(viewed_model(find_task("reach"))) is None:
        pytest.skip("no OpenGL on this machine")


def test_a_pixel_of_a_point_looks_at_it():
    for camera in room("reach").values():
        point = np.array([0.5, 0.1, 0.2])
        pixel = camera.pixel(point)
        ray = camera.direction(pixel)
        away = point - camera.position
        np.testing.assert_allclose(np.cross(ray, away), 0.0, atol=1e-9)
        np.testing.assert_allclose(camera.on_plane(pixel, 0.2), point, atol=1e-9)
        assert camera.height_over(pixel, point[:2]) == pytest.approx(0.2)


@pytest.mark.parametrize("seed", range(4))
def test_hand_goal_and_cube_are_judged_within_a_centimetre(opengl: None, seed: int):
    pictures, hand, goal, cube = shown("pick_cube", seed)
    eyes = Eyes("pick_cube")
    eyes.look(pictures)
    for judged, true in ((eyes.hand(), hand), (eyes.ball(), goal), (eyes.cube(0.02), cube)):
        assert judged is not None
        np.testing.assert_allclose(judged, true, atol=0.01)


@pytest.mark.parametrize("seed", [2, 4])
def test_tee_and_pusher_are_judged_within_a_few_millimetres(opengl: None, seed: int) -> None:
    pictures, agent, pose = shown_board(seed)
    eyes = BoardEyes()
    # The second look begins where the first has ended.
    eyes.look(pictures)
    eyes.look(pictures)
    assert eyes.tee is not None
    assert eyes.pusher is not None
    np.testing.assert_allclose(eyes.tee[:2], pose[:2], atol=0.004)
    turned = (eyes.tee[2] - pose[2] + np.pi) % (2.0 * np.pi) - np.pi
    assert abs(turned) < 0.05
    np.testing.assert_allclose(eyes.pusher, agent, atol=0.008)
    # In the dark nothing is judged, and the stick stays where it is.
    dark = {name: np.zeros_like(picture) for name, picture in pictures.items()}
    assert PushT().stick(dark) == (0.0, 0.0)


def test_nothing_is_judged_without_pictures(opengl: None):
    eyes = Eyes("pick_cube")
    assert eyes.hand() is eyes.ball() is eyes.cube(0.02) is None
    pictures, *_ = shown("pick_cube", 0)
    eyes.look({name: np.zeros_like(picture) for name, picture in pictures.items()})
    assert eyes.hand() is eyes.ball() is eyes.cube(0.02) is None
    assert SHOULDER in pictures


def test_the_person_taps_where_little_is_left_and_looks_in_between():
    steering = Steering()
    assert SLOW not in steering.keys(np.array([0.3, 0.0, 0.0]), 0.25)
    assert SLOW in steering.keys(np.array([0.02, 0.0, 0.0]), 0.25)
    assert steering.keys(np.array([0.02, 0.0, 0.0]), 0.25) == {}


def test_keys_are_down_until_their_time_is_over():
    hands = Hands()
    hands.press({"KeyI": 0.2, "Space": 1.0}, now=5.0)
    assert set(hands.down(5.1)) == {"KeyI", "Space"}
    assert hands.down(5.5) == ("Space",)
    assert hands.down(7.0) == ()


@pytest.mark.parametrize(("task", "count"), [("reach", 3), ("pick_cube", 2), ("open_drawer", 2)])
def test_a_person_does_the_task_from_the_pictures_of_the_page(opengl: None, task: str, count: int):
    durations = attempts(task, range(count))
    assert None not in durations, durations


def test_a_person_in_the_dark_does_not_do_the_task(opengl: None):
    assert attempts("reach", [0], dark=True, seconds=8.0) == [None]
