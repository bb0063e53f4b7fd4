"""The conditional U-Net over the steps of a chunk of Diffusion Policy (Chi et al., RSS 2023), its
default denoiser.

Followed is the released diffusion_policy (`ConditionalUnet1D` with `cond_predict_scale`). Every
level has two residual blocks, whose first convolution is scaled and shifted by a linear function of
noise level and observation (FiLM). Going up, each level is joined to the output that went down from
it, and the finest is only joined from above: as released, with one upsampling fewer than levels,
the finest level's own output is left out.

Steps are few (16, 8, 4) and channels many, so a convolution is written as one matrix product over
gathered neighbours: on one processor core that runs several times faster than `conv1d` and its
gradients.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, L steps at a level, C
channels, F condition.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, linear, mish, pad

from policies.networks.config import UnetConfig
from policies.networks.mlp import sinusoidal_embedding
from robots.errors import HandoffError


class UnetDenoiser(nn.Module):
    """Velocity of a noisy chunk, given its noise level and the observation.

    Args:
        chunk: (H, A).
        observation: (T, O).
        timesteps: noise levels of the schedule.
        config: sizes.

    Raises:
        HandoffError: the horizon cannot be halved so often, or groups do not divide widths.
    """

    embeddings_KE: Tensor

    def __init__(
        self,
        chunk: tuple[int, int],
        observation: tuple[int, int],
        timesteps: int,
        config: UnetConfig,
    ) -> None:
        super().__init__()
        _check(chunk[0], config)
        widths, size = config.widths, config.time_embedding
        condition = size + math.prod(observation)

        def pair(inputs: int, outputs: int) -> nn.ModuleList:
            sizes = ((inputs, outputs), (outputs, outputs))
            return nn.ModuleList(
                FilmBlock(*each, condition, config.kernel, config.groups) for each in sizes
            )

        self.register_buffer(
            "embeddings_KE", sinusoidal_embedding(timesteps, size), persistent=False
        )
        self.time = nn.Sequential(nn.Linear(size, 4 * size), nn.Mish(), nn.Linear(4 * size, size))
        self.down = nn.ModuleList(
            pair(*sizes) for sizes in zip((chunk[1], *widths[:-1]), widths, strict=True)
        )
        self.downsample = nn.ModuleList(
            Convolution(width, width, 3, stride=2) for width in widths[:-1]
        )
        self.middle = pair(widths[-1], widths[-1])
        finer, coarser = widths[:-1][::-1], widths[1:][::-1]
        self.up = nn.ModuleList(
            pair(2 * wide, narrow) for wide, narrow in zip(coarser, finer, strict=True)
        )
        self.upsample = nn.ModuleList(Doubling(width) for width in finer)
        self.last = NormalizedConvolution(widths[0], widths[0], config.kernel, config.groups)
        self.output = nn.Linear(widths[0], chunk[1])

    def forward(self, noisy_BHA: Tensor, timestep_B: Tensor, observation_BTO: Tensor) -> Tensor:
        """Predicts the velocity (B, H, A).

        Args:
            noisy_BHA: chunk at its noise level, normalised.
            timestep_B: noise level of each row, int64.
            observation_BTO: normalised, newest step last.
        """
        embedded = self.time(self.embeddings_KE[timestep_B])
        # Every block begins with the Mish of the same vector.
        condition_BF = mish(
            torch.cat([embedded, observation_BTO.flatten(1).to(embedded.dtype)], dim=-1)
        )
        hidden_BLC, skipped = noisy_BHA, []
        for level, pair in enumerate(self.down):
            hidden_BLC = _through(pair, hidden_BLC, condition_BF)
            skipped.append(hidden_BLC)
            if level < len(self.downsample):
                hidden_BLC = self.downsample[level](hidden_BLC)
        hidden_BLC = _through(self.middle, hidden_BLC, condition_BF)
        for pair, upsample in zip(self.up, self.upsample, strict=True):
            hidden_BLC = torch.cat([hidden_BLC, skipped.pop()], dim=-1)
            hidden_BLC = upsample(_through(pair, hidden_BLC, condition_BF))
        return self.output(self.last(hidden_BLC))


class FilmBlock(nn.Module):
    """Two convolutions around a scale and a shift that the condition sets, added to the input (1x1
    if sizes differ)."""

    def __init__(self, inputs: int, outputs: int, condition: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.first = NormalizedConvolution(inputs, outputs, kernel, groups)
        self.film = nn.Linear(condition, 2 * outputs)
        self.second = NormalizedConvolution(outputs, outputs, kernel, groups)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Linear(inputs, outputs)

    def forward(self, hidden_BLC: Tensor, condition_BF: Tensor) -> Tensor:
        """(B, L, inputs) and the activated condition (B, F) to (B, L, outputs)."""
        scale_B1C, shift_B1C = self.film(condition_BF)[:, None].chunk(2, dim=-1)
        return self.second(scale_B1C * self.first(hidden_BLC) + shift_B1C) + self.shortcut(
            hidden_BLC
        )


class NormalizedConvolution(nn.Module):
    """Convolution that keeps the number of steps, GroupNorm over steps and the channels of a group,
    Mish."""

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.convolution = Convolution(inputs, outputs, kernel)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, hidden_BLC: Tensor) -> Tensor:
        """(B, L, inputs) to (B, L, outputs)."""
        # The norm wants channels before steps. Mish's gradient is slow unless it lies in memory as
        # its input does.
        normal_BCL = self.norm(self.convolution(hidden_BLC).float().transpose(1, 2))
        return mish(normal_BCL.transpose(1, 2).contiguous())


class Convolution(nn.Linear):
    """`Conv1d` with steps before channels and zeros around, as one matrix product over gathered
    neighbours.

    `weight` is (outputs, kernel * inputs), earliest neighbour first; it starts as that of `Conv1d`
    would.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(kernel * inputs, outputs)
        self.kernel = kernel
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """(B, L, inputs) to (B, L / stride, outputs)."""
        length, around = input.shape[1], self.kernel // 2
        if torch.compiler.is_exporting():
            # A graph is smaller, and traced in a fraction of the time, with the operator of that
            # name.
            weight = self.weight.unflatten(1, (self.kernel, -1)).transpose(1, 2)
            return conv1d(input.transpose(1, 2), weight, self.bias, self.stride, around).transpose(
                1, 2
            )
        padded = pad(_multiplied(input), (0, 0, around, around))
        neighbours = [
            padded[:, first : first + length : self.stride] for first in range(self.kernel)
        ]
        return linear_keeping_layout(torch.cat(neighbours, dim=-1), self.weight, self.bias)


