"""Defines the options of the stage `evaluate`."""

from __future__ import annotations

from dataclasses import field

from flows.config.protocols import push_t_published
from robots.config import Count, config
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import Protocol


@config
class EvaluatePolicyConfig:
    """Evaluation of a policy under a protocol."""

    protocol: Protocol = field(default_factory=push_t_published)
    """Task, seeds and rules of the evaluation."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    """Environments, videos and interval of the evaluation."""
    denoising_steps: Count | None = None
    """Sampler steps; None takes the policy's."""
    instruction: str | None = None
    """Instruction for a language-conditioned policy; None takes the environment's, else the
    policy's."""
    blind: bool = False
    """Whether the policy's cameras give black pictures and its point clouds zeros: the negative
    control of a policy that sees."""
