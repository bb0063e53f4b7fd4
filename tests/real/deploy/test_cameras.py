"""Cameras of the console, by a video file in a camera's place: the same reader, without a
device."""

import time
from pathlib import Path

import numpy as np
import pytest

from real.console.process import open_console
from real.console.server import ConsoleConfig
from real.deploy.cameras import Camera, CameraConfig, filmed, frame
from robots.errors import HandoffError
from tests.real.console.pages import Page


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One second of 64 x 48 pictures that are red."""
    import cv2

    path = tmp_path_factory.mktemp("film") / "red.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 30.0, (64, 48))
    for _ in range(30):
        writer.write(np.full((48, 64, 3), (0, 0, 230), np.uint8))
    writer.release()
    return path


def test_pictures_come_in_rgb_at_the_height_asked_for(film):
    camera = Camera(CameraConfig(source=str(film), height=24))
    image = camera.read()
    assert image.shape == (24, 32, 3)
    assert image[..., 0].min() > 200
    assert image[..., 2].max() < 40
    camera.close()


def test_a_film_that_is_over_says_so(film):
    camera = Camera(CameraConfig(source=str(film)))
    for _ in range(30):
        camera.read()
    with pytest.raises(HandoffError, match="no more pictures come"):
        camera.read()
    camera.close()


def test_no_camera_there_is_one_clear_error(tmp_path):
    with pytest.raises(HandoffError, match=r"cannot be opened\. Is it plugged in"):
        Camera(CameraConfig(source=str(tmp_path / "video9")))


def test_a_frame_tells_its_name():
    packed = frame("front", np.zeros((4, 4, 3), np.uint8))
    assert packed[:6] == b"\x05front"
    assert packed[6:8] == b"\xff\xd8"
    with pytest.raises(HandoffError, match="61 characters"):
        frame("x" * 61, np.zeros((4, 4, 3), np.uint8))


@pytest.mark.parametrize("wrong", [{"height": 0}, {"rate_hz": 0.0}, {"quality": 0}])
def test_settings_that_make_no_picture_are_refused(wrong, tmp_path):
    with pytest.raises(HandoffError, match="makes no picture"):
        filmed({"front": CameraConfig(source="0", **wrong)}, None).__enter__()  # type: ignore[arg-type]


def test_pages_see_the_camera_again_after_it_was_lost(film, tmp_path):
    """The film ends after a second, as a camera that falls out; a moment later it is there
    again."""
    settings = CameraConfig(source=str(film), again=0.1)
    with (
        open_console(ConsoleConfig(port=0), tmp_path) as opened,
        filmed({"front": settings}, opened),
    ):
        page = Page(opened)
        began, seen = time.monotonic(), 0
        while seen < 60:
            if page.frame().startswith(b"\x05front\xff\xd8"):
                seen += 1
            assert time.monotonic() - began < 60.0
        # At 30 pictures per second at most.
        assert time.monotonic() - began > 1.5
        page.socket.close()
