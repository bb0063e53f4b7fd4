"""`handoff profile CONFIG`: how fast each placement of a pipeline's practice would be, before hours
are spent on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv, no_progress

if TYPE_CHECKING:
    from flows.stages.config import FinetunePolicyConfig
    from policies.policy import ChunkPolicy
    from policies.policy_config import PolicyConfig
    from policies.rl.collection.placement_profile import Measured, StepRate
    from sim.evaluation.protocol import Protocol


def profile(
    name: str,
    overrides: Sequence[str] = (),
    seconds: float = 60.0,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measures the practice of the pipeline `configs/<name>.yaml` with a policy of random weights.

    Args:
        name: see `flows.recipes.compose.compose`.
        overrides: likewise.
        seconds: for the measurements.
        progress: told the seconds spent.

    Returns:
        Median seconds of every piece (`seconds`), of the way to another process (`transfer`), rates
        of the placements (`rates`: steps of environments per second, and their 95 % interval) and
        the one that is `recommended`.

    Raises:
        HandoffError: no practice of a policy that reads, or see
            `policies.rl.collection.placement_profile.measure`.
    """
    import numpy as np

    from flows.recipes.compose import compose
    from policies.rl.collection.placement_profile import predict
    from policies.training.loop import torch_threads

    config = compose(name, overrides)
    practice = config.finetune
    if practice is None or practice.learning.practice.kind != "vla":
        raise HandoffError(
            f"profile: {name} has no practice of a policy that reads (finetune: vla); other practice decides for all "
            "worlds at once, so there is nothing to choose."
        )
    with torch_threads(practice.learning.threads):
        found = measured(
            practice,
            config.pretrain.policy,
            practice.protocol or config.protocol,
            seconds,
            progress,
        )
    rates = predict(found, practice.learning.decisions)
    return {
        "seconds": {
            piece: float(np.median(times)) for piece, times in found.seconds.items() if times
        },
        "transfer": found.transfer,
        "rates": {kind: asdict(rate) for kind, rate in rates.items()},
        "recommended": recommended(rates),
    }


def measured(
    practice: FinetunePolicyConfig,
    model: PolicyConfig,
    protocol: Protocol,
    seconds: float,
    progress: Progress,
) -> Measured:
    """The pieces' times; see `profile`."""
    from policies.rl.collection.chunk_env import ChunkWorlds
    from policies.rl.collection.placement_profile import measure
    from policies.rl.collection.split_chunk_env import ChunkWorldsInParts
    from policies.rl.finetuning.config import VlaPracticeConfig
    from policies.rl.finetuning.vla import VlaPractice, check_reads
    from sim.evaluation.evaluate import practice_env
    from sim.processes.vec_env import ProcessVecEnv

    learning, make, number = practice.learning, partial(practice_env, protocol), practice.worlds
    way = learning.practice
    assert isinstance(way, VlaPracticeConfig)
    envs = [make(number)]
    try:
        module = check_reads(untaught(model, protocol.task, envs[0]))
        asked = (
            module,
            model.n_action_steps,
            count(learning.first_seed),
            way.learning.discount,
            learning.reward,
        )
        here = ChunkWorlds(envs[0], *asked)
        made = VlaPractice(way, module, here, learning.seed)
        placed, stages = practice.placement, max(2, practice.placement.parts)
        for parts in (1, stages):
            envs.append(ProcessVecEnv(make, number, parts, placed.simulators, placed.cluster))
        there = ChunkWorlds(envs[1], *asked)
        apart = ChunkWorldsInParts(envs[2], *asked)  # type: ignore[arg-type]
        rollout = made.collect(learning.decisions)
        return measure(
            made.actor, here, there, apart, partial(made.learn, rollout), seconds, progress
        )
    finally:
        for env in envs:
            env.close()


def untaught(model: PolicyConfig, task: str, env: VecEnv) -> ChunkPolicy:
    """A policy with random weights, for what these worlds observe."""
    from policies.card import PolicyCard
    from policies.load import new_module
    from robots.spec import FieldSpec

    spec = env.observation_spec
    card = PolicyCard(
        task=task,
        rate_hz=env.rate_hz,
        observation={field: spec[field] for field in model.observation_fields},
        sensors={field: spec[field] for field in model.sensor_fields},
        action=FieldSpec(shape=(env.action_spec.size,)),
        model=model,
    )
    return new_module(model, card.shapes)


def recommended(rates: dict[Any, StepRate]) -> str:
    """The simplest placement that no other is surely faster than: the first whose interval reaches
    the fastest's."""
    fastest = max(rates.values(), key=lambda rate: rate.steps_per_s)
    return next(kind for kind, rate in rates.items() if rate.high >= fastest.low)


def profile_command(options: Any) -> None:
    """`handoff profile`."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    with console.status("measuring") as status:
        found = profile(
            options.name,
            options.overrides,
            options.seconds,
            lambda done, total, note="": status.update(f"{note} {done} of {total} s"),
        )
    if options.json:
        console.print_json(json.dumps(found))
        return
    pieces = Table(box=None, pad_edge=False)
    for heading in ("piece", "milliseconds"):
        pieces.add_column(heading, justify="left" if heading == "piece" else "right")
    for piece, seconds in (*found["seconds"].items(), ("transfer", found["transfer"])):
        pieces.add_row(piece.replace("_", " "), f"{1e3 * seconds:.2f}")
    grid = Table(box=None, pad_edge=False)
    for heading in ("placement", "steps/s", "95 %", ""):
        grid.add_column(heading)
    for kind, rate in found["rates"].items():
        chosen = "recommended" if kind == found["recommended"] else ""
        grid.add_row(
            kind,
            f"{rate['steps_per_s']:,.0f}",
            f"{rate['low']:,.0f} to {rate['high']:,.0f}",
            chosen,
        )
    console.print(pieces)
    console.print(grid)
