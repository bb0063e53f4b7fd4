"""Options of this package."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from policies.rl.on_policy.config import PpoConfig
from policies.samplers.chain import ChainConfig
from policies.training.config import TrainingConfig
from robots.config import config
from robots.errors import HandoffError


@config
class OneStepConfig:
    """A one-step student that follows its teacher; see `policies.distillation.online_student`."""

    learning_rate: float = 3e-4
    batch_size: int = 256
    """Pairs of state and noise."""
    updates: int = 100
    """Behind every update of the teacher."""


@config
class DistilConfig:
    """A one-step student of a diffusion policy."""

    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=8_000, learning_rate=1e-3, decay_fraction=0.7)
    )
    targets: int = 262_144
    """Pairs of noise and teacher's chunk in the table, spread evenly over the windows of the
    demonstrations and the states of practice."""
    teacher_batch: int = 1024
    """Pairs per pass of the teacher."""


@config
class OnPolicyDistilConfig:
    """How a student is taught in its own states."""

    form: Literal["kl", "reinforce"] = "kl"
    """Of action tokens: the divergence from the teacher over all bins in closed form, or RLinf's
    advantage of the one token that was drawn. A policy that denoises or flows has the closed form
    alone."""
    temperature: float = 1.0
    """Of the tokens of both, while it is taught; inference keeps its own."""
    steps: int | None = None
    """Of both samplers, and of the student's at inference after it; None takes each policy's own,
    which must agree."""
    noise: float = 0.0
    """Of a sampler's steps: eta of DDIM, the level of the flow-SDE. 0 follows the ODE, as inference
    does, and matches means."""
    chain: ChainConfig = field(default_factory=ChainConfig)
    """Bounds on that noise."""
    ppo: PpoConfig = field(default_factory=PpoConfig)
    """Of `reinforce`: where a rollout is learned from in several updates, ratios are bounded."""
    learning_rate: float = 1e-4
    """RLinf takes 2e-6, for whole models of billions of weights."""
    max_grad_norm: float | None = 1.0
    epochs: int = 1
    """Passes over a rollout; the teacher is asked in each."""
    batch_size: int = 640
    """Decisions per update."""
    rollouts: int = 40
    decisions: int = 40
    """Of every world in a rollout."""
    first_seed: int = 1_000_000
    """Of the first start; protocols' starts lie below."""
    seed: int = 0
    save_every: int = 5
    """Rollouts between two states on the disk, behind which all worlds begin new episodes."""
    threads: int = 1
    """Of torch."""

    def __post_init__(self) -> None:
        least = min(self.epochs, self.batch_size, self.rollouts, self.decisions, self.save_every)
        if least < 1 or not self.temperature > 0.0:
            raise HandoffError(
                f"teaching: epochs, batch_size, rollouts, decisions and save_every are at least {least}, the "
                f"temperature is {self.temperature:g}; expected 1 or more, and a temperature above 0."
            )
