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

from dataclasses import replace

from flows.evaluation.config import EvaluatePolicyConfig
from flows.recipes.config import PipelineConfig, TaughtStudentConfig
from flows.runner.stage import Stage
from flows.stages.config import ReinforcePolicyConfig
from policies.chunk_policy_config import VisionLanguagePolicyConfig
from policies.export.onnx import ExportConfig
from policies.policy_config import PolicyConfig
from policies.rl.finetuning.config import PracticeConfig, RL100PracticeConfig, VlaPracticeConfig
from real.deploy.action_space import CartesianSteps
from robots.control.actions import CartesianDelta
from robots.errors import HandoffError


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
    if config.student is None and not config.pretrain.policy.reaches_arm:
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
    if not isinstance(model, VisionLanguagePolicyConfig) or model.image_fields:
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

    task = find_task(scripted.task, robot=scripted.robot)
    steps = scripted.demonstrate.worlds.actions or task.actions
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
    if practice.kind in model.finetuning_methods:
        return
    if isinstance(practice, VlaPracticeConfig):
        raise HandoffError(
            f"finetune: a policy of the family '{model.kind}', expected 'token_vla' or 'vla'."
        )
    raise HandoffError(
        f"finetune: a policy of the family '{model.kind}', or one with cameras, cannot practise so; expected a "
        "diffusion or flow policy of vectors alone."
    )
