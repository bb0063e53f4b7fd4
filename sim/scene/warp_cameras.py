"""Renders the cameras of mujoco-warp's environments on their device, by its ray caster.

The pictures show what those of `sim.scene.cameras` show, drawn by another renderer: equal but for
the edges of objects and the shine of surfaces. Either side of the device may ask for them: arrays
of the host (`render`), or tensors that share the device's memory (`shared`, `draw`).
"""

# The compiled mujoco module has no type stubs; mujoco-warp is an optional dependency.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sim.scene.cameras import CamerasConfig, check_cameras

CONTACTS, CONSTRAINTS = 1, 1
"""Sizes of the data from which pictures are rendered, which never steps."""


class PictureTensors(NamedTuple):
    """Torch tensors that share the device's arrays."""

    qpos: Any
    """(N, nq) float32 generalised positions from which `WarpCameras.draw` renders."""
    mocap: Any
    """(N, bodies, 3) float32 positions of the mocap bodies [m]."""
    pixels: Any
    """(N, pixels of all cameras) int32: red is the third byte, blue the first."""


class WarpCameras:
    """Renders all environments at once.

    Args:
        model: compiled model (mujoco.MjModel) whose cameras are used.
        device_model: the model of mujoco-warp, whose fields may differ between environments.
        device: warp device of the model.
        num_envs: N.
        config: names and resolution of the cameras.

    Raises:
        HandoffError: an unknown camera, or a size that exceeds the model's buffer.
    """

    def __init__(
        self, model: Any, device_model: Any, device: Any, num_envs: int, config: CamerasConfig
    ) -> None:
        import mujoco_warp
        import warp

        check_cameras(model, config)
        self._warp = warp
        self._renderer = mujoco_warp
        self._device = device
        self._model = device_model
        self.names = sorted(config.names, key=lambda name: model.camera(name).id)
        """In the order of the model's cameras, in which the pictures lie in the renderer's
        memory."""
        self.shape = (num_envs, len(config.names), config.height, config.width, 4)
        """Shape of the bytes of all pixels."""
        with warp.ScopedDevice(device):
            self._data = mujoco_warp.make_data(
                model, nworld=num_envs, nconmax=CONTACTS, njmax=CONSTRAINTS
            )
            self._context = mujoco_warp.create_render_context(
                model,
                nworld=num_envs,
                cam_res=(config.width, config.height),
                render_rgb=True,
                render_depth=False,
                cam_active=[model.camera(name).id for name in self.names],
                render_skybox=_has_skybox(model),
                # Rays of a camera whose field of view differs between environments.
                use_precomputed_rays=device_model.cam_fovy.shape[0] == 1,
            )

    def render(self, qpos: np.ndarray, goal: np.ndarray) -> dict[str, np.ndarray]:
        """Renders every environment from every camera.

        Args:
            qpos: (N, nq) generalised positions.
            goal: (N, G); mocap bodies are placed at consecutive groups of three entries.

        Returns:
            `image_<name>`: (N, height, width, 3) uint8.
        """
        mocap = self._data.mocap_pos
        self._data.qpos.assign(qpos.astype(np.float32))
        if mocap.size:
            placed = goal[:, : 3 * mocap.shape[1]].reshape(*mocap.shape, 3)
            mocap.assign(placed.astype(np.float32))
        self.draw()
        pixels = self._context.rgb_data.numpy().view(np.uint8).reshape(self.shape)[..., 2::-1]
        return {
            f"image_{name}": np.ascontiguousarray(pixels[:, number])
            for number, name in enumerate(self.names)
        }

    def shared(self) -> PictureTensors:
        """The device's arrays as tensors: `draw` renders the positions that are written to them."""
        to_torch = self._warp.to_torch
        return PictureTensors(
            to_torch(self._data.qpos),
            to_torch(self._data.mocap_pos),
            to_torch(self._context.rgb_data.view(self._warp.int32)),
        )

    def draw(self, device: Any = None) -> None:
        """Renders the present positions.

        Args:
            device: torch device in whose stream of operations a GPU renders; None takes warp's.
        """
        with self._warp.ScopedDevice(self._device):
            if device is None or not self._device.is_cuda:
                self._draw()
                return
            with self._warp.ScopedStream(self._warp.stream_from_torch(device)):
                self._draw()

    def _draw(self) -> None:
        renderer = self._renderer
        renderer.kinematics(self._model, self._data)
        renderer.camlight(self._model, self._data)
        renderer.refit_bvh(self._model, self._data, self._context)
        renderer.render(self._model, self._data, self._context)


def _has_skybox(model: Any) -> bool:
    import mujoco

    return int(mujoco.mjtTexture.mjTEXTURE_SKYBOX) in model.tex_type
