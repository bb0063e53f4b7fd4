"""The published push-T benchmark (gym-pusht) as a vector of worlds in SI units: 512 px are 0.512 m."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from robots.errors import HandoffError
from robots.types import Observation, Step
from sim.tasks.push_t import SUCCESS_COVERAGE, keypoints

PIXELS_PER_METRE = 1000.0

RATE_HZ = 10.0
"""Control rate of the benchmark; each period is ten physics steps of 10 ms."""

COVERAGE_DECIMALS = 9
"""Coverage is told to so many decimals; success is decided before rounding."""


class PushTVecEnv:
    """N gym-pusht worlds in one process, without gymnasium's wrappers.

    Observation fields, all in the board's frame (x right, y down): `agent` (N, 2) m, `keypoints` (N, 9, 2) m,
    `block_pose` (N, 3) m, m, rad in [0, 2 pi). The action (N, 2) is the agent's target position in m, not clipped, as
    in the published protocol. The reward is clip(coverage / 0.95, 0, 1); `info` holds `coverage` and `success`, (N,)
    each.

    A solved world freezes: later steps leave it as it is and repeat its last reward and `terminated`, until `reset`.
    So there is no automatic reset, `observation` and `final_observation` are the same, and worlds have no time limit
    (`truncated` stays False).
    """

    def __init__(self, num_envs: int, frame_size: int = 96):
        """Makes the worlds; call `reset` before `step`.

        Args:
            num_envs: N, at least 1.
            frame_size: edge of the square pictures of `render` [px].
        """
        # pygame, which gym-pusht draws with, otherwise greets on standard output when imported.
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        from gym_pusht.envs.pusht import PushTEnv

        if num_envs < 1:
            raise HandoffError(f"gym-pusht: {num_envs} worlds asked for, at least 1 is needed.")
        self.num_envs = num_envs
        self._worlds = [
            PushTEnv(obs_type="state", visualization_width=frame_size, visualization_height=frame_size)
            for _ in range(num_envs)
        ]
        self._coverage = np.zeros(num_envs)
        self._solved = np.zeros(num_envs, dtype=bool)

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Starts every world at the published benchmark's random pose of its seed."""
        self._check_rows("seeds", len(seeds))
        for world, seed in zip(self._worlds, seeds, strict=True):
            world.reset(seed=int(seed))
        return self._started()

    def reset_to(self, agent: np.ndarray, block_pose: np.ndarray) -> Observation:
        """Starts every world exactly at a recorded state, at rest.

        gym-pusht's own `reset_to_state` sets the block's position before its angle; the turn about the centre of mass
        then moves the block. Here the angle comes first, so that the state reached is the state given.

        Args:
            agent: (N, 2) m.
            block_pose: (N, 3) m, m, rad.
        """
        self._check_rows("agent", len(agent))
        self._check_rows("block_pose", len(block_pose))
        for world, position, pose in zip(self._worlds, agent, block_pose, strict=True):
            world.reset(seed=0)
            world._setup()
            world.agent.position = tuple(PIXELS_PER_METRE * np.asarray(position, dtype=np.float64))
            world.block.angle = float(pose[2])
            world.block.position = tuple(PIXELS_PER_METRE * np.asarray(pose[:2], dtype=np.float64))
            world.space.step(world.dt)
        return self._started()

    def step(self, action: np.ndarray) -> Step:
        """Steps the worlds that are not yet solved by 0.1 s; rows of solved worlds are ignored.

        Raises:
            HandoffError: wrong shape, or a non-finite target for a world that still runs.
        """
        if action.shape != (self.num_envs, 2):
            raise HandoffError(f"action: shape {action.shape}, expected {(self.num_envs, 2)}, one (x, y) m per world.")
        running = np.flatnonzero(~self._solved)
        for i in running:
            target = PIXELS_PER_METRE * action[i].astype(np.float64)
            if not np.isfinite(target).all():
                raise HandoffError(f"action: row {i} is {action[i].tolist()}, expected finite m. Is the policy broken?")
            _, _, self._solved[i], _, info = self._worlds[i].step(target)
            # The polygon overlap (GEOS) differs in its last bits from process to process; the physics does not.
            self._coverage[i] = round(info["coverage"], COVERAGE_DECIMALS)
        observation = self._observe()
        return Step(
            observation=observation,
            reward=np.clip(self._coverage / SUCCESS_COVERAGE, 0.0, 1.0),
            terminated=self._solved.copy(),
            truncated=np.zeros(self.num_envs, dtype=bool),
            final_observation=observation,
            info={"coverage": self._coverage.copy(), "success": self._solved.copy()},
        )

    def render(self, world: int) -> np.ndarray:
        """(frame_size, frame_size, 3) uint8 RGB picture of one world, with the last target as a red cross."""
        return np.asarray(self._worlds[world].render())

    def close(self) -> None:
        """Frees what drawing has taken."""
        for world in self._worlds:
            world.close()

    def _started(self) -> Observation:
        self._coverage[:] = 0.0
        self._solved[:] = False
        return self._observe()

    def _observe(self) -> Observation:
        state_N5 = np.array([world.get_obs() for world in self._worlds], dtype=np.float64)
        state_N5[:, :4] /= PIXELS_PER_METRE
        return {
            "agent": state_N5[:, :2].astype(np.float32),
            "keypoints": keypoints(state_N5[:, 2:]).astype(np.float32),
            "block_pose": state_N5[:, 2:].astype(np.float32),
        }

    def _check_rows(self, name: str, rows: int) -> None:
        if rows != self.num_envs:
            raise HandoffError(f"gym-pusht: {rows} rows of {name} for {self.num_envs} worlds, expected one per world.")
