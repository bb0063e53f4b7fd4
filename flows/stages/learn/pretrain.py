"""Stage `pretrain`: trains a policy on demonstrations by imitation learning."""

from __future__ import annotations

from pathlib import Path

from flows.artifacts import Episodes, Output, Policy
from flows.stages.learn.config import TRAINING_TELEMETRY
from policies.imitation.config import PretrainConfig
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


def run(
    config: PretrainConfig,
    out: Path,
    progress: Progress,
    *,
    demos: Episodes,
) -> Output[Policy]:
    """Trains on `demos`, resuming an interrupted attempt in `out`."""
    from policies.imitation.pretrain import pretrain

    return Output(pretrain(config, demos, out, progress))
