"""Stage `distil` of a language-conditioned policy: on-policy distillation in simulated
environments."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flows.stages.config import DistilOnPolicyConfig
from robots.interfaces import Progress


def run(
    config: DistilOnPolicyConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Distils `inputs["teacher"]` into `inputs["student"]` on the student's own states, resuming an
    interrupted attempt."""
    from flows.config.protocols import push_t_published
    from policies.checkpoint import read_card
    from policies.distillation.on_policy import on_policy_distil
    from sim.evaluation.evaluate import training_env
    from sim.evaluation.protocol import check_trained_with

    protocol = config.protocol or push_t_published()
    check_trained_with(protocol, read_card(inputs["student"]).robot)
    env = partial(training_env, protocol, config.num_envs)
    return on_policy_distil(
        config.learning, inputs["student"], inputs["teacher"], env, out, progress
    )
