"""Stage `distill`: distils a teacher to a student, in one step or on the student's own states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flows.artifacts import Episodes, Output, Policy
from flows.stages.learn.config import (
    TRAINING_TELEMETRY,
    DistilAlgorithmConfig,
    DistilOnPolicyConfig,
    DistilPolicyConfig,
    FinetunePolicyConfig,
)
from policies.distillation.config import ShortcutConfig, check_halvings
from policies.imitation.config import PretrainConfig
from policies.policy_config import PolicyConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

TELEMETRY = TRAINING_TELEMETRY


def check(config: DistilPolicyConfig, sources: Mapping[str, Any]) -> None:
    """Refuses inputs that the algorithm does not take, and a lack of those that it needs."""
    on_policy = isinstance(config.algorithm, DistilOnPolicyConfig)
    needed, unread = ("student", "demos") if on_policy else ("demos", "student")
    if needed not in sources or unread in sources:
        given = [name for name, source in sources.items() if source != () and "." not in name]
        raise HandoffError(
            f"distill: the algorithm '{config.algorithm.kind}' takes the input '{needed}' and not "
            f"'{unread}'; given are {', '.join(given)}."
        )
    _check_teachers(config, 1 + len(sources.get("more_teachers", ())))
    _check_steered(sources, on_policy=on_policy)
    student = sources.get("student")
    imitated = _imitated("teacher", sources)
    if not on_policy and imitated is not None:
        finetuned = isinstance(sources.get("teacher"), FinetunePolicyConfig)
        _check_one_step(config.algorithm, imitated.policy, finetuned=finetuned)
    if isinstance(student, PretrainConfig):
        _check_student(student.policy, None if imitated is None else imitated.policy)


def _check_steered(sources: Mapping[str, Any], *, on_policy: bool) -> None:
    """Refuses what only `policies.distillation.teachers` would refuse, after hours of training."""
    teachers = (sources.get("teacher"), *sources.get("more_teachers", ()))
    methods = [one.algorithm for one in teachers if isinstance(one, FinetunePolicyConfig)]
    beside = next((method for method in methods if method.learns_beside), None)
    if on_policy and beside is not None:
        raise HandoffError(
            f"distill: a teacher is fine-tuned by '{beside.kind}', which {beside.learns_beside}; on-policy "
            f"distillation compares the steps of the samplers, which '{beside.kind}' does not change. Use the "
            "algorithm 'one_step' with a diffusion or flow policy, or export the teacher as it is."
        )


def _check_student(model: PolicyConfig, teacher: PolicyConfig | None) -> None:
    if not model.on_policy_student:
        raise HandoffError(
            f"distill: on-policy distillation of a student of the family '{model.kind}' is not supported; expected "
            "'diffusion', 'token_vla' or 'vla'."
        )
    if model.most_decided:
        raise HandoffError(
            "distill: the student is trained with decided actions (policy.prefix), of which on-policy distillation "
            "does not know. Set policy.prefix=0, or use the algorithm 'one_step'."
        )
    if teacher is not None and teacher.kind != model.kind:
        raise HandoffError(
            f"distill: the student is of the family '{model.kind}', its teacher of '{teacher.kind}'; expected the same."
        )


def _imitated(name: str, sources: Mapping[str, Any]) -> PretrainConfig | None:
    """Options of the imitation that a policy began with, before it was fine-tuned; None if the
    policy began otherwise."""
    while isinstance(sources.get(name), FinetunePolicyConfig):
        name += ".policy"
    found = sources.get(name)
    return found if isinstance(found, PretrainConfig) else None


def _check_one_step(
    algorithm: DistilAlgorithmConfig, model: PolicyConfig, *, finetuned: bool
) -> None:
    shortcut = isinstance(algorithm, ShortcutConfig)
    if shortcut and model.most_decided:
        raise HandoffError(
            "distill: the teacher is trained with decided actions (policy.prefix), of which the algorithm 'shortcut' "
            "does not know. Use 'one_step', or set policy.prefix=0."
        )
    if algorithm.kind not in model.one_step_methods:
        objective = getattr(model, "objective", None)
        family = (
            f"'{model.kind}'" if objective is None else f"'{model.kind}' (objective {objective})"
        )
        objectives = "flow" if shortcut else "diffusion or flow"
        raise HandoffError(
            f"distill: a teacher of the family {family} cannot be distilled to one step by the algorithm "
            f"'{algorithm.kind}'; expected 'diffusion' (objective {objectives}). Give this one to export as it is."
        )
    if not shortcut:
        return
    if finetuned:
        raise HandoffError(
            "distill: the teacher is fine-tuned, and the algorithm 'shortcut' learns from demonstrated actions, which "
            "fine-tuning has left behind; expected a pretrained teacher. Use the algorithm 'one_step'."
        )
    timesteps = getattr(model, "train_timesteps", None)
    if timesteps is not None:
        check_halvings(algorithm.halvings, timesteps)


def _check_teachers(config: DistilPolicyConfig, count: int) -> None:
    if not isinstance(config.algorithm, DistilOnPolicyConfig):
        if count > 1:
            raise HandoffError(
                f"distill: {count} teachers with the algorithm '{config.algorithm.kind}', which has one. Remove the "
                "input 'more_teachers', or use 'on_policy'."
            )
        return
    instructions = config.algorithm.instructions
    if instructions and len(instructions) != count:
        raise HandoffError(
            f"distill: algorithm.instructions has {len(instructions)} entries for {count} teachers ('teacher', then "
            "'more_teachers'), expected one for each."
        )


def run(
    config: DistilPolicyConfig,
    out: Path,
    progress: Progress,
    *,
    teacher: Policy,
    more_teachers: Sequence[Policy] | None = None,
    demos: Episodes | None = None,
    student: Policy | None = None,
) -> Output[Policy]:
    """Distils `teacher` to a policy in `out`.

    With the algorithms `one_step` and `shortcut`, a many-step teacher is distilled on the
    observations of `demos`; with `on_policy`, the pretrained `student` learns from the teacher on
    its own states in simulated environments. `more_teachers` teach it as well: each has its
    instruction (`instructions` of the algorithm), or all teach every state. An interrupted attempt
    resumes.

    Raises:
        HandoffError: the policies do not fit the algorithm.
    """
    algorithm = config.algorithm
    if not isinstance(algorithm, DistilOnPolicyConfig):
        from policies.distillation.one_step import distil

        assert demos is not None
        return Output(distil(algorithm, teacher, demos, out, progress))
    from policies.checkpoint import read_card
    from policies.distillation.on_policy import on_policy_distil
    from sim.evaluation.evaluate import training_env
    from sim.evaluation.protocol import check_trained_with

    assert student is not None
    check_trained_with(algorithm.protocol, read_card(student).robot)
    env = partial(training_env, algorithm.protocol, algorithm.num_envs)
    teachers = [teacher, *(more_teachers or ())]
    return Output(on_policy_distil(algorithm, student, teachers, env, out, progress))
