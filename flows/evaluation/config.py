"""Options of this package."""

from __future__ import annotations

from dataclasses import field

from flows.config.protocols import push_t_published
from robots.config import config
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import Protocol


@config
class EvaluatePolicyConfig:
    """The protocol, how it is carried out, and how the policy under test samples."""

    protocol: Protocol = field(default_factory=push_t_published)
    """Task, seeds and rules of the evaluation."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    """Environments, videos and interval of the evaluation."""
    denoising_steps: int | None = None
    """Sampler steps; None takes the policy's own."""
    instruction: str | None = None
    """What a policy that reads language is told; None takes the worlds' own words, else the
    policy's."""
