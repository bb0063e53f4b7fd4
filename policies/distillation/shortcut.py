"""Self-distillation of a flow policy to one step; the torch part of
`policies.distillation.one_step` for `algorithm: {kind: shortcut}`.

The network predicts the mean velocity over a step, given time and length of the step. A step learns
to be two steps of half its length, which are taken by the moving average of the network itself; the
shortest steps and a part of every batch learn the instantaneous velocity, that of length 0.

- From shortcut models (Frans et al., arXiv 2410.12557): the condition on the length, targets by two
  half steps of the moving average, lengths that are halved up to the shortest, a batch divided into
  both kinds of example.
- From SnapFlow (arXiv 2604.05656): a pretrained policy as the start, with an embedding that begins
  at 0, so that the student starts as its teacher.
- Ours: the velocity is that of the frozen teacher (`velocity: teacher`), where the papers learn it
  anew by flow matching on the data (`velocity: own`), which on push-T moved it, and with it all
  steps, away from the teacher's. Half of the steps are whole ones (`whole_share`), since the
  student takes no others; shortcut models draw all lengths evenly. Lengths are counted in the
  teacher's training timesteps, so a half may be longer than the other by one, and the target weighs
  them by their lengths. SnapFlow takes its two half steps with the velocity alone; here only those
  of the shortest length do.

Noisy chunks lie on the straight path from noise to a demonstrated chunk, so only states with
demonstrated actions are used.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from policies.data.windows import Windows, shuffled_batch
from policies.distillation.config import ShortcutConfig, check_halvings
from policies.families.diffusion import DiffusionPolicy
from policies.policy import Batch, ObservationTensors
from policies.random_streams import RandomStream
from policies.samplers.flow_matching import flow_example
from policies.training.loop import Objective, autocast, rng

StepVelocity = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Mean velocity (B, H, A) of steps: noisy chunk (B, H, A), time (B,) and length (B,), both int64
and counted in training timesteps; length 0 is the instantaneous velocity."""


class SamplerSteps(NamedTuple):
    """Steps of the sampler from `start` by `middle` to `end`, in training timesteps: 0 is the clean
    chunk, the number of timesteps pure noise."""

    start_B: Tensor
    middle_B: Tensor
    end_B: Tensor
    shortest_B: Tensor
    """True where the two halves are too short to be learned steps, and take the velocity."""


def shortcut_student(teacher: DiffusionPolicy) -> DiffusionPolicy:
    """A copy of the teacher that samples in one step and is conditioned on its length, trainable
    but for its encoder, in evaluation mode (without dropout); its predictions are the teacher's."""
    config = replace(teacher.config.with_sampler_steps(1), step_conditioned=True)
    student = DiffusionPolicy(config, teacher.shapes, teacher.sentences, teacher.image_model)
    missing, unexpected = student.load_state_dict(teacher.state_dict(), strict=False)
    assert not unexpected
    assert all(name.startswith("step_length.") for name in missing)
    student.encoder.requires_grad_(False)
    return student.eval().to(teacher.device)


def draw_steps(
    config: ShortcutConfig,
    generator: np.random.Generator,
    rows: int,
    timesteps: int,
    device: torch.device,
) -> SamplerSteps:
    """Steps of random lengths, see `ShortcutConfig.whole_share`, each from a multiple of its
    length."""
    halvings = config.halvings
    shorter_B = generator.integers(1, halvings + 1, rows)
    halving_B = np.where(generator.random(rows) < config.whole_share, 0, shorter_B)
    number_B = (generator.random(rows) * 2**halving_B).astype(np.int64)

    def time(part_B: np.ndarray, parts_B: np.ndarray) -> Tensor:
        index_B = timesteps - np.rint(timesteps * part_B / parts_B).astype(np.int64)
        return torch.from_numpy(index_B).to(device)

    parts_B = 2**halving_B
    return SamplerSteps(
        time(number_B, parts_B),
        time(2 * number_B + 1, 2 * parts_B),
        time(number_B + 1, parts_B),
        torch.from_numpy(halving_B == halvings).to(device),
    )


