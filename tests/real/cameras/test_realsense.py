"""RealSense cameras, by a small module in the place of pyrealsense2."""

import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from real.cameras.camera import Camera
from real.cameras.config import CameraConfig, CameraOptionError, check_camera
from robots.errors import HandoffError


class FakeLibrary(SimpleNamespace):
    """pyrealsense2 with one camera, whose pictures are red and were taken 40 ms before it was
    made."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.options: dict[str, float] = {}
        self.refused: str | None = None
        self.unplugged = False
        self.running = False
        self.clock = "global_time"
        self.taken = (time.time() - 0.04, time.monotonic() - 0.04)
        super().__init__(
            stream=SimpleNamespace(color="color"),
            format=SimpleNamespace(rgb8="rgb8"),
            option=SimpleNamespace(
                enable_auto_exposure="enable_auto_exposure",
                exposure="exposure",
                enable_auto_white_balance="enable_auto_white_balance",
                white_balance="white_balance",
            ),
            timestamp_domain=SimpleNamespace(hardware_clock="hardware_clock"),
        )

    def config(self) -> Any:
        return SimpleNamespace(
            enable_device=lambda serial: self.asked.update(serial=serial),
            enable_stream=lambda *stream: self.asked.update(stream=stream),
        )

    def pipeline(self) -> Any:
        return SimpleNamespace(start=self._start, stop=self._stop, wait_for_frames=self._frames)

    def _start(self, config: Any) -> Any:
        if self.asked["serial"] == "404":
            raise RuntimeError("No device connected")
        self.running = True
        sensor = SimpleNamespace(set_option=self._set)
        device = SimpleNamespace(first_color_sensor=lambda: sensor)
        return SimpleNamespace(get_device=lambda: device)

    def _stop(self) -> None:
        self.running = False

    def _set(self, name: str, value: float) -> None:
        if name == self.refused:
            raise RuntimeError("out of range")
        self.options[name] = value

    def _frames(self, timeout_ms: int) -> Any:
        if self.unplugged:
            raise RuntimeError("Frame didn't arrive within 5000")
        red = np.full((480, 640, 3), (230, 0, 0), np.uint8)
        colour = SimpleNamespace(
            get_data=lambda: red,
            get_timestamp=lambda: self.taken[0] * 1e3,
            get_frame_timestamp_domain=lambda: self.clock,
        )
        return SimpleNamespace(get_color_frame=lambda: colour)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    library = FakeLibrary()
    monkeypatch.setitem(sys.modules, "pyrealsense2", library)
    return library


def test_pictures_have_the_size_and_the_time_of_their_capture(library):
    camera = Camera(CameraConfig(source="realsense:123", height=48, width=64, capture_hz=15.0))
    assert library.asked == {"serial": "123", "stream": ("color", 640, 480, "rgb8", 15)}
    picture = camera.read()
    assert picture.own_size == (640, 480)
    assert picture.image.shape == (48, 64, 3)
    assert picture.image[..., 0].min() > 200
    # By another clock of this computer, to within what lies between two readings.
    assert picture.captured == pytest.approx(library.taken[1], abs=0.2)
    assert not camera.is_file
    camera.close()
    assert not library.running


def test_a_time_of_the_cameras_own_clock_is_not_taken(library):
    library.clock = "hardware_clock"
    before = time.monotonic()
    assert Camera(CameraConfig(source="realsense:123")).read().captured >= before


def test_exposure_and_white_balance_are_locked(library):
    Camera(CameraConfig(source="realsense:123", exposure=0.008, white_balance=4600))
    assert library.options == {
        "enable_auto_exposure": 0.0,
        "exposure": pytest.approx(80.0),
        "enable_auto_white_balance": 0.0,
        "white_balance": 4600.0,
    }


def test_an_option_that_it_does_not_take_is_named_and_the_camera_is_closed(library):
    library.refused = "exposure"
    with pytest.raises(CameraOptionError, match="does not take exposure=9 "):
        Camera(CameraConfig(source="realsense:123", exposure=9.0))
    assert not library.running


def test_no_camera_there_is_one_clear_error(library):
    with pytest.raises(HandoffError, match=r"cannot be opened \(No device connected\)"):
        Camera(CameraConfig(source="realsense:404"))


def test_a_camera_that_falls_silent_says_so(library):
    camera = Camera(CameraConfig(source="realsense:123"))
    library.unplugged = True
    with pytest.raises(HandoffError, match="sends no more images"):
        camera.read()


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyrealsense2", None)
    with pytest.raises(CameraOptionError, match="pip install pyrealsense2"):
        Camera(CameraConfig(source="realsense:123"))


def test_a_serial_number_is_needed_and_focus_is_not_there():
    with pytest.raises(CameraOptionError, match="expected realsense:SERIAL"):
        check_camera("front", CameraConfig(source="realsense:"))
    with pytest.raises(CameraOptionError, match="has no option 'focus'; a V4L2 camera has"):
        check_camera("front", CameraConfig(source="realsense:1", focus=3))


@pytest.mark.parametrize("source", ["film.mp4", "rtsp://10.0.0.4/1"])
@pytest.mark.parametrize(
    "option", [{"exposure": 0.01}, {"white_balance": 4600}, {"focus": 1}, {"capture_hz": 30.0}]
)
def test_sources_without_controls_refuse_them_by_name(source, option):
    with pytest.raises(CameraOptionError, match=f"has no option '{next(iter(option))}'"):
        check_camera("front", CameraConfig(source=source, **option))
