"""Measures the speed of environments, as ratios to a limit or a peer measured in the same run.

    python -m tests.benchmarks.environments --json

rollout_ratio: environments of pick_cube (state observations) relative to bare `mujoco.rollout` that
    replays the same states and controls with the same model and substeps in one thread. The limit
    is 1.
core_scaling: environment steps per second of two worker processes relative to one, in chunks of 8
    actions.
core_scaling_limit: the same work in two processes that exchange no data, which is the machine's
    limit.
maniskill_ratio: environment steps per second of one core relative to ManiSkill's own CPU
    PickCube-v1 (whose Panda has meshes where our arm has primitive shapes); null if ManiSkill is
    not installed.
rgb_images_per_s: images of 128x128 from two cameras per second of one core, including physics.

Each figure is the median over alternating blocks, so that load of a busy machine affects both
sides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

NUM_ENVS = 256
STEPS_PER_BLOCK = 20
CHUNK, CHUNKS_PER_BLOCK = 8, 3
IMAGE_ENVS = 16


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--blocks", type=int, default=10, help="alternating blocks per comparison")
    arguments = parser.parse_args()
    # Restrict software OpenGL and BLAS, which would otherwise use all cores.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    figures: dict[str, Any] = {}
    for measure in (rollout, cores, maniskill, images):
        figures |= measure(arguments.blocks)
        print(
            ", ".join(f"{name} {_short(value)}" for name, value in figures.items()), file=sys.stderr
        )
    print(
        json.dumps(figures)
        if arguments.json
        else "\n".join(f"{name:28s} {v}" for name, v in figures.items())
    )


def rollout(blocks: int) -> dict[str, float]:
    """Environments against bare `mujoco.rollout` on recorded states and controls."""
    from sim.make import EnvConfig, make_vec_env

    env = make_vec_env(EnvConfig(task="pick_cube"), NUM_ENVS)
    engine: Any = env.engine  # type: ignore[attr-defined]
    bare = engine._pool.rollout
    recorded: list[tuple[tuple, dict]] = []

    def recording(*arguments: Any, **keywords: Any) -> Any:
        recorded.append((arguments, keywords))
        return bare(*arguments, **keywords)

    rng = np.random.default_rng(0)
    env.reset(range(NUM_ENVS))
    ours, theirs = [], []
    for block in range(blocks + 1):
        actions = rng.uniform(-1, 1, (STEPS_PER_BLOCK, NUM_ENVS, env.action_spec.size))
        state = env.save()
        ours.append(_seconds(lambda actions=actions: [env.step(action) for action in actions]))
        after = env.save()
        # The block is repeated while its calls are recorded, then the bare calls are timed; both do
        # exactly the same physics.
        env.restore(state)
        engine._pool.rollout = recording
        for action in actions:
            env.step(action)
        engine._pool.rollout = bare
        assert np.array_equal(env.save()["physics"], after["physics"])
        theirs.append(
            _seconds(lambda: [bare(*arguments, **keywords) for arguments, keywords in recorded])
        )
        recorded.clear()
        if block == 0:
            ours.clear()
            theirs.clear()
    env.close()
    steps = NUM_ENVS * STEPS_PER_BLOCK
    return {
        "rollout_ratio": statistics.median(b / a for a, b in zip(ours, theirs, strict=True)),
        "env_steps_per_s": steps / statistics.median(ours),
        "rollout_env_steps_per_s": steps / statistics.median(theirs),
        "physics_steps_per_s": steps * engine.substeps / statistics.median(ours),
    }


def cores(blocks: int) -> dict[str, float]:
    """One worker process against two, and against two processes without communication."""
    from sim.make import EnvConfig, make_vec_env
    from sim.processes.vec_env import worker_vec_env

    make = partial(make_vec_env, EnvConfig(task="pick_cube"))
    one, two = (worker_vec_env(make, NUM_ENVS, workers) for workers in (1, 2))
    whole, halves = [_Alone(NUM_ENVS)], [_Alone(NUM_ENVS // 2), _Alone(NUM_ENVS // 2)]
    rng = np.random.default_rng(0)
    scaling, limit, rates = [], [], []
    try:
        for env in (one, two):
            env.reset(range(NUM_ENVS))
        for block in range(2 * blocks + 1):
            chunks = rng.uniform(-1, 1, (CHUNKS_PER_BLOCK, NUM_ENVS, CHUNK, one.action_spec.size))
            seconds = [
                _seconds(lambda env=env, chunks=chunks: [env.step(chunk) for chunk in chunks])
                for env in (one, two)
            ]
            free = [_seconds(lambda group=group: _together(group)) for group in (whole, halves)]
            if block:
                scaling.append(seconds[0] / seconds[1])
                limit.append(free[0] / free[1])
                rates.append(NUM_ENVS * CHUNKS_PER_BLOCK * CHUNK / seconds[1])
    finally:
        for closable in (one, two, *whole, *halves):
            closable.close()
    return {
        "core_scaling": statistics.median(scaling),
        "core_scaling_limit": statistics.median(limit),
        "core_scaling_best_quarter": float(np.quantile(scaling, 0.75)),
        "env_steps_per_s_two_cores": statistics.median(rates),
    }


class _Alone:
    """A process that steps environments of its own when told to; nothing but the word is
    exchanged."""

    def __init__(self, num_envs: int) -> None:
        spawn = get_context("spawn")
        self.pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=_step_alone, args=(num_envs, other), daemon=True)
        self.process.start()
        other.close()
        self.pipe.recv()

    def close(self) -> None:
        self.pipe.close()
        self.process.join()


def _step_alone(num_envs: int, pipe: Connection) -> None:
    from sim.make import EnvConfig, make_vec_env

    env = make_vec_env(EnvConfig(task="pick_cube"), num_envs)
    env.reset(range(num_envs))
    rng = np.random.default_rng(0)
    pipe.send("ready")
    try:
        while pipe.recv():
            chunks = rng.uniform(-1, 1, (CHUNKS_PER_BLOCK, num_envs, CHUNK, env.action_spec.size))
            for chunk in chunks:
                env.step(chunk)
            pipe.send("done")
    except EOFError:
        env.close()


def _together(group: list[_Alone]) -> None:
    for member in group:
        member.pipe.send("go")
    for member in group:
        member.pipe.recv()


def maniskill(blocks: int) -> dict[str, float | None]:
    """Environments against ManiSkill's CPU PickCube-v1, one core each."""
    from robots.errors import HandoffError
    from sim.make import EnvConfig, make_vec_env
    from tests.benchmarks.maniskill import steps_per_second

    try:
        steps_per_second("PickCube-v1", 1.0)
    except HandoffError:
        return {"maniskill_ratio": None, "maniskill_env_steps_per_s": None}
    env = make_vec_env(EnvConfig(task="pick_cube"), NUM_ENVS)
    env.reset(range(NUM_ENVS))
    rng = np.random.default_rng(0)
    ratios, peers = [], []
    for _ in range(max(3, blocks // 2)):
        peers.append(steps_per_second("PickCube-v1", 2.0))
        actions = rng.uniform(-1, 1, (STEPS_PER_BLOCK, NUM_ENVS, env.action_spec.size))
        seconds = _seconds(lambda actions=actions: [env.step(action) for action in actions])
        ratios.append(NUM_ENVS * STEPS_PER_BLOCK / seconds / peers[-1])
    env.close()
    return {
        "maniskill_ratio": statistics.median(ratios),
        "maniskill_env_steps_per_s": statistics.median(peers),
    }


def images(blocks: int) -> dict[str, float]:
    """Two cameras of 128x128 pixels per environment, one core."""
    from sim.make import EnvConfig, make_vec_env
    from sim.scene.cameras import CamerasConfig

    env = make_vec_env(EnvConfig(task="pick_cube", cameras=CamerasConfig()), IMAGE_ENVS)
    env.reset(range(IMAGE_ENVS))
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (blocks + 1, IMAGE_ENVS, env.action_spec.size))
    env.step(actions[0])
    wall, cpu = [], []
    for action in actions[1:]:
        began = time.process_time()
        wall.append(_seconds(lambda action=action: env.step(action)))
        cpu.append(time.process_time() - began)
    env.close()
    pictures = 2 * IMAGE_ENVS
    # The larger of both times: a driver with several threads would look fast by the clock.
    return {"rgb_images_per_s": pictures / max(statistics.median(wall), statistics.median(cpu))}


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _short(value: float | None) -> str:
    return "null" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()
