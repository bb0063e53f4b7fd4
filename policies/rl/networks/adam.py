"""Adam (Kingma and Ba, arXiv 1412.6980) for small networks.

Results equal those of `torch.optim.Adam`, which calls the same kernel. Parameter groups, hooks and
profiling are left out.

This saves time: with `torch.optim.Adam(fused=True)` an update of SAC takes 5.7 % more CPU time in
the plain configuration (see `tests.benchmarks.rl`) and 5.5 % in the default one, each with two
critics (six runs each, 3.8 to 7.1 %), and 1.9 % with ten critics (1.4 to 3.8 %); the three
optimiser steps of an update take
0.31 ms instead of 0.16. Measured on one core of an AMD EPYC with torch 2.13; `adam_speedup` of
`tests.benchmarks.rl` measures it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class Optimizer(Protocol):
    """Interface of the optimisers that learners use; those of `torch.optim` implement it."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients to None or to zero."""
        ...

    def step(self) -> Any:
        """Updates the parameters from their gradients."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State of the optimiser, for `load_state_dict`."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        ...


class Adam:
    """Adam for one group of parameters; parameters without a gradient do not change.

    Args:
        parameters: tensors on one device.
        learning_rate: learning rate; the attribute may be changed between steps.
    """

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = torch.zeros((), device=self.parameters[0].device)
        """Steps of the group. Torch counts steps per parameter, which is the same if all parameters
        have gradients at every step."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients to None, or to zero with `set_to_none` = False."""
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Updates the parameters from their gradients."""
        rows = zip(self.parameters, self.first, self.second, strict=True)
        updated = [(p, p.grad, first, second) for p, first, second in rows if p.grad is not None]
        if not updated:
            return
        self.steps.add_(1.0)
        parameters, gradients, firsts, seconds = map(list, zip(*updated, strict=True))
        torch._fused_adam_(
            parameters,
            gradients,
            firsts,
            seconds,
            [],
            [self.steps] * len(updated),
            lr=self.learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Moments and number of steps; tensors are not copied."""
        return {
            "first": self.first,
            "second": self.second,
            "steps": self.steps,
            "learning_rate": self.learning_rate,
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.steps.copy_(state_dict["steps"])
        for kind in ("first", "second"):
            for moment, saved in zip(getattr(self, kind), state_dict[kind], strict=True):
                moment.copy_(saved)
        self.learning_rate = state_dict["learning_rate"]
