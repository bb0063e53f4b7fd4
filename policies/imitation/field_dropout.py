"""Hides observation fields in some of the training windows.

A demonstrator goes on where it is already going, so a field that shows where, such as the last
command or a velocity, predicts the next action without what the task asks to be seen, and alone the
policy goes on wherever it happens to go (de Haan et al., NeurIPS 2019; Wen et al., NeurIPS 2020).
Windows without the field have to be predicted from the rest of the observation, as with the dropped
proprioception of GR00T N1.5's released training.

Shape suffixes: B batch, T observed steps, O observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from robots.errors import HandoffError, suggest


class FieldDropout(NamedTuple):
    """Observation fields that are hidden at random; see `PretrainConfig.field_dropout`."""

    fields: tuple[tuple[int, int, float], ...]
    """Per field its start and end in the observation vector, and the fraction of the windows in
    which it is hidden."""

    @classmethod
    def of(
        cls, fractions: Mapping[str, float], entries: Mapping[str, tuple[int, int]]
    ) -> FieldDropout:
        """The dropout of `fractions`, by name of the field.

        Args:
            fractions: fraction of the windows, by field.
            entries: start and end of every observed field, see `Shapes.entries`.

        Raises:
            HandoffError: a field that the policy does not observe.
        """
        for name in fractions:
            if name not in entries:
                raise HandoffError(
                    f"pretrain: field_dropout names '{name}', which the policy does not observe; "
                    f"{suggest(name, entries, 'observed are')}"
                )
        return cls(
            tuple((*entries[name], share) for name, share in fractions.items() if share > 0.0)
        )

    def __call__(self, vector_BTO: Tensor, generator: np.random.Generator) -> Tensor:
        """The normalised observation vectors, where hidden fields are 0, the middle of their range.

        Args:
            vector_BTO: normalised observation vectors.
            generator: decides about every window and field, all observed steps alike.
        """
        if not self.fields:
            return vector_BTO
        hidden_BO = np.zeros((vector_BTO.shape[0], vector_BTO.shape[-1]), bool)
        for start, end, share in self.fields:
            hidden_BO[:, start:end] = generator.random((len(hidden_BO), 1)) < share
        hidden_B1O = torch.from_numpy(hidden_BO).to(vector_BTO.device)[:, None]
        return vector_BTO.masked_fill(hidden_B1O, 0.0)
