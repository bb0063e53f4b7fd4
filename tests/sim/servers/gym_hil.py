"""The Panda of gym-hil on an environment server, with a scripted way to pick up its cube."""

from __future__ import annotations

import os

import numpy as np

from robots.interfaces import Observation, VecEnv
from tests.sim.servers.made_venvs import venv_folder
from tests.sim.walk import OnEnd

STEP = 0.025
"""Motion of the end effector per unit of action [m]."""
OPEN, HOLD, CLOSE = 0.0, 1.0, 2.0
"""Commands of the gripper."""
CLOSED = 200.0
"""Command of the gripper's motor from which it is closed; 255 is the most."""


def make_gym_hil(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    from sim.engines.gym import GymConfig
    from sim.make import EnvConfig, make_vec_env
    from sim.servers.config import ServerConfig

    config = EnvConfig(
        engine="server",
        task="gym_hil:gym_hil/PandaPickCube-v0",
        on_end=on_end,
        max_steps=max_steps,
        gym=GymConfig(
            global_seed=True,
            options={"random_block_position": True, "reset_delay_seconds": 0.0},
        ),
        server=ServerConfig(venv=os.fspath(venv_folder("gym_hil")), variables={"MUJOCO_GL": "egl"}),
    )
    return make_vec_env(config, num_envs)


def pick_up(observation: Observation) -> np.ndarray:
    """(N, 4) the next action towards a lifted cube."""
    arm, cube = observation["agent_pos"], observation["environment_state"]
    offset = cube - arm[:, 15:18]
    beside = np.linalg.norm(offset[:, :2], axis=1)
    reached = (beside < 0.015) & (np.abs(offset[:, 2]) < 0.02)
    closed = arm[:, 14] > CLOSED
    # Above the cube first, then down to it.
    offset[:, 2] += np.where(beside < 0.015, 0.0, 0.08)
    motion = np.clip(0.5 * offset / STEP, -1.0, 1.0)
    motion[reached | closed] = 0.0
    motion[closed, 2] = 0.5
    grip = np.where(reached & ~closed, CLOSE, np.where(closed, HOLD, OPEN))
    return np.concatenate([motion, grip[:, None]], axis=1)
