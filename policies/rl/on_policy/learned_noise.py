"""Samples flows whose Euler steps have learned noise, and computes the likelihood of their chains.

ReinFlow (arXiv 2505.22094), and Flow-Noise of pi_RL (arXiv 2510.25889) after it: the next sample of
a step is Gaussian around Euler's, with a standard deviation that a network predicts, so the chain
from noise to chunk is a Markov chain of known likelihood. The initial noise has the same density
under all weights and is left out.

Shape suffixes: B batch, K steps, L samples of a chain (K + 1), H horizon, A action.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from policies.samplers.chain import ChainConfig, Gaussian, gaussian_log_prob

StepDistribution = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""Mean and standard deviation (B, H, A) of the sample after a step: (sample (B, H, A), number of
the step) to both."""
_EACH = ChainConfig(reduce="none")
ENTROPY = 0.5 * math.log(2.0 * math.pi * math.e)
"""Entropy of the standard normal distribution [nat]."""


class NoisyChain(NamedTuple):
    """A sampled chain and its log-probability."""

    sample_BLHA: Tensor
    """Samples from noise (first) to the clean chunk (last)."""
    log_prob_BHA: Tensor
    """Log-probability of every entry, summed over the steps."""


class ChainLikelihood(NamedTuple):
    """Likelihood of a stored chain under current weights, per entry, summed over its steps."""

    log_prob_BHA: Tensor
    entropy_BHA: Tensor
    """Entropy of the steps [nat]."""


def sample_noisy_chain(distribution: StepDistribution, noise_LBHA: Tensor) -> NoisyChain:
    """Samples a chain of K steps.

    Args:
        distribution: distribution of every step.
        noise_LBHA: standard normal; the initial sample, and the noise of the K steps.
    """
    samples, log_prob_BHA = [noise_LBHA[0]], torch.zeros_like(noise_LBHA[0])
    for step in range(len(noise_LBHA) - 1):
        mean_BHA, std_BHA = distribution(samples[-1], step)
        samples.append(torch.addcmul(mean_BHA, std_BHA, noise_LBHA[step + 1]))
        log_prob_BHA = log_prob_BHA + _log_normal(samples[-1], mean_BHA, std_BHA)
    return NoisyChain(torch.stack(samples, dim=1), log_prob_BHA)


def noisy_chain_likelihood(distribution: StepDistribution, chain_BLHA: Tensor) -> ChainLikelihood:
    """Likelihood of a stored chain, with gradients.

    Args:
        distribution: distribution of every step under current weights.
        chain_BLHA: from `NoisyChain.sample_BLHA`.
    """
    log_prob_BHA = entropy_BHA = torch.zeros_like(chain_BLHA[:, 0])
    for step in range(chain_BLHA.shape[1] - 1):
        mean_BHA, std_BHA = distribution(chain_BLHA[:, step], step)
        log_prob_BHA = log_prob_BHA + _log_normal(chain_BLHA[:, step + 1], mean_BHA, std_BHA)
        entropy_BHA = entropy_BHA + std_BHA.log() + ENTROPY
    return ChainLikelihood(log_prob_BHA, entropy_BHA)


def bounded_std(output: Tensor, low: float, high: float) -> Tensor:
    """Standard deviations from unbounded outputs of a network, log-interpolated between the
    bounds."""
    lowest, highest = math.log(low), math.log(high)
    return (lowest + (highest - lowest) * output.sigmoid()).exp()


def _log_normal(value_BHA: Tensor, mean_BHA: Tensor, std_BHA: Tensor) -> Tensor:
    """(B, H, A) log-density of every entry [nat]."""
    standard_BHA = (value_BHA - mean_BHA) / std_BHA
    one_B = standard_BHA.new_ones(len(standard_BHA))
    # Log-density of the standardised value, less the log of the scale.
    return (
        gaussian_log_prob(standard_BHA, Gaussian(torch.zeros_like(mean_BHA), one_B), _EACH)
        - std_BHA.log()
    )
