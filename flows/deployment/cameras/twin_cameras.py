"""Cameras of the twin's table: each has its own clock, and a process renders their pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from flows.deployment.cameras.pictures import PREFIX, ArmPictures
from real.cameras.camera import Picture
from robots.errors import HandoffError
from robots.spec import FieldSpec
from sim.rendering.camera_clock import KEPT_SECONDS, CameraClock, CameraClockConfig

if TYPE_CHECKING:
    from robots.episodes.metadata.camera_calibration import CameraCalibration
    from sim.rendering.scene_renderer import SceneRenderer
    from sim.twin.twin import Twin

_TOO_OLD = np.zeros((0, 0, 3), np.uint8)
"""Stands for a picture that is so old that the twin has forgotten its state."""


class TwinCamera:
    """One camera of the table; see `PictureSource`.

    Args:
        name: name of the camera in the scene.
        config: its clock.
        twin: the twin.
        renderer: renders the scene.
    """

    fault = None

    def __init__(
        self, name: str, config: CameraClockConfig, twin: Twin, renderer: SceneRenderer
    ) -> None:
        self._name = name
        self._config = config
        self._twin = twin
        self._renderer = renderer
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Begins an episode with that seed; the twin has been reset."""
        self._clock = CameraClock(self._config, self._name, seed)
        self._newest: Picture | None = None

    def read(self) -> Picture:
        """The newest picture that has arrived, with its capture time by the twin's clock [s]."""
        now = self._twin.now()
        captured = self._clock.newest(now)
        if captured < now - 0.9 * KEPT_SECONDS:
            return Picture(_TOO_OLD, captured)
        if self._newest is None or self._newest.captured != captured:
            qpos, goal = self._twin.call("scene_at", captured)
            self._newest = Picture(self._renderer.render(self._name, qpos, goal), captured)
        return self._newest


class TwinCameras:
    """The cameras of the table that a policy observes.

    Args:
        cameras: cameras by name.
        pictures: their pictures beside the arm's state.
        calibrations: their calibration by the name of the field with the pictures.
    """

    def __init__(
        self,
        cameras: Mapping[str, TwinCamera],
        pictures: ArmPictures,
        calibrations: Mapping[str, CameraCalibration],
    ) -> None:
        self._cameras = dict(cameras)
        self.pictures = pictures
        self.calibrations = dict(calibrations)

    def begin(self, seed: int) -> None:
        """Begins an episode with that seed; the twin has been reset."""
        self.pictures.begin()
        for camera in self._cameras.values():
            camera.begin(seed)


@contextmanager
def open_twin_cameras(
    sensors: Mapping[str, FieldSpec],
    task: str,
    robot: str,
    twin: Twin,
    config: CameraClockConfig,
) -> Iterator[TwinCameras]:
    """Opens the cameras that a policy's contract names.

    Args:
        sensors: cameras of the contract, `image_<camera of the scene>`.
        task: name of the task.
        robot: name of the arm.
        twin: the twin.
        config: clock of every camera.

    Raises:
        HandoffError: a sensor that is no camera of the scene, a size that the scene cannot be
            rendered in, or no OpenGL on this machine.
    """
    from sim.rendering.scene_renderer import SceneRenderer

    sizes = {
        camera_name(name, spec): (spec.shape[0], spec.shape[1]) for name, spec in sensors.items()
    }
    with SceneRenderer(task, robot, sizes) as renderer:
        cameras = {name: TwinCamera(name, config, twin, renderer) for name in sizes}
        limits = dict.fromkeys(cameras, config.max_age)
        pictures = ArmPictures(cameras, limits, twin.now)
        yield TwinCameras(cameras, pictures, renderer.calibrations)


def camera_name(sensor: str, spec: FieldSpec) -> str:
    """Name of the camera whose pictures are the field `sensor`.

    Raises:
        HandoffError: it is no picture of a camera.
    """
    picture = len(spec.shape) == 3 and spec.shape[-1] == 3 and spec.dtype == "uint8"
    name = sensor.removeprefix(PREFIX)
    if not picture or not sensor.startswith(PREFIX) or not name:
        raise HandoffError(
            f"twin: the policy needs the sensor {sensor} {spec.shape} of {spec.dtype}, expected pictures called "
            f"{PREFIX}<camera>. Point clouds and depth are not simulated at the twin."
        )
    return name
