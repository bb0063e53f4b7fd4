"""Denoising chains: all samples from noise to the clean chunk, and their log-probabilities.

Reinforcement learning on a diffusion or flow policy treats each denoising step as an action drawn
from a Gaussian. A sampler is therefore a `Grid` of K Gaussian steps: `sample_chain` samples it, and
`chain_log_prob` computes the log-probability of a chain under other weights, with gradients.
`policies.samplers.ddim`, `policies.samplers.flow_matching` and `policies.samplers.edm` define the
grids.

Where systems differ:
- DPPO (arXiv 2409.00588) describes the joint log-probability of a chunk; its released code averages
  over the chunk's entries, each clamped. `ChainConfig.reduce` and the two bounds support both;
  hyperparameters do not transfer between them.
- DPPO and RL-100 (arXiv 2510.14830) bound the standard deviation of the added noise, not the one in
  the formula of the mean.
- A step without noise (of an ODE, or the last of many samplers) has no density; its log-probability
  is defined as 0, so that its ratio is 1, as in RLinf (arXiv 2510.06710).

Importing this module does not import torch, so that configurations may contain a `ChainConfig`.

Shape suffixes: B batch, H horizon, A action, K steps, L samples of a chain (K + 1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from robots.config import Finite, NonNegative, Positive, config
from robots.errors import HandoffError

if TYPE_CHECKING:
    from typing import Self

    import torch
    from torch import Tensor


Denoise = Callable[["Tensor", "Tensor"], "Tensor"]
"""Denoiser: (noisy (B, H, A), noise level (B,)) to prediction (B, H, A). In
`policies.samplers.ddim` the level is a timestep and the output is given by `Prediction`; in
`policies.samplers.flow_matching` the level is a time in [0, 1] and the output the flow's velocity;
in `policies.samplers.edm` they are sigma and the clean chunk."""


@config
class ChainConfig:
    """Noise of a chain and reduction of its log-probability. The defaults leave the sampler
    unchanged.

    DPPO's code: min_std 0.1, min_log_prob_std 0.1, noise_clip 3, log_prob_min -5, log_prob_max 2,
    reduce mean. RL-100: min_std 0.0067, max_std 0.1 or 0.8, reduce sum.
    """

    min_std: NonNegative = 0.0
    """Minimum standard deviation of the noise added at a step [normalised units]."""
    max_std: Positive | None = None
    """Maximum standard deviation of the noise added at a step [normalised units]; None sets no
    bound."""
    min_log_prob_std: NonNegative = 0.0
    """Minimum standard deviation in the computation of log-probabilities; values above that of the
    noise damp probability ratios."""
    noise_clip: Positive | None = None
    """Bound on each standard normal number drawn for a step; None sets no bound."""
    log_prob_min: Finite | None = None
    """Lower bound on the log-probability of one entry, before the reduction."""
    log_prob_max: Finite | None = None
    """Upper bound on the log-probability of one entry, before the reduction."""
    reduce: Literal["none", "sum", "mean"] = "sum"
    """Reduction of log-probabilities over the entries of a chunk: none keeps (K, B, H, A), sum and
    mean give (K, B)."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_std <= (float("inf") if self.max_std is None else self.max_std):
            raise HandoffError(
                f"chain: min_std is {self.min_std}, expected 0 to max_std, {self.max_std}. Are the two swapped?"
            )


class Gaussian(NamedTuple):
    """Distribution of the next sample with independent entries; rows with std 0 are
    deterministic."""

    mean_BHA: Tensor
    std_B: Tensor


class Chain(NamedTuple):
    """A sampled denoising chain."""

    sample_LBHA: Tensor
    """Samples from noise (first) to the clean chunk (last)."""
    mean_KBHA: Tensor
    """Mean of each step's Gaussian."""
    std_KB: Tensor
    """Standard deviation of the added noise; 0 marks a deterministic step."""
    log_prob: Tensor
    """Log-probability of each step, reduced as configured: (K, B) or (K, B, H, A)."""

    @property
    def clean_BHA(self) -> Tensor:
        """The clean chunk at the end of the chain."""
        return self.sample_LBHA[-1]


