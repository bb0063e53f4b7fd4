"""Options of this package."""

from __future__ import annotations

from typing import Literal

from policies.rl.networks.config import MlpSizes
from robots.config import config


@config
class RlifConfig:
    """Reward from interventions alone (RLIF, arXiv 2311.12996)."""

    reward: float = -1.0
    """Reward of the step just before an intervention begins; every other step has 0 [P, C]."""
    keep_expert_steps: bool = True
    """Whether the person's steps are learned from [P]; False drops all but the last of every
    intervention [C]."""


@config
class HgDaggerConfig:
    """Imitation of a person's corrections (HG-DAgger, arXiv 1810.02890)."""

    kind: Literal["hg_dagger"] = "hg_dagger"
    network: MlpSizes = MlpSizes(activation="relu")
    """Sizes of the policy's network."""
    hand: bool = False
    """Whether the last entry of an action is a command: -1 close, 0 hold, 1 open."""
    learning_rate: float = 3e-4
    """Learning rate of the policy."""


@config
class LearnerConfig:
    """The learner's process (`policies.rl.hil.learner`)."""

    host: str = "127.0.0.1"
    """Address to listen on. Traffic is not encrypted: beyond this machine, go through a tunnel or a
    TLS proxy."""
    port: int = 8010
    """TCP port; 0 takes a free one."""
    actors: int = 4
    """Connections at a time."""
    publish_every: int = 50
    """Updates between publications of the actor's parameters; 50 in HIL-SERL, 30 in SERL [C]."""
    checkpoint_seconds: float = 60.0
    """Time between checkpoints [s]; the updates since the last one are what a crash costs."""
    metrics_every: int = 100
    """Updates per line of `metrics.jsonl`."""
    log_bytes: int = 32_000_000
    """Size from which on the log of what came in begins a new file."""


@config
class Difference:
    """An observed vector, or its difference from another, that the learner is shown at a scale of
    its own as well."""

    field: str
    """Observation field that is scaled."""
    other: str | None = None
    """What is subtracted; None takes the vector itself."""
    entries: int = 3
    """Leading entries."""
    scale: float = 0.1
    """What becomes 1 [unit of the field]."""


@config
class ScaledTanhFeature(Difference):
    """Likewise, but through tanh."""

    scale: float = 0.01
    """Scale at which tanh saturates [unit of the field]."""
