"""Options of the augmentation of pictures. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from robots.config import ShareBelowOne, config


@config
class ImageAugmentationConfig:
    """Random changes of a camera's pictures in training, one draw per window and camera; all are
    off by default, and none applies in evaluation."""

    shift: Annotated[int, Field(ge=0, le=512)] = 0
    """Largest shift of the resized image in each axis [px], with its edges repeated (DrQ)."""
    rotation: Annotated[float, Field(ge=0.0, le=0.5)] = 0.0
    """Largest rotation about the image's centre [rad], as of a camera that rolls."""
    zoom: ShareBelowOne = 0.0
    """Largest relative change of the image's scale, as of a camera that moves along its axis."""
    perspective: Annotated[float, Field(ge=0.0, le=0.5)] = 0.0
    """Largest relative difference of scale between the image's centre and an edge, as of a camera
    that pans or tilts."""
    brightness: ShareBelowOne = 0.0
    """Largest deviation from 1 of the factor of the brightness."""
    contrast: ShareBelowOne = 0.0
    """Largest deviation from 1 of the factor of the differences from the image's mean luminance."""
    saturation: ShareBelowOne = 0.0
    """Largest deviation from 1 of the factor of the differences from a pixel's luminance."""
    hue: Annotated[float, Field(ge=0.0, le=0.5)] = 0.0
    """Largest rotation of the hue [turns]."""

    @property
    def warps(self) -> bool:
        """Whether pictures are resampled as from another pose of the camera."""
        return max(self.rotation, self.zoom, self.perspective) > 0.0

    @property
    def recolours(self) -> bool:
        """Whether colours change."""
        return max(self.brightness, self.contrast, self.saturation, self.hue) > 0.0

    @property
    def enabled(self) -> bool:
        """Whether anything changes."""
        return self.shift > 0 or self.warps or self.recolours
