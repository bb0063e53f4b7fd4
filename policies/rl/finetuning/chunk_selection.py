"""Fine-tunes by choosing among sampled chunks: critics of whole chunks choose what is executed, and
the policy imitates in phases.

The parts that best-of-N, EXPO and Q-chunking share. Their policy samples N chunks for every state,
which are stored with it and serve the Bellman targets of all later updates, so those of old states
are samples of an earlier policy. At the end the policy imitates the chunks that the critics choose,
so that the result is one policy without critics, which is distilled and deployed like any other.

Shape suffixes: B batch, R rows, W environments, N chunks, T observed steps, O observation, H
horizon, A action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from policies.families.diffusion import DiffusionPolicy
from policies.policy import Batch, ObservationTensors
from policies.policy_config import PolicyConfig
from policies.random_streams import ChunkSelectionStream, sequence_seed
from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.finetuning.chunk_replay import ReplayedRollouts, Visit, collect_rollout
from policies.rl.finetuning.collapse import checked_means
from policies.rl.finetuning.config import ChunkSelectionConfig
from robots.interfaces import Progress

VALUE_BATCH = 2048
"""Rows per forward pass when the critics choose at all states."""


class ImitationData(NamedTuple):
    """States and the chunks that the policy should imitate there, normalised."""

    obs: Tensor
    """(R, T, O)"""
    chunk_RHA: Tensor


Options = TypeVar("Options", bound=ChunkSelectionConfig)


class ChunkSelection(ReplayedRollouts, ABC, Generic[Options]):
    """Implements `policies.rl.finetuning.method.FinetuneMethod`, up to the critics.

    Args:
        config: options of the method.
        policy: policy that is trained in place, in imitation phases.
        env: training environments.
        seed: seed of initial weights and sampling.
    """

    imitated: str
    """Label of the loss curve of an imitation phase."""

    def __init__(
        self, config: Options, policy: DiffusionPolicy, env: DecisionEnv, seed: int
    ) -> None:
        super().__init__()
        self.config = config
        self.policy = policy.eval()
        self.env = env
        self.seed = seed
        self.statistics = EpisodeStatistics(env.num_envs)
        self._imitated_rollouts = 0

    @abstractmethod
    def select(self, obs: Tensor, chunk_RNHA: Tensor, generator: torch.Generator | None) -> Tensor:
        """(R, H, A) chunks to execute at observations (R, T, O), given N sampled chunks each;
        without a generator the choice is deterministic."""

    @abstractmethod
    def update(self, generator: torch.Generator) -> dict[str, Tensor]:
        """One gradient step of the critics; metrics, among them `critic_loss` and `value`, the mean
        target."""

    @abstractmethod
    def phase_data(self) -> ImitationData:
        """Data of the imitation phase that is due."""

    @abstractmethod
    def learner_state(self) -> dict[str, Any]:
        """Weights and optimisers of everything but the policy."""

    @abstractmethod
    def load_learner_state(self, state: dict[str, Any]) -> None:
        """Restores `learner_state`."""

    @property
    def phase_due(self) -> bool:
        """See `FinetuneMethod.phase_due`."""
        return self.done - self._imitated_rollouts >= self.config.imitate_every

    def rollout(self, decisions: int) -> dict[str, float]:
        """See `FinetuneMethod.rollout`."""
        with self.sampler_steps():
            generator = self.generator(ChunkSelectionStream.ROLLOUT)
            visit = partial(self._visit, generator=generator)
            self._replay.add(collect_rollout(self.env, self.statistics, decisions, visit))
        self.done += 1
        generator = self.generator(ChunkSelectionStream.UPDATE)
        # The first rollout alone has too few ended episodes to learn from.
        updates = [self.update(generator) for _ in range(self.config.updates * (self.done > 1))]
        return checked_means(updates, self.done)

    @torch.no_grad()
    def candidates(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """(R, N, H, A) sampled chunks for observations (R, T, O)."""
        samples = self.config.samples
        noise = torch.randn((len(obs) * samples, *self.policy.chunk_shape), generator=generator)
        repeated = ObservationTensors(obs.repeat_interleave(samples, dim=0))
        return self.policy.sample(repeated, noise).unflatten(0, (len(obs), samples))

    def choices(self, row_R: Tensor) -> ImitationData:
        """The chunks that are chosen now in these rows of the replay."""
        table = self._replay.table
        chosen = [
            self.select(table.obs[rows], table.chunk_RNHA[rows].float(), None)
            for rows in row_R.split(VALUE_BATCH)
        ]
        return ImitationData(table.obs[row_R], torch.cat(chosen))

    def state_dict(self) -> dict[str, Any]:
        """See `FinetuneMethod.state_dict`."""
        return {
            "policy": self.policy.state_dict(),
            "imitated": self._imitated_rollouts,
            "done": self.done,
            **self.learner_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `FinetuneMethod.load_state_dict`."""
        self.policy.load_state_dict(state["policy"])
        self._imitated_rollouts = state["imitated"]
        self.done = state["done"]
        self.load_learner_state(state)
        self.env.begin()
        self.statistics.begin()

    def run_phase(self, identity: str, out: Path, progress: Progress) -> None:
        """See `FinetuneMethod.run_phase`: trains the policy on `phase_data`."""
        self.imitate(self.phase_data(), identity, out, progress)
        self._imitated_rollouts = self.done

    def imitate(self, data: ImitationData, identity: str, out: Path, progress: Progress) -> None:
        """Trains the policy on data; a killed training resumes."""
        from policies.training.loop import STATE, Objective, resolve_precision, train
        from policies.training.plots import draw_curve

        config = self.config.imitation
        obs, target_RHA = data
        padded_BH = torch.zeros(config.batch_size, target_RHA.shape[1], dtype=torch.bool)

        def batch(step: int) -> tuple[Batch, np.random.Generator]:
            rng = np.random.default_rng([config.seed, self.done, step])
            rows = torch.from_numpy(rng.integers(0, len(obs), config.batch_size))
            return Batch(ObservationTensors(obs[rows]), target_RHA[rows], padded_BH), rng

        def loss(batch_and_rng: tuple[Batch, np.random.Generator], step: int) -> Tensor:
            return self.policy.loss(*batch_and_rng)

        # The identity covers the data, so training on other states is not resumed.
        job = f"{identity} {self.done} {len(obs)} {float(target_RHA.double().sum())!r}"
        precision = resolve_precision(config.precision, self.policy.device)
        self.policy.train().requires_grad_(True)
        # The states are encoded.
        self.policy.encoder.requires_grad_(False)
        trained = train(
            config, self.policy, Objective(batch, loss), job, out, progress, precision=precision
        )
        self.policy.eval().requires_grad_(False).load_state_dict(trained.average)
        draw_curve(out, self.imitated)
        (out / STATE).unlink()

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`: a last phase, if rollouts were collected since."""
        if self._imitated_rollouts < self.done:
            self.run_phase(identity, out, progress)
        self.remove_rollouts(out)
        return self.policy.config

    @contextmanager
    def sampler_steps(self) -> Iterator[None]:
        """Samples with the number of steps of fine-tuning within the context."""
        steps = len(self.policy.steps)
        self.policy.set_sampler_steps(self.config.steps)
        try:
            yield
        finally:
            self.policy.set_sampler_steps(steps)

    def generator(self, stream: ChunkSelectionStream) -> torch.Generator:
        """Random generator that depends only on seed and rollout, so that a resumed run repeats
        it."""
        return torch.Generator().manual_seed(sequence_seed(self.seed, self.done, stream))

    def _visit(self, obs: Tensor, generator: torch.Generator) -> Visit:
        chunk_RNHA = self.candidates(obs, generator)

        def decide() -> tuple[Tensor, Tensor]:
            executed_RHA = self._executed(obs, chunk_RNHA, generator)
            return executed_RHA, executed_RHA

        return Visit(obs, chunk_RNHA, decide)

    def _executed(self, obs: Tensor, chunk_WNHA: Tensor, generator: torch.Generator) -> Tensor:
        """(W, H, A) the chosen chunks, or random ones in the first rollouts."""
        if self.done >= self.config.warm_up:
            return self.select(obs, chunk_WNHA, generator)
        index_W = torch.randint(self.config.samples, (len(obs),), generator=generator)
        return chunk_WNHA[torch.arange(len(obs)), index_W]
