"""mujoco-warp's model and data on a device, and the physics steps of one control period.

Worlds live in NumPy between control periods (`advance`), or stay where they are (`state`,
`period`).
"""

# The compiled mujoco module has no type stubs; mujoco-warp is an optional dependency.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from robots.errors import HandoffError


class Room(NamedTuple):
    """How much of what there may be in a world."""

    contacts: int
    """Per world, shared by all worlds."""
    constraints: int
    """Rows, in each world; an elliptic contact takes 3, 4 or 6."""


class Shared(NamedTuple):
    """Torch tensors over the device's memory, float32 unless said otherwise."""

    qpos: Any
    """(N, nq)."""
    qvel: Any
    """(N, nv)."""
    control: Any
    """(substeps, N, nu) targets of the actuators."""
    overflow: Any
    """(N,) int32, what there was no room for, since it was last zeroed."""


class WarpPhysics:
    """Model and data on the device.

    Args:
        name: for messages.
        model: compiled (mujoco.MjModel).
        num_envs: N.
        substeps: physics steps of a control period.
        device: where.
        room: per world.
        batched: fields of the model that differ from world to world.

    Raises:
        HandoffError: mujoco-warp is not installed, there is no such device, or the model has a
            feature that it lacks.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        num_envs: int,
        substeps: int,
        device: Literal["cpu", "cuda"],
        room: Room,
        batched: Iterable[str] = (),
    ) -> None:
        try:
            import warp

            # Said before the second import, which starts warp and would print its devices and
            # kernels.
            warp.config.log_level = warp.LOG_ERROR
            import mujoco_warp
        except ImportError as error:
            raise HandoffError(
                f"{name}: mujoco-warp is not installed ({error}). Run: pip install 'handoff[warp]'."
            ) from error
        if device == "cuda" and not warp.is_cuda_available():
            raise HandoffError(
                f"{name}: device 'cuda', but there is no CUDA device. Is the driver missing?"
            )
        self._name, self._room, self._substeps = name, room, substeps
        self._warp, self._step, self._device = warp, mujoco_warp.step, warp.get_device(device)
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
            # Told as an error after each period, not printed by every kernel.
            self._model.opt.warn_overflow = False
            self._data = mujoco_warp.make_data(
                model, nworld=num_envs, nconmax=room.contacts, njmax=room.constraints
            )
            self._control = warp.zeros((substeps, num_envs, model.nu), dtype=float)
        self._graph: Any = None
        kinds = mujoco_warp.OverflowType
        # Not the solver's iteration limits: reaching those costs accuracy, not contacts.
        self._fatal = int(
            kinds.NEFC | kinds.NJMAX_NNZ | kinds.BROADPHASE | kinds.NARROWPHASE | kinds.CCD
        )

    def write(self, fields: dict[str, np.ndarray]) -> None:
        """Puts model fields of all worlds, each (N, ...), on the device."""
        for name, values in fields.items():
            if values.size:
                getattr(self._model, name).assign(values.astype(np.float32))

    def advance(
        self, qpos: np.ndarray, qvel: np.ndarray, control: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Steps all worlds through one control period.

        Args:
            qpos: (N, nq).
            qvel: (N, nv).
            control: (N, substeps, nu) targets of the actuators.

        Returns:
            (N, nq) and (N, nv), float32, at the period's end.

        Raises:
            HandoffError: more contacts or constraints than there is room for.
        """
        data = self._data
        with self._warp.ScopedDevice(self._device):
            data.overflow.zero_()
            self._control.assign(np.ascontiguousarray(np.swapaxes(control, 0, 1), dtype=np.float32))
            self._run(lambda: self._set(qpos, qvel))
            after = data.qpos.numpy(), data.qvel.numpy()
            self.check(data.overflow.numpy())
        return after

    def shared(self) -> Shared:
        """The device's own arrays as tensors: what is written to them is what the next `period`
        begins with."""
        to_torch, data = self._warp.to_torch, self._data
        return Shared(
            to_torch(data.qpos),
            to_torch(data.qvel),
            to_torch(self._control),
            to_torch(data.overflow),
        )

    def period(self) -> None:
        """Steps all worlds through one control period, on the device alone, behind what torch has
        been asked for."""
        qpos, qvel = (part.clone() for part in self.shared()[:2])

        def begin() -> None:
            for mine, kept in zip(self.shared()[:2], (qpos, qvel), strict=True):
                mine.copy_(kept)
            self._data.qacc_warmstart.zero_()

        with self._warp.ScopedDevice(self._device):
            if not self._device.is_cuda:
                self._run(begin)
                return
            with self._warp.ScopedStream(self._warp.stream_from_torch(qpos.device)):
                self._run(begin)

    def check(self, overflow: np.ndarray) -> None:
        """Looks at what `Shared.overflow` has gathered.

        Raises:
            HandoffError: a world had more contacts or constraints than there is room for.
        """
        overflow = overflow & self._fatal
        if overflow.any():
            world = int(np.flatnonzero(overflow)[0])
            raise HandoffError(
                f"{self._name}: world {world} ran out of room (mujoco-warp overflow {int(overflow[world])}) with "
                f"{self._room.contacts} contacts and {self._room.constraints} constraints per world. Raise them."
            )

    def _run(self, begin: Callable[[], None]) -> None:
        """The physics steps of a period from where `begin` puts the worlds."""
        begin()
        if not self._device.is_cuda:
            self._steps()
            return
        if self._graph is None:
            # Kernels are compiled at their first launch, which must not happen within a capture.
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


def _without_autoreset(model: Any) -> Any:
    import mujoco

    other = copy.copy(model)
    other.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return other
