"""Stage `reinforce`: a state task is learned from nothing, in simulated worlds, by FastTD3 or
PQL."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flows.config.protocols import push_t_published
from flows.stages.config import ReinforcePolicyConfig
from robots.interfaces import Progress


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
        protocol.robot,
    )
