"""Trains a one-step student alongside its teacher: RL-100's deployed controller (arXiv 2510.14830).

After every update of the teacher the student learns to output the teacher's many-step chunk in one
step from the same noise, at the observations of that update (same-noise regression, the default of
the released code). `policies.distillation.regression` distils a fixed teacher from a table; here
the targets are sampled again each time, because the teacher changes.

Shape suffixes: R rows, B batch, T observed steps, O observation, H horizon, A action.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from policies.distillation.config import OneStepConfig
from policies.distillation.regression import one_step_student
from policies.families.diffusion import DiffusionPolicy
from policies.policy import ObservationTensors
from policies.samplers.ddim import ddim_steps
from robots.errors import HandoffError


class OneStepStudent:
    """A one-step student and its optimiser.

    Args:
        config: options of the student's training.
        teacher: diffusion policy of vectors, which is not changed here.
        seed: seed of rows and noise.

    Raises:
        HandoffError: a flow policy, which is distilled differently.
    """

    def __init__(self, config: OneStepConfig, teacher: DiffusionPolicy, seed: int = 0) -> None:
        if not teacher.config.distils_to_one_step:
            raise HandoffError(
                "rl100: the teacher of the one-step student is a flow policy, expected one that samples with DDIM."
            )
        self.config = config
        self.teacher = teacher
        self.policy = one_step_student(teacher).requires_grad_(True)
        """The student; samples in one step."""
        (self._step,) = ddim_steps(teacher.config.train_timesteps, 1)
        self._optimizer = torch.optim.Adam(self.policy.denoiser.parameters(), config.learning_rate)
        self._generator = torch.Generator().manual_seed(seed)

    def update(self, obs: Tensor) -> float:
        """Runs `config.updates` updates at observations (R, T, O), normalised; returns the mean
        squared error against the teacher's chunks.

        Raises:
            HandoffError: the loss is not finite.
        """
        config, total = self.config, 0.0
        for _ in range(config.updates):
            rows = torch.randint(len(obs), (config.batch_size,), generator=self._generator)
            noise_BHA = torch.randn(
                (config.batch_size, *self.teacher.chunk_shape), generator=self._generator
            )
            loss = self._loss(ObservationTensors(obs[rows]), noise_BHA)
            if not torch.isfinite(loss):
                raise HandoffError(
                    "rl100: the one-step student's loss is not finite. Is its learning_rate too high?"
                )
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()
            total += float(loss.detach())
        return total / max(1, config.updates)

    def _loss(self, observed: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        with torch.no_grad():
            target_BHA = self.teacher.sample(observed, noise_BHA)
        timestep_B = torch.full((len(noise_BHA),), self._step.timestep)
        velocity_BHA = self.policy.velocity(observed)(noise_BHA, timestep_B)
        return mse_loss(self._step.alpha * noise_BHA - self._step.sigma * velocity_BHA, target_BHA)
