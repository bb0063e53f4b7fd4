"""Health checks that stop a broken training with a diagnosis.

A check takes a few milliseconds, so it runs at entries of the loss curve and, where those are rare,
twice a minute. Adam's second moments tell whether a parameter ever had a gradient, so nothing is
stored per update.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import torch
from torch import Tensor

from robots.errors import HandoffError

CHECK_SECONDS = 30.0
"""Maximum wall-clock time between checks [s], independent of the entries of the loss curve."""
_MAX_NAMES = 5
"""Maximum number of parameter names in a message, and minimum number of norms for a median."""
_FIRST_UPDATES = 20
"""Updates after which every parameter must have had a gradient; with weights that start at zero, as
in LoRA, the first gradients of others are zero."""
_PATIENCE = 3
"""Consecutive checks with only zero gradients that stop the training."""
_SAMPLES = 64
"""Entries per parameter that are compared with the previous check."""
_EXPLODING_RATIO = 100.0
"""Ratio of the gradient norm to its median above which a warning is shown."""


class TrainingHealth:
    """Checks the trainable parameters of one training.

    Args:
        named: trainable parameters by name; frozen ones, such as the base of a LoRA, are excluded.
        optimizer: AdamW over these parameters.
        step: completed updates.
    """

    def __init__(
        self, named: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, step: int = 0
    ) -> None:
        self.named = named
        self.optimizer = optimizer
        self.without_gradient = dict(named)
        self.zero_checks = 0
        self.norms: list[float] = []
        self.checked_step = step
        self.sample = self._sample_entries()

    def check(self, step: int, rate: float) -> None:
        """Checks the weights and the gradients of the last update.

        Args:
            step: completed updates.
            rate: highest learning rate since the last check; 0 if it is too low to change a weight.

        Raises:
            HandoffError: a weight is not finite, a parameter never had a gradient, all gradients
                were zero at several consecutive checks, or no weight has changed.
        """
        if step == self.checked_step:
            return
        self._check_finite(step)
        self._check_gradients(step)
        sample = self._sample_entries()
        if rate > 0.0 and torch.equal(sample, self.sample):
            raise HandoffError(
                f"training: no weight changed in the updates before {step}, although the learning rate was up to "
                f"{rate:g}. Does something restore the weights, or is the rate too low for their precision?"
            )
        self.sample = sample
        self.checked_step = step

    def exploding(self, norm: float) -> str:
        """Warning about a gradient norm far above the median of the previous ones, otherwise an
        empty string."""
        median = statistics.median(self.norms) if len(self.norms) >= _MAX_NAMES else 0.0
        self.norms.append(norm)
        if not 0.0 < _EXPLODING_RATIO * median < norm:
            return ""
        return f"gradient norm {norm:.3g} is {norm / median:.0f} times its median"

    def _check_finite(self, step: int) -> None:
        norms = torch.stack(torch._foreach_norm(list(self.named.values())))
        non_finite = [
            name
            for name, fine in zip(self.named, norms.isfinite().tolist(), strict=True)
            if not fine
        ]
        if non_finite:
            raise HandoffError(
                f"training: {len(non_finite)} of {len(self.named)} parameters are not finite after update {step}: "
                f"{_names(non_finite)}. Is the learning rate too high, or is max_grad_norm missing?"
            )

    def _check_gradients(self, step: int) -> None:
        zero = not any(p.grad is not None and bool(p.grad.any()) for p in self.named.values())
        self.zero_checks = self.zero_checks + 1 if zero else 0
        if self.zero_checks == _PATIENCE:
            raise HandoffError(
                f"training: the gradients of all {len(self.named)} parameters were zero or missing at the last "
                f"{_PATIENCE} checks, up to update {step}. Is the loss detached from the network, or saturated?"
            )
        for name, parameter in list(self.without_gradient.items()):
            squares = self.optimizer.state.get(parameter, {}).get("exp_avg_sq")
            if squares is not None and bool(squares.any()):
                del self.without_gradient[name]
        if self.without_gradient and step >= _FIRST_UPDATES:
            raise HandoffError(
                f"training: {len(self.without_gradient)} of {len(self.named)} parameters have had no gradient in "
                f"{step} updates: {_names(list(self.without_gradient))}. Does the loss not use them? Freeze "
                "parameters that are unused on purpose (requires_grad False)."
            )

    def _sample_entries(self) -> Tensor:
        return torch.cat([_entries(parameter.detach()) for parameter in self.named.values()])


def _entries(parameter: Tensor) -> Tensor:
    """Entries at even distances in memory, independent of the memory layout."""
    count = min(parameter.numel(), _SAMPLES)
    stride = parameter.numel() // max(1, count)
    return torch.as_strided(parameter, (count,), (stride,), parameter.storage_offset())


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
