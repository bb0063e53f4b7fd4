"""A one-step student that follows a policy while it learns: RL-100's deployed controller (arXiv
2510.14830).

Behind every update of the teacher the student answers the teacher's many-step chunk in one step
from the same noise, at the states of that update (same-noise regression, the released code's
default). `policies.distillation.regression` distils a policy that no longer changes, from a table;
here the targets are drawn anew, for the teacher moves.

Shape suffixes: R rows, B batch, T observed steps, O observation, H horizon, A action.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from policies.distillation.config import OneStepConfig
from policies.distillation.regression import student_of
from policies.families.diffusion import DiffusionPolicy
from policies.policy import ObservationTensors
from policies.samplers.ddim import ddim_steps
from robots.errors import HandoffError


class OneStepStudent:
    """Student and optimiser.

    Args:
        config: how it follows.
        teacher: a diffusion policy of vectors; never changed here.
        seed: of rows and noise.

    Raises:
        HandoffError: a flow policy, whose one step is another one.
    """

    def __init__(self, config: OneStepConfig, teacher: DiffusionPolicy, seed: int = 0) -> None:
        if not teacher.config.distils_to_one_step:
            raise HandoffError(
                "rl100: a one-step student of a flow policy, expected a teacher that samples with DDIM."
            )
        self.config, self.teacher = config, teacher
        self.policy = student_of(teacher).requires_grad_(True)
        """The student; samples in one step."""
        (self._step,) = ddim_steps(teacher.config.train_timesteps, 1)
        self._optimizer = torch.optim.Adam(self.policy.denoiser.parameters(), config.learning_rate)
        self._draw = torch.Generator().manual_seed(seed)

    def follow(self, seen: Tensor) -> float:
        """Some updates at states (R, T, O), normalised; returns the mean squared distance from the
        teacher's chunks.

        Raises:
            HandoffError: the distance is not finite.
        """
        config, total = self.config, 0.0
        for _ in range(config.updates):
            rows = torch.randint(len(seen), (config.batch_size,), generator=self._draw)
            noise_BHA = torch.randn(
                (config.batch_size, *self.teacher.chunk_shape), generator=self._draw
            )
            loss = self._distance(ObservationTensors(seen[rows]), noise_BHA)
            if not torch.isfinite(loss):
                raise HandoffError(
                    "rl100: the student's distance from its teacher is not finite. Is the rate too high?"
                )
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()
            total += float(loss.detach())
        return total / max(1, config.updates)

    def _distance(self, observed: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        with torch.no_grad():
            wanted_BHA = self.teacher.sample(observed, noise_BHA)
        level_B = torch.full((len(noise_BHA),), self._step.timestep)
        velocity_BHA = self.policy.velocity(observed)(noise_BHA, level_B)
        return mse_loss(self._step.alpha * noise_BHA - self._step.sigma * velocity_BHA, wanted_BHA)
