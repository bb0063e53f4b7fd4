"""Measures the speed of environments in separate processes, and the error of its prediction.

    python -m tests.benchmarks.placement --json

A small language-conditioned flow policy acts in the environments of `pick_by_name`, with as many
flow steps as make inference and simulation take about the same time; nothing is trained.

hybrid_speedup: environment steps per second of the pipeline with two parts relative to the
    sequential loop; 2 would be two cores without any loss.
disaggregated_speedup: the same for environments in another process that the policy waits for.
profile_error: maximum relative error of the predicted rates of the placements.
balance: time of inference divided by that of simulation, measured at the beginning.
cores: number of cores that two processes get which only count, relative to one alone: the ideal of
    the machine in this run.
overlap: the same for one part's simulation and the other's inference: their times alone, divided by
    the time of both together. It lacks what they lose to each other's memory traffic and to
    communication.
halves: sequential time divided by that of the slower half, each alone: the speedup with two cores
    and without any loss between them. 2 lacks what a call costs however small its batch is, and
    what one half is slower than the other.
sharing: time of the slower half alone, divided by the time of both together.
filling: hybrid_speedup divided by halves and sharing: the first and the last half of a rollout, for
    which there is nothing to do beside.

All placements take turns in rounds, by the clock; figures are medians over rounds, and `spread` has
their quartiles. If the machine gives the two cores to other processes, `cores` and `overlap` show
it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch

from policies.card import PolicyCard
from policies.families.vla import VlaPolicy
from policies.load import new_module
from policies.networks.config import BackboneConfig, ScratchConfig
from policies.policy_config import VlaConfig
from policies.rl.collection.chunk_collector import ChunkCollector
from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.collection.pipelined_collector import make_collector
from policies.rl.collection.placement_profile import PlacementTimes, measure, predict
from policies.rl.collection.split_chunk_env import SplitChunkEnv, make_chunk_env
from policies.rl.on_policy.config import FlowNoiseConfig
from policies.rl.on_policy.flow_actor import FlowActor
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from sim.evaluation.evaluate import training_env
from sim.processes.vec_env import ProcessVecEnv
from tests.flows.recipe_stages import options

DECISIONS, PARTS, MOST_STEPS = 12, 2, 32
FIELDS = (
    "grasp_pose",
    "width",
    "width_target",
    "red_cube",
    "green_cube",
    "blue_cube",
    "yellow_cube",
)


class Loops(NamedTuple):
    """The placements, each with environments of its own."""

    collocated: ChunkCollector
    disaggregated: ChunkCollector
    hybrid: ChunkCollector


def policy_for(env: Any, task: str) -> VlaPolicy:
    model = VlaConfig(
        backbone=BackboneConfig(
            scratch=ScratchConfig(width=64, layers=2, heads=4, feedforward=128)
        ),
        train_backbone="all",
        observation_fields=FIELDS,
        anchor_field=None,
        state_tokens="object",
        n_obs_steps=1,
        horizon=4,
        n_action_steps=4,
        expert_width=1.0,
        self_attention_every=1,
    )
    shown = {name: env.observation_spec[name] for name in FIELDS}
    action = FieldSpec(shape=(env.action_spec.size,))
    card = PolicyCard(task=task, rate_hz=env.rate_hz, observation=shown, action=action, model=model)
    torch.manual_seed(0)
    policy = new_module(model, card.shapes)
    assert isinstance(policy, VlaPolicy)
    return policy


def actor_for(policy: VlaPolicy, steps: int) -> FlowActor:
    return FlowActor(policy, FlowNoiseConfig(steps=steps), "chunk", None)


def costs(policy: VlaPolicy, env: ChunkEnv, steps: int, times: int = 5) -> tuple[float, float]:
    """Median seconds of inference and of simulation for all environments."""
    actor = actor_for(policy, steps)
    generator = torch.Generator().manual_seed(0)
    seconds: list[tuple[float, float]] = []
    for _ in range(times):
        begin = time.perf_counter()
        chunk = actor.decide(env.observation(), generator).chunk_BHA
        between = time.perf_counter()
        env.step(chunk)
        seconds.append((between - begin, time.perf_counter() - between))
    infer, simulate = np.median(seconds, axis=0)
    return float(infer), float(simulate)


def balanced(policy: VlaPolicy, env: ChunkEnv) -> int:
    """Flow steps with which inference takes as long as simulation."""
    few, many = (costs(policy, env, steps)[0] for steps in (1, 9))
    each, steps = max((many - few) / 8.0, 1e-9), 1
    # The cost per step is estimated from few calls, so the estimate is refined.
    for _ in range(3):
        infer, simulate = costs(policy, env, steps, 9)
        steps = int(np.clip(round(steps + (simulate - infer) / each), 1, MOST_STEPS))
    return steps


@contextmanager
def loops(num_envs: int) -> Iterator[tuple[VlaPolicy, list[Any]]]:
    """The policy, and its environments in the three placements, twice: the profile uses other ones
    than the rollouts."""
    protocol = options("pick_vla_ppo")["control"].protocol
    make = partial(training_env, protocol)
    envs: list[Any] = []
    try:
        for _ in range(2):
            envs += [
                make(num_envs),
                ProcessVecEnv(make, num_envs),
                ProcessVecEnv(make, num_envs, PARTS),
            ]
        policy = policy_for(envs[0], protocol.task)
        yield policy, [make_chunk_env(env, policy, 4, count(1_000_000), 0.99) for env in envs]
    finally:
        for env in envs:
            env.close()


def counted(times: int = 3_000_000) -> float:
    """Seconds to count to `times`."""
    begin = time.perf_counter()
    sum(1 for _ in range(times))
    return time.perf_counter() - begin


def cores(beside: ProcessPoolExecutor) -> float:
    """Number of cores that two busy processes get, at most two."""
    alone = counted()
    other = beside.submit(counted)
    own = counted()
    return 2.0 * alone / max(own, other.result())


def rate(loop: ChunkCollector) -> float:
    """Environment steps per second of one rollout."""
    loop.env.take_executed()
    begin = time.perf_counter()
    loop.rollout(DECISIONS)
    return loop.env.take_executed() / (time.perf_counter() - begin)


def run(num_envs: int, rounds: int) -> dict[str, Any]:
    """All figures; see the module's docstring."""
    torch.set_num_threads(1)
    with (
        loops(num_envs) as (policy, placed),
        ProcessPoolExecutor(1, get_context("spawn")) as beside,
    ):
        beside.submit(counted, 1).result()
        steps = balanced(policy, placed[0])
        infer, simulate = costs(policy, placed[0], steps)
        loop = Loops(*[make_collector(one, actor_for(policy, steps)) for one in placed[:3]])
        here, there, parts = placed[3:]
        assert isinstance(parts, SplitChunkEnv)
        rates: dict[str, list[float]] = {kind: [] for kind in Loops._fields}
        pieces, given = PlacementTimes(0.0, PARTS), []
        for _ in range(rounds):
            given.append(cores(beside))
            found = measure(actor_for(policy, steps), here, there, parts, None, 0.0, no_progress)
            pieces.actions += found.actions / rounds
            for piece, seconds in found.seconds.items():
                pieces.seconds[piece] += seconds
            for kind, one in zip(Loops._fields, loop, strict=True):
                rates[kind].append(rate(one))
    about = {
        "cores": float(np.median(given)),
        "balance": infer / simulate,
        "flow_steps": steps,
        "num_envs": num_envs,
    }
    return figures(rates, pieces) | about


