"""The published push-T benchmark, gym-pusht, in SI units, with pictures as observations where they
are asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import WorldState
from robots.spec import ActionSpec, FieldSpec
from sim.engine import EngineState
from sim.engines.gym_state import ActionHistory
from sim.engines.opencv_substitute import importable_opencv
from sim.tasks.push_t.geometry import SUCCESS_COVERAGE, keypoints
from sim.vec_env import Worlds, WorldsConfig

PIXELS_PER_METRE = 1000.0
RATE_HZ = 10.0
"""Control rate of the benchmark; each period is ten physics steps of 10 ms."""
COVERAGE_DECIMALS = 9
"""Coverage is told to so many decimals; success is decided before rounding."""
NO_LIMIT = 2**31 - 1
"""A time limit [control periods] that no episode reaches."""


@config
class PushTConfig:
    """What the benchmark's worlds show."""

    picture: int | None = None
    """Edge of the square pictures in the field `image` [px]; the demonstrations' have 96. None
    makes none."""


class PushTEngine:
    """N gym-pusht worlds in one process, without gymnasium's wrappers.

    Observation fields, all in the board's frame (x right, y down): `agent` (N, 2) m, `keypoints`
    (N, 9, 2) m, `block_pose` (N, 3) m, m, rad in [0, 2 pi); with pictures also `image` (N, edge,
    edge, 3) uint8, the whole board, as the demonstrations show it. The action (N, 2) is the agent's
    target position in m, not clipped, as in the published protocol. The reward is clip(coverage /
    0.95, 0, 1); info `coverage`, 0 after a reset.

    States are saved as the start and the actions since, and a restore takes those again: pymunk
    hides the pushes between bodies that its next step begins with. With positions and velocities
    alone 6 of 60 random states had the same future; after 30 steps the median was 0.15 mm off, one
    in ten more than 77 mm.
    """

    name = "gym-pusht push_t"
    rate_hz = RATE_HZ
    max_steps = 300  # of the published protocol
    _board: Mapping[str, FieldSpec] = {
        "agent": FieldSpec(shape=(2,), unit="m", frame="board", about="centre of the pusher, x y"),
        "keypoints": FieldSpec(
            shape=(9, 2), unit="m", frame="board", about="points of the block, x y"
        ),
        "block_pose": FieldSpec(
            shape=(3,), unit="m, m, rad", frame="board", about="block x, y, angle in [0, 2 pi)"
        ),
    }
    action_spec = ActionSpec(
        low=(0.0, 0.0), high=(0.512, 0.512), names=("x", "y"), unit="m", interface="position_target"
    )

    def __init__(self, num_envs: int, frame_size: int = 96, config: PushTConfig | None = None):
        """Makes the worlds.

        Args:
            num_envs: N, at least 1.
            frame_size: edge of the square pictures of `render` [px].
            config: what they show.

        Raises:
            HandoffError: no worlds, or a picture without pixels.
        """
        # pygame, which gym-pusht draws with, otherwise greets on standard output when imported.
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        with importable_opencv():
            from gym_pusht.envs.pusht import PushTEnv

        if num_envs < 1:
            raise HandoffError(f"gym-pusht: {num_envs} worlds asked for, at least 1 is needed.")
        self.num_envs = num_envs
        edge = (config or PushTConfig()).picture
        if edge is not None and edge < 1:
            raise HandoffError(f"gym-pusht: pictures of {edge} px asked for, at least 1 is needed.")
        self._shows = edge is not None
        pictures = {}
        if edge is not None:
            about = "the board from above, RGB"
            pictures["image"] = FieldSpec(
                shape=(edge, edge, 3), dtype="uint8", unit="u8", about=about
            )
        self.observation_spec: Mapping[str, FieldSpec] = {**self._board, **pictures}
        self._worlds = [
            PushTEnv(
                obs_type="state",
                observation_width=edge or frame_size,
                observation_height=edge or frame_size,
                visualization_width=frame_size,
                visualization_height=frame_size,
            )
            for _ in range(num_envs)
        ]
        self._coverage = np.zeros(num_envs)
        self._solved = np.zeros(num_envs, dtype=bool)
        self._seeds = np.zeros(num_envs, dtype=np.int64)
        self._start = np.full((num_envs, 5), np.nan)
        self._history = ActionHistory(num_envs, 2)

    def reset(self, worlds: np.ndarray, seeds: np.ndarray) -> None:
        """Starts `worlds` at the published benchmark's random poses of their seeds."""
        self._begin(worlds, seeds, np.full((len(worlds), 5), np.nan))

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """Advances the worlds that run by 0.1 s; see `Engine.step`."""
        for i in np.flatnonzero(running):
            self._step(int(i), action[i])

    def read(self) -> EngineState:
        """See `Engine.read`."""
        state_N5 = np.array([world.get_obs() for world in self._worlds], dtype=np.float64)
        state_N5[:, :4] /= PIXELS_PER_METRE
        observation = {
            "agent": state_N5[:, :2].astype(np.float32),
            "keypoints": keypoints(state_N5[:, 2:]).astype(np.float32),
            "block_pose": state_N5[:, 2:].astype(np.float32),
        }
        if self._shows:
            # gym-pusht's own picture for policies: that of `render` shows the last target as well.
            observation["image"] = np.stack([np.asarray(world._render()) for world in self._worlds])
        return EngineState(
            observation=observation,
            reward=np.clip(self._coverage / SUCCESS_COVERAGE, 0.0, 1.0),
            terminated=self._solved.copy(),
            success=self._solved.copy(),
            info={"coverage": self._coverage.copy()},
        )

    def save(self) -> WorldState:
        """`start_seed` (N,), `start_state` (N, 5) agent x, y and block x, y, angle [m, rad] where a
        world was put at a state, else NaN, and the actions since.
        """
        return {
            "start_seed": self._seeds.copy(),
            "start_state": self._start.copy(),
            **self._history.save(),
        }

    def restore(self, worlds: np.ndarray, state: WorldState) -> None:
        """See `Engine.restore`; takes as long as the actions took."""
        self._begin(worlds, state["start_seed"], state["start_state"])
        for row, i in enumerate(worlds):
            for action in self._history.of(state, row):
                self._step(int(i), action)

    def dump(self, world: int) -> dict[str, np.ndarray]:
        """State [px, rad] and velocities [px/s, rad/s] of one world."""
        env = self._worlds[world]
        return {
            "state": np.asarray(env.get_obs()),
            "agent_velocity": np.array(env.agent.velocity),
            "block_velocity": np.array([*env.block.velocity, env.block.angular_velocity]),
        }

    def render(self, world: int) -> np.ndarray:
        """(frame_size, frame_size, 3) uint8 RGB picture of one world, with the last target as a red
        cross."""
        return np.asarray(self._worlds[world].render())

    def close(self) -> None:
        """Frees what drawing has taken."""
        for world in self._worlds:
            world.close()

    def _begin(self, worlds: np.ndarray, seeds: np.ndarray, states: np.ndarray) -> None:
        for i, seed, state in zip(worlds, seeds, states, strict=True):
            world = self._worlds[i]
            world.reset(seed=int(seed))
            if np.isfinite(state).all():
                _put_at(world, state)
        self._seeds[worlds], self._start[worlds] = seeds, states
        self._history.clear(worlds)
        self._coverage[worlds], self._solved[worlds] = 0.0, False

    def _step(self, world: int, action: np.ndarray) -> None:
        self._history.add(world, action)
        _, _, self._solved[world], _, info = self._worlds[world].step(PIXELS_PER_METRE * action)
        # The polygon overlap (GEOS) differs in its last bits from process to process; the physics
        # does not.
        self._coverage[world] = round(info["coverage"], COVERAGE_DECIMALS)


