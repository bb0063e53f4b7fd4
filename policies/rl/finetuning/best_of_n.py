"""Fine-tunes by best-of-N: critics choose among N sampled chunks, and the policy imitates the
choice.

The method combines three papers: an expressive policy trained by imitation alone, with a value that
chooses among its samples (IDQL, Hansen-Estruch et al., arXiv 2304.10573); values of whole executed
chunks (Q-chunking, Li et al., arXiv 2507.07969); the same best-of-N in the target (EXPO, Dong et
al., arXiv 2507.07986, without its edit policy). Where they differ: the target takes the minimum of
the target critics per chunk (EXPO), the choice the mean of the critics (Q-chunking).

The N sampled chunks are stored with every state, so a target needs no sampling: it is the best of a
random subset of the next state's chunks. In regular phases the critics choose again at every state
visited since the last phase, and the policy is trained on the chosen chunks and then acts with the
new weights. The result is one policy without critics, which is distilled and deployed like any
other.

Shape suffixes: B batch, R rows, W environments, N chunks, T observed steps, O observation, F
features, H horizon, A action, D executed entries of a chunk, E critics.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.families.diffusion import DiffusionPolicy
from policies.policy import Batch, ObservationTensors
from policies.policy_config import PolicyConfig
from policies.random_streams import BestOfNStream, sequence_seed
from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import DecisionEnv, StepResult
from policies.rl.finetuning.config import BestOfNFinetuneConfig
from policies.rl.networks.critics import bellman_target, squared_error
from policies.rl.networks.ensemble import EnsembleMlp, move_towards
from robots.errors import HandoffError
from robots.interfaces import Progress

ROLLOUTS = "experience"
"""Folder with one file per rollout."""
DIVERGED = 1e6
"""Mean target value above which the critics count as diverged."""
VALUE_BATCH = 2048
"""Rows per forward pass when the critics choose at all states."""


class ChunkCandidates(NamedTuple):
    """States with N sampled chunks each, one of which was executed."""

    obs: Tensor
    """(R, T, O) normalised observations."""
    chunk_RNHA: Tensor
    """float16, normalised chunks."""
    chunk_index_R: Tensor
    """int64, index of the executed chunk; -1 for a state that is only a next state."""
    reward_R: Tensor
    discount_R: Tensor
    """g^length; 0 where the task ended."""
    next_R: Tensor
    """int64, row of the next state."""


class BestOfNFinetuning:
    """Implements `policies.rl.finetuning.finetune.FinetuneMethod`.

    Args:
        config: options of the method.
        policy: policy that is trained in place, in imitation phases.
        env: training environments.
        seed: seed of initial weights and sampling.

    Raises:
        HandoffError: `backup_samples` outside 1 to `samples`.
    """

    def __init__(
        self, config: BestOfNFinetuneConfig, policy: DiffusionPolicy, env: DecisionEnv, seed: int
    ) -> None:
        if not 1 <= config.backup_samples <= config.samples:
            raise HandoffError(
                f"finetune: backup_samples is {config.backup_samples}, expected 1 to {config.samples} (samples)."
            )
        self.config = config
        self.policy = policy.eval()
        self.env = env
        self.seed = seed
        self.statistics = EpisodeStatistics(env.num_envs)
        self.done = 0
        inputs = env.entries + int(np.prod(policy.observation_shape))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.critic = EnsembleMlp(config.critics, inputs, config.critic, 1)
        self.target_critic = deepcopy(self.critic).requires_grad_(False)
        self._optimizer = torch.optim.Adam(
            self.critic.parameters(), config.learning_rate, fused=True
        )
        self._replay = _Replay()
        self._saved_rollouts = self._imitated_rollouts = 0

    @property
    def phase_due(self) -> bool:
        """See `FinetuneMethod.phase_due`."""
        return self.done - self._imitated_rollouts >= self.config.imitate_every

    def rollout(self, decisions: int) -> dict[str, float]:
        """See `FinetuneMethod.rollout`."""
        generator = self._generator(BestOfNStream.ROLLOUT)
        sampler_steps = len(self.policy.steps)
        self.policy.set_sampler_steps(self.config.steps)
        try:
            self._replay.add(self._collect(decisions, generator))
        finally:
            self.policy.set_sampler_steps(sampler_steps)
        self.done += 1
        losses, values = [], []
        generator = self._generator(BestOfNStream.UPDATE)
        # The first rollout alone has too few ended episodes to learn from.
        for _ in range(self.config.updates if self.done > 1 else 0):
            loss, value = self._update(generator)
            losses.append(loss)
            values.append(value)
        loss, value = (
            float(torch.stack(figures).mean()) if figures else 0.0 for figures in (losses, values)
        )
        if not abs(value) < DIVERGED or not np.isfinite(loss):
            raise HandoffError(
                f"finetune: the critics' mean target value is {value:.3g}, their loss {loss:.3g} after rollout "
                f"{self.done}, limit {DIVERGED:g}. Are rewards of size 1, and the discount below 1?"
            )
        return {"critic_loss": loss, "value": value}

    @torch.no_grad()
    def candidates(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """(R, N, H, A) sampled chunks for observations (R, T, O)."""
        samples = self.config.samples
        noise = torch.randn((len(obs) * samples, *self.policy.chunk_shape), generator=generator)
        repeated = ObservationTensors(obs.repeat_interleave(samples, dim=0))
        return self.policy.sample(repeated, noise).unflatten(0, (len(obs), samples))

    @torch.no_grad()
    def best(self, obs: Tensor, chunk_RNHA: Tensor) -> Tensor:
        """(R,) index of the chunk with the largest mean value."""
        return (
            self._values(self.critic, obs, self.env.executed_part(chunk_RNHA))
            .mean(dim=0)
            .argmax(dim=1)
        )

    def state_dict(self) -> dict[str, Any]:
        """See `FinetuneMethod.state_dict`."""
        return {
            "policy": self.policy.state_dict(),
            "imitated": self._imitated_rollouts,
            "critic": self.critic.state_dict(),
            "target_critic": self.target_critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "done": self.done,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `FinetuneMethod.load_state_dict`."""
        self.policy.load_state_dict(state["policy"])
        self._imitated_rollouts = state["imitated"]
        self.critic.load_state_dict(state["critic"])
        self.target_critic.load_state_dict(state["target_critic"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]
        self.env.begin()
        self.statistics.begin()

    def save_rollouts(self, out: Path) -> None:
        """See `FinetuneMethod.save_rollouts`: a file per rollout, written once."""
        from policies.checkpoint import save_state

        (out / ROLLOUTS).mkdir(exist_ok=True)
        for number in range(self._saved_rollouts, self.done):
            save_state(
                _file(out, number), {"identity": ROLLOUTS, **self._replay.rollout(number)._asdict()}
            )
        self._saved_rollouts = self.done

    def load_rollouts(self, out: Path) -> None:
        """See `FinetuneMethod.load_rollouts`.

        Raises:
            HandoffError: a file is gone, or damaged.
        """
        from policies.checkpoint import read_state

        self._replay = _Replay()
        for number in range(self.done):
            part = read_state(_file(out, number), ROLLOUTS)
            if part is None:
                raise HandoffError(
                    f"{_file(out, number)}: the file is missing. Remove the folder {out} to start again."
                )
            self._replay.add(
                ChunkCandidates(**{name: part[name] for name in ChunkCandidates._fields})
            )
        self._saved_rollouts = self.done

    def run_phase(self, identity: str, out: Path, progress: Progress) -> None:
        """See `FinetuneMethod.run_phase`: trains the policy on the chunks that the critics choose
        at the visited states."""
        from policies.training.loop import STATE, Objective, resolve_precision, train
        from policies.training.plots import draw_curve

        config, table = self.config.imitation, self._replay.table
        # The critics' choice at every state visited since the last phase.
        acted_rows = self._replay.rows_since(self._imitated_rollouts)
        best_chunks = []
        for rows in acted_rows.split(VALUE_BATCH):
            chunk_RNHA = table.chunk_RNHA[rows].float()
            best_chunks.append(
                chunk_RNHA[torch.arange(len(rows)), self.best(table.obs[rows], chunk_RNHA)]
            )
        target_RHA, obs = torch.cat(best_chunks), table.obs[acted_rows]
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
        trained = train(
            config, self.policy, Objective(batch, loss), job, out, progress, precision=precision
        )
        self.policy.eval().requires_grad_(False).load_state_dict(trained.average)
        draw_curve(out, "imitation of the best of N")
        (out / STATE).unlink()
        self._imitated_rollouts = self.done

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`."""
        import shutil

        if self._imitated_rollouts < self.done:
            self.run_phase(identity, out, progress)
        shutil.rmtree(out / ROLLOUTS, ignore_errors=True)
        return self.policy.config

    def _collect(self, decisions: int, generator: torch.Generator) -> ChunkCandidates:
        """One rollout, whose next states are rows of the same rollout, so that it can be saved
        separately."""
        envs, rows = self.env, _RolloutBuilder()
        obs = envs.observation()
        chunks = self.candidates(obs, generator)
        row_W = rows.add_states(obs, chunks)
        for _ in range(decisions):
            chunk_index_W = (
                torch.randint(self.config.samples, (envs.num_envs,), generator=generator)
                if self.done < self.config.warm_up
                else self.best(obs, chunks)
            )
            result = envs.step(chunks[torch.arange(envs.num_envs), chunk_index_W])
            self.statistics.add(result)
            obs = envs.observation()
            chunks = self.candidates(obs, generator)
            next_row_W = rows.add_states(obs, chunks)
            truncated = torch.nonzero(result.truncated_N & ~result.terminated_N)[:, 0]
            # After a time limit the next state is the true final observation, not that of the
            # reset.
            next_W = next_row_W.clone()
            if len(truncated):
                next_W[truncated] = rows.add_states(
                    result.final_obs[truncated],
                    self.candidates(result.final_obs[truncated], generator),
                )
            rows.add_decisions(row_W, chunk_index_W, result, next_W)
            row_W = next_row_W
        return rows.build()

    def _update(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One gradient step of the critics; returns its loss and the mean target."""
        config = self.config
        table = self._replay.table
        acted = self._replay.acted
        row_B = acted[torch.randint(len(acted), (config.batch_size,), generator=generator)]
        next_row_B = table.next_R[row_B]
        subset = torch.randperm(config.samples, generator=generator)[: config.backup_samples]
        # Targets: the best of a subset of the next state's chunks.
        with torch.no_grad():
            chunk_BND = self.env.executed_part(table.chunk_RNHA[next_row_B][:, subset].float())
            next_B = (
                self._values(self.target_critic, table.obs[next_row_B], chunk_BND)
                .amin(dim=0)
                .amax(dim=1)
            )
            target_B = bellman_target(table.reward_R[row_B], table.discount_R[row_B], next_B)
        # Regression of the executed chunks.
        executed_BHA = table.chunk_RNHA[row_B, table.chunk_index_R[row_B]].float()
        executed_BND = self.env.executed_part(executed_BHA[:, None])
        loss = squared_error(
            self._values(self.critic, table.obs[row_B], executed_BND)[..., 0], target_B
        )
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        move_towards(self.target_critic, self.critic, config.tau)
        return loss.detach(), target_B.mean()

    def _values(self, critic: EnsembleMlp, obs: Tensor, chunk_BND: Tensor) -> Tensor:
        """(E, B, N) values of every critic for executed chunks (B, N, D)."""
        rows, samples, _ = chunk_BND.shape
        obs_BF = obs.flatten(1).repeat_interleave(samples, dim=0)
        return critic(torch.cat([obs_BF, chunk_BND.flatten(0, 1)], dim=1))[..., 0].unflatten(
            1, (rows, samples)
        )

    def _generator(self, stream: BestOfNStream) -> torch.Generator:
        """Random generator that depends only on seed and rollout, so that a resumed run repeats
        it."""
        return torch.Generator().manual_seed(sequence_seed(self.seed, self.done, stream))


class _Replay:
    """All rollouts as one table, whose capacity doubles when it is full."""

    def __init__(self) -> None:
        self._ends = [0]
        self._buffer: ChunkCandidates | None = None
        self.acted = torch.zeros(0, dtype=torch.int64)
        """Rows in which a chunk was executed."""

    @property
    def table(self) -> ChunkCandidates:
        """All rows."""
        return self._rows(0, self._ends[-1])

    def add(self, rollout: ChunkCandidates) -> None:
        """Appends a rollout whose `next_R` counts from its own first row."""
        begin, end = self._ends[-1], self._ends[-1] + len(rollout.chunk_index_R)
        if self._buffer is None or end > len(self._buffer.chunk_index_R):
            larger = ChunkCandidates(
                *(column.new_zeros((2 * end, *column.shape[1:])) for column in rollout)
            )
            if self._buffer is not None:
                for new, old in zip(larger, self._buffer, strict=True):
                    new[:begin] = old[:begin]
            self._buffer = larger
        self._ends.append(end)
        for target, column in zip(
            self._rows(begin, end), rollout._replace(next_R=rollout.next_R + begin), strict=True
        ):
            target.copy_(column)
        self.acted = torch.cat(
            [self.acted, begin + torch.nonzero(rollout.chunk_index_R >= 0)[:, 0]]
        )

    def rows_since(self, number: int) -> Tensor:
        """The rows of `acted` from rollout `number` on."""
        return self.acted[self.acted >= self._ends[number]]

    def rollout(self, number: int) -> ChunkCandidates:
        """Rollout `number` as it was added."""
        begin, end = self._ends[number : number + 2]
        rows = self._rows(begin, end)
        return ChunkCandidates(
            *(column.clone() for column in rows._replace(next_R=rows.next_R - begin))
        )

    def _rows(self, begin: int, end: int) -> ChunkCandidates:
        assert self._buffer is not None
        return ChunkCandidates(*(column[begin:end] for column in self._buffer))


class _RolloutBuilder:
    """Builds the table of a rollout from its states and decisions."""

    def __init__(self) -> None:
        self._obs: list[Tensor] = []
        self._chunks: list[Tensor] = []
        self._decisions: list[tuple[Tensor, Tensor, StepResult, Tensor]] = []
        self._count = 0

    def add_states(self, obs: Tensor, chunks: Tensor) -> Tensor:
        """Adds states with their sampled chunks; returns their rows."""
        self._obs.append(obs)
        self._chunks.append(chunks.half())
        self._count += len(obs)
        return torch.arange(self._count - len(obs), self._count)

    def add_decisions(
        self, rows: Tensor, chunk_index: Tensor, result: StepResult, next_row: Tensor
    ) -> None:
        """Adds the decisions at these rows, their results and next states."""
        self._decisions.append((rows, chunk_index, result, next_row))

    def build(self) -> ChunkCandidates:
        """The table of all states."""
        chunk_index = torch.full((self._count,), -1)
        next_row = torch.zeros(self._count, dtype=torch.int64)
        reward, discount = torch.zeros(self._count), torch.zeros(self._count)
        for rows, index, result, next_W in self._decisions:
            chunk_index[rows] = index
            next_row[rows] = next_W
            reward[rows] = result.reward_N
            discount[rows] = result.discount_N * ~result.terminated_N
        return ChunkCandidates(
            torch.cat(self._obs), torch.cat(self._chunks), chunk_index, reward, discount, next_row
        )


def _file(out: Path, number: int) -> Path:
    return out / ROLLOUTS / f"rollout-{number:05d}.pt"
