"""What placing worlds in a process of their own brings, and whether it is told before.

    python -m tests.benchmarks.placement --json

A small flowing policy that reads acts in the worlds of `pick_by_name`, with as many steps of its
flow as make inference and simulation cost about the same; nothing is learned meanwhile.

hybrid_speedup          steps of environments per second of the pipeline of two parts over those of
the sequential loop;
                        2 would be two cores without any loss
disaggregated_speedup   likewise with worlds elsewhere that are waited for
profile_error           largest difference between a placement's predicted rate and the measured
one, as a share of it balance                 inference over simulation, as they were measured at
first overlap                 a part's simulation and another's inference, over the time of both
together: how much of two
                        cores there was; 2 at most, without the way between processes

cores                   two processes that only count, over one alone: what the machine gives two
busy processes

All take turns in rounds, by the clock; figures are medians over rounds, and `spread` holds their
quartiles. A host that gives the two cores to others meanwhile shows in `cores` and `overlap`.
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

from flows.recipes.compose import compose
from policies.card import PolicyCard
from policies.families.vla import VlaPolicy
from policies.load import new_module
from policies.networks.config import BackboneConfig, ScratchConfig
from policies.policy_config import VlaConfig
from policies.rl.collection.chunk_collector import ChunkCollector
from policies.rl.collection.chunk_env import ChunkWorlds
from policies.rl.collection.pipelined_collector import collector_of
from policies.rl.collection.placement_profile import Measured, measure, predict
from policies.rl.collection.split_chunk_env import ChunkWorldsInParts, worlds_of
from policies.rl.on_policy.config import FlowNoiseConfig
from policies.rl.on_policy.flow_actor import FlowActor
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from sim.evaluation.evaluate import practice_env
from sim.processes.vec_env import ProcessVecEnv

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
    """The placements, each with worlds of its own."""

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


def costs(
    policy: VlaPolicy, worlds: ChunkWorlds, steps: int, times: int = 5
) -> tuple[float, float]:
    """Median seconds of inference and of simulation for all worlds."""
    actor, generator, found = actor_for(policy, steps), torch.Generator().manual_seed(0), []
    for _ in range(times):
        begin = time.perf_counter()
        chunk = actor.decide(worlds.seen(), generator).chunk_BHA
        between = time.perf_counter()
        worlds.step(chunk)
        found.append((between - begin, time.perf_counter() - between))
    infer, simulate = np.median(found, axis=0)
    return float(infer), float(simulate)


def balanced(policy: VlaPolicy, worlds: ChunkWorlds) -> int:
    """Steps of the flow with which inference costs what simulation does."""
    few, many = (costs(policy, worlds, steps)[0] for steps in (1, 9))
    each, steps = max((many - few) / 8.0, 1e-9), 1
    # What one step more costs is told from few calls: so again from where that leads.
    for _ in range(3):
        infer, simulate = costs(policy, worlds, steps, 9)
        steps = int(np.clip(round(steps + (simulate - infer) / each), 1, MOST_STEPS))
    return steps


@contextmanager
def loops(worlds: int) -> Iterator[tuple[VlaPolicy, list[Any]]]:
    """The policy, and its worlds in the three placements, twice: the profile measures in others
    than the rollouts."""
    protocol = compose("pick_vla_ppo").protocol
    make = partial(practice_env, protocol)
    envs: list[Any] = []
    try:
        for _ in range(2):
            envs += [make(worlds), ProcessVecEnv(make, worlds), ProcessVecEnv(make, worlds, PARTS)]
        policy = policy_for(envs[0], protocol.task)
        yield policy, [worlds_of(env, policy, 4, count(1_000_000), 0.99) for env in envs]
    finally:
        for env in envs:
            env.close()


def counted(times: int = 3_000_000) -> float:
    """Seconds to count so far."""
    begin = time.perf_counter()
    sum(1 for _ in range(times))
    return time.perf_counter() - begin


def cores(beside: ProcessPoolExecutor) -> float:
    """How much of two cores two busy processes get."""
    alone = counted()
    other = beside.submit(counted)
    own = counted()
    return 2.0 * alone / max(own, other.result())


def rate(loop: ChunkCollector) -> float:
    """Steps of environments per second of one rollout."""
    loop.worlds.take_executed()
    begin = time.perf_counter()
    loop.rollout(DECISIONS)
    return loop.worlds.take_executed() / (time.perf_counter() - begin)


def run(worlds: int, rounds: int) -> dict[str, Any]:
    """All figures; see the module."""
    torch.set_num_threads(1)
    with loops(worlds) as (policy, placed), ProcessPoolExecutor(1, get_context("spawn")) as beside:
        beside.submit(counted, 1).result()
        steps = balanced(policy, placed[0])
        infer, simulate = costs(policy, placed[0], steps)
        loop = Loops(*[collector_of(one, actor_for(policy, steps)) for one in placed[:3]])
        here, there, parts = placed[3:]
        assert isinstance(parts, ChunkWorldsInParts)
        rates: dict[str, list[float]] = {kind: [] for kind in Loops._fields}
        pieces, given = Measured(0.0, PARTS), []
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
        "worlds": worlds,
    }
    return figures(rates, pieces) | about


def figures(rates: dict[str, list[float]], pieces: Measured) -> dict[str, Any]:
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
        "overlap": (median["infer"] / PARTS + median["simulate_part"]) / median["overlapped"],
        "spread": {kind: np.percentile(found, [25, 75]).tolist() for kind, found in ratios.items()},
        "steps_per_s": measured,
        "predicted": predicted,
        "milliseconds": {piece: 1e3 * seconds for piece, seconds in median.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    parser.add_argument("--worlds", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    found = run(options.worlds, options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    for name, figure in found.items():
        print(f"{name:24} {figure}")


if __name__ == "__main__":
    main()
