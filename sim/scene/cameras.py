"""Renders camera images of N environments as observations, with software OpenGL (EGL or OSMesa) or
a GPU's EGL, and states the calibration of the cameras.

It does not use `mujoco.Renderer`, which chooses the OpenGL of the whole process when mujoco is
imported, and allocates memory in every call.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from robots.config import Pixels, config
from robots.episodes.metadata.camera_calibration import CameraCalibration
from robots.errors import HandoffError
from robots.spec import FieldSpec


@config
class CamerasConfig:
    """Names and resolution of the cameras."""

    names: tuple[str, ...] = ("front", "wrist")
    """Cameras of the scene, each observed as `image_<name>`."""
    height: Pixels = 128
    """Height of an image [px]."""
    width: Pixels = 128
    """Width of an image [px]."""
    latency: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Age of every image when it is observed [s], in whole physics steps; it shows the scene as it
    was then, and at the start of an episode the start. Those of a real camera are tens of
    milliseconds old."""


def latest_positions(earlier: np.ndarray, current: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Positions of the latest L physics steps before the current one, after a control period.

    Args:
        earlier: (N, L, nq) what they were before it, oldest first.
        current: (N, nq) positions at its start.
        path: (N, S, nq) positions after each of its physics steps.

    Returns:
        (N, L, nq) positions, oldest first.
    """
    whole = np.concatenate([earlier, current[:, None], path], axis=1)
    return whole[:, whole.shape[1] - 1 - earlier.shape[1] : -1]


def camera_fields(config: CamerasConfig) -> dict[str, FieldSpec]:
    """Observation fields of cameras: `(height, width, 3)` uint8 RGB each."""
    shape = (config.height, config.width, 3)
    return {
        f"image_{name}": FieldSpec(
            shape=shape, dtype="uint8", unit="u8", about=f"RGB image of camera {name}"
        )
        for name in config.names
    }


def check_cameras(model: Any, config: CamerasConfig) -> None:
    """Checks that a model (mujoco.MjModel) has the cameras, and pictures of this size.

    Raises:
        HandoffError: an unknown camera, or a size that exceeds the model's buffer.
    """
    known = [model.camera(i).name for i in range(model.ncam)]
    unknown = sorted(set(config.names) - set(known))
    if unknown or not config.names:
        raise HandoffError(
            f"cameras: no camera {unknown or '(none named)'}; the scene has {known}."
        )
    buffer = (int(model.vis.global_.offheight), int(model.vis.global_.offwidth))
    if not (1 <= config.height <= buffer[0] and 1 <= config.width <= buffer[1]):
        raise HandoffError(
            f"cameras: images of {config.height}x{config.width}, expected 1x1 to {buffer[0]}x{buffer[1]} "
            "(height x width), the scene's buffer."
        )


class Cameras:
    """One OpenGL context, which renders one image at a time."""

    def __init__(self, model: Any, config: CamerasConfig, textures: Sequence[int] = ()) -> None:
        """Creates the context.

        Args:
            model: mujoco.MjModel whose cameras are used; environments may be rendered from copies
                with other values.
            config: names and resolution of the cameras.
            textures: textures that differ between environments, which are loaded for every image.

        Raises:
            HandoffError: an unknown camera, a size that exceeds the model's buffer, or no OpenGL on
                this machine.
        """
        import mujoco

        check_cameras(model, config)
        self.config = config
        self._gl = _context(config.width, config.height)
        self._gl.make_current()
        self._thread = threading.get_ident()
        self._scene = mujoco.MjvScene(model, maxgeom=500)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = False
        self._option = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._textures = tuple(textures)
        self._ids = [model.camera(name).id for name in config.names]
        self._data = mujoco.MjData(model)
        self._gl_scene = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._gl_scene)
        self._viewport = mujoco.MjrRect(0, 0, config.width, config.height)
        self._closed = False

    def specs(self) -> dict[str, FieldSpec]:
        """Observation fields, see `camera_fields`."""
        return camera_fields(self.config)

    def render(
        self, models: Sequence[Any], qpos: np.ndarray, goal: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Renders every environment from every camera, whatever the latency.

        Args:
            models: (N) mujoco.MjModel of each environment.
            qpos: (N, nq) generalised positions.
            goal: (N, G); mocap bodies are placed at consecutive groups of three entries.

        Returns:
            `image_<name>`: (N, height, width, 3) uint8.

        Raises:
            HandoffError: called in another thread than the constructor, to which the OpenGL context
                is bound.
        """
        import mujoco

        if threading.get_ident() != self._thread:
            raise HandoffError(
                "cameras: render was called in another thread than the one that created the cameras, to which the "
                "OpenGL context is bound."
            )
        n = len(qpos)
        height = self.config.height
        width = self.config.width
        images = {
            f"image_{name}": np.empty((n, height, width, 3), np.uint8) for name in self.config.names
        }
        pixels = np.empty((height, width, 3), np.uint8)
        # Another context may have become current in this thread.
        self._gl.make_current()
        for env_id, model in enumerate(models):
            self._data.qpos[:] = qpos[env_id]
            self._data.mocap_pos[:] = goal[env_id, : 3 * model.nmocap].reshape(-1, 3)
            mujoco.mj_kinematics(model, self._data)
            mujoco.mj_camlight(model, self._data)
            for texture in self._textures:
                mujoco.mjr_uploadTexture(model, self._gl_scene, texture)
            for name, camera in zip(self.config.names, self._ids, strict=True):
                self._camera.fixedcamid = camera
                mujoco.mjv_updateScene(
                    model,
                    self._data,
                    self._option,
                    None,
                    self._camera,
                    mujoco.mjtCatBit.mjCAT_ALL.value,
                    self._scene,
                )
                mujoco.mjr_render(self._viewport, self._scene, self._gl_scene)
                mujoco.mjr_readPixels(pixels, None, self._viewport, self._gl_scene)
                images[f"image_{name}"][env_id] = pixels[::-1]
        return images

    def close(self) -> None:
        """Frees the context; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        # Resources are freed in the current context, so it must be this one.
        self._gl.make_current()
        self._gl_scene.free()
        self._gl.free()

    def __del__(self) -> None:
        # During interpreter shutdown OpenGL may already be unloaded, and the driver frees
        # everything.
        if not getattr(self, "_closed", True) and not sys.is_finalizing():
            self.close()


def camera_calibrations(model: Any, config: CamerasConfig) -> dict[str, CameraCalibration]:
    """Calibration of every camera, by the name of the field with its images.

    Args:
        model: mujoco.MjModel with the cameras.
        config: names and resolution of the cameras.
    """
    calibrations = {}
    for name in config.names:
        camera = model.camera(name)
        # MuJoCo states the field of view over the height, and pixels are square.
        focal = 0.5 * config.height / math.tan(0.5 * math.radians(model.cam_fovy[camera.id]))
        w, x, y, z = model.cam_quat[camera.id].tolist()
        px, py, pz = model.cam_pos[camera.id].tolist()
        calibrations[f"image_{name}"] = CameraCalibration(
            width=config.width,
            height=config.height,
            focal_length=(focal, focal),
            principal_point=(0.5 * config.width, 0.5 * config.height),
            frame=model.body(model.cam_bodyid[camera.id]).name,
            position=(px, py, pz),
            # MuJoCo's camera looks along -z with y up: a half turn about x makes it an optical
            # frame.
            quaternion=(-x, w, z, -y),
        )
    return calibrations


def _context(width: int, height: int) -> Any:
    """Creates a context with the first of EGL and OSMesa that works on this machine.

    Raises:
        HandoffError: neither works; the message has both reasons.
    """
    problems: dict[str, str] = {}
    requested = os.environ.get("MUJOCO_GL", "").lower()
    for backend in [requested] if requested in ("egl", "osmesa") else ["egl", "osmesa"]:
        # PyOpenGL reads this at its first import, so the first context determines the backend of
        # the process.
        os.environ.setdefault("PYOPENGL_PLATFORM", backend)
        try:
            if backend == "egl":
                from mujoco.egl import GLContext
            else:
                from mujoco.osmesa import GLContext
            return GLContext(width, height)
        except (ImportError, RuntimeError, AttributeError) as error:
            problems[backend] = str(error)
    raise HandoffError(
        f"cameras: no OpenGL ({problems}). On Debian or Ubuntu install libegl1 libgl1-mesa-dri, or libosmesa6."
    )
