"""Measures what an environment server costs over the same engine in this process.

    python -m tests.benchmarks.environment_server --json

overhead_percent: additional time of a step of 64 environments of pick_cube (state observations) on
    a server of this machine, through shared memory, relative to the same engine in this process.
overhead_percent_chunk: the same for chunks of 8 actions.
round_trip_ms: time of a step of 8 environments of an engine that computes nothing, on a server of
    this machine, beyond that of the same engine in this process.
round_trip_tcp_ms: the same over a connection as between machines, to this machine.
overhead_percent_tcp: `overhead_percent` over such a connection.

Blocks of both sides alternate, so that load of a busy machine affects both. Each figure is of medians:
of a block's steps, then over the blocks. Those whose name ends in `_fastest` compare the fastest
tenth of all steps, which other work has disturbed least.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from robots.interfaces import EnvState, VecEnv
from robots.spec import ActionSpec, FieldSpec
from robots.wire.policy import TOKEN_VARIABLE
from sim.engine import EngineState
from sim.make import EnvConfig, make_vec_env
from sim.servers.config import ServerConfig
from sim.servers.listen import Listener
from sim.servers.vec_env import make_server_env
from sim.vec_env import EngineVecEnv, VecEnvConfig

NUM_ENVS, FEW_ENVS = 64, 8
STEPS_PER_BLOCK, CHUNK = 40, 8
FIELDS = {
    f"field{number}": FieldSpec(shape=(4,), dtype="float64", unit="m") for number in range(14)
}
"""As many fields as pick_cube observes."""


class StillEngine:
    """An engine that computes nothing."""

    name = "still"
    rate_hz = 20.0
    max_steps = 10**9
    observation_spec: Mapping[str, FieldSpec] = FIELDS
    action_spec = ActionSpec(low=(-1.0,) * 4, high=(1.0,) * 4)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> None:
        """Does nothing."""

    def step(self, action: np.ndarray, running: np.ndarray) -> None:
        """Does nothing."""

    def read(self) -> EngineState:
        """New arrays of zeros."""
        n = self.num_envs
        return EngineState(
            observation={name: np.zeros((n, 4)) for name in FIELDS},
            reward=np.zeros(n),
            terminated=np.zeros(n, bool),
            success=np.zeros(n, bool),
            info={},
        )

    def save(self) -> EnvState:
        """One number of every environment."""
        return {"zero": np.zeros(self.num_envs)}

    def restore(self, env_ids: np.ndarray, state: EnvState) -> None:
        """Does nothing."""

    def dump(self, env_id: int) -> dict[str, np.ndarray]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Does nothing."""


def engine(task: str, num_envs: int, options: Mapping[str, Any]) -> StillEngine:
    """The engine that computes nothing, for a server."""
    return StillEngine(num_envs)


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--blocks", type=int, default=10, help="alternating blocks per comparison")
    arguments = parser.parse_args()
    os.environ[TOKEN_VARIABLE] = secrets.token_hex(16)
    listener = Listener("127.0.0.1:0", os.environ[TOKEN_VARIABLE], echo=False)
    threading.Thread(target=listener.serve, daemon=True).start()
    local = ServerConfig(python=sys.executable)
    remote = ServerConfig(address=f"127.0.0.1:{listener.port}")
    figures: dict[str, float] = {}
    for suffix, place in (("", local), ("_tcp", remote)):
        figures |= pick_cube(place, suffix, arguments.blocks)
        figures |= still(place, suffix, arguments.blocks)
        print(", ".join(f"{name} {value:.3g}" for name, value in figures.items()), file=sys.stderr)
    listener.close()
    print(
        json.dumps(figures)
        if arguments.json
        else "\n".join(f"{name:28s} {value:.4g}" for name, value in figures.items())
    )


def pick_cube(place: ServerConfig, suffix: str, blocks: int) -> dict[str, float]:
    """The engine mujoco here and on a server."""
    here = make_vec_env(EnvConfig(task="pick_cube"), NUM_ENVS)
    server = ServerConfig(python=place.python, address=place.address, engine="mujoco")
    config = EnvConfig(engine="server", task="pick_cube", server=server)
    there = make_vec_env(config, NUM_ENVS)
    single = _compare(here, there, (NUM_ENVS, here.action_spec.size), blocks)
    chunk = _compare(here, there, (NUM_ENVS, CHUNK, here.action_spec.size), blocks)
    here.close()
    there.close()
    return {
        f"overhead_percent{suffix}": 100.0 * (single.ratio - 1.0),
        f"overhead_percent{suffix}_fastest": 100.0 * (single.fastest_ratio - 1.0),
        f"overhead_percent_chunk{suffix}": 100.0 * (chunk.ratio - 1.0),
        f"overhead_percent_chunk{suffix}_fastest": 100.0 * (chunk.fastest_ratio - 1.0),
        f"step_ms_in_process{suffix}_fastest": single.fastest[0] * 1e3,
    }


def still(place: ServerConfig, suffix: str, blocks: int) -> dict[str, float]:
    """An engine that computes nothing, here and on a server."""
    here = EngineVecEnv(StillEngine(FEW_ENVS))
    server = ServerConfig(python=place.python, address=place.address, engine=__spec__.name)
    there = make_server_env(server, "", VecEnvConfig(), {}, FEW_ENVS, 1)
    result = _compare(here, there, (FEW_ENVS, 4), blocks)
    here.close()
    there.close()
    one, two = result.fastest
    return {
        f"round_trip{suffix}_ms": result.difference * 1e3,
        f"round_trip{suffix}_ms_fastest": (two - one) * 1e3,
    }


class Comparison(NamedTuple):
    """Times of a step in this process and on a server."""

    ratio: float
    """Median over the blocks of the ratio of their medians."""
    difference: float
    """Median over the blocks of the difference of their medians [s]."""
    fastest: tuple[float, float]
    """Tenth percentile of all steps, in this process and on the server [s]."""

    @property
    def fastest_ratio(self) -> float:
        """Ratio of the two tenth percentiles."""
        return self.fastest[1] / self.fastest[0]


def _compare(here: VecEnv, there: VecEnv, shape: tuple[int, ...], blocks: int) -> Comparison:
    rng = np.random.default_rng(0)
    times: list[np.ndarray] = []
    for env in (here, there):
        env.reset(range(env.num_envs))
    for block in range(blocks + 1):
        count = STEPS_PER_BLOCK // (CHUNK if len(shape) == 3 else 1)
        actions = rng.uniform(-1.0, 1.0, (count, *shape))
        both = np.stack([_step_times(here, actions), _step_times(there, actions)])
        if block:
            times.append(both)
    medians = np.median(times, axis=2)
    one, two = np.quantile(np.concatenate(times, axis=1), 0.1, axis=1)
    return Comparison(
        ratio=statistics.median(medians[:, 1] / medians[:, 0]),
        difference=statistics.median(medians[:, 1] - medians[:, 0]),
        fastest=(float(one), float(two)),
    )


def _step_times(env: VecEnv, actions: np.ndarray) -> np.ndarray:
    times = []
    for action in actions:
        began = time.perf_counter()
        env.step(action)
        times.append(time.perf_counter() - began)
    return np.array(times)


if __name__ == "__main__":
    main()
