"""Stage `reinforce`: a state task is learned from nothing, in simulated worlds, by FastTD3 or
PQL."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from flows.config.protocols import push_t_published
from policies.rl.off_policy.fast_td3_config import ReinforceConfig
from robots.config import config
from robots.interfaces import Progress
from sim.evaluation.protocol import Protocol


@config
class ReinforcePolicyConfig:
    """Where it is learned, and how."""

    protocol: Protocol | None = None
    """Its worlds and time limit; its seeds are not practised on, they are for evaluation. None
    takes that of the pipeline's evaluations."""
    worlds: int = 128
    """Stepped together; 128 in FastTD3's code for HumanoidBench, 4,096 in PQL's."""
    learning: ReinforceConfig = field(default_factory=ReinforceConfig)


def run(
    config: ReinforcePolicyConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Learns, going on from what an interrupted attempt left in `out`."""
    from policies.rl.off_policy.train import reinforce
    from sim.evaluation.evaluate import practice_env

    protocol = config.protocol or push_t_published()
    return reinforce(
        config.learning,
        protocol.task,
        partial(practice_env, protocol, config.worlds),
        out,
        progress,
    )
