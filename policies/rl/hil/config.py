"""Options of human-in-the-loop learning: learner process, RLIF, HG-DAgger. Imports no torch.

Every default names its source: [C] is the released code of the method, [P] its paper.
"""

from __future__ import annotations

from typing import Literal

from policies.rl.networks.config import MlpSizes
from robots.config import config


@config
class RlifConfig:
    """Reward derived from interventions only (RLIF, arXiv 2311.12996)."""

    reward: float = -1.0
    """Reward of the step just before an intervention begins; all other steps have 0 [P, C]."""
    keep_expert_steps: bool = True
    """Whether the person's steps are kept for training [P]; False drops all but the last step of
    each intervention [C]."""


@config
class HgDaggerConfig:
    """Imitation of human corrections (HG-DAgger, arXiv 1810.02890)."""

    kind: Literal["hg_dagger"] = "hg_dagger"
    network: MlpSizes = MlpSizes(activation="relu")
    """Layers of the policy network."""
    gripper: bool = False
    """Whether the last entry of an action is a gripper command: -1 close, 0 hold, 1 open."""
    learning_rate: float = 3e-4
    """Learning rate of the policy."""


@config
class LearnerConfig:
    """Learner process (`policies.rl.hil.learner`)."""

    host: str = "127.0.0.1"
    """Address to listen on. Traffic is not encrypted; to other machines, use a tunnel or a TLS
    proxy."""
    port: int = 8010
    """TCP port; 0 selects a free one."""
    actors: int = 4
    """Maximum number of simultaneous actor connections."""
    publish_every: int = 50
    """Updates between two publications of the actor's parameters; 50 in HIL-SERL, 30 in SERL
    [C]."""
    checkpoint_seconds: float = 60.0
    """Time between checkpoints [s]; a crash loses the updates since the last one."""
    metrics_every: int = 100
    """Updates between two lines of `metrics.jsonl`."""
    log_bytes: int = 32_000_000
    """Size above which the message log starts a new file [byte]."""


@config
class RelativeFeature:
    """Additional network input: an observation field, or its difference from another field,
    divided by a scale."""

    field: str
    """Observation field."""
    other: str | None = None
    """Observation field that is subtracted; None subtracts nothing."""
    entries: int = 3
    """Number of leading entries of the field to use."""
    scale: float = 0.1
    """Value that is mapped to 1 [unit of the field]."""


@config
class ScaledTanhFeature(RelativeFeature):
    """Additional network input like `RelativeFeature`, passed through tanh."""

    scale: float = 0.01
    """Value that is mapped to tanh(1) [unit of the field]."""
