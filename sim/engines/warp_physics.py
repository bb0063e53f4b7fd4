"""Holds mujoco-warp's model and data on a device, and runs the physics steps of one control period.

Between control periods environments are either NumPy arrays (`advance`) or stay on the device
(`shared`, `period`).
"""

# The compiled mujoco module has no type stubs; mujoco-warp is an optional dependency.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from robots.errors import HandoffError
from robots.extras import pip_install
from sim.tasks.task import Capacity

if TYPE_CHECKING:
    from sim.scene.cameras import CamerasConfig
    from sim.scene.warp_cameras import WarpCameras


class DeviceArrays(NamedTuple):
    """Torch tensors that share the device's arrays, float32 unless stated otherwise."""

    qpos: Any
    """(N, nq) generalised positions."""
    qvel: Any
    """(N, nv) generalised velocities."""
    control: Any
    """(substeps, N, nu) targets of the actuators."""
    overflow: Any
    """(N,) int32 overflow flags since they were last zeroed."""


class WarpPhysics:
    """Model and data on the device.

    Args:
        name: name in messages.
        model: compiled model (mujoco.MjModel).
        num_envs: N.
        substeps: physics steps of a control period.
        device: device of the physics.
        capacity: numbers of contacts and constraints.
        batched: fields of the model that differ between environments.

    Raises:
        HandoffError: mujoco-warp is not installed, there is no such device, or the model has a
            feature that mujoco-warp does not support.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        num_envs: int,
        substeps: int,
        device: Literal["cpu", "cuda"],
        capacity: Capacity,
        batched: Iterable[str] = (),
    ) -> None:
        try:
            import warp

            # Set before the second import, which starts warp and would print its devices and
            # kernels.
            warp.config.log_level = warp.LOG_ERROR
            import mujoco_warp
        except ImportError as error:
            raise HandoffError(
                f"{name}: mujoco-warp is not installed ({error}). Run: {pip_install('warp')}."
            ) from error
        if device == "cuda" and not warp.is_cuda_available():
            raise HandoffError(
                f"{name}: device 'cuda', but there is no CUDA device. Is the driver missing?"
            )
        self._name = name
        self._capacity = capacity
        self._substeps = substeps
        self._warp = warp
        self._step = mujoco_warp.step
        self._device = warp.get_device(device)
        model = _without_autoreset(model)
        with warp.ScopedDevice(self._device):
            try:
                self._model = mujoco_warp.put_model(
                    model, batch_sizes=dict.fromkeys(batched, num_envs)
                )
            except NotImplementedError as error:
                raise HandoffError(
                    f"{name}: mujoco-warp {mujoco_warp.__version__} cannot simulate this scene: {error}"
                ) from error
            # Checked after each period and raised as an error, not printed by every kernel.
            self._model.opt.warn_overflow = False
            self._data = mujoco_warp.make_data(
                model, nworld=num_envs, nconmax=capacity.contacts, njmax=capacity.constraints
            )
            self._control: Any = warp.zeros((substeps, num_envs, model.nu), dtype=float)
        self._graph: Any = None
        self._path: Any = None

    def cameras(self, model: Any, config: CamerasConfig) -> WarpCameras:
        """Cameras that see the environments; from now on `path` holds the positions of a period.

        Args:
            model: compiled model (mujoco.MjModel) whose cameras are used.
            config: names and resolution of the cameras.

        Raises:
            HandoffError: an error of `WarpCameras`.
        """
        from sim.scene.warp_cameras import WarpCameras

        qpos = self._data.qpos
        with self._warp.ScopedDevice(self._device):
            self._path = self._warp.zeros((self._substeps, *qpos.shape), dtype=float)
        return WarpCameras(model, self._model, self._device, qpos.shape[0], config)

    def path(self) -> Any:
        """(substeps, N, nq) generalised positions after every physics step of the latest period, a
        tensor of the device."""
        return self._warp.to_torch(self._path)

    def write(self, fields: dict[str, np.ndarray]) -> None:
        """Copies model fields of all environments, each (N, ...), to the device."""
        for name, values in fields.items():
            if values.size:
                getattr(self._model, name).assign(values.astype(np.float32))

    def advance(
        self, qpos: np.ndarray, qvel: np.ndarray, control: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Steps all environments through one control period.

        Args:
            qpos: (N, nq) generalised positions.
            qvel: (N, nv) generalised velocities.
            control: (N, substeps, nu) targets of the actuators.

        Returns:
            qpos (N, nq) and qvel (N, nv), float32, at the end of the period.

        Raises:
            HandoffError: more contacts or constraints than were allocated.
        """
        data = self._data
        with self._warp.ScopedDevice(self._device):
            data.overflow.zero_()
            self._control.assign(np.ascontiguousarray(np.swapaxes(control, 0, 1), dtype=np.float32))
            self._run(lambda: self._set(qpos, qvel))
            result = data.qpos.numpy(), data.qvel.numpy()
            self.check(data.overflow.numpy())
        return result

    def shared(self) -> DeviceArrays:
        """The device's arrays as tensors; the next `period` starts from the values written to
        them."""
        to_torch, data = self._warp.to_torch, self._data
        return DeviceArrays(
            to_torch(data.qpos),
            to_torch(data.qvel),
            to_torch(self._control),
            to_torch(data.overflow),
        )

    def batched(self, name: str) -> Any:
        """A model field that differs between environments, as a tensor (N, ...) of the device,
        which the next `period` reads.

        Args:
            name: one of the names given as `batched`.
        """
        return self._warp.to_torch(getattr(self._model, name))

    def period(self) -> None:
        """Steps all environments through one control period on the device, in the stream of torch's
        preceding operations."""
        with self._warp.ScopedDevice(self._device):
            if not self._device.is_cuda:
                self._run(self._data.qacc_warmstart.zero_)
                return
            shared = self.shared()
            with self._warp.ScopedStream(self._warp.stream_from_torch(shared.qpos.device)):
                # The capture of the graph takes steps of its own, which are undone.
                begin = self._data.qacc_warmstart.zero_
                self._run(begin if self._graph is not None else self._restored(shared))

    def _restored(self, shared: DeviceArrays) -> Callable[[], None]:
        """A function that sets the present state again."""
        qpos, qvel = shared.qpos.clone(), shared.qvel.clone()

        def begin() -> None:
            shared.qpos.copy_(qpos)
            shared.qvel.copy_(qvel)
            self._data.qacc_warmstart.zero_()

        return begin

    def check(self, overflow: np.ndarray) -> None:
        """Checks the flags of `DeviceArrays.overflow`.

        Raises:
            HandoffError: an environment had more contacts or constraints than were allocated.
        """
        check_capacity(self._name, overflow, self._capacity)

    def _run(self, begin: Callable[[], None]) -> None:
        """Runs the physics steps of a period from the states that `begin` sets."""
        begin()
        if not self._device.is_cuda:
            self._steps()
            return
        if self._graph is None:
            # Kernels are compiled at their first launch, which must not happen during a capture.
            self._steps()
            with self._warp.ScopedCapture() as capture:
                self._steps()
            self._graph = capture.graph
            begin()
        self._warp.capture_launch(self._graph)

    def _set(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        self._data.qpos.assign(qpos.astype(np.float32))
        self._data.qvel.assign(qvel.astype(np.float32))
        self._data.qacc_warmstart.zero_()

    def _steps(self) -> None:
        for i in range(self._substeps):
            self._warp.copy(self._data.ctrl, self._control[i])
            self._step(self._model, self._data)
            if self._path is not None:
                self._warp.copy(self._path[i], self._data.qpos)


def check_capacity(name: str, overflow: np.ndarray, capacity: Capacity) -> None:
    """Checks mujoco-warp's overflow flags.

    Args:
        name: name in the message.
        overflow: (N,) flags of every environment.
        capacity: numbers of contacts and constraints that were allocated.

    Raises:
        HandoffError: an environment had more of them.
    """
    from mujoco_warp import OverflowType

    # The solver's iteration limits are excluded: they affect accuracy but drop no contacts.
    fatal = (
        OverflowType.NEFC
        | OverflowType.NJMAX_NNZ
        | OverflowType.BROADPHASE
        | OverflowType.NARROWPHASE
        | OverflowType.CCD
    )
    overflow = overflow & int(fatal)
    if overflow.any():
        env_id = int(np.flatnonzero(overflow)[0])
        raise HandoffError(
            f"{name}: environment {env_id} exceeded {capacity.contacts} contacts or {capacity.constraints} constraints "
            f"per environment (mujoco-warp overflow {int(overflow[env_id])}). Increase `capacity` of the task."
        )


def _without_autoreset(model: Any) -> Any:
    import mujoco

    other = copy.copy(model)
    other.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return other
