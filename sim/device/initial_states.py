"""Draws the initial states of environments that stay on a device, on the host.

Shape suffixes: A action.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sim.engines.arm_engine import ArmEngine
from sim.engines.warp import WarpConfig
from sim.scene.model_draws import ModelDraws
from sim.scene.randomize import drawn_ranges
from sim.tasks.task import Task

MODEL = "model/"
"""Prefix of the model's fields among the arrays."""


class InitialStates(ArmEngine):
    """Initial states of a task, which are drawn on the host and never stepped.

    Args:
        name: name in messages.
        task: the simulated task.
        count: P, number of initial states.
        model: compiled model (mujoco.MjModel).
        actions: action space of the arm.
        config: options of the environments.
    """

    def __init__(
        self, name: str, task: Task, count: int, model: Any, actions: Any, config: WarpConfig
    ) -> None:
        super().__init__(name, task, count, model, actions, config.reward)
        self.set_delay(config.dynamics)
        ranges = drawn_ranges(task.ranges, config.ranges, config.randomized, name)
        self.draws = ModelDraws(ranges, model, count, pictured=config.cameras is not None)
        self._dynamics = config.dynamics
        self._qpos = np.zeros((count, model.nq))
        self._qvel = np.zeros((count, model.nv))
        self.sparse = config.reward == "sparse"
        self.drawn = 0

    def draw(self, rows: np.ndarray, seeds: np.ndarray) -> None:
        """Draws the states `rows` (M,) from `seeds` (M,)."""
        self._start(rows, seeds)
        self.draws.draw(rows, seeds)
        if self.draws.ranges:
            for row in rows.tolist():
                drawn = float(self.draws.delay_s[row])
                self._delay[row] = self.delay_steps(drawn, self._dynamics)
        self.drawn += len(rows)

    def example(self, count: int) -> list[Tensor]:
        """State and actions of `count` environments with the right shapes and types."""
        self.draw(np.arange(1), np.zeros(1, dtype=np.int64))
        self.drawn = 0
        arrays = (
            self._qpos,
            self._qvel,
            self._target,
            self._goal,
            np.zeros((1, self.action_spec.size)),
        )
        return [torch.from_numpy(np.repeat(array[:1], count, axis=0)) for array in arrays]

    def arrays(self) -> dict[str, np.ndarray]:
        """(P, ...) everything that an environment starts from, by name: state, drawn fields of the
        model after `MODEL`, target, control, goal and delay."""
        single = {"qpos": self._qpos.astype(np.float32), "qvel": self._qvel.astype(np.float32)}
        fields = {
            MODEL + name: array.astype(np.float32) for name, array in self.draws.fields.items()
        }
        double = {"target": self._target, "ctrl": self._ctrl, "goal": self._goal}
        return single | fields | double | {"late": self._delay[:, None].astype(np.float64)}
