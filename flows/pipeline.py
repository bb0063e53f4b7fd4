"""The demo pipeline: from demonstrations to a moving arm, declared.

ingest ─> pretrain ─┬─> distil ─┬─> export ──────────┬─> gate ─> deploy
                    │           └─> evaluate_student │
                    ├─> export_teacher ──────────────┘
                    ├─> evaluate_teacher   (ten denoising steps)
                    └─> evaluate_control   (the undistilled teacher in one step)

With `finetune` (`+finetune=dppo`) a policy practises before it is the teacher of all that follows:

pretrain ─┬─> finetune ─> distil, export_teacher, evaluate_teacher, evaluate_control
          └─> evaluate_pretrained

With `dreams` it practises in a world model instead of worlds, and touches none (DiWA): play ─>
world_model ─> finetune. With `reinforce` a state task is learned from nothing, without
demonstrations: reinforce ─> evaluate_teacher. With `scripted` a simulated task's expert
demonstrates in place of `ingest`'s demonstrations, and with `bench` `deploy` is at that task's
table.

The student, and with it the way to the arm, there is for diffusion policies that see numbers alone:
the controller on the robot's computer shows a policy no pictures. With `student`
(`+student=taught`) a policy that reads has one, too: another of its family, as a rule a smaller
one, imitates and is then taught in its own states (on-policy distillation):

pretrain_student ─┬─> distil ─> export, evaluate_student
                  └─> evaluate_control

All other policies are pretrained and evaluated (`evaluate_teacher`).
"""

from __future__ import annotations

from dataclasses import field, replace

from flows.config.protocols import push_t_published
from flows.runner.stage import Stage
from flows.stages.deploy import DeployConfig
from flows.stages.deploy_task import DeployTaskConfig
from flows.stages.evaluate import EvaluatePolicyConfig
from flows.stages.finetune import FinetunePolicyConfig
from flows.stages.play import RecordPlayConfig
from flows.stages.reinforce import ReinforcePolicyConfig
from flows.stages.scripted import ScriptedConfig
from flows.stages.teach import TeachConfig
from policies.distillation.config import DistilConfig
from policies.export.onnx import ExportConfig
from policies.imitation.config import PretrainConfig
from policies.policy_config import (
    BackboneConfig,
    DiffusionPolicyConfig,
    PolicyConfig,
    TokenVlaConfig,
    VlaConfig,
)
from policies.rl.finetuning.config import PracticeConfig, RL100PracticeConfig, VlaPracticeConfig
from policies.world_model.config import WorldModelConfig
from real.deploy.action_space import CartesianSteps
from real.deploy.release_gate import GateConfig
from robots.config import config
from robots.control.actions import CartesianDelta
from robots.episodes.ingest import IngestConfig
from robots.errors import HandoffError
from sim.evaluation.evaluate import EvaluateConfig
from sim.evaluation.protocol import Protocol


@config
class DreamsConfig:
    """A world model from play, in which a policy is to practise."""

    play: RecordPlayConfig = field(default_factory=RecordPlayConfig)
    world_model: WorldModelConfig = field(default_factory=WorldModelConfig)


@config
class TaughtStudentConfig:
    """The student of a policy that reads."""

    backbone: BackboneConfig | None = None
    """None takes one like the teacher's."""
    steps: int | None = None
    """Updates of its imitation; None takes as many as the teacher's."""
    teaching: TeachConfig = field(default_factory=TeachConfig)


