"""Wraps the published push-T benchmark, gym-pusht, in SI units, with optional image
observations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from robots.config import Pixels, config
from robots.control.actions import PD_TARGET
from robots.episodes.formats.pusht import AGENT_FIELD, BLOCK_POSE_FIELD, KEYPOINTS_FIELD
from robots.errors import HandoffError
from robots.interfaces import EnvState
from robots.spec import ActionSpec, FieldSpec
from sim.engine import EngineState
from sim.engines.gym_state import ActionHistory
from sim.engines.opencv_substitute import importable_opencv
from sim.tasks.push_t.geometry import SUCCESS_COVERAGE, keypoints
from sim.vec_env import EngineVecEnv, VecEnvConfig

PIXELS_PER_METRE = 1000.0
RATE_HZ = 10.0
"""Control rate of the benchmark [Hz]; each period has ten physics steps of 10 ms."""
COVERAGE_DECIMALS = 9
"""Number of decimals of the reported coverage; success is determined before rounding."""
NO_LIMIT = 2**31 - 1
"""Time limit that no episode reaches [control periods]."""


@config
class PushTConfig:
    """Observations of the benchmark's environments."""

    picture: Pixels | None = None
    """Edge length of the square images in the field `image` [px], 96 in the demonstrations; None
    renders none."""