def two_half_steps(
    velocity: StepVelocity, noisy_BHA: Tensor, steps: SamplerSteps, timesteps: int
) -> Tensor:
    """Mean velocity (B, H, A) of two steps in a row that make up every one of `steps`.

    Args:
        velocity: the network that takes them.
        noisy_BHA: chunk at the start of the steps.
        steps: the steps.
        timesteps: number of training timesteps.
    """
    first_B, second_B = steps.start_B - steps.middle_B, steps.middle_B - steps.end_B
    lengths = (first_B.where(~steps.shortest_B, 0), second_B.where(~steps.shortest_B, 0))
    velocity_BHA = velocity(noisy_BHA, steps.start_B, lengths[0]).float()
    way_BHA = (first_B / timesteps)[:, None, None] * velocity_BHA
    later_BHA = velocity(noisy_BHA - way_BHA, steps.middle_B, lengths[1]).float()
    way_BHA = way_BHA + (second_B / timesteps)[:, None, None] * later_BHA
    return way_BHA / ((first_B + second_B) / timesteps)[:, None, None]


def shortcut_objective(
    config: ShortcutConfig,
    teacher: DiffusionPolicy,
    student: DiffusionPolicy,
    average: DiffusionPolicy,
    windows: Windows,
    precision: str,
) -> Objective[Batch]:
    """Mean squared error of the mean velocities of steps, and of the velocity on the flow, over the
    batch of each update.

    Args:
        config: options of the distillation.
        teacher: frozen policy, whose velocity is learned with `velocity: teacher`.
        student: policy that is trained.
        average: a copy of it with the moving average of its weights, which takes the half steps.
        windows: windows of the demonstrations, normalised.
        precision: `bf16` or `fp32`.

    Raises:
        HandoffError: too many halvings for the policy's timesteps.
    """
    training, timesteps = config.training, student.config.train_timesteps
    check_halvings(config.halvings, timesteps)
    device = windows.chunk_NHA.device
    shortest = teacher if config.velocity == "teacher" else average

    def batch(step: int) -> Batch:
        window_B = shuffled_batch(training.batch_size, len(windows), step, training.seed)
        return windows.batch(torch.from_numpy(window_B))

    def loss(batch: Batch, step: int) -> Tensor:
        generator = rng(training.seed, RandomStream.UPDATE + step)
        clean_BHA, rows = batch.chunk_BHA, len(batch.chunk_BHA)
        noise_BHA = torch.from_numpy(
            generator.standard_normal(tuple(clean_BHA.shape), dtype=np.float32)
        ).to(device)
        # The first rows learn the velocity of the flow, the others learn steps.
        flows = round(config.flow_share * rows)
        time_B = torch.from_numpy(generator.integers(1, timesteps + 1, flows)).to(device)
        steps = draw_steps(config, generator, rows - flows, timesteps, device)
        start_B = torch.cat([time_B, steps.start_B])
        length_B = torch.cat([torch.zeros_like(time_B), steps.start_B - steps.end_B])
        noisy_BHA, target_BHA = flow_example(clean_BHA, noise_BHA, start_B / timesteps)
        with autocast(precision, device):
            denoise = student.denoise(student.encoder(batch.obs))
            predicted_BHA = denoise(noisy_BHA, start_B - 1, length_B).float()
            with torch.no_grad():
                if config.velocity == "teacher":
                    exact = _step_velocity(teacher, average, batch.obs, slice(flows))
                    target_BHA = exact(noisy_BHA[:flows], time_B, length_B[:flows])
                halves = _step_velocity(shortest, average, batch.obs, slice(flows, None))
                steps_BHA = two_half_steps(halves, noisy_BHA[flows:], steps, timesteps)
        return mse_loss(predicted_BHA, torch.cat([target_BHA[:flows], steps_BHA]))

    return Objective(batch, loss)


def _step_velocity(
    exact: DiffusionPolicy, learned: DiffusionPolicy, observed: ObservationTensors, rows: slice
) -> StepVelocity:
    """The velocities of some rows of a batch: by `exact` where the length is 0, by `learned` for
    steps."""
    conditions = [policy.encoder(observed)[rows] for policy in (exact, learned)]

    def velocity(noisy_BHA: Tensor, time_B: Tensor, length_B: Tensor) -> Tensor:
        found_BHA = torch.empty_like(noisy_BHA)
        instant_B = length_B == 0
        for policy, condition_BTO, part_B in zip(
            (exact, learned), conditions, (instant_B, ~instant_B), strict=True
        ):
            denoise = policy.denoise(condition_BTO[part_B])
            # The network is conditioned on the index of the time, which begins at 1 / timesteps.
            found_BHA[part_B] = denoise(
                noisy_BHA[part_B], time_B[part_B] - 1, length_B[part_B]
            ).float()
        return found_BHA

    return velocity
