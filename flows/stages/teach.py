"""Stage `distil` of a policy that reads: a student acts in simulated worlds, and the one that
practised teaches it."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from policies.distillation.config import OnPolicyDistilConfig
from robots.config import config
from robots.interfaces import Progress
from sim.evaluation.protocol import Protocol


@config
class TeachConfig:
    """Where a student is taught, and how."""

    protocol: Protocol | None = None
    """Its worlds, time limit and chunks; its seeds are for evaluation alone. None takes that of the
    pipeline's evaluations."""
    worlds: int = 50
    """Stepped together."""
    learning: OnPolicyDistilConfig = field(default_factory=OnPolicyDistilConfig)


def run(
    config: TeachConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Teaches `inputs["student"]` what `inputs["teacher"]` does, going on from what an interrupted
    attempt left."""
    from flows.config.protocols import push_t_published
    from policies.distillation.on_policy import on_policy_distil
    from sim.evaluation.evaluate import practice_env

    worlds = partial(practice_env, config.protocol or push_t_published(), config.worlds)
    return on_policy_distil(
        config.learning, inputs["student"], inputs["teacher"], worlds, out, progress
    )
