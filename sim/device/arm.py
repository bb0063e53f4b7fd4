"""Simulates an arm's environments entirely on the device: no data is copied to the host between two
updates of a policy.

mujoco-warp steps them. A task's terms and the arm's commands are the NumPy functions of
`sim.tasks.terms`, traced (`sim.device.tracing`) and executed on the tensors' device, so a task is
defined once. Initial states are drawn on the host in advance, from the same seeds as elsewhere, and
kept in a pool on the device: an environment that ends takes the next one. If more environments end
before `refill` than the pool holds, its states are reused.

With `randomized: true` the pool also holds the model fields and the delay that each episode draws,
and an environment that starts an episode takes them as well, on the device.

Cameras are rendered on the device (`sim.scene.warp_cameras`), all environments at once whenever an
observation is asked for: after a chunk of actions, and again after the reset of those that ended.

The same code runs on a CPU, where it is tested; it has not been run on CUDA. Not supported: the
agent of push-T, whose motion is not a function of arrays alone.

Shape suffixes: N environments, H actions of a chunk, A action, P initial states in the pool.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robots.control.actions import CartesianDelta, PdTarget
from robots.errors import HandoffError
from sim.device.initial_states import MODEL, InitialStates
from sim.device.tracing import Traced
from sim.engines.mujoco import build_model
from sim.engines.warp import WarpConfig
from sim.engines.warp_physics import WarpPhysics
from sim.scene.cameras import camera_fields
from sim.scene.dynamics import refuse_varying
from sim.scene.view import View
from sim.tasks.task import Task
from sim.tasks.terms import control, next_target, read_terms

if TYPE_CHECKING:
    from sim.scene.warp_cameras import WarpCameras


class DeviceStep(NamedTuple):
    """Result of a chunk of actions, on the device."""

    observation: dict[str, Tensor]
    """(N, ...) observation after the chunk, before any reset."""
    reward_NH: Tensor
    """Reward per action; 0 for actions that were not executed."""
    executed_N: Tensor
    """Number of executed actions, int64; 0 in an environment that had ended before."""
    terminated_N: Tensor
    """Whether the task ended during this chunk, bool."""
    truncated_N: Tensor
    """Whether the time limit was reached during this chunk, bool."""
    success_N: Tensor
    """Whether the task was solved during this chunk, bool."""


class DeviceVecEnv(ABC):
    """Episodes of N environments on a device: chunks, time limits, and environments that freeze
    when their episode has ended.

    Args:
        num_envs: N.
        max_steps: time limit [control periods].
        device: device of the environments.
    """

    def __init__(self, num_envs: int, max_steps: int, device: torch.device) -> None:
        self.num_envs = num_envs
        self.max_steps = max_steps
        self.device = device
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._ended = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._broken = torch.zeros(num_envs, dtype=torch.bool, device=device)

    @abstractmethod
    def observation(self) -> dict[str, Tensor]:
        """(N, ...) current observations; those of ended environments are from their end."""

    @abstractmethod
    def _advance(self, action_NA: Tensor, running_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Steps the running environments by one control period; returns rewards (N,) float64, and
        bool (N,) whether solved and whether failed."""

    def step(self, action_NHA: Tensor) -> DeviceStep:
        """Executes a chunk in every environment; an environment whose episode ends skips the
        remaining actions and freezes.

        Args:
            action_NHA: actions that match `action_spec`.
        """
        active_N = ~self._ended
        rewards = []
        executed_N = torch.zeros_like(self._steps)
        success_N = torch.zeros_like(active_N)
        truncated_N = torch.zeros_like(active_N)
        for action_NA in action_NHA.unbind(dim=1):
            running_N = ~self._ended
            reward_N, solved_N, failed_N = self._advance(action_NA, running_N)
            self._broken |= running_N & ~(
                torch.isfinite(reward_N) & torch.isfinite(action_NA).all(dim=1)
            )
            rewards.append(torch.where(running_N, reward_N, 0.0))
            executed_N = executed_N + running_N
            self._steps = self._steps + running_N
            timed_out_N = running_N & ~(solved_N | failed_N) & (self._steps >= self.max_steps)
            success_N = success_N | (running_N & solved_N)
            truncated_N = truncated_N | timed_out_N
            self._ended = self._ended | (running_N & (solved_N | failed_N)) | timed_out_N
        ended_N = active_N & self._ended
        return DeviceStep(
            observation=self.observation(),
            reward_NH=torch.stack(rewards, dim=1),
            executed_N=executed_N,
            terminated_N=ended_N & ~truncated_N,
            truncated_N=truncated_N,
            success_N=success_N,
        )

    def save(self) -> dict[str, Any] | None:
        """Complete state on the host, for `restore`; None where it cannot be saved."""
        return None

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a state of `save`, after which the episodes go on as they would have.

        Raises:
            HandoffError: the state is of other environments.
        """
        raise NotImplementedError("This environment saves no state.")

    def _pop_broken(self) -> list[int]:
        """Environments with non-finite values since the last call, copied to the host."""
        broken = torch.nonzero(self._broken)[:, 0].tolist()
        self._broken.zero_()
        return broken


class DeviceArmEnv(DeviceVecEnv):
    """N environments of one task.

    Args:
        task: the simulated task.
        num_envs: N.
        config: options of the engine.
        max_steps: time limit [control periods]; None takes the task's own.
        starts: P, number of initial states in the pool, at least N; None takes 4 N.

    Raises:
        HandoffError: an unsupported option (see the module), fewer initial states than
            environments, or an error of `WarpPhysics`.
    """

    def __init__(
        self,
        task: Task,
        num_envs: int,
        config: WarpConfig,
        max_steps: int | None = None,
        starts: int | None = None,
    ) -> None:
        actions = config.actions or task.actions
        name = f"resident {task.name}"
        if isinstance(actions, PdTarget):
            raise HandoffError(
                f"{name}: PdTarget actions cannot be simulated on the device. Set resident: false."
            )
        waiting = 4 * num_envs if starts is None else starts
        if waiting < num_envs:
            raise HandoffError(
                f"{name}: {waiting} initial states for {num_envs} environments, expected at least one for each."
            )
        refuse_varying(config.dynamics, name)
        model = build_model(task, actions, config.dynamics)
        self._host = InitialStates(name, task, waiting, model, actions, config)
        super().__init__(
            num_envs,
            task.max_steps if max_steps is None else max_steps,
            torch.device(config.device),
        )
        self.task = task
        self.rate_hz = task.rate_hz
        self.observation_spec = self._host.observation_spec
        self.action_spec = self._host.action_spec
        steps = self._host.substeps
        batched = self._host.draws.fields
        self._physics = WarpPhysics(
            name, model, num_envs, steps, config.device, task.capacity, batched
        )
        self._shared = self._physics.shared()
        self._cameras: WarpCameras | None = None
        latency = 0
        if config.cameras is not None:
            self._cameras = self._physics.cameras(model, config.cameras)
            latency = round(config.cameras.latency / model.opt.timestep)
            self.observation_spec = {**self.observation_spec, **camera_fields(config.cameras)}
        # (N, L, nq) positions of the latest physics steps, oldest first, as pictures are late.
        self._earlier = self._shared.qpos[:, None].repeat(1, latency, 1)
        self._pictures: dict[str, Tensor] | None = None
        # Arrays that the physics reads, which a new episode changes in place.
        self._physical = {"qpos": self._shared.qpos, "qvel": self._shared.qvel} | {
            MODEL + field: self._physics.batched(field) for field in batched
        }
        step = torch.arange(1, steps + 1, device=self.device, dtype=torch.float64)
        self._number = step[:, None, None]
        example = self._host.example(num_envs)
        optimised = self.device.type == "cuda"
        self._read = Traced(self._read_terms, example[:-1]).on(self.device, optimised)
        self._command = Traced(self._actuate, example).on(self.device, optimised)
        self._pool: dict[str, Tensor] = {}
        self._now: dict[str, Tensor] = {}
        self._next = torch.zeros((), dtype=torch.int64, device=self.device)
        self._cached: tuple[dict[str, Tensor], Tensor, Tensor, Tensor] | None = None

    @property
    def waiting(self) -> int:
        """P, number of initial states in the pool."""
        return self._host.num_envs

    def refill(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """Draws initial states on the host and replaces those that were taken, the oldest first.

        Args:
            seeds: P seeds in the first call, then at most `taken`.

        Returns:
            Observations at these initial states, per field.

        Raises:
            HandoffError: more than P seeds, or fewer in the first call.
        """
        host, count = self._host, len(seeds)
        if count > self.waiting or (not self._pool and count < self.waiting):
            raise HandoffError(
                f"{host.name}: {count} seeds for {self.waiting} initial states, expected {self.waiting} in the first "
                "call and at most as many later."
            )
        rows = (host.drawn + np.arange(count)) % self.waiting
        host.draw(rows, np.asarray(seeds, dtype=np.int64))
        for field, array in host.arrays().items():
            fresh = torch.from_numpy(array[rows]).to(self.device)
            if field in self._pool:
                self._pool[field][torch.from_numpy(rows).to(self.device)] = fresh
            else:
                self._pool[field] = fresh
        return {field: array[rows] for field, array in host.read().observation.items()}

    def taken(self) -> int:
        """Number of initial states taken since they were drawn, at most P; copies one number to the
        host."""
        return min(self.waiting, max(0, int(self._next) + self.waiting - self._host.drawn))

    def begin(self, size: int = 1) -> None:
        """Starts an episode in all environments; each group of `size` consecutive ones shares an
        initial state."""
        self._take(
            torch.ones_like(self._ended), torch.arange(self.num_envs, device=self.device) // size
        )

    def reset_ended(self, ended_N: Tensor) -> None:
        """Starts an episode in the environments `ended_N` (bool), from the next initial states in
        the order of the environments."""
        self._take(ended_N, ended_N.long().cumsum(0) - 1)

    def observation(self) -> dict[str, Tensor]:
        """See `DeviceVecEnv.observation`."""
        fields = self._current()[0]
        if self._cameras is None:
            return fields
        if self._pictures is None:
            late = self._earlier.shape[1] > 0
            qpos = self._earlier[:, 0] if late else self._shared.qpos
            self._pictures = _pictures(self._cameras, qpos, self._now["goal"])
        return {**fields, **self._pictures}

    def check(self) -> None:
        """Checks for errors since the last call; copies a few numbers to the host.

        Raises:
            HandoffError: non-finite values, or more contacts or constraints than were allocated.
        """
        self._physics.check(self._shared.overflow.cpu().numpy())
        self._shared.overflow.zero_()
        broken = self._pop_broken()
        if broken:
            raise HandoffError(
                f"{self._host.name}: environments {broken[:8]} had actions, rewards or speeds that are not "
                "finite or implausibly large. Is the policy broken, or did an action make the physics unstable?"
            )

    def save(self) -> dict[str, Any] | None:
        """Complete state on the host: the worlds, their episodes, and the initial states that wait
        in the pool. A control period starts the constraint solver cold, so nothing else matters."""
        tensors = {name: array.cpu().clone() for name, array in self._tensors().items()}
        return {"tensors": tensors, "drawn": self._host.drawn}

    def restore(self, state: dict[str, Any]) -> None:
        """See `DeviceVecEnv.restore`.

        Raises:
            HandoffError: the state is of another task or another number of environments.
        """
        if not self._pool:
            # The pool's arrays exist from the first draw on; its content is replaced.
            self.refill([0] * self.waiting)
            self.begin()
        own, saved = self._tensors(), state["tensors"]
        shapes = {name: tuple(array.shape) for name, array in own.items()}
        if shapes != {name: tuple(array.shape) for name, array in saved.items()}:
            raise HandoffError(
                f"{self._host.name}: the saved worlds are of another task, or of another number of environments or "
                "initial states. Continue the run with the options that it was started with."
            )
        for name, array in own.items():
            array.copy_(saved[name])
        self._host.drawn = state["drawn"]
        self._cached = self._pictures = None

    def close(self) -> None:
        """Does nothing: the arrays on the device are freed with the environments."""

    def _tensors(self) -> dict[str, Tensor]:
        """Everything on the device that the next steps depend on."""
        parts = {"physics": self._physical, "now": self._now, "pool": self._pool}
        arrays = {f"{part}/{name}": a for part, of in parts.items() for name, a in of.items()}
        if self._earlier.shape[1]:
            arrays["earlier"] = self._earlier
        return arrays | {"next": self._next, "steps": self._steps, "ended": self._ended}

    def _take(self, ended_N: Tensor, order_N: Tensor) -> None:
        """Sets the environments `ended_N` to the pool's states at `order_N` after the last one."""
        at_N = (self._next + order_N) % self.waiting
        self._next = self._next + torch.where(ended_N, order_N + 1, 0).max()
        for field, pool in self._pool.items():
            initial = pool[at_N]
            starts = ended_N.view(-1, *[1] * (initial.ndim - 1))
            if field in self._physical:
                current = self._physical[field]
                current.copy_(torch.where(starts, initial, current))
            else:
                current = self._now.get(field, initial)
                self._now[field] = torch.where(starts, initial, current)
        first = self._shared.qpos[:, None]
        self._earlier = torch.where(ended_N[:, None, None], first, self._earlier)
        self._steps = torch.where(ended_N, 0, self._steps)
        self._ended = self._ended & ~ended_N
        self._cached = self._pictures = None

    def _advance(self, action_NA: Tensor, running_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `DeviceVecEnv._advance`."""
        shared = self._shared
        now = self._now
        running = running_N[:, None]
        target, ctrl = self._command(*self._state(), action_NA.double())
        # Controls are interpolated over the physics steps of the control period. As in
        # `ArmEngine`, a delayed command starts late and ends with the period.
        previous = shared.qpos.clone(), shared.qvel.clone()
        late = now["late"]
        fraction = (self._number - late).clamp(min=0.0) / (self._host.substeps - late)
        shared.control.copy_(now["ctrl"] + fraction * (ctrl - now["ctrl"]))
        self._physics.period()
        if self._earlier.shape[1]:
            path = self._physics.path().transpose(0, 1)
            whole = torch.cat([self._earlier, previous[0][:, None], path], dim=1)
            latest = whole[:, whole.shape[1] - 1 - self._earlier.shape[1] : -1]
            self._earlier = torch.where(running[:, None], latest, self._earlier)
        # Ended environments are stepped as well, then restored.
        for current, old in zip((shared.qpos, shared.qvel), previous, strict=True):
            current.copy_(torch.where(running, current, old))
        now["target"] = torch.where(running, target, now["target"])
        now["ctrl"] = torch.where(running, ctrl, now["ctrl"])
        self._cached = self._pictures = None
        return self._current()[1:]

    def _current(self) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        values = self._cached
        if values is None:
            values = self._cached = self._read(*self._state())
        return values

    def _state(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if not self._now:
            raise HandoffError(
                f"{self._host.name}: used before the first episode. Call refill and begin first."
            )
        return (
            self._shared.qpos.double(),
            self._shared.qvel.double(),
            self._now["target"],
            self._now["goal"],
        )

    def _read_terms(self, qpos: Any, qvel: Any, target: Any, goal: Any) -> Any:
        host = self._host
        view = View(host.layout, qpos, qvel, target, goal, joint_targets=host.joint_targets)
        output = read_terms(self.task, view, host.sparse)
        return output.observation, output.reward, output.success, output.failure

    def _actuate(self, qpos: Any, qvel: Any, target: Any, goal: Any, action: Any) -> Any:
        host = self._host
        view = View(host.layout, qpos, qvel, target, goal, joint_targets=host.joint_targets)
        cartesian = isinstance(host.actions, CartesianDelta)
        measured = view.grasp_pose if cartesian else view.q
        width = view.width if host.use_gripper else None
        moved = next_target(
            host.actions,  # type: ignore[arg-type]
            target,
            measured,
            width,
            action,
            host.period,
            self.task.robot,
        )
        jacobian = view.jacobian if cartesian else None
        return moved, control(moved, jacobian, view.q, self.task.q_posture, host.layout.has_gripper)


def _pictures(cameras: WarpCameras, qpos: Tensor, goal: Tensor) -> dict[str, Tensor]:
    """Renders every environment from every camera; see `WarpCameras.render`."""
    shared = cameras.shared()
    shared.qpos.copy_(qpos)
    shared.mocap.copy_(goal[:, : shared.mocap[0].numel()].reshape(shared.mocap.shape))
    cameras.draw(qpos.device)
    pixels = shared.pixels.view(torch.uint8).view(cameras.shape)[..., :3].flip(-1)
    return {f"image_{name}": pixels[:, number] for number, name in enumerate(cameras.names)}