def figures(rates: dict[str, list[float]], pieces: PlacementTimes) -> dict[str, Any]:
    measured = {kind: float(np.median(found)) for kind, found in rates.items()}
    predicted = {kind: one.steps_per_s for kind, one in predict(pieces, DECISIONS).items()}
    errors = {kind: abs(predicted[kind] / measured[kind] - 1.0) for kind in measured}  # type: ignore[index]
    ratios = {
        kind: np.divide(rates[kind], rates["collocated"]) for kind in ("hybrid", "disaggregated")
    }
    median = {
        piece: float(np.median(seconds)) for piece, seconds in pieces.seconds.items() if seconds
    }
    return {
        **{f"{kind}_speedup": float(np.median(found)) for kind, found in ratios.items()},
        "profile_error": max(errors.values()),
        "errors": errors,
        **losses(median, float(np.median(ratios["hybrid"]))),
        "spread": {kind: np.percentile(found, [25, 75]).tolist() for kind, found in ratios.items()},
        "steps_per_s": measured,
        "predicted": predicted,
        "milliseconds": {piece: 1e3 * seconds for piece, seconds in median.items()},
    }


def losses(seconds: dict[str, float], speedup: float) -> dict[str, float]:
    """Where the rest of the hybrid speedup goes; see the module's docstring."""
    slower = max(seconds["infer_part"], seconds["simulate_part"])
    halves = (seconds["infer"] + seconds["simulate"]) / (PARTS * slower)
    sharing = slower / seconds["overlapped"]
    return {
        "overlap": (seconds["infer_part"] + seconds["simulate_part"]) / seconds["overlapped"],
        "halves": halves,
        "sharing": sharing,
        "filling": speedup / (halves * sharing),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    found = run(options.num_envs, options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    for name, figure in found.items():
        print(f"{name:24} {figure}")


if __name__ == "__main__":
    main()
