"""The rows of a rollout in orders that do not depend on who holds which worlds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from policies.rl.on_policy.rollout import Shares


class Minibatch(NamedTuple):
    """Rows of one step of gradient descent, as far as this worker has them."""

    decision: Tensor
    part: Tensor
    rows: float
    """Of all workers."""


class Rows:
    """All parts of all decisions of all workers.

    Args:
        shares: which decisions are here.
        parts: K of each.
    """

    def __init__(self, shares: Shares, parts: int) -> None:
        self._shares, self._parts = shares, parts

    def minibatches(
        self, size: int, generator: torch.Generator, device: torch.device
    ) -> list[Minibatch]:
        """One pass over all rows, in some `size` of all workers at a time, as numbers on `device`.

        Their order comes from the host, whatever the device.
        """
        steps, here, worlds, first = self._shares
        order = torch.randperm(steps * worlds * self._parts, generator=generator)
        found = []
        # A last one of a few rows would have a gradient of its own size: it joins the one before.
        for chunk in order.chunk(max(1, round(len(order) / size))):
            decision, part = chunk // self._parts, chunk % self._parts
            time, world = decision // worlds, decision % worlds - first
            mine = (world >= 0) & (world < here)
            rows = time[mine] * here + world[mine]
            found.append(Minibatch(rows.to(device), part[mine].to(device), float(len(chunk))))
        return found
