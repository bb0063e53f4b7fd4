"""Shuffles the rows of a rollout into minibatches, independent of how workers share the
environments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from policies.rl.on_policy.rollout import WorkerShard


class Minibatch(NamedTuple):
    """Rows of one gradient step that this worker has."""

    decision: Tensor
    """int64, row of the decision in the worker's table."""
    denoising_step: Tensor
    """int64, denoising step within the decision."""
    rows: float
    """Number of rows over all workers."""


class RolloutMinibatches:
    """Minibatches over all denoising steps of all decisions of all workers.

    Args:
        shard: the decisions of this worker.
        denoising_steps: K per decision.
    """

    def __init__(self, shard: WorkerShard, denoising_steps: int) -> None:
        self._shard = shard
        self._denoising_steps = denoising_steps

    def minibatches(
        self, size: int, generator: torch.Generator, device: torch.device
    ) -> list[Minibatch]:
        """One shuffled pass in minibatches of about `size` rows over all workers, as indices on
        `device`.

        The order is sampled on the host for every device.
        """
        decisions, envs_here, num_envs, first_env = self._shard
        order = torch.randperm(decisions * num_envs * self._denoising_steps, generator=generator)
        batches = []
        # Equal chunks avoid a small last minibatch with a noisier gradient.
        for chunk in order.chunk(max(1, round(len(order) / size))):
            decision, denoising_step = chunk // self._denoising_steps, chunk % self._denoising_steps
            time, env = decision // num_envs, decision % num_envs - first_env
            in_shard = (env >= 0) & (env < envs_here)
            rows = time[in_shard] * envs_here + env[in_shard]
            batches.append(
                Minibatch(rows.to(device), denoising_step[in_shard].to(device), float(len(chunk)))
            )
        return batches
