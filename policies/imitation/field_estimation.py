"""Trains a policy's estimator of fields that it does not observe beside its actions, see
`policies.networks.field_estimator`.

Shape suffixes: B batch, M recorded steps, T observed steps, G estimated entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from policies.data.demonstrations import DemonstrationArrays, OpenStore, read_vectors
from policies.data.windows import Windows
from policies.imitation.auxiliary_loss import recording_outputs
from policies.networks.field_estimator import FieldEstimator
from policies.normalize import MinMaxStatistics
from policies.policy import Batch, ChunkPolicy
from robots.errors import HandoffError


class FieldEstimation:
    """The error of a policy's estimates, an `AuxiliaryLoss`.

    Args:
        estimator: the estimator, a part of the policy.
        weight: factor of the mean absolute error, in units of half the range of an entry.
    """

    def __init__(self, estimator: FieldEstimator, weight: float) -> None:
        self.estimator = estimator
        self._weight = weight
        self._estimated: list[Tensor] = []

    def listening(self) -> AbstractContextManager[None]:
        """See `AuxiliaryLoss`."""
        return recording_outputs(self.estimator, self._estimated)

    def loss(self, batch: Batch) -> Tensor:
        """See `AuxiliaryLoss`."""
        assert batch.estimated_BTG is not None
        error_BTG = self._estimated[0].float() - batch.estimated_BTG
        return self._weight * error_BTG.abs().mean()


def with_field_estimation(
    module: ChunkPolicy,
    windows: Windows,
    stores: Sequence[OpenStore],
    data: DemonstrationArrays,
    training: np.ndarray,
    weight: float,
) -> tuple[Windows, FieldEstimation | None]:
    """Fits the normaliser of the policy's estimator and adds its targets to the windows; a policy
    without `estimated_fields` and its windows stay as they are.

    Args:
        module: the policy.
        windows: windows of the training.
        stores: the stores of `data`.
        data: the recorded steps.
        training: numbers of the training episodes, whose range the normaliser takes.
        weight: factor of the error.

    Raises:
        HandoffError: a value that is not finite.
    """
    estimators = [part for part in module.modules() if isinstance(part, FieldEstimator)]
    if not estimators:
        return windows, None
    if len(estimators) != 1:
        raise HandoffError(
            f"pretrain: policy.estimated_fields needs a family with one encoder of observations; "
            f"{module.config.kind} has {len(estimators)}. Leave it out."
        )
    value_MG = read_vectors(stores, tuple(data.card.estimated))
    statistics = MinMaxStatistics(value_MG.shape[1])
    starts_E = np.concatenate([[0], data.ends_E[:-1]])
    for number in training:
        statistics.update(value_MG[starts_E[number] : data.ends_E[number]])
    (estimator,) = estimators
    estimator.normalize.fit(statistics)
    target_MG = estimator.normalize(torch.from_numpy(value_MG).to(module.device))
    return replace(windows, estimated_MG=target_MG), FieldEstimation(estimator, weight)
