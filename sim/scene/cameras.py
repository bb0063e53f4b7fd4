"""Pictures of N worlds as observations, drawn by software OpenGL (EGL or OSMesa) or a GPU's EGL.

Not `mujoco.Renderer`: that chooses its OpenGL when mujoco is imported, for the whole process, and
allocates per call.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from robots.spec import FieldSpec


@config
class CamerasConfig:
    """Which cameras, how large."""

    names: tuple[str, ...] = ("front", "wrist")
    """Cameras of the scene; each becomes the observation `image_<name>`."""
    height: int = 128
    """[px]."""
    width: int = 128
    """[px]."""


class Cameras:
    """One OpenGL context, one picture at a time."""

    def __init__(self, model: Any, config: CamerasConfig) -> None:
        """Makes the context.

        Args:
            model: mujoco.MjModel whose cameras are used; worlds may be drawn from copies with other
                values.
            config: which cameras.

        Raises:
            HandoffError: an unknown camera, a size that the model's buffer does not hold, or no
                OpenGL on this machine.
        """
        import mujoco

        known = [model.camera(i).name for i in range(model.ncam)]
        unknown = sorted(set(config.names) - set(known))
        if unknown or not config.names:
            raise HandoffError(
                f"cameras: no camera {unknown or '(none named)'}; the scene has {known}."
            )
        most = (int(model.vis.global_.offheight), int(model.vis.global_.offwidth))
        if not (1 <= config.height <= most[0] and 1 <= config.width <= most[1]):
            raise HandoffError(
                f"cameras: pictures of {config.height}x{config.width}, expected 1x1 to {most[0]}x{most[1]} "
                "(height x width), the scene's buffer."
            )
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
        self._ids = [model.camera(name).id for name in config.names]
        self._data = mujoco.MjData(model)
        self._gl_scene = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._gl_scene)
        self._viewport = mujoco.MjrRect(0, 0, config.width, config.height)
        self._closed = False

    def specs(self) -> dict[str, FieldSpec]:
        """Observation fields: `(height, width, 3)` uint8 RGB each."""
        shape = (self.config.height, self.config.width, 3)
        return {
            f"image_{name}": FieldSpec(
                shape=shape, dtype="uint8", unit="u8", about=f"RGB picture of camera {name}"
            )
            for name in self.config.names
        }

    def render(
        self, models: Sequence[Any], qpos: np.ndarray, goal: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Draws every world from every camera.

        Args:
            models: (N) mujoco.MjModel of each world.
            qpos: (N, nq).
            goal: (N, G); every mocap body in turn is placed by the next three entries.

        Returns:
            `image_<name>`: (N, height, width, 3) uint8.

        Raises:
            HandoffError: called in another thread than the one that made them, where OpenGL's
                context is bound.
        """
        import mujoco

        if threading.get_ident() != self._thread:
            raise HandoffError(
                "cameras: asked to draw in another thread than the one that made these worlds."
            )
        n, height, width = len(qpos), self.config.height, self.config.width
        images = {
            f"image_{name}": np.empty((n, height, width, 3), np.uint8) for name in self.config.names
        }
        pixels = np.empty((height, width, 3), np.uint8)
        # Another context may have been made current in this thread since.
        self._gl.make_current()
        for world, model in enumerate(models):
            self._data.qpos[:] = qpos[world]
            self._data.mocap_pos[:] = goal[world, : 3 * model.nmocap].reshape(-1, 3)
            mujoco.mj_kinematics(model, self._data)
            mujoco.mj_camlight(model, self._data)
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
                images[f"image_{name}"][world] = pixels[::-1]
        return images

    def close(self) -> None:
        """Frees the context; twice does no harm."""
        if self._closed:
            return
        self._closed = True
        # What is freed is looked up in the current context, which may be another one's.
        self._gl.make_current()
        self._gl_scene.free()
        self._gl.free()

    def __del__(self) -> None:
        # While the interpreter shuts down OpenGL may be gone already, and the driver frees
        # everything anyway.
        if not getattr(self, "_closed", True) and not sys.is_finalizing():
            self.close()


def _context(width: int, height: int) -> Any:
    """The first of EGL and OSMesa that works here.

    Raises:
        HandoffError: none does; says why each failed.
    """
    problems: dict[str, str] = {}
    asked = os.environ.get("MUJOCO_GL", "").lower()
    for backend in [asked] if asked in ("egl", "osmesa") else ["egl", "osmesa"]:
        # PyOpenGL reads this once, when it is first imported; so the first context decides for the
        # process.
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
