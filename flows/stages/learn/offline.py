"""Stage `offline`: offline RL on a recorded store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.artifacts import Classifier, Episodes, Output, Policy
from flows.stages.learn.config import TRAINING_TELEMETRY, OfflinePolicyConfig
from policies.rewards.config import ImageTextRewardConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

TELEMETRY = TRAINING_TELEMETRY


def external(config: OfflinePolicyConfig, fetch: bool) -> dict[str, str]:
    """Returns the sha256 of the image-text model of the reward, if there is one."""
    from robots.episodes.sources import Source, source_digest

    if not isinstance(config.reward, ImageTextRewardConfig):
        return {}
    path = Path(config.reward.folder)
    return {"image-text model": source_digest(Source(kind="argument", path=path, line="model"))}


def check(config: OfflinePolicyConfig, sources: Mapping[str, Any]) -> None:
    """Refuses inputs that the algorithm or the reward does not take, and missing ones."""
    for name, kind, takes in (
        ("policy", config.algorithm.kind, config.algorithm.kind == "offline_ppo"),
        ("classifier", config.reward.kind, config.reward.kind == "classifier"),
    ):
        if (name in sources) != takes:
            found = "is missing" if takes else "is given"
            raise HandoffError(
                f"offline: the input {name} {found}, but '{kind}' {'needs' if takes else 'takes no'} {name}."
            )


def run(
    config: OfflinePolicyConfig,
    out: Path,
    progress: Progress,
    *,
    demos: Episodes,
    classifier: Classifier | None = None,
    policy: Policy | None = None,
) -> Output[Policy]:
    """Trains on `demos` without an environment, with rewards as recorded, by `classifier`, or by
    images and text; offline PPO goes on from `policy`. Resumes an interrupted attempt in `out`.

    Raises:
        HandoffError: the store lacks what the algorithm or the reward needs.
    """
    from policies.rl.offline.train_offline import train_offline

    metrics = train_offline(
        config.algorithm,
        config.reward,
        config.training,
        demos,
        out,
        progress,
        classifier=classifier,
        policy=policy,
    )
    return Output(metrics)
