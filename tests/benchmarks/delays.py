"""Success of an exported policy in simulation when its chunks come late: without the twin, so that
no reflex of the arm ends an episode.

    python -m tests.benchmarks.delays runs/pick_cube_delays/prefixed_bundle --episodes 60 --json

The policy runs in the scheduler of the control loop (`real.deploy.inference`), with the delays of
`loop.delay`, in the environment of its task. As long as no chunk has come, the arm stands with an
open gripper.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from real.deploy.inference import ChunkInference, InferenceDelay, InlineExecutor
from real.deploy.onnx_policy import OnnxPolicy
from robots.contract import ONNX_FILE
from robots.interfaces import VecEnv
from robots.proportions import wilson
from robots.seed_ranges import EVALUATION
from sim.make import EnvConfig, make_vec_env

DELAYS = (0.0, 0.05, 0.1, 0.2)
"""Delays of a chunk [s]."""
STEPS = 100
"""Time limit of an episode [policy steps]."""


def main() -> None:
    """Prints the solved episodes by delay."""
    parser = argparse.ArgumentParser(description="success with late chunks")
    parser.add_argument("bundle", type=Path, help="folder with policy.onnx")
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--jitter", type=float, default=0.0, help="longest addition [s]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    policy = OnnxPolicy(arguments.bundle / ONNX_FILE)
    env = make_vec_env(EnvConfig(task=policy.contract.task), 1)
    figures = {}
    for seconds in DELAYS:
        delay = InferenceDelay(seconds=seconds, jitter=arguments.jitter)
        seeds = range(EVALUATION.start, EVALUATION.start + arguments.episodes)
        solved = sum(episode(env, policy, delay, seed) for seed in seeds)
        figures[f"{1e3 * seconds:.0f} ms"] = {
            "solved": solved,
            "interval": [round(bound, 3) for bound in wilson(solved, arguments.episodes)],
        }
    env.close()
    report: dict[str, Any] = {"episodes": arguments.episodes, "late": figures}
    print(json.dumps(report) if arguments.json else json.dumps(report, indent=2))


def episode(env: VecEnv, policy: OnnxPolicy, delay: InferenceDelay, seed: int) -> bool:
    """Plays the episode of a seed; returns whether it was solved."""
    contract = policy.contract
    running = ChunkInference(
        policy, contract, InlineExecutor(), seed=seed, wait=True, inference_ms=[], delay=delay
    )
    still = np.zeros(contract.action.shape, np.float32)
    still[-1] = 1.0
    observation = env.reset([seed])
    for number in range(STEPS):
        running.observe({name: observation[name][0] for name in contract.observation})
        action = running.action(number)
        step = env.step((still if action is None else action)[None, None])
        if step.info["success"][0]:
            return True
        if step.terminated[0] or step.truncated[0]:
            return False
        observation = step.observation
    return False


if __name__ == "__main__":
    main()
