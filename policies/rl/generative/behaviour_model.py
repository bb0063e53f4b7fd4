"""Learns generative models of the action chunks in the data: small diffusion and flow networks,
trained by imitation.

Q-chunking and EXPO sample many chunks from such a model and select one by its value. The flow is
that of `policies.samplers.flow_matching` with uniform times and Euler steps (Q-chunking's code).
The diffusion predicts noise on the variance-preserving schedule with K levels (Song et al. 2021,
discretised as in Diffusion-QL) and is sampled with DDPM. The network input for the noise level is
the time in [0, 1] with its sines and cosines; Q-chunking's code uses the time only. Actions after
the end of an episode are masked in the loss.

Shape suffixes: B batch, F features, H horizon, A action, D = H * A entries of a chunk, K noise
levels, L noise samples of the sampler (1 if it is deterministic, else K + 1), N samples per row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from policies.rl.generative.config import BehaviourConfig
from policies.rl.networks.ensemble import EnsembleMlp
from policies.rl.replay.transitions import Transitions
from policies.samplers.chain import Grid
from policies.samplers.ddim import DiffusionGrid, NoiseSchedule
from policies.samplers.flow_matching import flow_example, ode_grid
from robots.errors import HandoffError

BASE, NEXT_BASE = "base_BND", "next_base_BND"
"""Entries of `Transitions.extra` with N samples of a behaviour model that is trained elsewhere, for
the observation and for the next one."""
NUM_FREQUENCIES = 4
"""Frequencies of the sines and cosines of the time, each twice the previous one."""


def vp_schedule(levels: int, beta_min: float, beta_max: float) -> NoiseSchedule:
    """Variance-preserving schedule with K = `levels` noise levels, from the least noisy to the
    noisiest.

    abar at time t = k / K is exp(-t beta_min - t^2 (beta_max - beta_min) / 2).
    """
    time_K = torch.arange(1, levels + 1, dtype=torch.float64) / levels
    abar_K = torch.exp(-time_K * beta_min - 0.5 * time_K.square() * (beta_max - beta_min))
    return NoiseSchedule(abar_K.sqrt().float(), (1.0 - abar_K).sqrt().float())


def vp_grid(
    levels: int, beta_min: float, beta_max: float, eta: float = 1.0, clip: float = 1.0
) -> DiffusionGrid:
    """Sampler grid over all levels of `vp_schedule`, for a network that predicts noise.

    Args:
        levels: noise levels K.
        beta_min: see `BehaviourConfig.beta_min`.
        beta_max: see `BehaviourConfig.beta_max`.
        eta: noise of the sampler; 1 is DDPM with the posterior variance, 0 is DDIM.
        clip: bound on the predicted clean chunk at every step.
    """
    alpha_K, sigma_K = (
        values_K.double().flip(0) for values_K in vp_schedule(levels, beta_min, beta_max)
    )
    next_alpha_K = torch.cat([alpha_K[1:], torch.ones(1, dtype=torch.float64)])
    next_sigma_K = torch.cat([sigma_K[1:], torch.zeros(1, dtype=torch.float64)])
    std_K = eta * next_sigma_K / sigma_K * (1.0 - (alpha_K / next_alpha_K) ** 2).sqrt()
    columns = (
        values_K.float() for values_K in (alpha_K, sigma_K, next_alpha_K, next_sigma_K, std_K)
    )
    level_K = torch.arange(levels - 1, -1, -1)
    return DiffusionGrid(level_K, *columns, clip=clip, prediction="epsilon", renoise=True)


class GenerativeActor(nn.Module):
    """Generative model of the action chunks in the data, conditioned on features.

    Args:
        features: number of features F.
        horizon: actions per chunk H.
        entries: entries A of one action.
        config: model family and sizes.
    """

    def __init__(self, features: int, horizon: int, entries: int, config: BehaviourConfig) -> None:
        super().__init__()
        self.config = config
        self.horizon = horizon
        self.entries = entries
        self.schedule = vp_schedule(config.steps, config.beta_min, config.beta_max)
        self.grid: Grid = (
            ode_grid(config.steps)
            if config.kind == "flow"
            else vp_grid(config.steps, config.beta_min, config.beta_max, config.eta)
        )
        self.stochastic = config.kind == "diffusion" and config.eta > 0.0
        """Whether the sampler adds noise at every step."""
        inputs = features + horizon * entries + 1 + 2 * NUM_FREQUENCIES
        self.network = EnsembleMlp(1, inputs, config.network, horizon * entries)

    def predict(self, features_BF: Tensor, noisy_BHA: Tensor, time_B: Tensor) -> Tensor:
        """(B, H, A) prediction at times in [0, 1], where 1 is noise: the velocity noise - clean of
        the flow, or the noise of the diffusion."""
        angle_BW = time_B[:, None] * (
            math.pi * 2.0 ** torch.arange(NUM_FREQUENCIES, device=time_B.device)
        )
        inputs = (
            features_BF,
            noisy_BHA.flatten(1),
            time_B[:, None],
            angle_BW.sin(),
            angle_BW.cos(),
        )
        return self.network(torch.cat(inputs, dim=1))[0].unflatten(1, (self.horizon, self.entries))

    def loss(
        self, features_BF: Tensor, chunk_BD: Tensor, valid_BH: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Imitation loss: mean squared error over all rows and entries, 0 for actions that were not
        executed."""
        clean_BHA = chunk_BD.unflatten(1, (self.horizon, self.entries))
        noise_BHA = torch.randn(clean_BHA.shape, generator=generator)
        uniform_B = torch.rand(len(clean_BHA), generator=generator)
        if self.config.kind == "flow":
            time_B = uniform_B
            noisy_BHA, target_BHA = flow_example(clean_BHA, noise_BHA, time_B)
        else:
            level_B = (uniform_B * self.config.steps).long()
            time_B, target_BHA = self._time(level_B), noise_BHA
            noisy_BHA, _ = self.schedule.diffuse(clean_BHA, noise_BHA, level_B)
        error_BHA = (self.predict(features_BF, noisy_BHA, time_B) - target_BHA).square()
        return (error_BHA * valid_BH[:, :, None]).mean()

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """(L, B, H, A) standard normal noise for `sample` of `rows` rows."""
        count = 1 + len(self.grid) * self.stochastic
        return torch.randn(count, rows, self.horizon, self.entries, generator=generator)

    @torch.no_grad()
    def sample(self, features_BF: Tensor, noise_LBHA: Tensor) -> Tensor:
        """(B, D) chunks in [-1, 1], a deterministic function of features and noise."""

        def denoise(noisy_BHA: Tensor, level_B: Tensor) -> Tensor:
            time_B = level_B if self.config.kind == "flow" else self._time(level_B)
            return self.predict(features_BF, noisy_BHA, time_B)

        sample_BHA = noise_LBHA[0]
        active_B = sample_BHA.new_full((len(sample_BHA),), float(self.stochastic))
        for number in range(len(self.grid)):
            step_B = torch.full((len(sample_BHA),), number)
            sample_BHA, std_B = self.grid.transition(denoise, sample_BHA, step_B, active_B)
            if self.stochastic:
                sample_BHA = torch.addcmul(sample_BHA, std_B[:, None, None], noise_LBHA[number + 1])
        return sample_BHA.clamp(-1.0, 1.0).flatten(1)

    def _time(self, level_B: Tensor) -> Tensor:
        return (level_B + 1) / self.config.steps