@dataclass(frozen=True)
class Grid(ABC):
    """K Gaussian steps from noise to the clean chunk. A subclass's fields that end in `_K` hold one
    number per step."""

    def __len__(self) -> int:
        """Number of steps."""
        return len(self._per_step()[0][1])

    def part(self, start: int, stop: int | None = None) -> Self:
        """The steps from `start` up to `stop`; DPPO samples the first ones with frozen weights."""
        return replace(self, **{name: value[start:stop] for name, value in self._per_step()})

    def to(self, device: torch.device | str) -> Self:
        """A copy on `device`."""
        return replace(self, **{name: value.to(device) for name, value in self._per_step()})

    @abstractmethod
    def transition(
        self, denoise: Denoise, sample_BHA: Tensor, step_B: Tensor, active_B: Tensor
    ) -> Gaussian:
        """The Gaussian of the next sample.

        Args:
            denoise: the network, conditioned on the observations of these rows.
            sample_BHA: current samples.
            step_B: index of each row's step, 0 to K - 1; rows may differ.
            active_B: 1.0 for rows that take the step with noise, 0.0 for those that take it
                without.
        """

    def _per_step(self) -> list[tuple[str, Tensor]]:
        return [
            (field.name, getattr(self, field.name))
            for field in fields(self)
            if field.name.endswith("_K")
        ]


def sample(denoise: Denoise, noise_BHA: Tensor, grid: Grid) -> Tensor:
    """The clean chunk (B, H, A) that `grid` gives from `noise_BHA` without step noise; does not
    store the chain."""
    sample_BHA, active_B = noise_BHA, noise_BHA.new_zeros(len(noise_BHA))
    for number in range(len(grid)):
        sample_BHA = grid.transition(
            denoise, sample_BHA, _rows(noise_BHA, number), active_B
        ).mean_BHA
    return sample_BHA


def sample_chain(
    denoise: Denoise,
    noise_BHA: Tensor,
    step_noise_KBHA: Tensor,
    grid: Grid,
    options: ChainConfig,
    active_KB: Tensor | None = None,
) -> Chain:
    """Samples `grid` and returns the whole chain; a pure function of its arguments. Gradients flow
    unless the caller disables them.

    Args:
        denoise: the network, conditioned on the observations of these rows.
        noise_BHA: initial sample; `grid.start` times a standard normal chunk for EDM, a standard
            normal one elsewhere.
        step_noise_KBHA: standard normal, one chunk per step.
        grid: steps, on the device of the noise.
        options: options of noise and log-probabilities.
        active_KB: True where a row takes a step with noise; None for all.

    Raises:
        HandoffError: `step_noise_KBHA` is not one chunk per step.
    """
    import torch

    if step_noise_KBHA.shape != (len(grid), *noise_BHA.shape):
        raise HandoffError(
            f"sampler: step noise has shape {tuple(step_noise_KBHA.shape)}, expected {(len(grid), *noise_BHA.shape)}. "
            "Was it drawn for another number of steps?"
        )
    if options.noise_clip is not None:
        step_noise_KBHA = step_noise_KBHA.clamp(-options.noise_clip, options.noise_clip)
    # Sample step by step and record the chain.
    samples = [noise_BHA]
    means = []
    stds = []
    log_probs = []
    for number in range(len(grid)):
        active_B = (
            noise_BHA.new_ones(len(noise_BHA))
            if active_KB is None
            else active_KB[number].to(noise_BHA)
        )
        mean_BHA, grid_std_B = grid.transition(
            denoise, samples[-1], _rows(noise_BHA, number), active_B
        )
        std_B = grid_std_B.clamp(options.min_std, options.max_std) * active_B
        next_BHA = mean_BHA + std_B[:, None, None] * step_noise_KBHA[number]
        log_probs.append(gaussian_log_prob(next_BHA, Gaussian(mean_BHA, std_B), options))
        samples.append(next_BHA)
        means.append(mean_BHA)
        stds.append(std_B)
    return Chain(
        torch.stack(samples), torch.stack(means), torch.stack(stds), torch.stack(log_probs)
    )


