"""Defines all options of a recipe."""

from __future__ import annotations

from dataclasses import field

from flows.config.protocols import push_t_published
from flows.deployment.config import DeployConfig, DeployTaskConfig
from flows.stages.config import (
    DistilOnPolicyConfig,
    FinetunePolicyConfig,
    RecordPlayConfig,
    ReinforcePolicyConfig,
    ScriptedConfig,
)
from policies.distillation.config import DistilConfig
from policies.export.onnx import ExportConfig
from policies.imitation.config import PretrainConfig
from policies.networks.config import BackboneConfig
from policies.world_model.config import WorldModelConfig
from real.deploy.release_gate import GateConfig
from robots.config import config
from robots.episodes.ingest import IngestConfig
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import Protocol


@config
class ImaginationConfig:
    """World model trained on play, for fine-tuning in imagination."""

    play: RecordPlayConfig = field(default_factory=RecordPlayConfig)
    """Recording of play, on which the world model is trained."""
    world_model: WorldModelConfig = field(default_factory=WorldModelConfig)
    """Sizes and training of the world model."""


@config
class StudentConfig:
    """Student of a language-conditioned policy."""

    backbone: BackboneConfig | None = None
    """Backbone of the student; None takes the teacher's configuration."""
    steps: int | None = None
    """Updates of the student's imitation learning; None takes the teacher's number."""
    distillation: DistilOnPolicyConfig = field(default_factory=DistilOnPolicyConfig)
    """On-policy distillation of the student."""


@config
class PipelineConfig:
    """All options of a recipe; the defaults of every stage are in its own class."""

    name: str = "demo"
    """Folder under `runs` for the summary, the report and links to the artifacts."""
    runs: str = "runs"
    """Folder of artifacts and results."""
    ingest: IngestConfig = field(default_factory=IngestConfig)
    """Source and selection of the demonstrations."""
    scripted: ScriptedConfig | None = None
    """Demonstrations of a simulated task by its scripted expert, instead of those that `ingest`
    finds."""
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    """Policy and its imitation learning."""
    finetune: FinetunePolicyConfig | None = None
    """RL fine-tuning after imitation learning; None skips it."""
    imagination: ImaginationConfig | None = None
    """World model in which the policy is fine-tuned; None fine-tunes in simulated environments."""
    reinforce: ReinforcePolicyConfig | None = None
    """RL from scratch instead of demonstrations, imitation learning and all later stages; None
    keeps those."""
    protocol: Protocol = field(default_factory=push_t_published)
    """Protocol of all evaluations; they are paired, with the same environments and seeds."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    """Environments, videos and interval of the evaluations."""
    distil: DistilConfig = field(default_factory=DistilConfig)
    """Distillation of a diffusion policy to one step."""
    student: StudentConfig | None = None
    """Student of a language-conditioned policy; None ends the pipeline with the teacher's
    evaluation."""
    export: ExportConfig = field(default_factory=ExportConfig)
    """Export to ONNX."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Thresholds of the release gate."""
    deploy: DeployConfig | None = field(default_factory=DeployConfig)
    """Deployment to the twin at the push-T table; None skips it."""
    bench: DeployTaskConfig | None = None
    """Deployment to the twin, with its gripper, at the table of a simulated task; replaces
    `deploy`."""
