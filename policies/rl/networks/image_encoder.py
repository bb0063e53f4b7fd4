"""Encodes images for RL learners: SERL's encoder (arXiv 2401.16013), with HIL-SERL's learned
spatial embeddings.

A small network of convolutions, or a frozen one that is given, then eight learned spatial
embeddings, a linear layer, LayerNorm and tanh per camera; the observation vector passes a layer of
its own; all is put side by side. Pictures at s and at s' are shifted at random, each anew (DrQ,
arXiv 2004.13649).

Critics train the encoder, the actor is shown detached features. The released SERL stops the actor's
gradient before the pictures only and lets it train the layer of the vector; here it stops before
both, as the paper says. As in the code the target critics look through an encoder that follows
slowly, and the next action through the present one. Its dropout of 0.1 behind the embeddings is
left out, so that an update stays a function of the weights and its number.

Shape suffixes: B batch, C channels, H height, W width, E spatial embeddings, F features, O
observation.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from policies.rl.networks.config import EncoderConfig
from policies.rl.networks.ensemble import Features
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError


class Encoder(Features):
    """Observation vector and pictures to features.

    Args:
        config: see there.
        sizes: of the data.
        backbones: per camera a module from (B, 3, H, W) in [0, 1] to (B, C, h, w), which is frozen;
            a camera without one gets convolutions of its own, which learn.

    Raises:
        HandoffError: a backbone for no camera, or a picture too small for the convolutions.
    """

    def __init__(
        self, config: EncoderConfig, sizes: Sizes, backbones: Mapping[str, nn.Module] | None = None
    ) -> None:
        super().__init__(sizes)
        cameras = [name for name, _, _ in sizes.pictures]
        unknown = sorted(set(backbones or {}) - set(cameras))
        if unknown:
            raise HandoffError(
                f"encoder: backbones for {unknown}, the cameras are {cameras}. A typing error?"
            )
        self.reduce_vector = _reduction(self.size, config.vector_width)
        self.pictures = nn.ModuleDict(
            {
                name: SerlImageEncoder(config, name, height, width, (backbones or {}).get(name))
                for name, height, width in sizes.pictures
            }
        )
        self.size = config.vector_width + len(cameras) * config.picture_width

    def forward(self, vector_BO: Tensor, pictures: Mapping[str, Tensor] | None = None) -> Tensor:
        """(B, F): those of the cameras one after another, then those of the vector.

        Args:
            vector_BO: in physical units.
            pictures: per camera (B, H, W, 3) uint8 RGB.

        Raises:
            HandoffError: a camera's pictures are missing.
        """
        pictures = pictures or {}
        missing = sorted(set(self.pictures) - set(pictures))
        if missing:
            raise HandoffError(
                f"encoder: no pictures of {missing}, only of {sorted(pictures)}. A camera that is off, or a learner "
                "that looks at vectors only?"
            )
        parts = [encoder(pictures[name]) for name, encoder in self.pictures.items()]
        return torch.cat([*parts, self.reduce_vector(super().forward(vector_BO))], dim=1)


def looked_at(features: Features, seen: Observations) -> Tensor:
    """(B, F): what `features` makes of it, the pictures if it is an `Encoder`."""
    if isinstance(features, Encoder):
        return features(seen.vector_BO, seen.pictures)
    return features(seen.vector_BO)


class SerlImageEncoder(nn.Module):
    """One camera's pictures to features."""

    def __init__(
        self,
        config: EncoderConfig,
        name: str,
        height: int,
        width: int,
        backbone: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.frozen = backbone is not None
        if backbone is None:
            self.backbone: nn.Module = _convolutions(config.channels, name, height, width)
        else:
            self.backbone = backbone.requires_grad_(False).eval()
        with torch.no_grad():
            map_1CHW = self.backbone(torch.zeros(1, 3, height, width))
        _, channels, rows, columns = map_1CHW.shape
        self.embeddings = SpatialEmbeddings(config.embeddings, channels, rows, columns)
        self.reduce = _reduction(config.embeddings * channels, config.picture_width)

    def train(self, mode: bool = True) -> SerlImageEncoder:
        """Training or evaluation mode; a frozen backbone stays in the latter, or its statistics
        would drift."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, picture_BHWC: Tensor) -> Tensor:
        """uint8 RGB to (B, F)."""
        picture_BCHW = picture_BHWC.permute(0, 3, 1, 2).to(self.embeddings.place_ECHW.dtype) / 255.0
        if self.frozen:
            with torch.no_grad():
                map_BCHW = self.backbone(picture_BCHW)
        else:
            map_BCHW = self.backbone(picture_BCHW)
        return self.reduce(self.embeddings(map_BCHW))


class SpatialEmbeddings(nn.Module):
    """E learned weightings of the places of a feature map; every channel is summed up with each of
    them.

    Initial weights have a deviation of (C H W)^-1/2, as in the released code.
    """

    def __init__(self, count: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        scale = (channels * height * width) ** -0.5
        self.place_ECHW = nn.Parameter(scale * torch.randn(count, channels, height, width))

    def forward(self, map_BCHW: Tensor) -> Tensor:
        """(B, E C)."""
        return torch.einsum("bchw,echw->bec", map_BCHW, self.place_ECHW).flatten(1)


def random_shift(picture_BHWC: Tensor, offset_2B: Tensor, pad: int) -> Tensor:
    """Pictures cut at `offset` out of ones whose edges were repeated `pad` times: (0, 0) moves them
    down and right.

    Args:
        picture_BHWC: any dtype.
        offset_2B: int64 in [0, 2 pad], rows and columns; `pad` shifts nothing.
        pad: pixels.
    """
    batch, height, width, _ = picture_BHWC.shape
    steps_H, steps_W = (
        torch.arange(size, device=picture_BHWC.device) - pad for size in (height, width)
    )
    rows_BH = (steps_H + offset_2B[0][:, None]).clamp(0, height - 1)
    columns_BW = (steps_W + offset_2B[1][:, None]).clamp(0, width - 1)
    row_B11 = torch.arange(batch, device=picture_BHWC.device)[:, None, None]
    return picture_BHWC[row_B11, rows_BH[:, :, None], columns_BW[:, None, :]]


def shifted_observation(seen: Observations, pad: int, generator: torch.Generator) -> Observations:
    """Every row shifted by an offset of its own, the same for all of its cameras [C]."""
    if not seen.pictures or pad == 0:
        return seen
    offset_2B = torch.randint(2 * pad + 1, (2, len(seen.vector_BO)), generator=generator)
    device = seen.vector_BO.device
    pictures = {
        name: random_shift(picture, offset_2B.to(device), pad)
        for name, picture in seen.pictures.items()
    }
    return seen._replace(pictures=pictures)


def augmented(batch: Transitions, pad: int, generator: torch.Generator) -> Transitions:
    """The minibatch with the pictures of s and of s' shifted, independently of one another."""
    if not batch.seen.pictures:
        return batch
    seen, after = (
        shifted_observation(batch.seen, pad, generator),
        shifted_observation(batch.next_seen, pad, generator),
    )
    return batch._replace(seen=seen, next_seen=after)


def _convolutions(channels: tuple[int, ...], name: str, height: int, width: int) -> nn.Sequential:
    """SERL's small encoder: 3 x 3 convolutions that go in steps of 2, without padding, each with
    ReLU [C]."""
    smallest = 2 ** (len(channels) + 1) - 1
    if min(height, width) < smallest:
        raise HandoffError(
            f"encoder: pictures of camera {name} have {height} x {width} pixels; {len(channels)} convolutions in steps "
            f"of 2 need {smallest} either way. Larger pictures, or fewer channels?"
        )
    layers: list[nn.Module] = []
    for before, after in zip((3, *channels[:-1]), channels, strict=True):
        layers += [nn.Conv2d(before, after, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*layers)


def _reduction(size: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, width), nn.LayerNorm(width, eps=1e-6), nn.Tanh())
