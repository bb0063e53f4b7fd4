"""Cameras at the twin: their pictures are those of the simulated environments, and have an age."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from flows.deployment.cameras.twin_cameras import TwinCameras, camera_name, open_twin_cameras
from real.arm import ArmState
from robots.errors import HandoffError, SafetyError
from robots.spec import FieldSpec
from sim.make import EnvConfig, make_vec_env
from sim.rendering.camera_clock import CameraClockConfig
from sim.scene.cameras import CamerasConfig
from sim.twin.task_world import TaskWorld
from sim.twin.twin import Twin, TwinConfig, start_twin
from tests.sim.twin.loopback import address


def sensor(height: int, width: int) -> FieldSpec:
    return FieldSpec(shape=(height, width, 3), dtype="uint8", unit="u8")


SENSORS = {"image_front": sensor(64, 64), "image_wrist": sensor(48, 80)}


class JumpingWorld(TaskWorld):
    """A table whose cube can jump."""

    def jump(self, metres: float) -> None:
        """Moves the cube along y."""
        self.data.qpos[-6] += metres


@contextmanager
def table(config: CameraClockConfig, number: int) -> Iterator[tuple[Twin, TwinCameras]]:
    world = partial(JumpingWorld, "pick_cube")
    with (
        start_twin(TwinConfig(host=address(number)), world) as twin,
        open_twin_cameras(SENSORS, "pick_cube", "fr3", twin, config) as cameras,
    ):
        yield twin, cameras


def placed(twin: Twin, cameras: TwinCameras, seed: int) -> None:
    twin.reset(seed)
    cameras.begin(seed)


def state(twin: Twin) -> ArmState:
    none = np.zeros(0)
    return ArmState(twin.now(), none, none, np.eye(4), none, none, np.zeros(6), 1.0, "Idle", ())


def test_the_first_pictures_are_those_of_the_simulated_environment() -> None:
    with table(CameraClockConfig(), 1) as (twin, cameras):
        placed(twin, cameras, 7)
        found = cameras.pictures.observe(state(twin), twin.now())
    for name, spec in SENSORS.items():
        height, width, _ = spec.shape
        options = CamerasConfig(names=(name.removeprefix("image_"),), height=height, width=width)
        env = make_vec_env(EnvConfig(task="pick_cube", cameras=options), 1)
        expected = env.reset([7])[name][0]
        # Renderers of two processes round alike; a moved object or camera differs in thousands.
        assert np.mean(found[name] != expected) < 1e-3
        other = env.reset([8])[name][0]
        assert np.mean(found[name] != other) > 1e-3
        # Captured before the episode.
        assert -0.07 < found[f"{name}_time"] < 0.0


def test_a_picture_shows_the_scene_at_its_capture_time() -> None:
    config = CameraClockConfig(rate_hz=20.0, latency=0.2)
    with table(config, 2) as (twin, cameras):
        placed(twin, cameras, 7)
        begin = twin.now()
        first = cameras.pictures.observe(state(twin), begin)
        # The cube jumps; the pictures show it once the latency is over.
        twin.call("jump", 0.05)
        twin.advance(0.15)
        still = cameras.pictures.observe(state(twin), begin)
        twin.advance(0.2)
        moved = cameras.pictures.observe(state(twin), begin)
    assert np.array_equal(first["image_front"], still["image_front"])
    assert np.mean(first["image_front"] != moved["image_front"]) > 1e-3
    assert 0.1 - 1e-3 <= moved["image_front_time"] <= 0.15 + 1e-3


def test_a_camera_that_falls_silent_is_a_fault() -> None:
    with table(CameraClockConfig(drop=0.98, max_age=0.3), 3) as (twin, cameras):
        placed(twin, cameras, 0)
        begin = twin.now()

        def watch() -> None:
            for _ in range(100):
                cameras.pictures.observe(state(twin), begin)
                twin.advance(0.05)

        with pytest.raises(SafetyError, match=r"camera (front|wrist): its newest picture is"):
            watch()


def test_what_is_no_camera_of_the_scene_is_refused() -> None:
    with pytest.raises(HandoffError, match="expected pictures called image_<camera>"):
        camera_name("points", FieldSpec(shape=(512, 3)))
    with pytest.raises(HandoffError, match="expected pictures called image_<camera>"):
        camera_name("observation.images.top", sensor(64, 64))
    world = partial(TaskWorld, "pick_cube")
    with start_twin(TwinConfig(host=address(4)), world) as twin:
        for sensors, reason in (
            ({"image_side": sensor(64, 64)}, r"no camera \['side'\]"),
            ({"image_front": sensor(6000, 64)}, "images of 6000x64"),
        ):
            with (
                pytest.raises(HandoffError, match=reason),
                open_twin_cameras(sensors, "pick_cube", "fr3", twin, CameraClockConfig()),
            ):
                pass