class PushTVecEnv(Worlds):
    """The published benchmark as it is evaluated: a solved world freezes until `reset`, and there
    is no time limit."""

    def __init__(
        self,
        num_envs: int,
        frame_size: int = 96,
        config: PushTConfig | None = None,
        max_steps: int = NO_LIMIT,
    ):
        """Makes the worlds; call `reset` before `step`. Arguments as of `PushTEngine` and
        `WorldsConfig`."""
        self._push_t = PushTEngine(num_envs, frame_size, config)
        super().__init__(
            self._push_t, WorldsConfig(on_end="freeze", max_steps=max_steps, guard_steps=0)
        )

    def render(self, world: int) -> np.ndarray:
        """(frame_size, frame_size, 3) uint8 RGB picture of one world, with the last target as a red
        cross."""
        return self._push_t.render(world)


def _put_at(world: Any, state: np.ndarray) -> None:
    """Puts a gym-pusht world at rest at agent x, y and block x, y, angle [m, rad].

    gym-pusht's own `reset_to_state` sets the block's position before its angle; the turn about the
    centre of mass then moves the block. Here the angle comes first, so that the state reached is
    the state given.
    """
    world._setup()
    world.agent.position = tuple(PIXELS_PER_METRE * state[:2])
    world.block.angle = float(state[4])
    world.block.position = tuple(PIXELS_PER_METRE * state[2:4])
    world.space.step(world.dt)
