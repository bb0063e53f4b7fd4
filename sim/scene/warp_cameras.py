"""Renders the cameras of mujoco-warp's environments on their device, by its ray caster.

The pictures show what those of `sim.scene.cameras` show, drawn by another renderer: equal but for
the edges of objects and the shine of surfaces. They never leave the device.
"""

# The compiled mujoco module has no type stubs; mujoco-warp is an optional dependency.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.scene.cameras import CamerasConfig, check_cameras

if TYPE_CHECKING:
    from torch import Tensor

CONTACTS, CONSTRAINTS = 1, 1
"""Sizes of the data from which pictures are rendered, which never steps."""


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
        # In the order of the model's cameras, in which the pictures lie in the renderer's memory.
        self._names = sorted(config.names, key=lambda name: model.camera(name).id)
        self._shape = (num_envs, len(config.names), config.height, config.width, 4)
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
                cam_active=[model.camera(name).id for name in self._names],
                render_skybox=_has_skybox(model),
                # Rays of a camera whose field of view differs between environments.
                use_precomputed_rays=device_model.cam_fovy.shape[0] == 1,
            )
        self._qpos = warp.to_torch(self._data.qpos)
        self._mocap = warp.to_torch(self._data.mocap_pos)
        self._pixels = warp.to_torch(self._context.rgb_data.view(warp.int32))

    def render(self, qpos: Tensor, goal: Tensor) -> dict[str, Tensor]:
        """Renders every environment from every camera.

        Args:
            qpos: (N, nq) generalised positions.
            goal: (N, G); mocap bodies are placed at consecutive groups of three entries.

        Returns:
            `image_<name>`: (N, height, width, 3) uint8 on the device.
        """
        import torch

        self._qpos.copy_(qpos)
        self._mocap.copy_(goal[:, : self._mocap[0].numel()].reshape(self._mocap.shape))
        with self._warp.ScopedDevice(self._device):
            if self._device.is_cuda:
                with self._warp.ScopedStream(self._warp.stream_from_torch(self._qpos.device)):
                    self._draw()
            else:
                self._draw()
        # A pixel is one number, of which red is the third byte and blue the first.
        pixels = self._pixels.view(torch.uint8).view(self._shape)[..., :3].flip(-1)
        return {f"image_{name}": pixels[:, number] for number, name in enumerate(self._names)}

    def _draw(self) -> None:
        renderer = self._renderer
        renderer.kinematics(self._model, self._data)
        renderer.camlight(self._model, self._data)
        renderer.refit_bvh(self._model, self._data, self._context)
        renderer.render(self._model, self._data, self._context)


def _has_skybox(model: Any) -> bool:
    import mujoco

    return int(mujoco.mjtTexture.mjTEXTURE_SKYBOX) in model.tex_type
