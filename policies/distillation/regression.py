"""Computes a teacher's chunks as targets and the loss of a one-step student from the same noise;
the torch part of `policies.distillation.one_step`.

Shape suffixes: B batch, P pairs in the table, H horizon, A action.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from policies.checkpoint import read_state, save_state
from policies.data.windows import Windows, shuffled_batch
from policies.distillation.config import DistilConfig
from policies.families.diffusion import DiffusionPolicy
from policies.networks.decided_actions import first_decided, undecided_error
from policies.policy import ObservationTensors
from policies.random_streams import RandomStream
from policies.samplers.ddim import ddim_steps
from policies.training.loop import Objective, autocast, rng
from robots.interfaces import Progress

TABLE = "targets.pt"


class Targets(NamedTuple):
    """The teacher's chunks; pair p belongs to window p modulo the number of windows."""

    noise_PHA: Tensor
    chunk_PHA: Tensor
    """Normalised chunks of the teacher."""
    cpu_seconds: float
    """CPU time of computing them."""


def one_step_student(teacher: DiffusionPolicy) -> DiffusionPolicy:
    """A copy of the teacher that samples in one step, trainable but for its encoder, in evaluation
    mode (without dropout) because it is trained by regression.

    Where an actor chooses the teacher's initial noise or refines its chunks, the student learns the
    whole way from the given noise to the chunk, and has no such actor."""
    config = replace(teacher.config.with_sampler_steps(1), noise_actor=None, chunk_actor=None)
    student = DiffusionPolicy(config, teacher.shapes, teacher.sentences, teacher.image_model)
    weights = teacher.state_dict()
    student.load_state_dict({name: weights[name] for name in student.state_dict()})
    student.encoder.requires_grad_(False)
    return student.eval().to(teacher.device)


@torch.no_grad()
def make_targets(
    config: DistilConfig,
    teacher: DiffusionPolicy,
    windows: Windows,
    precision: str,
    identity: str,
    out: Path,
    progress: Progress,
) -> Targets:
    """Samples the teacher on every pair of the table; resumes from what a killed run left in `out`.
    The windows are encoded (`policies.distillation.encoded_windows`)."""
    device, size = windows.chunk_NHA.device, config.teacher_batch
    passes = -(-config.targets // size)
    chunk_PHA = torch.empty(passes * size, *teacher.chunk_shape)
    state = read_state(out / TABLE, identity)
    done, spent = (state["passes"], state["cpu_seconds"]) if state else (0, 0.0)
    if state:
        chunk_PHA[: done * size] = state["chunks"]
    # One pass per batch, saved in intervals.
    noise_PHA = torch.cat([_noise(config, teacher, number) for number in range(passes)])
    decided_P = _decided_numbers(teacher, len(noise_PHA), config.training.seed)
    started, saved = time.process_time(), time.monotonic()
    for number in range(done, passes):
        rows = slice(number * size, (number + 1) * size)
        window_B = torch.arange(rows.start, rows.stop, device=device) % len(windows)
        with autocast(precision, device):
            observed = _observed(teacher, windows, window_B, decided_P[rows])
            sample = teacher.sample(observed, noise_PHA[rows].to(device))
        chunk_PHA[rows] = sample.float().cpu()
        progress(number + 1, passes, "teacher's chunks")
        last = number + 1 == passes
        if last or time.monotonic() - saved >= config.training.checkpoint_seconds:
            seconds = spent + time.process_time() - started
            chunks = chunk_PHA[: rows.stop].clone()
            save_state(
                out / TABLE,
                {
                    "identity": identity,
                    "passes": number + 1,
                    "cpu_seconds": seconds,
                    "chunks": chunks,
                },
            )
            saved = time.monotonic()
    seconds = spent + time.process_time() - started
    return Targets(noise_PHA.to(device), chunk_PHA.to(device), seconds)


def same_noise_objective(
    student: DiffusionPolicy,
    windows: Windows,
    targets: Targets,
    batch_size: int,
    seed: int,
    precision: str,
) -> Objective[tuple[ObservationTensors, Tensor, Tensor]]:
    """Mean squared error between the student's chunk, before clipping, and the teacher's, over the
    batch of each update; the windows are encoded."""
    device = windows.chunk_NHA.device
    (step_,) = ddim_steps(student.config.train_timesteps, 1)
    # A step of Euler's method is the whole way of a flow, where diffusion rotates.
    alpha, sigma = (1.0, 1.0) if student.config.objective == "flow" else (step_.alpha, step_.sigma)

    decided_P = _decided_numbers(student, len(targets.chunk_PHA), seed)

    def batch(step: int) -> tuple[ObservationTensors, Tensor, Tensor]:
        pair_B = torch.from_numpy(
            shuffled_batch(batch_size, len(targets.chunk_PHA), step, seed)
        ).to(device)
        return (
            _observed(student, windows, pair_B % len(windows), decided_P[pair_B.cpu()]),
            targets.noise_PHA[pair_B],
            targets.chunk_PHA[pair_B],
        )

    def loss(batch: tuple[ObservationTensors, Tensor, Tensor], step: int) -> Tensor:
        observed, noise_BHA, target_BHA = batch
        timestep_B = torch.full((len(noise_BHA),), step_.timestep, device=device)
        with autocast(precision, device):
            velocity_BHA = student.conditioned(observed)(noise_BHA, timestep_B)
        chunk_BHA = alpha * noise_BHA - sigma * velocity_BHA.float()
        if observed.decided is None:
            return mse_loss(chunk_BHA, target_BHA)
        return undecided_error(chunk_BHA, target_BHA, observed.decided)

    return Objective(batch, loss)


def _decided_numbers(policy: DiffusionPolicy, pairs: int, seed: int) -> Tensor:
    """(P,) numbers of decided actions of the pairs, each with the same probability."""
    numbers = rng(seed, RandomStream.DECIDED).integers(0, policy.config.prefix + 1, pairs)
    return torch.from_numpy(numbers)


def _observed(
    policy: DiffusionPolicy, windows: Windows, window_B: Tensor, number_B: Tensor
) -> ObservationTensors:
    """The observations of windows, with the executed actions as decided ones if the policy takes
    them.

    Args:
        policy: teacher or student.
        windows: windows of the demonstrations.
        window_B: indices of windows.
        number_B: numbers of decided actions.
    """
    observed = windows.observations(window_B)
    if not policy.config.prefix:
        return observed
    shown_NHA = windows.chunk_NHA if windows.executed_NHA is None else windows.executed_NHA
    return observed._replace(decided=first_decided(shown_NHA[window_B], policy.places, number_B))


def _noise(config: DistilConfig, teacher: DiffusionPolicy, number: int) -> Tensor:
    generator = rng(config.training.seed, RandomStream.TEACHER_NOISE + number)
    return torch.from_numpy(
        generator.standard_normal((config.teacher_batch, *teacher.chunk_shape), dtype=np.float32)
    )
