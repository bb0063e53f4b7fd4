"""Measures the speed of fine-tuning with environments on the device, relative to the same
environments through the host, in one run.

    python -m tests.benchmarks.resident --device cuda --num-envs 4096 --json
    python -m tests.benchmarks.resident --device cuda --num-envs 4096 --pictures 64 --json

With `--pictures SIZE` the policy sees a camera of SIZE x SIZE px, which the environments render.

steps_per_s: environment steps per second of a rollout on the device: physics, terms and inference.
host_ratio: steps_per_s relative to a rollout whose environments exchange arrays with the host.
env_steps_per_s: environment steps per second of the environments alone, on the device, with random
    actions.
update_s: one update of PPO on a rollout [s].
utilisation: mean of the driver's utilisation of the device during the rollouts; null without a GPU.

Each figure is the median over rounds. It also runs on a CPU, where mujoco-warp is meant for tests
and slow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
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
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task", default="reach_by_name")
    parser.add_argument("--pictures", type=int, metavar="SIZE", help="height and width [px]")
    asked = parser.parse_args()
    figures = measured(asked.task, asked.device, asked.num_envs, asked.rounds, asked.pictures)
    print(
        json.dumps(figures)
        if asked.json
        else "\n".join(f"{name:16s} {value}" for name, value in figures.items())
    )


def measured(
    task: str,
    device: Literal["cpu", "cuda"],
    num_envs: int,
    rounds: int,
    pictures: int | None = None,
) -> dict[str, Any]:
    """All figures; `pictures` is the size of a picture [px], None observes numbers alone."""
    import torch

    (resident, env), (through, _) = (
        _finetuning(task, device, num_envs, on_device, pictures) for on_device in (True, False)
    )
    figures: dict[str, Any] = {"device": _name(device), "task": task, "num_envs": num_envs}
    figures["pictures"] = pictures
    rates: dict[str, list[float]] = {"resident": [], "through": [], "alone": []}
    updates, used = [], []
    for number in range(rounds + 1):
        rollout, seconds = _timed(lambda: resident.collect(DECISIONS), device)
        used.append(torch.cuda.utilization() if device == "cuda" else None)
        _, learning = _timed(partial(resident.learn, rollout), device)
        taken = int(rollout.length_TN.sum())
        other, longer = _timed(lambda: through.collect(DECISIONS), device)
        alone = _alone(env.env, device)
        if number:
            # The first round compiles kernels.
            rates["resident"].append(taken / seconds)
            rates["through"].append(int(other.length_TN.sum()) / longer)
            rates["alone"].append(alone)
            updates.append(learning)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    figures |= {
        "steps_per_s": middle["resident"],
        "host_ratio": middle["resident"] / middle["through"],
    }
    figures |= {"env_steps_per_s": middle["alone"], "update_s": statistics.median(updates)}
    return figures | {"utilisation": statistics.mean(used[1:]) if device == "cuda" else None}


def _finetuning(
    task: str,
    device: Literal["cpu", "cuda"],
    num_envs: int,
    on_device: bool,
    pictures: int | None,
) -> tuple[Any, Any]:
    """Fine-tuning of a policy with random weights and the sizes of `vla_ppo`, and its
    environments."""
    from flows.profiling.placement import random_weight_policy
    from policies.rl.collection.split_chunk_env import make_chunk_env
    from policies.rl.finetuning.vla import VlaFinetuning
    from sim.evaluation.evaluate import device_env, make_env
    from sim.evaluation.protocol import Protocol
    from tests.flows.recipe_stages import options as options_of

    config: Any = options_of("vla_ppo")
    learning, policy = config["teacher"], config["pretrained"].policy
    options: dict[str, Any] = {"device": device, **({"resident": True} if on_device else {})}
    if pictures is not None:
        options["cameras"] = {"names": ["front"], "height": pictures, "width": pictures}
        policy = replace(policy, image_fields=("image_front",))
    protocol = Protocol(
        name=task, engine="warp", task=task, packages=("handoff",), options=options, max_steps=60
    )
    env: Any = device_env(protocol, num_envs) if on_device else make_env(protocol, num_envs)
    module: Any = random_weight_policy(policy, task, env)
    if on_device:
        module.to(env.device)
    chunk_env = make_chunk_env(
        env,
        module,
        policy.n_action_steps,
        count(),
        learning.algorithm.learning.discount,
        learning.reward,
    )
    return VlaFinetuning(learning.algorithm, module, chunk_env, 0), chunk_env


def _alone(env: Any, device: str) -> float:
    """Environment steps per second of the environments with random actions, one chunk of four at a
    time."""
    import torch

    actions = (
        torch.rand(DECISIONS, env.num_envs, 4, env.action_spec.size, device=env.device) * 2.0 - 1.0
    )

    def play() -> int:
        taken = torch.zeros((), dtype=torch.int64, device=env.device)
        for chunk in actions:
            step = env.step(chunk)
            taken += step.executed_N.sum()
            env.reset_ended(step.terminated_N | step.truncated_N)
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
    result = work()
    wait()
    return result, time.perf_counter() - began


def _name(device: str) -> str:
    import platform

    import torch

    return torch.cuda.get_device_name() if device == "cuda" else platform.machine()


if __name__ == "__main__":
    main()
