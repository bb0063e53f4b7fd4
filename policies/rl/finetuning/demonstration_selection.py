"""Chooses among sampled chunks with demonstrations as offline data, for EXPO and Q-chunking.

Every minibatch has a fixed share of demonstrations (RLPD, arXiv 2302.02948). In regular phases the
policy imitates all recorded chunks, demonstrations and rollouts alike, solved or not: it is a model
of the data, and only the critics know what is good. After the last rollout it imitates the critics'
choices at the states visited last, and so becomes the fine-tuned policy.

Rollouts have one transition per decision, so an episode may end within a chunk; the rest of that
chunk was chosen but not executed, and the critics learn from it all the same.

Shape suffixes: B batch, D executed entries of a chunk, N chunks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from policies.policy_config import PolicyConfig
from policies.random_streams import ChunkSelectionStream
from policies.rl.finetuning.chunk_replay import (
    ChunkReplay,
    ChunkTransitionBatch,
    demonstration_candidates,
)
from policies.rl.finetuning.chunk_selection import VALUE_BATCH, ChunkSelection, ImitationData
from policies.rl.finetuning.config import ExpoFinetuneConfig, QChunkingFinetuneConfig
from policies.rl.finetuning.method import FinetuneSetup
from policies.rl.generative.behaviour_model import BASE, NEXT_BASE
from policies.rl.replay.transitions import Observations, Transitions, without_person
from robots.interfaces import Progress

DemonstratedOptions = TypeVar("DemonstratedOptions", ExpoFinetuneConfig, QChunkingFinetuneConfig)


class DemonstrationSelection(ChunkSelection[DemonstratedOptions]):
    """See `ChunkSelection`.

    Args:
        config: options of the method.
        setup: policy, environments and demonstrations.
    """

    imitated = "imitation of recorded chunks"

    def __init__(self, config: DemonstratedOptions, setup: FinetuneSetup) -> None:
        super().__init__(config, setup.diffusion_policy(), setup.env, setup.seed)
        self._demo_rows = max(1, round(config.demo_fraction * config.batch_size))
        self._demos = ChunkReplay()
        generator = self.generator(ChunkSelectionStream.DEMONSTRATIONS)

        def sample(obs: Tensor) -> Tensor:
            return torch.cat([self.candidates(part, generator) for part in obs.split(VALUE_BATCH)])

        with self.sampler_steps():
            dataset = setup.demonstrations(config.discount)
            self._demos.add(demonstration_candidates(dataset, sample))

    def minibatch(self, generator: torch.Generator) -> Transitions:
        """A minibatch of demonstrations, then of rollouts; an action is the executed part of a
        chunk."""
        rollout_rows = self.config.batch_size - self._demo_rows
        parts = [
            replay.transitions(replay.sample(rows, generator))
            for replay, rows in ((self._demos, self._demo_rows), (self._replay, rollout_rows))
            if rows
        ]
        batch = ChunkTransitionBatch(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
        count = len(batch.reward_B)
        executed = self.env.executed_part
        return without_person(
            obs=Observations(batch.obs.flatten(1)),
            action_BA=executed(batch.executed_BHA),
            reward_B=batch.reward_B,
            discount_B=batch.discount_B,
            next_obs=Observations(batch.next_obs.flatten(1)),
            demo_B=torch.arange(count) < self._demo_rows,
            extra={
                BASE: executed(batch.chunk_BNHA),
                NEXT_BASE: executed(batch.next_chunk_BNHA),
            },
        )

    def phase_data(self) -> ImitationData:
        """All recorded chunks, of demonstrations and rollouts."""
        parts = [(replay.table, replay.acted) for replay in (self._demos, self._replay)]
        return ImitationData(
            torch.cat([table.obs[rows] for table, rows in parts]),
            torch.cat([table.executed_RHA[rows].float() for table, rows in parts]),
        )

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`: imitation of the critics' choices at the states of the last
        `imitate_every` rollouts."""
        recent = max(0, self.done - self.config.imitate_every)
        data = self.choices(self._replay.rows_since(recent))
        self.imitate(data, f"{identity} choices", out, progress)
        self.remove_rollouts(out)
        return self.policy.config
