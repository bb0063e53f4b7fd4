"""Distils a many-step diffusion teacher into a one-step student by regression on the same noise,
the default of the stage `distill` (RL-100).

The teacher's sampler is deterministic, so noise and observation determine its chunk; the student
learns to output that chunk in one step from the same noise. Regression on chunks from other noise
would collapse to their mean. The student starts from the teacher's weights. The targets are
computed first, as a table, because the teacher's passes cost several updates and every target is
used in several of them.

A fine-tuned teacher visits other states than its demonstrations. Its most recent visited states
(`policies.data.visited_states`) are used in addition.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.distillation.config import DistilConfig
from policies.policy_config import PolicyConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

if TYPE_CHECKING:
    from policies.data.windows import Windows
    from policies.families.diffusion import DiffusionPolicy


def distil(
    config: DistilConfig, teacher: Path, demos: Path, out: Path, progress: Progress
) -> dict[str, Any]:
    """Trains the student and writes it to `out`, with its loss curve (`loss.jsonl`, `loss.png`).

    Args:
        config: options of the distillation.
        teacher: folder of a policy that samples in several steps.
        demos: folder with the demonstrations' `store.zarr`, whose observations are used together
            with the teacher's visited states.
        out: folder of the student; a killed run resumes from its content.
        progress: called after every pass of the teacher and every update.

    Returns:
        Metrics: steps, cpu_seconds (targets_cpu_seconds of them for the table), steps_per_s (of CPU
        time), loss, teacher_steps, targets, practised (number of visited states), precision and
        device.

    Raises:
        HandoffError: no teacher, unusable demonstrations, a loss that is not finite, or a full
            disk.
    """
    from policies.checkpoint import WEIGHTS, digest_file, save_policy
    from policies.distillation.regression import (
        TABLE,
        make_targets,
        one_step_student,
        same_noise_objective,
    )
    from policies.families.diffusion import DiffusionPolicy
    from policies.load import load_module
    from policies.training.distributed import check_single_process
    from policies.training.loop import (
        STATE,
        job_identity,
        resolve_device,
        resolve_precision,
        torch_threads,
        train,
    )
    from policies.training.plots import draw_curve

    check_single_process("distillation")
    training = config.training
    device = resolve_device(training.device)
    precision = resolve_precision(training.precision, device)
    with torch_threads(training.threads):
        policy, card = load_module(teacher, device=device.type)
        if not isinstance(policy, DiffusionPolicy) or not policy.config.distils_to_one_step:
            raise HandoffError(
                f"{teacher}: the teacher cannot be distilled to one step, expected a diffusion "
                "policy that samples with DDIM."
            )
        windows, num_visited = _states(teacher, policy, card.model, demos)
        identity = job_identity(
            config, windows.digest() + digest_file(teacher / WEIGHTS), precision, device
        )
        targets = make_targets(config, policy, windows, precision, identity, out, progress)
        student = one_step_student(policy)
        objective = same_noise_objective(
            student, windows, targets, training.batch_size, training.seed, precision
        )
        trained = train(training, student, objective, identity, out, progress)
        student.load_state_dict(trained.average)
    save_policy(out, replace(card, model=student.config), student.state_dict())
    draw_curve(out, "one-step MSE")
    for state in (STATE, TABLE):
        (out / state).unlink()
    return {
        "steps": training.steps,
        "cpu_seconds": round(trained.cpu_seconds + targets.cpu_seconds, 3),
        "targets_cpu_seconds": round(targets.cpu_seconds, 3),
        "steps_per_s": round(training.steps / trained.cpu_seconds, 2),
        "loss": trained.loss,
        "teacher_steps": len(policy.steps),
        "targets": config.targets,
        "practised": num_visited,
        "precision": precision,
        "device": device.type,
    }


def _states(
    teacher: Path, policy: DiffusionPolicy, model: PolicyConfig, demos: Path
) -> tuple[Windows, int]:
    """Windows of the demonstrations followed by the teacher's visited states, and the number of
    the latter."""
    from policies.data.demonstrations import read_demonstrations
    from policies.data.visited_states import load_visited_states
    from policies.data.windows import append_states
    from policies.imitation.objective import normalized_windows

    data = read_demonstrations(demos, model)
    windows = normalized_windows(data, policy, model, np.arange(len(data.ends_E)))
    visited_states = load_visited_states(teacher, policy.observation_shape)
    if visited_states is None:
        return windows, 0
    return append_states(windows, visited_states), len(visited_states)
