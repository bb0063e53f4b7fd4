"""Computes the part of a camera's picture that an image encoder sees: the picture is resized, then
cropped. Imports no torch.

Resizing before a crop of about nine tenths is the order of the released diffusion_policy and of
LeRobot's diffusion policy. Sizes are (height, width) [px].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from policies.chunk_policy_config import ChunkPolicyConfig, EncodedPolicyConfig
from policies.networks.config import PicturePartConfig
from robots.errors import HandoffError

SMALL_SHARE = 0.5
"""Crops that cover a smaller fraction of the picture are reported."""


class EncodedSize(NamedTuple):
    """Size of a picture after resizing, and of the crop that the network sees."""

    resized: tuple[int, int]
    crop: tuple[int, int]

    @property
    def share(self) -> float:
        """Fraction of the picture's area that one crop covers."""
        return self.crop[0] * self.crop[1] / (self.resized[0] * self.resized[1])


def encoded_size(config: PicturePartConfig, recorded: tuple[int, ...], field: str) -> EncodedSize:
    """Size to which the pictures of a camera are resized, and of the crop taken from them.

    The aspect ratio is kept: 480 x 640 is resized to 96 x 128, of which 84 x 112 are seen by
    default.

    Args:
        config: options of the encoder.
        recorded: height and width of the recorded pictures.
        field: name of the camera, for messages.

    Raises:
        HandoffError: the crop is larger than the pictures.
    """
    height, width = recorded[:2]
    usual = config.default_shorter_side if config.crop is None else None
    shorter = config.resize or usual or min(height, width)
    resized = height, width
    if min(height, width) > shorter:
        resized = _scaled(height, shorter, resized), _scaled(width, shorter, resized)
    if config.crop is None:
        ratio = config.crop_ratio or config.default_crop_ratio
        return EncodedSize(resized, (_part(resized[0], ratio), _part(resized[1], ratio)))
    if config.crop[0] > resized[0] or config.crop[1] > resized[1]:
        then = "" if resized == (height, width) else f", resized to {_text(resized)}"
        raise HandoffError(
            f"policy.image_encoder.crop: {_text(config.crop)} px (height x width) is larger than the pictures of "
            f"'{field}', which have {_text((height, width))} px{then}. Set a size that fits, or crop_ratio."
        )
    return EncodedSize(resized, config.crop)


def encoded_sizes(
    model: ChunkPolicyConfig, recorded: Mapping[str, tuple[int, ...]]
) -> dict[str, EncodedSize]:
    """What the image encoders of a policy see, by camera; empty for families that see whole
    pictures.

    Args:
        model: configuration of the policy, with the names of cameras in place of patterns.
        recorded: height and width of the pictures of its cameras; cameras without are left out.

    Raises:
        HandoffError: a crop is larger than the pictures.
    """
    if not isinstance(model, EncodedPolicyConfig):
        return {}
    names = [name for name in model.image_fields if name in recorded]
    return {name: encoded_size(model.image_encoder, recorded[name], name) for name in names}


def small_crops(sizes: Mapping[str, EncodedSize]) -> dict[str, float]:
    """Fraction of the picture that a crop covers, by camera, where it is less than half."""
    return {name: size.share for name, size in sizes.items() if size.share < SMALL_SHARE}


def small_crop_note(shares: Mapping[str, float]) -> str:
    """A note on crops that cover less than half of their pictures; empty without any.

    Args:
        shares: see `small_crops`.
    """
    parts = [f"{share:.0%} of the pictures of '{name}'" for name, share in shares.items()]
    return f"a crop of image_encoder covers only {' and '.join(parts)}" if parts else ""


def _scaled(side: int, shorter: int, size: tuple[int, int]) -> int:
    """The side of a picture whose shorter side becomes `shorter`, rounded half up."""
    smallest = min(size)
    return (2 * side * shorter + smallest) // (2 * smallest)


def _part(side: int, ratio: float) -> int:
    """A fraction of a side, rounded half up, at least one pixel."""
    return max(1, int(side * ratio + 0.5))


def _text(size: tuple[int, ...]) -> str:
    return f"{size[0]} x {size[1]}"
