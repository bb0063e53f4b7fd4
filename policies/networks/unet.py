"""Conditional one-dimensional U-Net of Diffusion Policy (Chi et al., RSS 2023), its default
denoiser.

This follows the released diffusion_policy (`ConditionalUnet1D` with `cond_predict_scale`). Every
level has two residual blocks, whose first convolution is scaled and shifted by a linear function of
timestep and observation (FiLM). On the way up, each level is concatenated with the skip connection
of the coarser level; as released, there is one upsampling fewer than levels, so the skip connection
of the finest level is not used.

Chunks have few steps (16, 8, 4) and many channels, so a convolution is implemented as one matrix
product over gathered neighbours: on one CPU core it runs several times faster than `conv1d` and its
gradients.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, L steps at a level, C
channels, F condition, E
embedding of the timestep.
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
    """Velocity of a noisy chunk, conditioned on timestep and observation.

    Args:
        chunk: (H, A).
        observation: (T, O).
        timesteps: number of noise levels.
        config: sizes.

    Raises:
        HandoffError: the horizon is not divisible by 2 ** (levels - 1), or a width by the groups.
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
        self.upsample = nn.ModuleList(Upsample(width) for width in finer)
        self.last = NormalizedConvolution(widths[0], widths[0], config.kernel, config.groups)
        self.output = nn.Linear(widths[0], chunk[1])

    def forward(
        self,
        noisy_BHA: Tensor,
        timestep_B: Tensor,
        observation_BTO: Tensor,
        shift_BE: Tensor | None = None,
    ) -> Tensor:
        """Predicts the velocity (B, H, A).

        Args:
            noisy_BHA: chunk at its noise level, normalised.
            timestep_B: int64.
            observation_BTO: normalised, newest step last.
            shift_BE: added to the embedding of the timestep; None adds nothing.
        """
        time_BE = self.embeddings_KE[timestep_B]
        embedded = self.time(time_BE if shift_BE is None else time_BE + shift_BE)
        # Every block starts with the Mish of the same vector, so it is computed once.
        condition_BF = mish(
            torch.cat([embedded, observation_BTO.flatten(1).to(embedded.dtype)], dim=-1)
        )
        hidden_BLC, skipped = noisy_BHA, []
        for level, pair in enumerate(self.down):
            hidden_BLC = _apply(pair, hidden_BLC, condition_BF)
            skipped.append(hidden_BLC)
            if level < len(self.downsample):
                hidden_BLC = self.downsample[level](hidden_BLC)
        hidden_BLC = _apply(self.middle, hidden_BLC, condition_BF)
        for pair, upsample in zip(self.up, self.upsample, strict=True):
            hidden_BLC = torch.cat([hidden_BLC, skipped.pop()], dim=-1)
            hidden_BLC = upsample(_apply(pair, hidden_BLC, condition_BF))
        return self.output(self.last(hidden_BLC))


class FilmBlock(nn.Module):
    """Residual block: two convolutions with a FiLM scale and shift between them; the shortcut is
    linear if sizes differ."""

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
    """Convolution with unchanged number of steps, GroupNorm and Mish."""

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.convolution = Convolution(inputs, outputs, kernel)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, hidden_BLC: Tensor) -> Tensor:
        """(B, L, inputs) to (B, L, outputs)."""
        # GroupNorm needs channels before steps. Mish's backward pass is slow unless its gradient
        # has its input's memory layout.
        normal_BCL = self.norm(self.convolution(hidden_BLC).float().transpose(1, 2))
        return mish(normal_BCL.transpose(1, 2).contiguous())


class Convolution(nn.Linear):
    """`Conv1d` with steps before channels and zero padding, as one matrix product over gathered
    neighbours.

    `weight` is (outputs, kernel * inputs), earliest neighbour first; its initialisation is that of
    `Conv1d`.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(kernel * inputs, outputs)
        self.kernel = kernel
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """(B, L, inputs) to (B, L / stride, outputs)."""
        length, around = input.shape[1], self.kernel // 2
        if torch.compiler.is_exporting():
            # With the convolution operator an exported graph is smaller and much faster to trace.
            weight = self.weight.unflatten(1, (self.kernel, -1)).transpose(1, 2)
            return conv1d(input.transpose(1, 2), weight, self.bias, self.stride, around).transpose(
                1, 2
            )
        padded = pad(_autocast(input), (0, 0, around, around))
        neighbours = [
            padded[:, first : first + length : self.stride] for first in range(self.kernel)
        ]
        return linear_keeping_layout(torch.cat(neighbours, dim=-1), self.weight, self.bias)


class Upsample(nn.Module):
    """Upsampling by 2: `ConvTranspose1d(width, width, 4, stride=2, padding=1)`.

    Output 2m depends on steps m-1 and m, output 2m+1 on m and m+1, with separate weights (2, C,
    2C).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(
            4 * width
        )  # initialisation of ConvTranspose1d, whose fan-in counts four neighbours
        self.weight = nn.Parameter(torch.empty(2, width, 2 * width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(width).uniform_(-bound, bound))

    def forward(self, hidden_BLC: Tensor) -> Tensor:
        """(B, L, C) to (B, 2 L, C)."""
        padded = pad(_autocast(hidden_BLC), (0, 0, 1, 1))
        pairs = torch.cat([padded[:, :-1], padded[:, 1:]], dim=-1)
        even, odd = (
            linear_keeping_layout(pairs[:, i : pairs.shape[1] - 1 + i], self.weight[i], self.bias)
            for i in (0, 1)
        )
        return torch.stack([even, odd], dim=2).flatten(1, 2)


def linear_keeping_layout(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`linear` whose weight gradient has the memory layout of the weight."""
    if weight.requires_grad and torch.is_grad_enabled():
        return cast(Tensor, _Linear.apply(input, weight, bias))
    return linear(input, weight, bias)


class _Linear(torch.autograd.Function):
    """Linear layer with a custom backward pass: torch's weight gradient is a transposed view, and
    copying it costs as much as the product, as does its conversion under autocast."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        rows, converted = _autocast(input).flatten(0, -2), _autocast(weight)
        # Saves the weights unconverted: a converted copy of all of them would take an eighth of the
        # peak memory.
        ctx.save_for_backward(rows, weight)
        ctx.shape = input.shape
        ctx.dtype = input.dtype
        return linear(rows, converted, bias.to(converted.dtype)).unflatten(0, input.shape[:-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        rows, weight = ctx.saved_tensors
        outputs = gradient.flatten(0, -2).to(rows.dtype)
        to_input = (outputs @ weight.to(rows.dtype)).view(ctx.shape).to(ctx.dtype)
        return to_input, (outputs.T @ rows).to(weight.dtype), outputs.sum(0, dtype=weight.dtype)


def _autocast(tensor: Tensor) -> Tensor:
    """Converts to the autocast precision, if autocast is on."""
    device = tensor.device.type
    return (
        tensor.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else tensor
    )


def _apply(pair: nn.Module, hidden_BLC: Tensor, condition_BF: Tensor) -> Tensor:
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
