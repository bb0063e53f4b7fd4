"""Options of this package: everything that the run of a recipe can be told."""

from __future__ import annotations

from dataclasses import field

from flows.config.protocols import push_t_published
from flows.deployment.config import DeployConfig, DeployTaskConfig
from flows.stages.config import (
    FinetunePolicyConfig,
    RecordPlayConfig,
    ReinforcePolicyConfig,
    ScriptedConfig,
    TeachConfig,
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
class DreamsConfig:
    """A world model from play, in which a policy is to practise."""

    play: RecordPlayConfig = field(default_factory=RecordPlayConfig)
    """Recording of play, on which the world model is trained."""
    world_model: WorldModelConfig = field(default_factory=WorldModelConfig)
    """Sizes and training of the world model."""


@config
class TaughtStudentConfig:
    """The student of a policy that reads."""

    backbone: BackboneConfig | None = None
    """None takes one like the teacher's."""
    steps: int | None = None
    """Updates of its imitation; None takes as many as the teacher's."""
    teaching: TeachConfig = field(default_factory=TeachConfig)
    """On-policy distillation of the student."""


@config
class PipelineConfig:
    """Everything a run of the demo can be told; each stage's own defaults live in its class."""

    name: str = "demo"
    """Folder under `runs` for the summary, the report and links to the artifacts."""
    runs: str = "runs"
    """Where artifacts and results go."""
    ingest: IngestConfig = field(default_factory=IngestConfig)
    """Source and selection of the demonstrations."""
    scripted: ScriptedConfig | None = None
    """Demonstrations of a simulated task by its scripted expert, in place of those that `ingest`
    finds."""
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    """Policy and its training by imitation."""
    finetune: FinetunePolicyConfig | None = None
    """Practice between imitation and all that follows; None goes without."""
    dreams: DreamsConfig | None = None
    """Where that practice is to be dreamt; None lets it happen in simulated worlds."""
    reinforce: ReinforcePolicyConfig | None = None
    """Learning from nothing in place of demonstrations, imitation and all that follows; None goes
    their way."""
    protocol: Protocol = field(default_factory=push_t_published)
    """Protocol of all evaluations, which are therefore paired: the same environments and seeds."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    """Environments, videos and interval of the evaluations."""
    distil: DistilConfig = field(default_factory=DistilConfig)
    """Distillation of a diffusion policy to one step."""
    student: TaughtStudentConfig | None = None
    """Student of a language-conditioned policy; None ends its pipeline with its evaluation."""
    export: ExportConfig = field(default_factory=ExportConfig)
    """Export to ONNX."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Thresholds of the release gate."""
    deploy: DeployConfig | None = field(default_factory=DeployConfig)
    """The way to the twin at the table of push-T; None goes without."""
    bench: DeployTaskConfig | None = None
    """The way to the twin, with its hand, at the table of a simulated task; in place of
    `deploy`."""
