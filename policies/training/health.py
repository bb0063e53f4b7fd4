"""Stops a training that has died, and says why.

A look costs a few milliseconds, so it is taken at entries of the loss curve and, where those are
rare, twice a minute. Adam's mean of squared gradients remembers whether a parameter ever had a
gradient, so nothing is kept per update.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import torch
from torch import Tensor

from robots.errors import HandoffError

LOOK_SECONDS = 30.0
"""Wall-clock seconds after which an update is looked at although it has no entry in the loss
curve."""
_NAMED = 5
"""Names in a message."""
_FIRST_UPDATES = 20
"""Updates after which a parameter without any gradient is one too many: behind weights that start
at zero, as in LoRA, gradients are zero for the first few."""
_PATIENCE = 3
"""Looks in a row at which every gradient has to be zero."""
_SAMPLES = 64
"""Entries of every parameter that are compared with the look before."""
_EXPLODED = 100.0
"""Times the median gradient norm that is worth a word."""


class Sentinel:
    """Watches the trainable parameters of one training.

    Args:
        named: trainable parameters; frozen ones, such as the base under a LoRA, are not looked at.
        optimizer: AdamW over them.
        step: updates done.
    """

    def __init__(
        self, named: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, step: int = 0
    ) -> None:
        self.named, self.optimizer = named, optimizer
        self.without_gradient = dict(named)
        self.zero_looks = 0
        self.norms: list[float] = []
        self.looked_at = step
        self.sample = self._sampled()

    def look(self, step: int, rate: float) -> None:
        """Looks at the weights and the gradients of the last update.

        Args:
            step: updates done.
            rate: highest learning rate since the last look; 0 where it is too low to move a weight.

        Raises:
            HandoffError: a weight is not finite, a parameter never had a gradient, all gradients
                have been zero for a while, or no weight has changed.
        """
        if step == self.looked_at:
            return
        self._check_finite(step)
        self._check_gradients(step)
        sample = self._sampled()
        if rate > 0.0 and torch.equal(sample, self.sample):
            raise HandoffError(
                f"training: no weight changed in the updates before {step}, although the learning rate was up to "
                f"{rate:g}. Does something put the weights back, or is that rate too low for their precision?"
            )
        self.sample, self.looked_at = sample, step

    def exploding(self, norm: float) -> str:
        """A word on a gradient norm that is far above the median of those before, else nothing."""
        median = statistics.median(self.norms) if len(self.norms) >= _NAMED else 0.0
        self.norms.append(norm)
        if not 0.0 < _EXPLODED * median < norm:
            return ""
        return f"gradient norm {norm:.3g} is {norm / median:.0f} times its median"

    def _check_finite(self, step: int) -> None:
        norms = torch.stack(torch._foreach_norm(list(self.named.values())))
        spoilt = [
            name
            for name, fine in zip(self.named, norms.isfinite().tolist(), strict=True)
            if not fine
        ]
        if spoilt:
            raise HandoffError(
                f"training: {len(spoilt)} of {len(self.named)} parameters are not finite after update {step}: "
                f"{_names(spoilt)}. Is the learning rate too high, or is max_grad_norm missing?"
            )

    def _check_gradients(self, step: int) -> None:
        zero = not any(p.grad is not None and bool(p.grad.any()) for p in self.named.values())
        self.zero_looks = self.zero_looks + 1 if zero else 0
        if self.zero_looks == _PATIENCE:
            raise HandoffError(
                f"training: the gradients of all {len(self.named)} parameters were zero or missing at the last "
                f"{_PATIENCE} looks, up to update {step}. Is the loss cut off from the network, or saturated?"
            )
        for name, parameter in list(self.without_gradient.items()):
            squares = self.optimizer.state.get(parameter, {}).get("exp_avg_sq")
            if squares is not None and bool(squares.any()):
                del self.without_gradient[name]
        if self.without_gradient and step >= _FIRST_UPDATES:
            raise HandoffError(
                f"training: {len(self.without_gradient)} of {len(self.named)} parameters have had no gradient in "
                f"{step} updates: {_names(list(self.without_gradient))}. Does the loss leave them out? Freeze what is "
                "meant to be unused (requires_grad False)."
            )

    def _sampled(self) -> Tensor:
        return torch.cat([_entries(parameter.detach()) for parameter in self.named.values()])


def _entries(parameter: Tensor) -> Tensor:
    """Entries at even distances in memory, whatever the order of the dimensions there."""
    count = min(parameter.numel(), _SAMPLES)
    stride = parameter.numel() // max(1, count)
    return torch.as_strided(parameter, (count,), (stride,), parameter.storage_offset())


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
