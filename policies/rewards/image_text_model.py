"""Loads image-text models from a local folder; nothing is fetched from a hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robots.errors import HandoffError

_BATCH = 64
"""Images per forward pass, which bounds memory."""


class ClipModel:
    """A CLIP model as the protocol `policies.rewards.vision_language.Embed`.

    Args:
        model: CLIP model of transformers, in evaluation mode.
        processor: its processor of images and sentences.
    """

    def __init__(self, model: Any, processor: Any) -> None:
        self._model = model
        self._processor = processor

    @torch.no_grad()
    def images(self, images: np.ndarray) -> np.ndarray:
        """`(B, H, W, 3)` uint8 RGB to unit vectors `(B, D)`."""
        parts = []
        for first in range(0, len(images), _BATCH):
            batch = list(images[first : first + _BATCH])
            inputs = self._processor(images=batch, return_tensors="pt")
            parts.append(_unit(self._model.get_image_features(**inputs)))
        return np.concatenate(parts)

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """B sentences to unit vectors `(B, D)` of the same space."""
        inputs = self._processor(text=list(texts), return_tensors="pt", padding=True)
        return _unit(self._model.get_text_features(**inputs))


def load_image_text_model(folder: Path) -> ClipModel:
    """The CLIP model in `folder`, on the CPU.

    Raises:
        HandoffError: the folder does not hold a CLIP model and its processor.
    """
    from transformers import CLIPModel, CLIPProcessor

    try:
        model = CLIPModel.from_pretrained(folder, local_files_only=True)
        processor = CLIPProcessor.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise HandoffError(
            f"{folder}: no CLIP model could be loaded ({reason}). Expected a folder written by save_pretrained of "
            "the model and of its processor."
        ) from None
    return ClipModel(model.eval(), processor)


def _unit(features: Any) -> np.ndarray:
    # Newer versions of transformers return an object with the projected features.
    vectors = getattr(features, "pooler_output", features).double()
    return (vectors / vectors.norm(dim=1, keepdim=True)).cpu().numpy()
