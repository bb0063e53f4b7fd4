"""Declares the stages of a pipeline, from demonstrations to a moving arm.

ingest ─> pretrain ─┬─> distil ─┬─> export ──────────┬─> gate ─> deploy
                    │           └─> evaluate_student │
                    ├─> export_teacher ──────────────┘
                    ├─> evaluate_teacher   (ten denoising steps)
                    └─> evaluate_control   (the undistilled teacher in one step)

`finetune` (`+finetune=dppo`) adds RL fine-tuning; the fine-tuned policy is then the teacher:

pretrain ─┬─> finetune ─> distil, export_teacher, evaluate_teacher, evaluate_control
          └─> evaluate_pretrained

Further options:

- `imagination` fine-tunes in a world model, without any environment step (DiWA): play ─>
  world_model ─> finetune.
- `reinforce` trains a state-based task by RL from scratch, without demonstrations: reinforce ─>
  evaluate_teacher.
- `scripted` takes demonstrations from the scripted expert of a simulated task.
- `bench` deploys at the table of that task instead of push-T's.

Only diffusion policies without image observations have a student and a deployment by default: the
controller on the robot's computer provides no images. `student` (`+student=on_policy`) adds both
for a language-conditioned policy: a student of the same family, usually smaller, first imitates and
then learns by on-policy distillation:

pretrain_student ─┬─> distil ─> export, evaluate_student
                  └─> evaluate_control

All other policies are only pretrained and evaluated (`evaluate_teacher`).
"""

from __future__ import annotations

from dataclasses import replace

from flows.evaluation.config import EvaluatePolicyConfig
from flows.recipes.config import PipelineConfig, StudentConfig
from flows.runner.stage import Stage
from flows.stages.config import ReinforcePolicyConfig
from policies.chunk_policy_config import VisionLanguagePolicyConfig
from policies.export.onnx import ExportConfig
from policies.policy_config import PolicyConfig
from policies.rl.finetuning.config import (
    FinetuneMethodConfig,
    RL100FinetuneConfig,
    VlaFinetuneConfig,
)
from real.deploy.action_space import CartesianSteps
from robots.control.actions import CartesianDelta
from robots.errors import HandoffError


def stages(config: PipelineConfig, *, fetch: bool = True) -> list[Stage]:
    """Returns the pipeline's stages in an executable order; `fetch` allows downloading the
    demonstrations."""
    from flows.stages.pretrain import external_digests

    if config.reinforce is not None:
        return _reinforce_stages(config, config.reinforce)
    # Imitation learning.
    demos = _demonstration_stage(config, fetch)
    pretrained = Stage(
        "pretrain",
        "policy",
        "flows.stages.pretrain",
        config.pretrain,
        {"demos": demos},
        external=external_digests(config.pretrain),
    )

    def evaluate(name: str, policy: Stage, steps: int | None) -> Stage:
        settings = EvaluatePolicyConfig(
            protocol=config.protocol, evaluate=config.evaluate, denoising_steps=steps
        )
        return Stage(name, "evaluation", "flows.stages.evaluate", settings, {"policy": policy})

    # RL fine-tuning, in environments or in a world model.
    learned, teacher = [demos, pretrained], pretrained
    if config.finetune is not None:
        _check_finetuning(config.pretrain.policy, config.finetune.learning.algorithm)
        finetuning = replace(config.finetune, protocol=config.finetune.protocol or config.protocol)
        imagination = _world_model_stages(config)
        inputs = {"policy": pretrained} | ({"world_model": imagination[-1]} if imagination else {})
        inputs |= (
            {"demos": demos}
            if isinstance(finetuning.learning.algorithm, RL100FinetuneConfig)
            else {}
        )
        teacher = Stage("finetune", "policy", "flows.stages.finetune", finetuning, inputs)
        learned += [*imagination, evaluate("evaluate_pretrained", pretrained, None), teacher]
    elif config.imagination is not None:
        raise HandoffError(
            "imagination: no fine-tuning uses the world model. Add a fine-tuning method, e.g. +finetune=dppo."
        )
    if config.student is None and not config.pretrain.policy.deployable:
        return [*learned, evaluate("evaluate_teacher", teacher, None)]
    # Student, and the control that it is compared with.
    pretrained_student, student = _student_stages(config, demos, teacher)
    control = (
        evaluate("evaluate_control", pretrained_student, None)
        if pretrained_student
        else evaluate("evaluate_control", teacher, 1)
    )
    learned += [pretrained_student] if pretrained_student else []
    # Export, gate and deployment.
    export_config = _export_config(config)

    def export(name: str, policy: Stage) -> Stage:
        return Stage(
            name, "bundle", "flows.stages.export", export_config, {"demos": demos, "policy": policy}
        )

    bundle, reference = export("export", student), export("export_teacher", teacher)
    gate = Stage(
        "gate",
        "gate",
        "flows.stages.gate",
        config.gate,
        {"bundle": bundle, "reference": reference},
        exclusive=True,
    )
    # Free cores start stages in this order: the teacher is evaluated while the student learns.
    declared = [
        *learned,
        student,
        evaluate("evaluate_teacher", teacher, None),
        control,
        reference,
        evaluate("evaluate_student", student, None),
        bundle,
        gate,
    ]
    return [*declared, *_deploy_stages(config, {"bundle": bundle, "gate": gate})]


