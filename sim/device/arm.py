"""Worlds of an arm that stay on the device: between two updates of a policy nothing of them is
copied to the host.

mujoco-warp steps them. A task's terms and the arm's commands are the NumPy functions of
`sim.tasks.terms`, traced (`sim.device.tracing`) and run where the tensors are, so a task is stated
once. Starts are drawn on the host, by the same seeds as everywhere, before they are needed, and
wait on the device: a world that ends takes the next one. Where more worlds end before `refill` than
starts wait, these come round again.

On a CPU the same code runs, which is how it is tested; on CUDA it was never run, for want of a GPU.
Not here: domain randomisation, pictures, and the agent of push-T, whose motion is no function of
arrays alone.

Shape suffixes: N worlds, H actions of a chunk, A action, P starts that wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robots.control.actions import CartesianDelta, PdTarget
from robots.errors import HandoffError
from sim.device.tracing import Traced
from sim.engines.arm_engine import ArmEngine
from sim.engines.mujoco import build_model
from sim.engines.warp import WarpConfig
from sim.engines.warp_physics import Room, WarpPhysics
from sim.scene.view import View
from sim.tasks.task import Task
from sim.tasks.terms import control, next_target, told


class Led(NamedTuple):
    """What a chunk of actions led to, on the device."""

    observation: dict[str, Tensor]
    """(N, ...) at its end, before any new start."""
    reward_NH: Tensor
    """0 for actions that were not executed."""
    executed_N: Tensor
    """int64; 0 in a world that had ended before."""
    terminated_N: Tensor
    """bool, by this chunk; likewise the next two."""
    truncated_N: Tensor
    success_N: Tensor


class ResidentEpisodes(ABC):
    """Episodes of N worlds on a device: chunks, time limits, and worlds that stay as they are when
    they have ended.

    Args:
        num_envs: N.
        max_steps: time limit [control periods].
        device: where.
    """

    def __init__(self, num_envs: int, max_steps: int, device: torch.device) -> None:
        self.num_envs, self.max_steps, self.device = num_envs, max_steps, device
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._ended = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._broken = torch.zeros(num_envs, dtype=torch.bool, device=device)

    @abstractmethod
    def observation(self) -> dict[str, Tensor]:
        """(N, ...) what the worlds show; of those that have ended, at their end."""

    @abstractmethod
    def _advance(self, action_NA: Tensor, running_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One control period of the worlds that run: rewards (N,) float64, and bool whether solved,
        and failed."""

    def step(self, action_NHA: Tensor) -> Led:
        """Executes a chunk in every world; a world that ends leaves the rest of it and stays as it
        is.

        Args:
            action_NHA: of the worlds' `action_spec`.
        """
        begun_N = ~self._ended
        rewards, executed_N = [], torch.zeros_like(self._steps)
        success_N, truncated_N = torch.zeros_like(begun_N), torch.zeros_like(begun_N)
        for action_NA in action_NHA.unbind(dim=1):
            running_N = ~self._ended
            reward_N, solved_N, failed_N = self._advance(action_NA, running_N)
            self._broken |= running_N & ~(
                torch.isfinite(reward_N) & torch.isfinite(action_NA).all(dim=1)
            )
            rewards.append(torch.where(running_N, reward_N, 0.0))
            executed_N, self._steps = executed_N + running_N, self._steps + running_N
            late_N = running_N & ~(solved_N | failed_N) & (self._steps >= self.max_steps)
            success_N, truncated_N = success_N | (running_N & solved_N), truncated_N | late_N
            self._ended = self._ended | (running_N & (solved_N | failed_N)) | late_N
        over_N = begun_N & self._ended
        found = (
            torch.stack(rewards, dim=1),
            executed_N,
            over_N & ~truncated_N,
            truncated_N,
            success_N,
        )
        return Led(self.observation(), *found)

    def _broke(self) -> list[int]:
        """Worlds with numbers that were not finite since the last time; they come to the host."""
        broken = torch.nonzero(self._broken)[:, 0].tolist()
        self._broken.zero_()
        return broken


