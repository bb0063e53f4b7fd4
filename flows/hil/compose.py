"""Composes a session from a task's file in `configs/hil/` and overrides, and derives the seeds of
its stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flows.config.files import compose_file
from flows.hil.config import HilConfig
from robots.config import to_plain
from robots.errors import HandoffError
from robots.seed_ranges import SESSION_SPACING

_SHARED = {
    "demonstrations": ("env", "operator"),
    "classifier": ("env", "operator"),
    "train": ("env", "operator"),
    "rollouts": ("env",),
}
"""Options of stages that are set for the whole session and cannot be set for a single stage."""


def compose_hil(task: str, overrides: Sequence[str] = ()) -> HilConfig:
    """Composes `configs/hil/<task>.yaml` over the defaults that live in the configuration classes.

    Args:
        task: a file in `configs/hil/`, without its ending.
        overrides: Hydra overrides, e.g. `train.sac.critics=10`.

    Raises:
        HandoffError: no such file, unknown key, or ill-typed value.
    """
    defaults = to_plain(HilConfig())
    for stage, keys in _SHARED.items():
        for key in keys:
            defaults[stage].pop(key)
    return compose_file(HilConfig, task, overrides, group="hil", defaults=defaults)


def seeded(config: HilConfig) -> HilConfig:
    """Applies the session's seed to every stage: weights, exploration, and starts that no other
    seed uses.

    Raises:
        HandoffError: a negative seed.
    """
    from dataclasses import replace

    if config.seed < 0:
        raise HandoffError(f"session: seed is {config.seed}, expected 0 or more.")
    offset = SESSION_SPACING * config.seed

    def reseed(stage: Any) -> Any:
        return replace(
            stage, training=replace(stage.training, seed=stage.training.seed + config.seed)
        )

    train, classifier = config.train, config.classifier
    return replace(
        config,
        demonstrations=replace(
            config.demonstrations, first_seed=config.demonstrations.first_seed + offset
        ),
        clone=reseed(config.clone),
        classifier=replace(
            classifier, first_seed=classifier.first_seed + offset, train=reseed(classifier.train)
        ),
        train=replace(
            train,
            seed=train.seed + config.seed,
            actor=replace(train.actor, seed=train.actor.seed + config.seed),
        ),
        rollouts=replace(config.rollouts, first_seed=config.rollouts.first_seed + offset),
        pretrain=reseed(config.pretrain),
        distil=reseed(config.distil),
    )
