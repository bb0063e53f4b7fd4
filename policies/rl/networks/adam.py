"""Adam (Kingma and Ba, arXiv 1412.6980) for small networks.

The numbers are those of `torch.optim.Adam`, by the same kernel; what is left out is the bookkeeping
of parameter groups, hooks and profiles.

That is worth keeping: with `torch.optim.Adam(fused=True)` in its place an update of SAC takes 5.7 %
more processor time in the plain form and 5.5 % in the default one, each with two critics (six runs
each, 3.8 to 7.1 %), and 1.9 % with ten (1.4 to 3.8 %); the three steps of an update take 0.31 ms
instead of 0.16. Measured on one core of an AMD EPYC with torch 2.13; `adam_speedup` of
`tests.benchmarks.rl` measures it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class Optimizer(Protocol):
    """What learners ask of an optimiser; those of `torch.optim` are some."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients."""
        ...

    def step(self) -> Any:
        """Moves the parameters along their gradients."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        ...


class Adam:
    """Adam on one group of parameters; those without a gradient stay as they are.

    Args:
        parameters: all of one device.
        learning_rate: may be changed between steps.
    """

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
        self.parameters, self.learning_rate = list(parameters), learning_rate
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = torch.zeros((), device=self.parameters[0].device)
        """Of the group; torch counts those of every parameter, the same where all have gradients at
        every step."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, or makes them zero."""
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Moves the parameters along their gradients."""
        rows = zip(self.parameters, self.first, self.second, strict=True)
        moved = [(p, p.grad, first, second) for p, first, second in rows if p.grad is not None]
        if not moved:
            return
        self.steps.add_(1.0)
        parameters, gradients, firsts, seconds = map(list, zip(*moved, strict=True))
        torch._fused_adam_(
            parameters,
            gradients,
            firsts,
            seconds,
            [],
            [self.steps] * len(moved),
            lr=self.learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Moments and number of steps; the tensors are the optimiser's own."""
        return {
            "first": self.first,
            "second": self.second,
            "steps": self.steps,
            "learning_rate": self.learning_rate,
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes `state_dict` over."""
        self.steps.copy_(state_dict["steps"])
        for kind in ("first", "second"):
            for kept, given in zip(getattr(self, kind), state_dict[kind], strict=True):
                kept.copy_(given)
        self.learning_rate = state_dict["learning_rate"]