def executed_mask(batch: Transitions, horizon: int) -> Tensor:
    """(B, H) float mask: 1 for executed actions of a chunk, 0 after the end of the episode.

    Raises:
        HandoffError: a minibatch of chunks has no matching `extra["valid_BH"]`.
    """
    valid_BH = batch.extra.get("valid_BH")
    if valid_BH is None and horizon == 1:
        return torch.ones(batch.rows, 1)
    if valid_BH is not None and valid_BH.shape[1] == horizon:
        return valid_BH.float()
    raise HandoffError(
        f"behaviour: chunks of {horizon} actions need extra['valid_BH'] with {horizon} columns. Does the replay have "
        "another horizon?"
    )


def given_samples(batch: Transitions, entry: str) -> Tensor:
    """(B, N, D) samples of a behaviour model that is trained elsewhere.

    Args:
        batch: minibatch.
        entry: `BASE` or `NEXT_BASE`.

    Raises:
        HandoffError: the minibatch has no samples.
    """
    if entry not in batch.extra:
        raise HandoffError(
            f"behaviour: the minibatch has no extra['{entry}'], which a learner without a behaviour model of its own "
            "needs."
        )
    return batch.extra[entry]


def repeated_noise(
    actor: GenerativeActor, rows: int, samples: int, generator: torch.Generator | None
) -> Tensor:
    """(L, B * N, H, A) noise. Without a generator it is fixed and the same for all rows, so that
    acting is deterministic."""
    if generator is not None:
        return actor.noise(rows * samples, generator)
    fixed_LNHA = actor.noise(samples, torch.Generator().manual_seed(0))
    return fixed_LNHA.repeat(1, rows, 1, 1)
