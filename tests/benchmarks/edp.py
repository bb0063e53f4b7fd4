"""Measures the time that EDP's one-step prediction saves a diffusion policy with a Q objective.

    python -m tests.benchmarks.edp --json

actor_ms: one update of the actor by EDP: denoising loss and Q of the one-step prediction, with one
    prediction for both.
chain_ms: the same with Q of an action that is sampled by the whole chain with gradients through
    every step (Diffusion-QL), and a second prediction for the denoising loss.
actor_ratio: actor_ms / chain_ms.
update_ms: a whole update of EDP in its IQL form, whose critics sample no action.
td3_update_ms: a whole update in its TD3 form, whose critics' targets sample an action with DDIM in
    `--steps` steps.
update_ratio: update_ms divided by a whole update with Q through the chain, whose targets are
    sampled by the chain as well.

Actor a residual MLP of 256 units and 3 blocks, critics of 256x3, batch 256, K levels; milliseconds
of processor time of one thread, medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from policies.card import Shapes
from policies.families.diffusion import DiffusionPolicy
from policies.networks.config import MlpConfig
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.offline.config import (
    EdpConfig,
    EdpObjective,
    ImplicitWeightConfig,
    QGradientConfig,
)
from policies.rl.offline.edp import CHUNK, Edp
from policies.rl.replay.transitions import Observations, Transitions

OBSERVATION, ACTION, BATCH = 20, 7, 256


def main() -> None:
    """Measures and prints; one JSON object when asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--levels", type=int, default=20, help="K")
    parser.add_argument("--steps", type=int, default=5, help="of the sampler in the TD3 form")
    parser.add_argument("--updates", type=int, default=15, help="measured of each kind")
    arguments = parser.parse_args()
    figures = measure(arguments.levels, arguments.steps, arguments.updates)
    print(
        json.dumps(figures)
        if arguments.json
        else "\n".join(f"{name:15s} {v}" for name, v in figures.items())
    )


def measure(levels: int, steps: int, updates: int) -> dict[str, Any]:
    """All figures, by name."""
    torch.set_num_threads(1)
    batch = random_batch()
    whole = new_learner(levels, levels, QGradientConfig())
    implicit = new_learner(levels, levels, ImplicitWeightConfig())
    short = new_learner(levels, steps, QGradientConfig())
    actor = milliseconds(lambda: whole.step("actor", whole.actor_loss(batch)[0]), updates)
    chain = milliseconds(lambda: whole.step("actor", chain_loss(whole, batch)), updates)
    both = milliseconds(lambda: whole.update([batch]), updates)
    update = milliseconds(lambda: implicit.update([batch]), updates)
    return {
        "levels": levels,
        "actor_ms": actor,
        "chain_ms": chain,
        "actor_ratio": round(actor / chain, 3),
        "update_ms": update,
        "td3_update_ms": milliseconds(lambda: short.update([batch]), updates),
        "update_ratio": round(update / (both - actor + chain), 3),
    }


def new_learner(levels: int, steps: int, objective: EdpObjective) -> Edp:
    """A learner of single actions with `levels` noise levels and `steps` sampler steps."""
    model = DiffusionPolicyConfig(
        n_obs_steps=1,
        horizon=1,
        n_action_steps=1,
        train_timesteps=levels,
        inference_steps=steps,
        network=MlpConfig(width=256, blocks=3),
    )
    policy = DiffusionPolicy(model, Shapes.of_vector(OBSERVATION, ACTION, None))
    return Edp(EdpConfig(policy=model, objective=objective), policy)


def chain_loss(learner: Edp, batch: Transitions) -> torch.Tensor:
    """Diffusion-QL's loss of the actor (arXiv 2208.06193), with gradients of Q through every step
    of the sampler."""
    net = learner.networks
    features = net.encode(batch.obs)
    chunk = learner.sample(net.actor, features, torch.randn(batch.rows, 1, ACTION))
    denoising = learner.predict_clean(features, batch.extra[CHUNK]).loss
    return denoising + 2.0 * learner.q_loss(features, learner.executed_part(chunk))


def milliseconds(work: Callable[[], Any], times: int) -> float:
    """Median of processor time, after two warm-up runs."""
    taken = []
    for _ in range(times + 2):
        start = time.process_time()
        work()
        taken.append(1e3 * (time.process_time() - start))
    return round(statistics.median(taken[2:]), 2)


def random_batch() -> Transitions:
    """Standard normal observations, uniform actions."""
    generator = torch.Generator().manual_seed(0)
    none = torch.zeros(BATCH, dtype=torch.bool)
    action = 2.0 * torch.rand(BATCH, ACTION, generator=generator) - 1.0
    return Transitions(
        Observations(torch.randn(BATCH, OBSERVATION, generator=generator)),
        action,
        torch.randn(BATCH, generator=generator),
        torch.full((BATCH,), 0.97),
        Observations(torch.randn(BATCH, OBSERVATION, generator=generator)),
        none,
        none,
        torch.zeros(BATCH),
        {CHUNK: action[:, None]},
    )


if __name__ == "__main__":
    main()
