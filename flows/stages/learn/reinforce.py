"""Stage `reinforce`: trains a state-based task by RL from scratch in simulated environments, with
FastTD3 or PQL."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flows.artifacts import Output, Policy
from flows.stages.learn.config import ReinforcePolicyConfig
from robots.interfaces import Progress


def run(config: ReinforcePolicyConfig, out: Path, progress: Progress) -> Output[Policy]:
    """Trains the policy, resuming an interrupted attempt in `out`."""
    from policies.rl.off_policy.train import train_from_scratch
    from sim.evaluation.evaluate import training_env

    protocol = config.protocol
    metrics = train_from_scratch(
        config.learning,
        protocol.task,
        partial(training_env, protocol, config.num_envs),
        out,
        progress,
        protocol.robot,
    )
    return Output(metrics)
