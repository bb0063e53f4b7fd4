"""Stage `distil` of a policy that reads: a student acts in simulated worlds, and the one that
practised teaches it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flows.stages.config import TeachConfig
from robots.interfaces import Progress


def run(
    config: TeachConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Teaches `inputs["student"]` what `inputs["teacher"]` does, going on from what an interrupted
    attempt left."""
    from flows.config.protocols import push_t_published
    from policies.checkpoint import read_card
    from policies.distillation.on_policy import on_policy_distil
    from sim.evaluation.evaluate import practice_env
    from sim.evaluation.protocol import check_trained_with

    protocol = config.protocol or push_t_published()
    check_trained_with(protocol, read_card(inputs["student"]).robot)
    worlds = partial(practice_env, protocol, config.worlds)
    return on_policy_distil(
        config.learning, inputs["student"], inputs["teacher"], worlds, out, progress
    )
