"""Defines the options of the stages `evaluate`, `robustness`, `sensitivity`, `worst_case`,
`evaluate_family` and `compare_simulators`."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from flows.config.protocols import push_t_published
from robots.config import Count, OpenShare, Seed, config
from robots.seed_ranges import WORST_CASE
from sim.environment_families.search import SearchConfig
from sim.environment_families.worst_case import WorstCaseConfig
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import Protocol
from sim.evaluation.robustness import SweepConfig
from sim.sensitivity.design import DesignConfig
from sim.sensitivity.factors import AnyFactor
from sim.sensitivity.measure import SensitivityConfig


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


@config
class PlayedConfig:
    """What `handoff evaluate` can change by KEY=VALUE."""

    protocol: Protocol = field(default_factory=push_t_published)
    """Task, start states and rules of the episodes."""


@config
class PoliciesConfig:
    """Evaluation of several policies in families of environments."""

    protocol: Protocol = field(default_factory=push_t_published)
    """Task, seeds and rules of the evaluation."""
    batch: Count = 50
    """Episodes stepped together, which is the batch size of inference."""
    workers: Count = 1
    """Number of processes. Each takes whole batches, so the result does not depend on it."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Device of the policies."""
    confidence: OpenShare = 0.95
    """Two-sided confidence of every interval."""
    denoising_steps: Count | None = None
    """Sampler steps; None takes the policy's."""
    instruction: str | None = None
    """Instruction for language-conditioned policies; None takes the environment's, else the
    policy's."""

    @property
    def execution(self) -> EvaluateConfig:
        """Execution of every evaluation."""
        return EvaluateConfig(
            batch=self.batch,
            workers=self.workers,
            videos=0,
            device=self.device,
            confidence=self.confidence,
        )


@config
class RobustnessConfig(PoliciesConfig):
    """Success of policies as a function of the appearance of the scene, in environments with
    cameras."""

    sweep: SweepConfig = field(default_factory=SweepConfig)
    """Displacements of the cameras, factors of the light, and numbers of distractors."""


@config
class SensitivityPoliciesConfig(PoliciesConfig):
    """Success of policies as a function of any parameters of the environments."""

    factors: dict[str, AnyFactor] = field(default_factory=dict)
    """Parameters of the environments by a name of one's own."""
    design: DesignConfig = field(default_factory=DesignConfig)
    """Points over all factors that have a range."""

    @property
    def study(self) -> SensitivityConfig:
        """Factors and design."""
        return SensitivityConfig(factors=self.factors, design=self.design)


@config
class WorstCasePolicyConfig(PoliciesConfig):
    """Search for the environment that is worst for a policy."""

    factors: dict[str, AnyFactor] = field(default_factory=dict)
    """Parameters of the environments by a name of one's own, each with `low` and `high`."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """Effort of the search."""
    first_seed: Seed = WORST_CASE.start
    """Seed of the first start of the search; those of the protocol are used for evaluation only."""

    @property
    def study(self) -> WorstCaseConfig:
        """Factors, effort and starts."""
        return WorstCaseConfig(factors=self.factors, search=self.search, first_seed=self.first_seed)


@config
class EvaluateFamilyConfig(PoliciesConfig):
    """Evaluation of policies in every member of a family of environments."""


@config
class CompareSimulatorsConfig:
    """Comparison of policies in several simulators."""

    confidence: OpenShare = 0.95
    """Two-sided confidence of the intervals."""
    seed: Seed = 0
    """Seed of the intervals' resampling."""