class PushTEngine:
    """N gym-pusht environments in one process, without gymnasium's wrappers.

    Observation fields, all in the board's frame (x right, y down): `agent` (N, 2) m, `keypoints`
    (N, 9, 2) m, `block_pose` (N, 3) m, m, rad in [0, 2 pi); optionally `image` (N, edge, edge, 3)
    uint8 of the whole board, as in the demonstrations. The action (N, 2) is the agent's target
    position in m, not clipped, as in the published protocol. The reward is clip(coverage / 0.95, 0,
    1); info `coverage`, 0 after a reset.

    A state is saved as the initial state and the actions since then, which a restore repeats:
    pymunk does not expose the contact impulses with which its next step begins. With positions and
    velocities alone, 6 of 60 random states had the same future; after 30 steps the median deviation
    was 0.15 mm, and one in ten exceeded 77 mm.
    """

    name = "gym-pusht push_t"
    rate_hz = RATE_HZ
    max_steps = 300  # of the published protocol
    board_spec: Mapping[str, FieldSpec] = {
        "agent": AGENT_FIELD,
        "keypoints": KEYPOINTS_FIELD,
        "block_pose": BLOCK_POSE_FIELD,
    }
    action_spec = ActionSpec(
        low=(0.0, 0.0), high=(0.512, 0.512), names=("x", "y"), unit="m", interface=PD_TARGET
    )

    def __init__(self, num_envs: int, frame_size: int = 96, config: PushTConfig | None = None):
        """Makes the environments.

        Args:
            num_envs: N, at least 1.
            frame_size: edge length of the square images of `render` [px].
            config: observations of the environments.

        Raises:
            HandoffError: fewer than one environment, or an image without pixels.
        """
        # Otherwise pygame, which gym-pusht uses, prints a message when it is imported.
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        with importable_opencv():
            from gym_pusht.envs.pusht import PushTEnv

        if num_envs < 1:
            raise HandoffError(f"gym-pusht: {num_envs} environments, at least 1 is needed.")
        self.num_envs = num_envs
        edge = (config or PushTConfig()).picture
        if edge is not None and edge < 1:
            raise HandoffError(f"gym-pusht: picture is {edge} px, at least 1 is needed.")
        self._observes_images = edge is not None
        images = {}
        if edge is not None:
            about = "the board from above, RGB"
            images["image"] = FieldSpec(
                shape=(edge, edge, 3), dtype="uint8", unit="u8", about=about
            )
        self.observation_spec: Mapping[str, FieldSpec] = {**self.board_spec, **images}
        self._envs = [
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

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """Starts `env_ids` at the published benchmark's random poses for their seeds."""
        self._begin(env_ids, seeds, np.full((len(env_ids), 5), np.nan))

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """Advances the running environments by 0.1 s; see `Engine.step`."""
        for i in np.flatnonzero(running):
            self._step(int(i), action[i])

    def read(self) -> EngineState:
        """See `Engine.read`."""
        state_N5 = np.array([env.get_obs() for env in self._envs], dtype=np.float64)
        state_N5[:, :4] /= PIXELS_PER_METRE
        observation = {
            "agent": state_N5[:, :2].astype(np.float32),
            "keypoints": keypoints(state_N5[:, 2:]).astype(np.float32),
            "block_pose": state_N5[:, 2:].astype(np.float32),
        }
        if self._observes_images:
            # gym-pusht's own image observation; that of `render` also shows the last target.
            observation["image"] = np.stack([np.asarray(env._render()) for env in self._envs])
        return EngineState(
            observation=observation,
            reward=np.clip(self._coverage / SUCCESS_COVERAGE, 0.0, 1.0),
            terminated=self._solved.copy(),
            success=self._solved.copy(),
            info={"coverage": self._coverage.copy()},
        )

    def save(self) -> EnvState:
        """See `Engine.save`: `start_seed` (N,), `start_state` (N, 5) agent x, y and block x, y,
        angle [m, rad] if an environment was set to a state, otherwise NaN, and the actions since
        then."""
        return {
            "start_seed": self._seeds.copy(),
            "start_state": self._start.copy(),
            **self._history.save(),
        }

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        """See `Engine.restore`; takes as long as the repeated actions."""
        self._begin(env_ids, state["start_seed"], state["start_state"])
        for row, i in enumerate(env_ids):
            for action in self._history.of(state, row):
                self._step(int(i), action)

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        """State [px, rad] and velocities [px/s, rad/s] of one environment."""
        env = self._envs[env_id]
        return {
            "state": np.asarray(env.get_obs()),
            "agent_velocity": np.array(env.agent.velocity),
            "block_velocity": np.array([*env.block.velocity, env.block.angular_velocity]),
        }

    def render(self, env_id: int) -> np.ndarray:
        """(frame_size, frame_size, 3) uint8 RGB image of one environment, with the last target as a
        red cross."""
        return np.asarray(self._envs[env_id].render())

    def close(self) -> None:
        """Frees the renderers."""
        for env in self._envs:
            env.close()

    def _begin(self, env_ids: np.ndarray, seeds: np.ndarray, states: np.ndarray) -> None:
        for i, seed, state in zip(env_ids, seeds, states, strict=True):
            env = self._envs[i]
            env.reset(seed=int(seed))
            if np.isfinite(state).all():
                _put_at(env, state)
        self._seeds[env_ids], self._start[env_ids] = seeds, states
        self._history.clear(env_ids)
        self._coverage[env_ids], self._solved[env_ids] = 0.0, False

    def _step(self, env_id: int, action: np.ndarray) -> None:
        self._history.add(env_id, action)
        _, _, self._solved[env_id], _, info = self._envs[env_id].step(PIXELS_PER_METRE * action)
        # The polygon overlap (GEOS) differs in its last bits between processes; the physics does
        # not.
        self._coverage[env_id] = round(info["coverage"], COVERAGE_DECIMALS)


class PushTVecEnv(EngineVecEnv):
    """The published benchmark as used for evaluation: a solved environment freezes until `reset`,
    and there is no time limit."""

    def __init__(
        self,
        num_envs: int,
        frame_size: int = 96,
        config: PushTConfig | None = None,
        max_steps: int = NO_LIMIT,
    ):
        """Makes the environments; call `reset` before `step`. For the arguments see `PushTEngine`
        and `VecEnvConfig`."""
        self._push_t = PushTEngine(num_envs, frame_size, config)
        super().__init__(
            self._push_t, VecEnvConfig(on_end="freeze", max_steps=max_steps, guard_steps=0)
        )

    def render(self, env_id: int) -> np.ndarray:
        """(frame_size, frame_size, 3) uint8 RGB image of one environment, with the last target as a
        red cross."""
        return self._push_t.render(env_id)


def _put_at(env: Any, state: np.ndarray) -> None:
    """Sets a gym-pusht environment at rest to agent x, y and block x, y, angle [m, rad].

    gym-pusht's own `reset_to_state` sets the block's position before its angle, and the rotation
    about the centre of mass then moves the block. Here the angle is set first, so that the given
    state is reached.
    """
    env._setup()
    env.agent.position = tuple(PIXELS_PER_METRE * state[:2])
    env.block.angle = float(state[4])
    env.block.position = tuple(PIXELS_PER_METRE * state[2:4])
    env.space.step(env.dt)
