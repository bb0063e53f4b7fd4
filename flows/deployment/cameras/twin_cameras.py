"""Cameras of the twin's tables: each has its own clock. A process renders the scenes of tasks; the
push-T board is drawn as in gym-pusht."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from flows.deployment.cameras.pictures import PREFIX, ArmPictures
from real.cameras.camera import Picture
from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.spec import FieldSpec
from sim.rendering.camera_clock import KEPT_SECONDS, CameraClock, CameraClockConfig

if TYPE_CHECKING:
    from flows.deployment.starts import StartResult
    from real.arm import ArmState
    from robots.episodes.metadata.camera_calibration import CameraCalibration
    from sim.twin.twin import Twin

BOARD_CAMERA = "image"
"""Field with the pictures of the camera above the push-T board, as in gym-pusht."""
PICTURE_AGE = "picture_age_p95_s"
"""Metric of a policy that observes cameras."""
_TOO_OLD = np.zeros((0, 0, 3), np.uint8)
"""Stands for a picture that is so old that the twin has forgotten its state."""


class TwinCamera:
    """One camera of the table; see `PictureSource`.

    Args:
        name: name of the camera in the scene.
        config: its clock.
        twin: the twin.
        render: returns the picture (height, width, 3) uint8 RGB of the scene at a time since the
            last reset [s].
    """

    fault = None

    def __init__(
        self,
        name: str,
        config: CameraClockConfig,
        twin: Twin,
        render: Callable[[float], np.ndarray],
    ) -> None:
        self._name = name
        self._config = config
        self._twin = twin
        self._render = render
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
            self._newest = Picture(self._render(captured), captured)
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
        self._begin: float | None = None
        """Robot time of the episode's first observation [s]."""

    def begin(self, seed: int) -> None:
        """Begins an episode with that seed; the twin has been reset."""
        self.pictures.begin()
        self._begin = None
        for camera in self._cameras.values():
            camera.begin(seed)

    def observe(self, state: ArmState) -> Observation:
        """The newest pictures with their capture times since the episode's first observation.

        Args:
            state: state of the arm, just read.

        Raises:
            SafetyError: a camera has sent no picture for too long.
        """
        if self._begin is None:
            self._begin = state.time
        return self.pictures.observe(state, self._begin)

    def describe(self) -> dict[str, float]:
        """The 95th percentile of the pictures' ages in the episode [s], if there were any."""
        ages = self.pictures.ages
        return {PICTURE_AGE: round(float(np.percentile(ages, 95)), 4)} if ages else {}


def oldest_pictures(starts: Sequence[StartResult]) -> dict[str, float]:
    """The largest of the starts' ages of the pictures [s], if there were any."""
    ages = [start.about[PICTURE_AGE] for start in starts if PICTURE_AGE in start.about]
    return {PICTURE_AGE: max(ages)} if ages else {}


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

        def render(name: str, captured: float) -> np.ndarray:
            return renderer.render(name, *twin.call("scene_at", captured))

        cameras = {name: TwinCamera(name, config, twin, partial(render, name)) for name in sizes}
        limits = dict.fromkeys(cameras, config.max_age)
        pictures = ArmPictures(cameras, limits, twin.now)
        yield TwinCameras(cameras, pictures, renderer.calibrations)


@contextmanager
def open_board_camera(
    sensors: Mapping[str, FieldSpec], twin: Twin, config: CameraClockConfig
) -> Iterator[TwinCameras]:
    """Opens the camera above the push-T board, whose pictures are drawn as in gym-pusht.

    Args:
        sensors: sensors of the contract; the camera's field is `BOARD_CAMERA`.
        twin: the twin, with a `sim.twin.push_t_world.PushTWorld`.
        config: clock of the camera.

    Raises:
        HandoffError: another sensor than that camera, or gym-pusht is not installed.
    """
    from sim.rendering.board_picture import BoardPicture

    others = [name for name, spec in sensors.items() if name != BOARD_CAMERA or not _picture(spec)]
    if others:
        raise HandoffError(
            f"twin: the policy needs the sensors {others}, and the push-T table has one camera, '{BOARD_CAMERA}', "
            "with colour pictures of the board from above. Train a policy with "
            f"image_fields=[{BOARD_CAMERA}] alone."
        )
    height, width, _ = sensors[BOARD_CAMERA].shape
    with closing(BoardPicture(height, width)) as board:

        def render(captured: float) -> np.ndarray:
            return board.draw(*twin.call("board_at", captured))

        cameras = {BOARD_CAMERA: TwinCamera(BOARD_CAMERA, config, twin, render)}
        pictures = ArmPictures(
            cameras,
            {BOARD_CAMERA: config.max_age},
            twin.now,
            sources={BOARD_CAMERA: BOARD_CAMERA},
        )
        # The drawing has no perspective, hence no calibration.
        yield TwinCameras(cameras, pictures, {})


def _picture(spec: FieldSpec) -> bool:
    return len(spec.shape) == 3 and spec.shape[-1] == 3 and spec.dtype == "uint8"


def camera_name(sensor: str, spec: FieldSpec) -> str:
    """Name of the camera whose pictures are the field `sensor`.

    Raises:
        HandoffError: it is no picture of a camera.
    """
    name = sensor.removeprefix(PREFIX)
    if not _picture(spec) or not sensor.startswith(PREFIX) or not name:
        raise HandoffError(
            f"twin: the policy needs the sensor {sensor} {spec.shape} of {spec.dtype}, expected pictures called "
            f"{PREFIX}<camera>. Point clouds and depth are not simulated at the twin."
        )
    return name
