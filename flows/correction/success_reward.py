"""Provides the reward of a session's success classifier, and states which version judged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from real.hil.rewards import ClassifierReward, RewardSource, SuccessVersion
from robots.episodes.metadata.episode_metadata import CLASSIFIER_DIGEST, CLASSIFIER_VERSION

ONNX = "success.onnx"
JOURNAL_EPISODE = "journal_episode"
"""Entry of an episode that a classifier judged: its number in the actor's journal and in the
learner's replay."""


def detected_reward(
    classifier: Path, newer: Callable[[int], SuccessVersion | None] = lambda number: None
) -> ClassifierReward:
    """Returns the reward of the success classifier in the folder `classifier`, on one thread of
    ONNX Runtime; `newer` is that of `real.hil.rewards.ClassifierReward`."""
    return ClassifierReward(success_version(classifier, 0), newer=newer)


def success_version(folder: Path, number: int) -> SuccessVersion:
    """Loads the exported classifier in `folder` as the version `number` of the session."""
    from real.deploy.onnx_success import OnnxSuccess

    success = OnnxSuccess(folder / ONNX)
    digest = hashlib.sha256((folder / ONNX).read_bytes()).hexdigest()
    return SuccessVersion(number, digest, success, success.contract.detector)


def judged_by(rewards: RewardSource, episode: int) -> dict[str, Any]:
    """Returns the entries of an episode's metadata about the classifier that judges it; none where
    the task judges. `episode` is its number in the actor's journal."""
    if not isinstance(rewards, ClassifierReward):
        return {}
    version = rewards.version
    judged = {CLASSIFIER_VERSION: version.number, CLASSIFIER_DIGEST: version.digest}
    return {**judged, JOURNAL_EPISODE: episode}
