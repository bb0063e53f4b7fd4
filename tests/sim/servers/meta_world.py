"""The Sawyer of Meta-World on an environment server, with a scripted way to reach its goal."""

from __future__ import annotations

import os

import numpy as np

from robots.interfaces import Observation, VecEnv
from tests.sim.servers.made_venvs import venv_folder
from tests.sim.walk import OnEnd

STEP = 0.01
"""Motion of the hand's target per unit of action [m]."""
HAND, GOAL = slice(0, 3), slice(36, 39)
"""Entries of the observation [m]."""


def make_meta_world(num_envs: int, on_end: OnEnd, max_steps: int) -> VecEnv:
    from sim.make import EnvConfig, make_vec_env
    from sim.servers.config import ServerConfig

    config = EnvConfig(
        engine="server",
        task="reach-v3",
        on_end=on_end,
        max_steps=max_steps,
        server=ServerConfig(
            venv=os.fspath(venv_folder("metaworld")), engine="sim.engines.meta_world"
        ),
    )
    return make_vec_env(config, num_envs)


def go_to_goal(observation: Observation) -> np.ndarray:
    """(N, 4) the next action towards the goal; the gripper stays as it is."""
    state = observation["observation"]
    motion = np.clip((state[:, GOAL] - state[:, HAND]) / STEP, -1.0, 1.0)
    return np.pad(motion, ((0, 0), (0, 1)))
