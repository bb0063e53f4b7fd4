"""Stage `pretrain`: trains a policy on demonstrations by imitation learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.artifacts import Episodes, Output, Policy
from flows.stages.learn.config import TRAINING_TELEMETRY
from policies.imitation.config import PretrainConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

TELEMETRY = TRAINING_TELEMETRY


def external(config: PretrainConfig, fetch: bool) -> dict[str, str]:
    """Returns the sha256 of everything that the stage reads from outside the pipeline, by name; it
    enters the cache key.

    Raises:
        HandoffError: a store of the mixture, a backbone, or the initial policy cannot be read.
    """
    from robots.episodes.sources import Source, source_digest

    paths = {f"mixture {mixed.path}": mixed.store for mixed in config.mixture}
    if config.initial is not None:
        paths["initial"] = Path(config.initial)
    paths |= {name: Path(folder) for name, folder in config.policy.external_folders.items()}
    sources = {name: Source(kind="argument", path=path, line=name) for name, path in paths.items()}
    return {name: source_digest(source) for name, source in sources.items()}


def check(config: PretrainConfig, sources: Mapping[str, Any]) -> None:
    """Refuses two sources of the initial weights."""
    if config.initial is not None and "policy" in sources:
        raise HandoffError(
            "pretrain: the option 'initial' and the input 'policy' both name the initial weights. Remove one of them."
        )


def run(
    config: PretrainConfig,
    out: Path,
    progress: Progress,
    *,
    demos: Episodes,
    policy: Policy | None = None,
) -> Output[Policy]:
    """Trains on `demos`, from the weights of `policy` if there is one, resuming an interrupted
    attempt in `out`.

    Raises:
        HandoffError: a policy of another family or of other shapes.
    """
    from policies.imitation.pretrain import pretrain

    if policy is not None:
        config = replace(config, initial=str(policy))
    return Output(pretrain(config, demos, out, progress))