class ResidentWorlds(ResidentEpisodes):
    """N worlds of one task.

    Args:
        task: what is simulated.
        num_envs: N.
        config: how; not randomised.
        max_steps: time limit [control periods]; None takes the task's own.
        starts: P, at least N; None waits with four for every world.

    Raises:
        HandoffError: see the module and `WarpPhysics`; fewer starts than worlds.
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
        if isinstance(actions, PdTarget) or config.randomized:
            what = "an agent's actions" if isinstance(actions, PdTarget) else "domain randomisation"
            raise HandoffError(
                f"{name}: {what} need worlds that pass through the host. Set resident: false."
            )
        waiting = 4 * num_envs if starts is None else starts
        if waiting < num_envs:
            raise HandoffError(
                f"{name}: {waiting} starts for {num_envs} worlds, expected one for each at least."
            )
        model = build_model(task, actions)
        self._host = _Starts(name, task, waiting, model, actions, config.reward)
        super().__init__(
            num_envs,
            task.max_steps if max_steps is None else max_steps,
            torch.device(config.device),
        )
        self.task, self.rate_hz = task, task.rate_hz
        self.observation_spec, self.action_spec = (
            self._host.observation_spec,
            self._host.action_spec,
        )
        room, steps = Room(config.contacts, config.constraints), self._host.substeps
        self._physics = WarpPhysics(name, model, num_envs, steps, config.device, room)
        self._shared = self._physics.shared()
        share = torch.arange(1, steps + 1, device=self.device, dtype=torch.float64) / steps
        self._share = share[:, None, None]
        example = self._host.example(num_envs)
        optimised = self.device.type == "cuda"
        self._read = Traced(self._told, example[:-1]).on(self.device, optimised)
        self._command = Traced(self._commanded, example).on(self.device, optimised)
        self._pool: dict[str, Tensor] = {}
        self._now: dict[str, Tensor] = {}
        self._next = torch.zeros((), dtype=torch.int64, device=self.device)
        self._shown: tuple[dict[str, Tensor], Tensor, Tensor, Tensor] | None = None

    @property
    def waiting(self) -> int:
        """P."""
        return self._host.num_envs

    def refill(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """Draws starts on the host in place of as many that were taken, the oldest first.

        Args:
            seeds: P of them at first, then `taken` or fewer.

        Returns:
            What worlds show at these starts, per field.

        Raises:
            HandoffError: more seeds than starts, or fewer at first.
        """
        host, count = self._host, len(seeds)
        if count > self.waiting or (not self._pool and count < self.waiting):
            raise HandoffError(f"{host.name}: {count} seeds for {self.waiting} starts.")
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
        """Starts taken since they were drawn, P at most: one number comes to the host."""
        return min(self.waiting, max(0, int(self._next) + self.waiting - self._host.drawn))

    def begin(self, size: int = 1) -> None:
        """Begins in all worlds, `size` of them side by side from one start."""
        self._take(
            torch.ones_like(self._ended), torch.arange(self.num_envs, device=self.device) // size
        )

    def begin_again(self, over_N: Tensor) -> None:
        """Begins anew where `over_N`, from the next starts in the order of the worlds."""
        self._take(over_N, over_N.long().cumsum(0) - 1)

    def observation(self) -> dict[str, Tensor]:
        """See `ResidentEpisodes.observation`."""
        return self._present()[0]

    def check(self) -> None:
        """Looks at what went wrong since the last time; a few numbers come to the host.

        Raises:
            HandoffError: numbers that are not finite, or more contacts or constraints than there is
                room for.
        """
        self._physics.check(self._shared.overflow.cpu().numpy())
        self._shared.overflow.zero_()
        broken = self._broke()
        if broken:
            raise HandoffError(
                f"{self._host.name}: worlds {broken[:8]} had actions, rewards or speeds that are not finite or beyond "
                "all sense. Is the policy broken, or did an action make the physics unstable?"
            )

    def close(self) -> None:
        """Nothing to free: the arrays on the device go with the worlds."""

    def _take(self, over_N: Tensor, order_N: Tensor) -> None:
        at_N = (self._next + order_N) % self.waiting
        self._next = self._next + torch.where(over_N, order_N + 1, 0).max()
        for field, pool in self._pool.items():
            fresh = pool[at_N]
            if field in ("qpos", "qvel"):
                mine = getattr(self._shared, field)
                mine.copy_(torch.where(over_N[:, None], fresh, mine))
            else:
                before = self._now.get(field, fresh)
                self._now[field] = torch.where(over_N[:, None], fresh, before)
        self._steps = torch.where(over_N, 0, self._steps)
        self._ended = self._ended & ~over_N
        self._shown = None

    def _advance(self, action_NA: Tensor, running_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `ResidentEpisodes._advance`."""
        shared, now, running = self._shared, self._now, running_N[:, None]
        target, ctrl = self._command(*self._state(), action_NA.double())
        kept = shared.qpos.clone(), shared.qvel.clone()
        shared.control.copy_(now["ctrl"] + self._share * (ctrl - now["ctrl"]))
        self._physics.period()
        for mine, before in zip((shared.qpos, shared.qvel), kept, strict=True):
            mine.copy_(torch.where(running, mine, before))
        now["target"] = torch.where(running, target, now["target"])
        now["ctrl"] = torch.where(running, ctrl, now["ctrl"])
        self._shown = None
        return self._present()[1:]

    def _present(self) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        shown = self._shown
        if shown is None:
            shown = self._shown = self._read(*self._state())
        return shown

    def _state(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if not self._now:
            raise HandoffError(f"{self._host.name}: not begun. Call refill and begin first.")
        return (
            self._shared.qpos.double(),
            self._shared.qvel.double(),
            self._now["target"],
            self._now["goal"],
        )

    def _told(self, qpos: Any, qvel: Any, target: Any, goal: Any) -> Any:
        host = self._host
        view = View(host.layout, qpos, qvel, target, goal, joint_targets=host.joint_targets)
        found = told(self.task, view, host.sparse)
        return found.observation, found.reward, found.success, found.failure

    def _commanded(self, qpos: Any, qvel: Any, target: Any, goal: Any, action: Any) -> Any:
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
        return moved, control(moved, jacobian, view.q, self.task.q_posture, host.layout.has_hand)


class _Starts(ArmEngine):
    """Starts of a task, drawn on the host and never stepped."""

    def __init__(
        self, name: str, task: Task, count: int, model: Any, actions: Any, reward: str
    ) -> None:
        super().__init__(name, task, count, model, actions, reward)
        self._qpos, self._qvel = np.zeros((count, model.nq)), np.zeros((count, model.nv))
        self.sparse, self.drawn = reward == "sparse", 0

    @property
    def qpos(self) -> np.ndarray:
        return self._qpos

    @property
    def qvel(self) -> np.ndarray:
        return self._qvel

    def draw(self, rows: np.ndarray, seeds: np.ndarray) -> None:
        self._start(rows, seeds)
        self.drawn += len(rows)

    def example(self, count: int) -> list[Tensor]:
        """State and actions of so many worlds, of the right shapes and types."""
        self.draw(np.arange(1), np.zeros(1, dtype=np.int64))
        self.drawn = 0
        shown = (
            self._qpos,
            self._qvel,
            self._target,
            self._goal,
            np.zeros((1, self.action_spec.size)),
        )
        return [torch.from_numpy(np.repeat(array[:1], count, axis=0)) for array in shown]

    def arrays(self) -> dict[str, np.ndarray]:
        single = {"qpos": self._qpos.astype(np.float32), "qvel": self._qvel.astype(np.float32)}
        return {**single, "target": self._target, "ctrl": self._ctrl, "goal": self._goal}