@config
class PipelineConfig:
    """Everything a run of the demo can be told; each stage's own defaults live in its class."""

    name: str = "demo"
    """Folder under `runs` for the summary, the report and links to the artifacts."""
    runs: str = "runs"
    """Where artifacts and results go."""
    ingest: IngestConfig = field(default_factory=IngestConfig)
    scripted: ScriptedConfig | None = None
    """Demonstrations of a simulated task by its scripted expert, in place of those that `ingest`
    finds."""
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    finetune: FinetunePolicyConfig | None = None
    """Practice between imitation and all that follows; None goes without."""
    dreams: DreamsConfig | None = None
    """Where that practice is to be dreamt; None lets it happen in simulated worlds."""
    reinforce: ReinforcePolicyConfig | None = None
    """Learning from nothing in place of demonstrations, imitation and all that follows; None goes
    their way."""
    protocol: Protocol = field(default_factory=push_t_published)
    """Of all evaluations, so that they are paired: same worlds, same seeds."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    distil: DistilConfig = field(default_factory=DistilConfig)
    """Of a diffusion policy, to one step."""
    student: TaughtStudentConfig | None = None
    """Of a policy that reads; None lets its pipeline end with its evaluation."""
    export: ExportConfig = field(default_factory=ExportConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    deploy: DeployConfig | None = field(default_factory=DeployConfig)
    """The way to the twin at the table of push-T; None goes without."""
    bench: DeployTaskConfig | None = None
    """The way to the twin, with its hand, at the table of a simulated task; in place of
    `deploy`."""


def reaches_arm(model: PolicyConfig) -> bool:
    """Whether the pipeline distils, exports and deploys such a policy."""
    if not isinstance(model, DiffusionPolicyConfig) or model.objective != "diffusion":
        return False
    return not model.image_fields and not model.point_fields


def stages(config: PipelineConfig, *, fetch: bool = True) -> list[Stage]:
    """The pipeline's stages in an order in which they can run; `fetch` allows downloading the
    demonstrations."""
    from flows.stages.pretrain import outside

    if config.reinforce is not None:
        return _reinforced(config, config.reinforce)
    demos = _demonstrated(config, fetch)
    pretrained = Stage(
        "pretrain",
        "policy",
        "flows.stages.pretrain",
        config.pretrain,
        {"demos": demos},
        external=outside(config.pretrain),
    )

    def evaluate(name: str, policy: Stage, steps: int | None) -> Stage:
        settings = EvaluatePolicyConfig(
            protocol=config.protocol, evaluate=config.evaluate, denoising_steps=steps
        )
        return Stage(name, "evaluation", "flows.stages.evaluate", settings, {"policy": policy})

    learned, teacher = [demos, pretrained], pretrained
    if config.finetune is not None:
        _check_practises(config.pretrain.policy, config.finetune.learning.practice)
        practice = replace(config.finetune, protocol=config.finetune.protocol or config.protocol)
        dreamt = _world_model(config)
        inputs = {"policy": pretrained} | ({"world_model": dreamt[-1]} if dreamt else {})
        inputs |= (
            {"demos": demos} if isinstance(practice.learning.practice, RL100PracticeConfig) else {}
        )
        teacher = Stage("finetune", "policy", "flows.stages.finetune", practice, inputs)
        learned += [*dreamt, evaluate("evaluate_pretrained", pretrained, None), teacher]
    elif config.dreams is not None:
        raise HandoffError(
            "dreams: nothing practises in them. Name a practice, such as +finetune=dppo."
        )
    if config.student is None and not reaches_arm(config.pretrain.policy):
        return [*learned, evaluate("evaluate_teacher", teacher, None)]
    before, student = _student(config, demos, teacher)
    control = (
        evaluate("evaluate_control", before, None)
        if before
        else evaluate("evaluate_control", teacher, 1)
    )
    learned += [before] if before else []
    exporting = _exporting(config)

    def export(name: str, policy: Stage) -> Stage:
        return Stage(
            name, "bundle", "flows.stages.export", exporting, {"demos": demos, "policy": policy}
        )

    bundle, reference = export("export", student), export("export_teacher", teacher)
    gated = Stage(
        "gate",
        "gate",
        "flows.stages.gate",
        config.gate,
        {"bundle": bundle, "reference": reference},
        exclusive=True,
    )
    # The order in which free cores take them up: while the student learns, its teacher is
    # evaluated.
    found = [
        *learned,
        student,
        evaluate("evaluate_teacher", teacher, None),
        control,
        reference,
        evaluate("evaluate_student", student, None),
        bundle,
        gated,
    ]
    return [*found, *_deployments(config, {"bundle": bundle, "gate": gated})]


def _student(config: PipelineConfig, demos: Stage, teacher: Stage) -> tuple[Stage | None, Stage]:
    """The student as it imitates, where it is then taught in its own states, and the student."""
    if config.student is None:
        inputs = {"demos": demos, "teacher": teacher}
        return None, Stage("distil", "policy", "flows.stages.distil", config.distil, inputs)
    before = _student_before(config, config.student, demos)
    teaching = replace(
        config.student.teaching, protocol=config.student.teaching.protocol or config.protocol
    )
    inputs = {"student": before, "teacher": teacher}
    return before, Stage("distil", "policy", "flows.stages.teach", teaching, inputs)


def _student_before(config: PipelineConfig, student: TaughtStudentConfig, demos: Stage) -> Stage:
    """The student as it imitates the demonstrations, before it is taught.

    Raises:
        HandoffError: a teacher that does not read, or that sees pictures, which the controller
            shows to none.
    """
    from flows.stages.pretrain import outside

    model = config.pretrain.policy
    if not isinstance(model, TokenVlaConfig | VlaConfig) or model.image_fields:
        raise HandoffError(
            f"student: a teacher of the family '{model.kind}', or one with cameras, cannot teach so; expected "
            "'token_vla' or 'vla', which sees numbers alone."
        )
    training = config.pretrain.training
    own = replace(
        config.pretrain,
        policy=replace(model, backbone=student.backbone or model.backbone),
        training=replace(training, steps=student.steps or training.steps),
    )
    return Stage(
        "pretrain_student",
        "policy",
        "flows.stages.pretrain",
        own,
        {"demos": demos},
        external=outside(own),
    )


def _reinforced(config: PipelineConfig, reinforce: ReinforcePolicyConfig) -> list[Stage]:
    """Learning from nothing, and what came of it."""
    named = [
        name
        for name in ("scripted", "finetune", "dreams", "student", "bench")
        if getattr(config, name) is not None
    ]
    if named:
        raise HandoffError(
            f"reinforce: it learns without demonstrations and ends with an evaluation; leave out {named}."
        )
    learning = replace(reinforce, protocol=reinforce.protocol or config.protocol)
    learned = Stage("reinforce", "policy", "flows.stages.reinforce", learning)
    judged = EvaluatePolicyConfig(protocol=config.protocol, evaluate=config.evaluate)
    return [
        learned,
        Stage(
            "evaluate_teacher", "evaluation", "flows.stages.evaluate", judged, {"policy": learned}
        ),
    ]


def _deployments(config: PipelineConfig, released: dict[str, Stage]) -> list[Stage]:
    """The way to the twin, if there is one."""
    tables = {"flows.stages.deploy": config.deploy, "flows.stages.deploy_task": config.bench}
    found = [
        Stage("deploy", "episodes", module, settings, released, exclusive=True)
        for module, settings in tables.items()
        if settings is not None
    ]
    if len(found) > 1:
        raise HandoffError(
            "deploy: a policy has one table, that of push-T (`deploy`) or that of a task (`bench`)."
        )
    return found


def _exporting(config: PipelineConfig) -> ExportConfig:
    """With what a step is, where a simulated task says it."""
    export, scripted = config.export, config.scripted
    if (
        scripted is None
        or export.steps is not None
        or export.action_interface != CartesianSteps.interface
    ):
        return export
    from sim.make import find_task

    steps = scripted.demonstrate.worlds.actions or find_task(scripted.task).actions
    return replace(export, steps=steps) if isinstance(steps, CartesianDelta) else export


def _demonstrated(config: PipelineConfig, fetch: bool) -> Stage:
    if config.scripted is not None:
        return Stage("ingest", "episodes", "flows.stages.scripted", config.scripted)
    from flows.stages.ingest import demonstrations

    source = demonstrations(config.ingest, fetch=fetch)
    return Stage(
        "ingest",
        "episodes",
        "flows.stages.ingest",
        config.ingest,
        external={"source": source.digest},
    )


def _world_model(config: PipelineConfig) -> list[Stage]:
    """The stages that end with it, if there is to be one; it knows at least what the policy is to
    see."""
    if config.dreams is None:
        return []
    model, needed = config.dreams.world_model, config.pretrain.policy.observation_fields
    model = replace(model, fields=tuple(dict.fromkeys([*model.fields, *needed])))
    play = Stage("play", "episodes", "flows.stages.play", config.dreams.play)
    return [
        play,
        Stage("world_model", "world_model", "flows.stages.world_model", model, {"play": play}),
    ]


def _check_practises(model: PolicyConfig, practice: PracticeConfig) -> None:
    """Before hours of imitation: the same that `policies.rl.finetuning.finetune` finds behind
    them."""
    if isinstance(practice, VlaPracticeConfig):
        if not isinstance(model, TokenVlaConfig | VlaConfig):
            raise HandoffError(
                f"finetune: a policy of the family '{model.kind}', expected 'token_vla' or 'vla'."
            )
    elif not isinstance(model, DiffusionPolicyConfig) or model.image_fields or model.point_fields:
        raise HandoffError(
            f"finetune: a policy of the family '{model.kind}', or one with cameras, cannot practise so; expected a "
            "diffusion or flow policy of vectors alone."
        )
