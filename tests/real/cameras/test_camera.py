"""Cameras of the console, by a video file in a camera's place: the same reader, without a
device."""

import time
from pathlib import Path

import av
import numpy as np
import pytest

from real.cameras.camera import Camera, _captured, _opened
from real.cameras.camera_process import camera_streams, frame
from real.cameras.config import CameraConfig, CameraOptionError
from real.console.process import open_console
from real.console.server import ConsoleConfig
from robots.errors import HandoffError
from tests.real.console.pages import Page, until


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One second of 64 x 48 pictures that are red."""
    path = tmp_path_factory.mktemp("film") / "red.avi"
    red = av.VideoFrame.from_ndarray(np.full((48, 64, 3), (230, 0, 0), np.uint8), format="rgb24")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for _ in range(30):
            container.mux(stream.encode(red))
        container.mux(stream.encode(None))
    return path


def test_pictures_come_in_rgb_at_the_height_asked_for(film):
    camera = Camera(CameraConfig(source=str(film), height=24))
    image = camera.read().image
    assert image.shape == (24, 32, 3)
    assert image[..., 0].min() > 200
    assert image[..., 2].max() < 40
    camera.close()


def test_a_film_that_is_over_says_so(film):
    camera = Camera(CameraConfig(source=str(film)))
    for _ in range(30):
        camera.read()
    with pytest.raises(HandoffError, match="sends no more images"):
        camera.read()
    camera.close()


def test_no_camera_there_is_one_clear_error(tmp_path):
    with pytest.raises(HandoffError, match=r"cannot be opened \(No such file or directory\)"):
        Camera(CameraConfig(source=str(tmp_path / "video9")))


def test_a_film_that_is_not_there_is_not_looked_for_again(tmp_path):
    with pytest.raises(
        CameraOptionError, match=r"film\.mp4: cannot be opened .* Is the path right\?$"
    ):
        Camera(CameraConfig(source=str(tmp_path / "film.mp4")))


def test_a_damaged_picture_is_left_out(film, tmp_path):
    whole = film.read_bytes()
    begin = whole.index(b"00dc", whole.index(b"movi") + 100) + 8
    end = whole.index(b"00dc", begin)
    damaged = tmp_path / "damaged.avi"
    damaged.write_bytes(whole[:begin] + bytes(end - begin) + whole[end:])
    camera = Camera(CameraConfig(source=str(damaged)))
    for _ in range(29):
        camera.read()
    with pytest.raises(HandoffError, match="sends no more images"):
        camera.read()
    camera.close()


def test_a_file_without_pictures_is_no_camera(tmp_path):
    sound = tmp_path / "sound.wav"
    with av.open(str(sound), "w") as container:
        container.add_stream("pcm_s16le", rate=8000)
    with pytest.raises(HandoffError, match=r"cannot be opened|sends no images"):
        Camera(CameraConfig(source=str(sound)))


def test_a_device_is_opened_by_video4linux(monkeypatch):
    asked = []
    monkeypatch.setattr(av, "open", lambda source, **options: asked.append((source, options)))
    _opened("2")
    _opened("/dev/video0")
    _opened("1", 15.0)
    assert asked == [
        ("/dev/video2", {"format": "v4l2", "options": {}}),
        ("/dev/video0", {"format": "v4l2", "options": {}}),
        ("/dev/video1", {"format": "v4l2", "options": {"framerate": "15"}}),
    ]


def test_this_build_of_pyav_reads_video4linux():
    with pytest.raises(OSError, match=r"/dev/null"):
        _opened("/dev/null")


@pytest.mark.parametrize(
    ("stated", "captured"),
    [(99.95, 99.95), (None, 100.0), (0.4, 100.0), (100.5, 100.0)],
    ids=["a USB camera", "no time", "since its own beginning", "in the future"],
)
def test_a_picture_is_as_old_as_its_driver_says_on_the_clock_of_this_computer(stated, captured):
    assert _captured(stated, 100.0) == captured


def test_a_frame_tells_its_name():
    packed = frame("front", np.zeros((4, 4, 3), np.uint8))
    assert packed[:6] == b"\x05front"
    assert packed[6:8] == b"\xff\xd8"
    with pytest.raises(HandoffError, match="61 characters"):
        frame("x" * 61, np.zeros((4, 4, 3), np.uint8))


@pytest.mark.parametrize("wrong", [{"height": 0}, {"rate_hz": 0.0}, {"quality": 0}])
def test_settings_that_make_no_picture_are_refused(wrong, tmp_path):
    with pytest.raises(HandoffError, match="expected a height"):
        camera_streams({"front": CameraConfig(source="0", **wrong)}, None).__enter__()  # type: ignore[arg-type]


def test_pages_see_the_camera_again_after_it_was_lost(film, tmp_path):
    """The film ends after a second, as a camera that falls out; a moment later it is there
    again."""
    settings = CameraConfig(source=str(film), again=0.1)
    with (
        open_console(ConsoleConfig(port=0), tmp_path) as opened,
        camera_streams({"front": settings}, opened),
    ):
        page = Page(opened)
        began, frames = time.monotonic(), 0
        while frames < 60:
            if page.frame().startswith(b"\x05front\xff\xd8"):
                frames += 1
            assert time.monotonic() - began < 60.0
        # At 30 pictures per second at most.
        assert time.monotonic() - began > 1.5
        page.socket.close()


def test_the_newest_picture_is_shared_with_the_time_of_its_capture(film, tmp_path):
    before = time.monotonic()
    settings = CameraConfig(source=str(film), height=24, again=0.1)
    with (
        open_console(ConsoleConfig(port=0), tmp_path) as opened,
        camera_streams({"front": settings}, opened) as newest,
    ):
        until(lambda: newest["front"].count > 3)
        picture = newest["front"].read()
        assert picture is not None
        assert picture.image.shape == (24, 32, 3)
        assert picture.image[..., 0].min() > 200
        assert before < picture.captured <= time.monotonic()