def _student_stages(
    config: PipelineConfig, demos: Stage, teacher: Stage
) -> tuple[Stage | None, Stage]:
    """Returns the student after imitation learning (None without one), and after distillation."""
    if config.student is None:
        inputs = {"demos": demos, "teacher": teacher}
        return None, Stage("distil", "policy", "flows.stages.distil", config.distil, inputs)
    pretrained = _pretrain_student(config, config.student, demos)
    distillation = replace(
        config.student.distillation,
        protocol=config.student.distillation.protocol or config.protocol,
    )
    inputs = {"student": pretrained, "teacher": teacher}
    return pretrained, Stage("distil", "policy", "flows.stages.teach", distillation, inputs)


def _pretrain_student(config: PipelineConfig, student: StudentConfig, demos: Stage) -> Stage:
    """Returns the stage in which the student imitates the demonstrations, before distillation.

    Raises:
        HandoffError: the teacher is not language-conditioned, or observes images, which the
            controller does not provide.
    """
    from flows.stages.pretrain import external_digests

    model = config.pretrain.policy
    if not isinstance(model, VisionLanguagePolicyConfig) or model.image_fields:
        raise HandoffError(
            f"student: on-policy distillation from a teacher of the family '{model.kind}', or with cameras, is not "
            "supported; expected 'token_vla' or 'vla' without image_fields."
        )
    training = config.pretrain.training
    pretrain = replace(
        config.pretrain,
        policy=replace(model, backbone=student.backbone or model.backbone),
        training=replace(training, steps=student.steps or training.steps),
    )
    return Stage(
        "pretrain_student",
        "policy",
        "flows.stages.pretrain",
        pretrain,
        {"demos": demos},
        external=external_digests(pretrain),
    )


def _reinforce_stages(config: PipelineConfig, reinforce: ReinforcePolicyConfig) -> list[Stage]:
    """RL from scratch, and its evaluation."""
    conflicting = [
        name
        for name in ("scripted", "finetune", "imagination", "student", "bench")
        if getattr(config, name) is not None
    ]
    if conflicting:
        raise HandoffError(
            f"reinforce: RL from scratch uses no demonstrations and ends with an evaluation; remove {conflicting}."
        )
    learning = replace(reinforce, protocol=reinforce.protocol or config.protocol)
    learned = Stage("reinforce", "policy", "flows.stages.reinforce", learning)
    evaluation = EvaluatePolicyConfig(protocol=config.protocol, evaluate=config.evaluate)
    return [
        learned,
        Stage(
            "evaluate_teacher",
            "evaluation",
            "flows.stages.evaluate",
            evaluation,
            {"policy": learned},
        ),
    ]


def _deploy_stages(config: PipelineConfig, released: dict[str, Stage]) -> list[Stage]:
    """The deployment to the twin, if one is configured."""
    tables = {"flows.stages.deploy": config.deploy, "flows.stages.deploy_task": config.bench}
    deployments = [
        Stage("deploy", "episodes", module, settings, released, exclusive=True)
        for module, settings in tables.items()
        if settings is not None
    ]
    if len(deployments) > 1:
        raise HandoffError(
            "deploy: a policy is deployed at one table, push-T's (`deploy`) or a task's (`bench`); both are configured."
        )
    return deployments


def _export_config(config: PipelineConfig) -> ExportConfig:
    """The export options, with the action steps of the simulated task where there is one."""
    export, scripted = config.export, config.scripted
    if (
        scripted is None
        or export.steps is not None
        or export.action_interface != CartesianSteps.interface
    ):
        return export
    from sim.make import find_task

    task = find_task(scripted.task, robot=scripted.robot)
    steps = scripted.demonstrate.mujoco.actions or task.actions
    return replace(export, steps=steps) if isinstance(steps, CartesianDelta) else export


def _demonstration_stage(config: PipelineConfig, fetch: bool) -> Stage:
    if config.scripted is not None:
        return Stage("ingest", "episodes", "flows.stages.scripted", config.scripted)
    from flows.stages.ingest import locate_demonstrations

    source = locate_demonstrations(config.ingest, fetch=fetch)
    return Stage(
        "ingest",
        "episodes",
        "flows.stages.ingest",
        config.ingest,
        external={"source": source.digest},
    )


def _world_model_stages(config: PipelineConfig) -> list[Stage]:
    """The stages up to the world model, if one is configured; it models at least the policy's
    observations."""
    if config.imagination is None:
        return []
    model = config.imagination.world_model
    needed = config.pretrain.policy.observation_fields
    model = replace(model, fields=tuple(dict.fromkeys([*model.fields, *needed])))
    play = Stage("play", "episodes", "flows.stages.play", config.imagination.play)
    return [
        play,
        Stage("world_model", "world_model", "flows.stages.world_model", model, {"play": play}),
    ]


def _check_finetuning(model: PolicyConfig, method: FinetuneMethodConfig) -> None:
    """Makes the check of `policies.rl.finetuning.finetune` before hours of imitation learning."""
    if method.kind in model.finetuning_methods:
        return
    if isinstance(method, VlaFinetuneConfig):
        raise HandoffError(
            f"finetune: method '{method.kind}' with a policy of the family '{model.kind}'; expected 'token_vla' or "
            "'vla'."
        )
    raise HandoffError(
        f"finetune: method '{method.kind}' with a policy of the family '{model.kind}', or one with cameras; expected a "
        "diffusion or flow policy without image observations."
    )
