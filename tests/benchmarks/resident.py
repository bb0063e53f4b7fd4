"""How fast practice is where its worlds stay on the device, against the same worlds through the
host, in one run.

    python -m tests.benchmarks.resident --device cuda --worlds 4096 --json

steps_per_s        environment steps per second of a rollout on the device: physics, terms,
inference. host_ratio         the same over a rollout whose worlds pass through the host.
worlds_per_s       environment steps per second of the worlds alone, on the device, with random
actions. update_s           one update of PPO on a rollout [s].
utilisation        mean of what the driver tells of the device's use during the rollouts; null
without a GPU.

Each figure is the median over rounds. On a CPU, where it runs as well, mujoco-warp is for tests and
figures are poor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from itertools import count
from typing import Any, Literal

DECISIONS = 5


def main() -> None:
    """Measures and prints; the last line is one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--worlds", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task", default="reach_by_name")
    asked = parser.parse_args()
    figures = measured(asked.task, asked.device, asked.worlds, asked.rounds)
    print(
        json.dumps(figures)
        if asked.json
        else "\n".join(f"{name:16s} {value}" for name, value in figures.items())
    )


def measured(task: str, device: Literal["cpu", "cuda"], worlds: int, rounds: int) -> dict[str, Any]:
    """All figures."""
    import torch

    (resident, found), (through, _) = (
        _practice(task, device, worlds, stays) for stays in (True, False)
    )
    figures: dict[str, Any] = {"device": _name(device), "task": task, "worlds": worlds}
    rates: dict[str, list[float]] = {"resident": [], "through": [], "alone": []}
    updates, used = [], []
    for number in range(rounds + 1):
        made, seconds = _timed(lambda: resident.collect(DECISIONS), device)
        used.append(torch.cuda.utilization() if device == "cuda" else None)
        _, learning = _timed(partial(resident.learn, made), device)
        taken = int(made.length_TN.sum())
        other, longer = _timed(lambda: through.collect(DECISIONS), device)
        alone = _alone(found.env, device)
        if number:
            # The first of all compiles kernels.
            rates["resident"].append(taken / seconds)
            rates["through"].append(int(other.length_TN.sum()) / longer)
            rates["alone"].append(alone)
            updates.append(learning)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    figures |= {
        "steps_per_s": middle["resident"],
        "host_ratio": middle["resident"] / middle["through"],
    }
    figures |= {"worlds_per_s": middle["alone"], "update_s": statistics.median(updates)}
    return figures | {"utilisation": statistics.mean(used[1:]) if device == "cuda" else None}


def _practice(
    task: str, device: Literal["cpu", "cuda"], worlds: int, stays: bool
) -> tuple[Any, Any]:
    """Practice of a policy of random weights, of the sizes of `vla_ppo`, and its worlds."""
    from flows.profile_placement import untaught
    from flows.recipes.compose import compose
    from policies.rl.collection.split_chunk_env import worlds_of
    from policies.rl.finetuning.vla import VlaPractice
    from sim.evaluation.evaluate import make_env, resident_env
    from sim.evaluation.protocol import Protocol

    config: Any = compose("vla_ppo")
    learning, steps = config.finetune.learning, config.pretrain.policy.n_action_steps
    options = {"device": device, **({"resident": True} if stays else {})}
    protocol = Protocol(
        name=task, engine="warp", task=task, packages=("handoff",), options=options, max_steps=60
    )
    env: Any = resident_env(protocol, worlds) if stays else make_env(protocol, worlds)
    module: Any = untaught(config.pretrain.policy, task, env)
    if stays:
        module.to(env.device)
    found = worlds_of(
        env, module, steps, count(), learning.practice.learning.discount, learning.reward
    )
    return VlaPractice(learning.practice, module, found, 0), found


def _alone(env: Any, device: str) -> float:
    """Environment steps per second of the worlds with random actions, one chunk of four at a
    time."""
    import torch

    actions = (
        torch.rand(DECISIONS, env.num_envs, 4, env.action_spec.size, device=env.device) * 2.0 - 1.0
    )

    def play() -> int:
        taken = torch.zeros((), dtype=torch.int64, device=env.device)
        for chunk in actions:
            led = env.step(chunk)
            taken += led.executed_N.sum()
            env.begin_again(led.terminated_N | led.truncated_N)
        return int(taken)

    taken, seconds = _timed(play, device)
    return taken / seconds


def _timed(work: Any, device: str) -> tuple[Any, float]:
    import torch

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    wait()
    began = time.perf_counter()
    found = work()
    wait()
    return found, time.perf_counter() - began


def _name(device: str) -> str:
    import platform

    import torch

    return torch.cuda.get_device_name() if device == "cuda" else platform.machine()


if __name__ == "__main__":
    main()