def chain_log_prob(denoise: Denoise, chain: Chain, grid: Grid, options: ChainConfig) -> Tensor:
    """Log-probability of every step of a stored chain under the weights of `denoise`, shaped as
    `chain.log_prob`."""
    import torch

    return torch.stack(
        [
            step_log_prob(
                denoise, sample_BHA, next_BHA, std_B, _rows(sample_BHA, number), grid, options
            )
            for number, (sample_BHA, next_BHA, std_B) in enumerate(
                zip(chain.sample_LBHA[:-1], chain.sample_LBHA[1:], chain.std_KB, strict=True)
            )
        ]
    )


def step_log_prob(
    denoise: Denoise,
    sample_BHA: Tensor,
    next_BHA: Tensor,
    std_B: Tensor,
    step_B: Tensor,
    grid: Grid,
    options: ChainConfig,
) -> Tensor:
    """Log-probability (B,) or (B, H, A) of single steps, one per row; for minibatches of steps from
    many chains.

    Args:
        denoise: the network, conditioned on the observations of these rows.
        sample_BHA: from `Chain.sample_LBHA`.
        next_BHA: the sample after it.
        std_B: from `Chain.std_KB`.
        step_B: index of the step in `grid`.
        grid: grid that the chain was sampled with.
        options: options that the chain was sampled with.
    """
    # The mean is wrong for rows without noise, but their log-probability is 0 regardless.
    mean_BHA, _ = grid.transition(denoise, sample_BHA, step_B, sample_BHA.new_ones(len(sample_BHA)))
    return gaussian_log_prob(next_BHA, Gaussian(mean_BHA, std_B), options)


def gaussian_log_prob(value_BHA: Tensor, gaussian: Gaussian, options: ChainConfig) -> Tensor:
    """Log-density, bounded and reduced as configured, (B,) or (B, H, A); 0 for deterministic
    rows."""
    from torch.distributions import Normal

    random_B = gaussian.std_B > 0
    std_B = gaussian.std_B.clamp(min=options.min_log_prob_std).where(
        random_B, gaussian.std_B.new_ones(())
    )
    density_BHA = Normal(gaussian.mean_BHA, std_B[:, None, None], validate_args=False).log_prob(
        value_BHA
    )
    if options.log_prob_min is not None or options.log_prob_max is not None:
        density_BHA = density_BHA.clamp(options.log_prob_min, options.log_prob_max)
    density_BHA = density_BHA.where(random_B[:, None, None], density_BHA.new_zeros(()))
    match options.reduce:
        case "none":
            return density_BHA
        case "sum":
            return density_BHA.sum((1, 2))
        case "mean":
            return density_BHA.mean((1, 2))


def one_active_step(steps: int, rows: int, generator: torch.Generator) -> Tensor:
    """Mask (K, B), True at one uniformly drawn step per row, as in RLinf's rollouts, where all
    other steps follow the ODE."""
    import torch

    active_step_B = torch.randint(steps, (rows,), generator=generator, device=generator.device)
    return torch.arange(steps, device=generator.device)[:, None] == active_step_B


def on_policy_kl(student: Denoise, teacher: Denoise, chain: Chain, grid: Grid) -> Tensor:
    """KL divergence (K, B) of the student's steps from the teacher's, on a chain of the student
    (arXiv 2605.15055).

    With equal noise, the KL divergence of two Gaussians is the squared distance of their means
    over twice the student's variance, summed over the chunk. Steps without noise give half the
    squared distance: mean matching.

    Args:
        student: denoiser that gets the gradient.
        teacher: denoiser without gradient.
        chain: chain sampled by the student.
        grid: grid of the chain, shared by the teacher.
    """
    import torch

    kl = []
    for number, (sample_BHA, std_B) in enumerate(
        zip(chain.sample_LBHA[:-1], chain.std_KB, strict=True)
    ):
        step_B, active_B = _rows(sample_BHA, number), (std_B > 0).to(sample_BHA)
        mean_BHA = grid.transition(student, sample_BHA, step_B, active_B).mean_BHA
        with torch.no_grad():
            teacher_mean_BHA = grid.transition(teacher, sample_BHA, step_B, active_B).mean_BHA
        variance_B = (std_B**2).where(std_B > 0, std_B.new_ones(()))
        kl.append((mean_BHA - teacher_mean_BHA).square().sum((1, 2)) / (2.0 * variance_B))
    return torch.stack(kl)


def _rows(like_BHA: Tensor, number: int) -> Tensor:
    import torch

    return torch.full((len(like_BHA),), number, device=like_BHA.device)
