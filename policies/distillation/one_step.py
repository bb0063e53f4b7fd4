"""Distils a many-step diffusion or flow teacher into a one-step student that starts from the
teacher's weights.

By regression on the same noise, the default of the stage `distill` (RL-100): the teacher's sampler
is deterministic, so noise and observation determine its chunk, and the student learns to output
that chunk in one step from the same noise. Regression on chunks from other noise would collapse to
their mean. The targets are computed first, as a table, because the teacher's passes cost several
updates and every target is used in several of them. A fine-tuned teacher visits other states than
its demonstrations. Its most recent visited states (`policies.data.visited_states`) are used in
addition.

By self-distillation of a flow: see `policies.distillation.shortcut`. It learns on the way from
noise to demonstrated chunks, so a teacher that was fine-tuned is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from policies.distillation.config import DistilConfig, ShortcutConfig
from policies.policy_config import PolicyConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from policies.data.windows import Windows
    from policies.families.diffusion import DiffusionPolicy
    from policies.policy import ChunkPolicy


def distil(
    config: DistilConfig | ShortcutConfig, teacher: Path, demos: Path, out: Path, progress: Progress
) -> dict[str, Any]:
    """Trains the student and writes it to `out`, with its loss curve (`loss.jsonl`, `loss.png`).

    Args:
        config: options of the distillation.
        teacher: folder of a policy that samples in several steps.
        demos: folder with the demonstrations' `store.zarr`, whose observations are used, by
            regression together with the teacher's visited states.
        out: folder of the student; a killed run resumes from its content.
        progress: called after every pass of the teacher and every update.

    Returns:
        Metrics: steps, cpu_seconds, steps_per_s (of CPU time), loss, teacher_steps, practised
        (number of visited states), precision and device; of a regression also targets, and
        targets_cpu_seconds of the CPU time for their table.

    Raises:
        HandoffError: no teacher, or one that the algorithm cannot distil; unusable demonstrations,
            a loss that is not finite, or a full disk.
    """
    from policies.checkpoint import WEIGHTS, digest_file, save_policy
    from policies.data.visited_states import FILE as VISITED
    from policies.data.windows import append_states
    from policies.distillation.regression import TABLE
    from policies.load import load_module
    from policies.training.distributed import check_single_process
    from policies.training.loop import (
        STATE,
        job_identity,
        resolve_device,
        resolve_precision,
        torch_threads,
    )
    from policies.training.plots import draw_curve

    check_single_process("distillation")
    training = config.training
    device = resolve_device(training.device)
    precision = resolve_precision(training.precision, device)
    with torch_threads(training.threads):
        module, card = load_module(teacher, device=device.type)
        policy = _checked_teacher(config, teacher, module)
        windows, visited = _states(teacher, policy, card.model, demos)
        num_visited = 0 if visited is None else len(visited)
        if num_visited and isinstance(config, ShortcutConfig):
            raise HandoffError(
                f"{teacher}: the teacher was fine-tuned, and the algorithm 'shortcut' learns from demonstrated "
                "actions, which fine-tuning has left behind; expected a pretrained policy. Use the algorithm "
                "'one_step'."
            )
        digests = [windows.digest(), digest_file(teacher / WEIGHTS)]
        digests += [] if visited is None else [digest_file(teacher / VISITED)]
        identity = job_identity(config, "".join(digests), precision, device)
        states = _encoded(policy, windows, progress)
        if visited is not None:
            states = append_states(states, visited, _instructions(teacher, policy, num_visited))
        job = _Job(policy, states, precision, identity, out, progress)
        trained = (
            _by_regression(config, job)
            if isinstance(config, DistilConfig)
            else _by_shortcut(config, job)
        )
    student = trained.student
    save_policy(
        out, replace(card, model=student.config), student.state_dict(), student.extra_files()
    )
    draw_curve(out, "one-step MSE" if isinstance(config, DistilConfig) else "MSE of velocities")
    for state in (STATE, TABLE):
        (out / state).unlink(missing_ok=True)
    return {
        "steps": training.steps,
        "steps_per_s": round(training.steps / trained.cpu_seconds, 2),
        "loss": trained.loss,
        "teacher_steps": len(policy.steps),
        "practised": num_visited,
        "precision": precision,
        "device": device.type,
        **trained.metrics,
    }


class _Job(NamedTuple):
    """What both algorithms need."""

    teacher: DiffusionPolicy
    windows: Windows
    precision: str
    identity: str
    out: Path
    progress: Progress


class _Trained(NamedTuple):
    """A student with averaged weights, and the cost of its training."""

    student: DiffusionPolicy
    loss: float
    cpu_seconds: float
    """CPU time of the updates."""
    metrics: dict[str, Any]
    """Metrics of the algorithm, with `cpu_seconds` of everything."""


def _by_regression(config: DistilConfig, job: _Job) -> _Trained:
    from policies.distillation.regression import (
        make_targets,
        one_step_student,
        same_noise_objective,
    )
    from policies.training.loop import train

    teacher, windows, precision, identity, out, progress = job
    training = config.training
    targets = make_targets(config, teacher, windows, precision, identity, out, progress)
    student = one_step_student(teacher)
    objective = same_noise_objective(
        student, windows, targets, training.batch_size, training.seed, precision
    )
    trained = train(training, student, objective, identity, out, progress)
    student.load_state_dict(trained.average)
    metrics = {
        "cpu_seconds": round(trained.cpu_seconds + targets.cpu_seconds, 3),
        "targets_cpu_seconds": round(targets.cpu_seconds, 3),
        "targets": config.targets,
    }
    return _Trained(student, trained.loss, trained.cpu_seconds, metrics)


def _by_shortcut(config: ShortcutConfig, job: _Job) -> _Trained:
    from policies.distillation.shortcut import shortcut_objective, shortcut_student
    from policies.training.loop import train

    teacher, windows, precision, identity, out, progress = job
    student, average = shortcut_student(teacher), shortcut_student(teacher)
    objective = shortcut_objective(config, teacher, student, average, windows, precision)
    trained = train(config.training, student, objective, identity, out, progress, average=average)
    student.load_state_dict(trained.average)
    metrics = {"cpu_seconds": round(trained.cpu_seconds, 3)}
    return _Trained(student, trained.loss, trained.cpu_seconds, metrics)


def _checked_teacher(
    config: DistilConfig | ShortcutConfig, folder: Path, module: ChunkPolicy
) -> DiffusionPolicy:
    from policies.families.diffusion import DiffusionPolicy

    if isinstance(module, DiffusionPolicy) and config.kind in module.config.one_step_methods:
        return module
    expected = "a diffusion or flow policy" if config.kind == "one_step" else "a flow policy"
    raise HandoffError(
        f"{folder}: the teacher cannot be distilled with the algorithm '{config.kind}', expected {expected} that "
        "samples in several steps."
    )


def _states(
    teacher: Path, policy: DiffusionPolicy, model: PolicyConfig, demos: Path
) -> tuple[Windows, Tensor | None]:
    """Windows of the demonstrations, and the encoded states (R, T, O + F) that the teacher visited;
    None if it was not fine-tuned."""
    from policies.data.demonstrations import read_demonstrations
    from policies.data.visited_states import load_visited_states
    from policies.imitation.objective import normalized_windows

    data = read_demonstrations(demos, model)
    windows = normalized_windows(data, policy, model, np.arange(len(data.ends_E)))
    return windows, load_visited_states(teacher, policy.encoded_shape)


def _instructions(teacher: Path, policy: DiffusionPolicy, states: int) -> tuple[str, ...]:
    """Instruction of every visited state of a language-conditioned teacher: those that it observed,
    or its default; empty for others."""
    from policies.data.visited_states import load_visited_instructions
    from policies.language.instruction_features import given_instructions

    if not policy.language_conditioned:
        return ()
    return given_instructions(
        load_visited_instructions(teacher), states, policy.default_instruction
    )


def _encoded(policy: DiffusionPolicy, windows: Windows, progress: Progress) -> Windows:
    """The windows with encoded observations. A student begins with the teacher's weights and
    answers the same observations, so the teacher's encoders are kept."""
    from policies.data.encoded_steps import encoded_steps

    encoded_MO = encoded_steps(policy, windows.observation_MO, windows.sensors, progress)
    return replace(windows, observation_MO=encoded_MO, sensors={})
