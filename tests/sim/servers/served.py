"""Environment servers of the walk, whose Python has NumPy and msgpack only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.servers.config import ServerConfig
from sim.servers.vec_env import ServerVecEnv, make_server_env
from sim.vec_env import VecEnvConfig
from tests.sim.servers.light_python import light_python
from tests.sim.walk import OnEnd


def served_walk(
    num_envs: int,
    options: Mapping[str, Any] | None = None,
    *,
    engine: str = "tests.sim.walk",
    on_end: OnEnd = "reset",
    max_steps: int = 50,
    servers: int = 1,
    address: str = "",
    start_s: float = 60.0,
    response_s: float = 60.0,
    restarts: int = 3,
    patience_s: float = 60.0,
) -> ServerVecEnv:
    config = ServerConfig(
        python="" if address else light_python(),
        address=address,
        engine=engine,
        start_s=start_s,
        response_s=response_s,
        restarts=restarts,
        patience_s=patience_s,
    )
    episodes = VecEnvConfig(on_end=on_end, max_steps=max_steps)
    return make_server_env(config, "walk", episodes, options or {}, num_envs, servers)
