"""Stage `distil`: a many-step teacher to a one-step student, by regression on the same noise
(RL-100, default).

The teacher's sampler is deterministic, so noise and observation fix its chunk; the student learns
to answer that very chunk in one step from that very noise. Regression on chunks drawn with other
noise would collapse to their mean. The student starts from the teacher's weights. Its targets are
worked out first, as a table, because the teacher's many passes cost several updates and every
target serves in several of them.

A teacher that has practised meets other states than its demonstrations show. Those that it met last
(`policies.data.visited_states`) stand beside theirs.
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
        config: how.
        teacher: directory of a policy that samples in several steps.
        demos: directory with the demonstrations' `store.zarr`, whose observations are used, beside
            those that the teacher met in practice.
        out: directory of the student; goes on from what a killed run left there.
        progress: told every pass of the teacher and every update.

    Returns:
        Metrics: steps, cpu_seconds (targets_cpu_seconds of them for the table), steps_per_s (of
        processor time), loss, teacher_steps, targets, practised (states of practice), precision and
        device.

    Raises:
        HandoffError: no teacher, unusable demonstrations, a loss that is not finite, or a full
            disk.
    """
    from policies.checkpoint import WEIGHTS, digest_file, save_policy
    from policies.distillation.regression import (
        TABLE,
        make_targets,
        same_noise_objective,
        student_of,
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
        expert, card = load_module(teacher, device=device.type)
        if not isinstance(expert, DiffusionPolicy) or not expert.config.distils_to_one_step:
            raise HandoffError(
                f"{teacher}: a one-step student needs a teacher that samples with DDIM."
            )
        windows, practised = _states(teacher, expert, card.model, demos)
        identity = job_identity(
            config, windows.digest() + digest_file(teacher / WEIGHTS), precision, device
        )
        targets = make_targets(config, expert, windows, precision, identity, out, progress)
        student = student_of(expert)
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
        "teacher_steps": len(expert.steps),
        "targets": config.targets,
        "practised": practised,
        "precision": precision,
        "device": device.type,
    }


def _states(
    teacher: Path, expert: DiffusionPolicy, model: PolicyConfig, demos: Path
) -> tuple[Windows, int]:
    """Windows of the demonstrations, then the states that the teacher met in practice; and how many
    those are."""
    from policies.data.demonstrations import read_demonstrations
    from policies.data.visited_states import load_practised
    from policies.data.windows import with_states
    from policies.imitation.objective import normalized_windows

    data = read_demonstrations(demos, model)
    windows = normalized_windows(data, expert, model, np.arange(len(data.ends_E)))
    practised = load_practised(teacher, expert.observation_shape)
    if practised is None:
        return windows, 0
    return with_states(windows, practised), len(practised)
