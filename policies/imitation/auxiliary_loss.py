"""Losses that are learned beside the actions, from what the policy computes for its own loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from torch import Tensor, nn

from policies.policy import Batch


class AuxiliaryLoss(Protocol):
    """A loss that is added to a policy's."""

    def listening(self) -> AbstractContextManager[None]:
        """Context in which the policy's loss is computed, and `loss` afterwards."""
        ...

    def loss(self, batch: Batch) -> Tensor:
        """The loss on a batch whose policy loss was just computed."""
        ...


@contextmanager
def recording_outputs(module: nn.Module, outputs: list[Tensor]) -> Iterator[None]:
    """Context in which `outputs` collects what a module computes; they are dropped at its end.

    Args:
        module: a part of the policy.
        outputs: an empty list.
    """

    def add(module: nn.Module, given: Any, output: Tensor) -> None:
        outputs.append(output)

    handle = module.register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()
        outputs.clear()
