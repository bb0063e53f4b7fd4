"""Renders states of a task's scene in a process of its own, which has the OpenGL context."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from robots.episodes.metadata.camera_calibration import CameraCalibration
from robots.errors import HandoffError
from robots.processes import CLOSED_PIPE_ERRORS, Child, ChildEndedError, end

Sizes = Mapping[str, tuple[int, int]]
"""Height and width of the pictures [px], by the name of the camera in the scene."""


class SceneRenderer:
    """Cameras of a task's scene; a context manager, which ends the process.

    Args:
        task: name of the task.
        robot: name of the arm.
        sizes: sizes of the pictures by camera.

    Raises:
        HandoffError: an unknown camera, a size that exceeds the scene's buffer, or no OpenGL on
            this machine.
    """

    def __init__(self, task: str, robot: str, sizes: Sizes) -> None:
        self._child = Child("cameras", _serve, (task, robot, dict(sizes)), daemon=True)
        try:
            self.calibrations: dict[str, CameraCalibration] = self._receive()
            """Calibration by the name of the field with the pictures, `image_<camera>`."""
        except BaseException:
            self.close()
            raise

    def render(self, camera: str, qpos: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Renders one state.

        Args:
            camera: name of the camera.
            qpos: (nq,) generalised positions of the scene.
            goal: (G,) goal of the task.

        Returns:
            (height, width, 3) uint8 RGB.

        Raises:
            HandoffError: the process has died.
        """
        # A process that has failed leaves its reason in the pipe.
        with suppress(*CLOSED_PIPE_ERRORS):
            self._child.pipe.send((camera, qpos, goal))
        return self._receive()

    def close(self) -> None:
        """Ends the process; a second call does nothing."""
        self._child.pipe.close()
        end([self._child.process])

    def _receive(self) -> Any:
        try:
            return self._child.receive()
        except ChildEndedError as error:
            raise HandoffError(f"cameras: the process that renders has ended ({error}).") from None

    def __enter__(self) -> SceneRenderer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _serve(task: str, robot: str, sizes: Sizes, pipe: Connection) -> None:
    """Main function of the process: sends the calibrations, then a picture for every state."""
    from sim.engines.mujoco import build_model
    from sim.make import find_task
    from sim.scene.cameras import Cameras, CamerasConfig, camera_calibrations

    scene = find_task(task, robot=robot)
    model = build_model(scene, scene.actions)
    with ExitStack() as stack:
        cameras: dict[str, Cameras] = {}
        calibrations: dict[str, CameraCalibration] = {}
        for name, (height, width) in sizes.items():
            options = CamerasConfig(names=(name,), height=height, width=width)
            cameras[name] = stack.enter_context(closing(Cameras(model, options)))
            calibrations |= camera_calibrations(model, options)
        pipe.send(calibrations)
        with suppress(*CLOSED_PIPE_ERRORS):
            while True:
                name, qpos, goal = pipe.recv()
                images = cameras[name].render([model], qpos[None], goal[None])
                (image,) = images.values()
                pipe.send(image[0])