class Doubling(nn.Module):
    """`ConvTranspose1d(width, width, 4, stride=2, padding=1)`: twice the steps, each from its two
    nearest ones.

    Output 2m sees steps m-1 and m, output 2m+1 sees m and m+1, each through weights of its own, (2,
    C, 2C).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(4 * width)  # of ConvTranspose1d, which counts four neighbours
        self.weight = nn.Parameter(torch.empty(2, width, 2 * width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(width).uniform_(-bound, bound))

    def forward(self, hidden_BLC: Tensor) -> Tensor:
        """(B, L, C) to (B, 2 L, C)."""
        padded = pad(_multiplied(hidden_BLC), (0, 0, 1, 1))
        pairs = torch.cat([padded[:, :-1], padded[:, 1:]], dim=-1)
        even, odd = (
            linear_keeping_layout(pairs[:, i : pairs.shape[1] - 1 + i], self.weight[i], self.bias)
            for i in (0, 1)
        )
        return torch.stack([even, odd], dim=2).flatten(1, 2)


def linear_keeping_layout(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`linear`, whose gradients come in the layout of the weights when those learn."""
    if weight.requires_grad and torch.is_grad_enabled():
        return cast(Tensor, _Product.apply(input, weight, bias))
    return linear(input, weight, bias)


class _Product(torch.autograd.Function):
    """torch's own gradient is the transpose of the weight's in memory; turning millions of numbers
    round costs as much as the product, and so does its second conversion under autocast."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        rows, multiplied = _multiplied(input).flatten(0, -2), _multiplied(weight)
        # Kept as they are and converted again: a second copy of all weights would be an eighth of
        # the peak memory.
        ctx.save_for_backward(rows, weight)
        ctx.shape = input.shape
        ctx.dtype = input.dtype
        return linear(rows, multiplied, bias.to(multiplied.dtype)).unflatten(0, input.shape[:-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        rows, weight = ctx.saved_tensors
        outputs = gradient.flatten(0, -2).to(rows.dtype)
        to_input = (outputs @ weight.to(rows.dtype)).view(ctx.shape).to(ctx.dtype)
        return to_input, (outputs.T @ rows).to(weight.dtype), outputs.sum(0, dtype=weight.dtype)


def _multiplied(tensor: Tensor) -> Tensor:
    """As matrix products take it: in the precision of autocast, if that is on."""
    device = tensor.device.type
    return (
        tensor.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else tensor
    )


def _through(pair: nn.Module, hidden_BLC: Tensor, condition_BF: Tensor) -> Tensor:
    for block in pair.children():
        hidden_BLC = block(hidden_BLC, condition_BF)
    return hidden_BLC


def _check(horizon: int, config: UnetConfig) -> None:
    widths = config.widths
    if not widths or config.kernel % 2 == 0 or any(width % config.groups for width in widths):
        raise HandoffError(
            f"unet: widths {list(widths)}, kernel {config.kernel} and groups {config.groups}, expected at least one "
            "width, each a multiple of groups, and an odd kernel."
        )
    factor = 2 ** (len(widths) - 1)
    if horizon % factor:
        raise HandoffError(
            f"unet: horizon {horizon} is not a multiple of {factor}; {len(widths)} widths halve it {len(widths) - 1} "
            "times. Choose another horizon, or fewer widths?"
        )
