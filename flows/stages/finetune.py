"""Stage `finetune`: a policy practises in simulated worlds and comes out as another one like it."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from policies.rl.practice_config import FinetuneConfig
from robots.config import config
from robots.types import Progress
from sim.protocol import Protocol


@config
class FinetunePolicyConfig:
    """Where a policy practises, and how."""

    protocol: Protocol | None = None
    """Its worlds, time limit and chunks; its seeds are not practised on, they are for evaluation. None takes that of
    the pipeline's evaluations."""
    worlds: int = 50
    """Stepped together."""
    learning: FinetuneConfig = field(default_factory=FinetuneConfig)


def run(config: FinetunePolicyConfig, inputs: dict[str, Path], out: Path, progress: Progress) -> dict[str, Any]:
    """Lets `inputs["policy"]` practise, going on from what an interrupted attempt left in `out`."""
    from flows.protocols import push_t_published
    from policies.finetune import finetune
    from sim.evaluate import practice_env

    worlds = partial(practice_env, config.protocol or push_t_published(), config.worlds)
    return finetune(config.learning, inputs["policy"], worlds, out, progress)
