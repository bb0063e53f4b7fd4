"""Best of N: values of whole chunks choose among those a pretrained policy draws, and the policy
imitates the choice.

Of three papers: an expressive policy that only ever imitates, chosen from by a value (IDQL,
Hansen-Estruch et al., arXiv 2304.10573); values of whole executed chunks (Q-chunking, Li et al.,
arXiv 2507.07969); the same best of N in the target (EXPO, Dong et al., arXiv 2507.07986, whose
edits are left out). Where they differ: the target takes the minimum of the slow critics for every
chunk (EXPO), the choice the mean of the learning ones (Q-chunking).

The policy's N chunks are kept with every state, so that a target costs no sampling: the best of a
few of those drawn when the next state was met. Now and then the critics choose anew at every state
met since, and the policy is trained on the chunks chosen and practises on with what it then is;
what comes out is one policy without critics, which is distilled and deployed as any other is.

Shape suffixes: B batch, R rows, W worlds, N chunks, T observed steps, O observation, F features, H
horizon, A action, D executed entries of a chunk, E critics.
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
from policies.rl.collection.interfaces import Decided, DecisionEnv
from policies.rl.finetuning.config import BestOfNPracticeConfig
from policies.rl.networks.critics import bellman_target, squared_error
from policies.rl.networks.ensemble import EnsembleMlp, move_towards
from robots.errors import HandoffError
from robots.interfaces import Progress

KEPT = "experience"
"""Folder of the rollouts, a file each."""
LOST = 1e6
"""Value above which the critics count as diverged."""
RELABEL = 2048
"""Rows per pass of the critics over all states."""


class Chosen(NamedTuple):
    """States with the policy's chunks, of which one was executed."""

    seen: Tensor
    """(R, T, O) normalised."""
    chunk_RNHA: Tensor
    """float16, normalised."""
    picked_R: Tensor
    """int64, the chunk that was executed; -1 where none was, a state that is only looked ahead
    to."""
    reward_R: Tensor
    discount_R: Tensor
    """g^length, 0 behind a terminal state."""
    next_R: Tensor
    """int64, row of the state that came of it."""


class BestOfNPractice:
    """Implements `policies.rl.finetuning.finetune.Practice`.

    Args:
        config: how.
        policy: imitates in place, at the end.
        worlds: in which it practises.
        seed: of weights and chance.

    Raises:
        HandoffError: fewer chunks than the target is to look at.
    """

    def __init__(
        self, config: BestOfNPracticeConfig, policy: DiffusionPolicy, worlds: DecisionEnv, seed: int
    ) -> None:
        if not 1 <= config.backup_samples <= config.samples:
            raise HandoffError(
                f"practice: the target looks at {config.backup_samples} of {config.samples} chunks, expected 1 to all."
            )
        self.config = config
        self.policy = policy.eval()
        self.worlds = worlds
        self.seed = seed
        self.statistics = EpisodeStatistics(worlds.num_envs)
        self.done = 0
        inputs = worlds.entries + int(np.prod(policy.observation_shape))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.critic = EnsembleMlp(config.critics, inputs, config.critic, 1)
        self.slow = deepcopy(self.critic).requires_grad_(False)
        self._optimizer = torch.optim.Adam(
            self.critic.parameters(), config.learning_rate, fused=True
        )
        self._experience = _Experience()
        self._written = self._imitated = 0

    @property
    def due(self) -> bool:
        """See `Practice.due`."""
        return self.done - self._imitated >= self.config.imitate_every

    def rollout(self, decisions: int) -> dict[str, float]:
        """See `Practice.rollout`."""
        draw = self._draw(BestOfNStream.ROLLOUT)
        own_steps = len(self.policy.steps)
        self.policy.set_sampler_steps(self.config.steps)
        try:
            self._experience.add(self._experienced(decisions, draw))
        finally:
            self.policy.set_sampler_steps(own_steps)
        self.done += 1
        losses, values = [], []
        draw = self._draw(BestOfNStream.UPDATE)
        # The first rollout ends no episode early enough to tell much.
        for _ in range(self.config.updates if self.done > 1 else 0):
            loss, value = self._update(draw)
            losses.append(loss)
            values.append(value)
        loss, value = (
            float(torch.stack(part).mean()) if part else 0.0 for part in (losses, values)
        )
        if not abs(value) < LOST or not np.isfinite(loss):
            raise HandoffError(
                f"practice: the critics' mean value is {value:.3g}, their loss {loss:.3g} after rollout {self.done}, "
                f"limit {LOST:g}. Are rewards of size 1, and the discount below 1?"
            )
        return {"critic_loss": loss, "value": value}

    @torch.no_grad()
    def candidates(self, seen: Tensor, draw: torch.Generator) -> Tensor:
        """(R, N, H, A) chunks of the policy for what is seen (R, T, O)."""
        samples = self.config.samples
        noise = torch.randn((len(seen) * samples, *self.policy.chunk_shape), generator=draw)
        many = ObservationTensors(seen.repeat_interleave(samples, dim=0))
        return self.policy.sample(many, noise).unflatten(0, (len(seen), samples))

    @torch.no_grad()
    def best(self, seen: Tensor, chunk_RNHA: Tensor) -> Tensor:
        """(R,) number of the chunk with the greatest mean value."""
        return (
            self._values(self.critic, seen, self.worlds.executed_part(chunk_RNHA))
            .mean(dim=0)
            .argmax(dim=1)
        )

    def state_dict(self) -> dict[str, Any]:
        """See `Practice.state_dict`."""
        return {
            "policy": self.policy.state_dict(),
            "imitated": self._imitated,
            "critic": self.critic.state_dict(),
            "slow": self.slow.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "done": self.done,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Practice.load_state_dict`."""
        self.policy.load_state_dict(state["policy"])
        self._imitated = state["imitated"]
        self.critic.load_state_dict(state["critic"])
        self.slow.load_state_dict(state["slow"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]
        self.worlds.begin()
        self.statistics.begin()

    def save_new(self, out: Path) -> None:
        """See `Practice.save_new`: a file per rollout, written once."""
        from policies.checkpoint import save_state

        (out / KEPT).mkdir(exist_ok=True)
        for number in range(self._written, self.done):
            save_state(
                _file(out, number), {"identity": KEPT, **self._experience.part(number)._asdict()}
            )
        self._written = self.done

    def load_kept(self, out: Path) -> None:
        """See `Practice.load_kept`.

        Raises:
            HandoffError: a file is gone, or damaged.
        """
        from policies.checkpoint import read_state

        self._experience = _Experience()
        for number in range(self.done):
            part = read_state(_file(out, number), KEPT)
            if part is None:
                raise HandoffError(
                    f"{_file(out, number)}: is gone. Remove the folder {out} to practise anew."
                )
            self._experience.add(Chosen(**{name: part[name] for name in Chosen._fields}))
        self._written = self.done

    def settle(self, identity: str, out: Path, progress: Progress) -> None:
        """See `Practice.settle`: imitates the chunks that the critics choose at the states that
        were met."""
        from policies.training.loop import STATE, Objective, resolve_precision, train
        from policies.training.plots import draw_curve

        config, table = self.config.imitation, self._experience.table
        acted = self._experience.acted_since(self._imitated)
        chosen = []
        for rows in acted.split(RELABEL):
            chunk_RNHA = table.chunk_RNHA[rows].float()
            chosen.append(
                chunk_RNHA[torch.arange(len(rows)), self.best(table.seen[rows], chunk_RNHA)]
            )
        wanted_RHA, seen = torch.cat(chosen), table.seen[acted]
        free_BH = torch.zeros(config.batch_size, wanted_RHA.shape[1], dtype=torch.bool)

        def batch(step: int) -> tuple[Batch, np.random.Generator]:
            draw = np.random.default_rng([config.seed, self.done, step])
            rows = torch.from_numpy(draw.integers(0, len(seen), config.batch_size))
            return Batch(ObservationTensors(seen[rows]), wanted_RHA[rows], free_BH), draw

        def loss(made: tuple[Batch, np.random.Generator], step: int) -> Tensor:
            return self.policy.loss(*made)

        # A run that was killed before has met other states since: its training is not gone on with.
        job = f"{identity} {self.done} {len(seen)} {float(wanted_RHA.double().sum())!r}"
        precision = resolve_precision(config.precision, self.policy.device)
        self.policy.train().requires_grad_(True)
        trained = train(
            config, self.policy, Objective(batch, loss), job, out, progress, precision=precision
        )
        self.policy.eval().requires_grad_(False).load_state_dict(trained.average)
        draw_curve(out, "imitation of the best of N")
        (out / STATE).unlink()
        self._imitated = self.done

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `Practice.finish`."""
        import shutil

        if self._imitated < self.done:
            self.settle(identity, out, progress)
        shutil.rmtree(out / KEPT, ignore_errors=True)
        return self.policy.config

    def _experienced(self, decisions: int, draw: torch.Generator) -> Chosen:
        """One rollout; every row's next is a row of the same rollout, so that it can be kept apart
        from the others."""
        worlds, rows = self.worlds, _Rows()
        seen = worlds.seen()
        chunks = self.candidates(seen, draw)
        here = rows.meet(seen, chunks)
        for _ in range(decisions):
            picked_W = (
                torch.randint(self.config.samples, (worlds.num_envs,), generator=draw)
                if self.done < self.config.warm_up
                else self.best(seen, chunks)
            )
            led = worlds.step(chunks[torch.arange(worlds.num_envs), picked_W])
            self.statistics.add(led)
            seen = worlds.seen()
            chunks = self.candidates(seen, draw)
            after = rows.meet(seen, chunks)
            cut = torch.nonzero(led.truncated_N & ~led.terminated_N)[:, 0]
            # Where time was up the true last observation is looked ahead to, not the new start.
            next_W = after.clone()
            if len(cut):
                next_W[cut] = rows.meet(
                    led.final_seen[cut], self.candidates(led.final_seen[cut], draw)
                )
            rows.act(here, picked_W, led, next_W)
            here = after
        return rows.chosen()

    def _update(self, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """One step of the critics; its loss and the mean of the targets."""
        config, table, acted = self.config, self._experience.table, self._experience.acted
        row_B = acted[torch.randint(len(acted), (config.batch_size,), generator=draw)]
        ahead_B = table.next_R[row_B]
        looked = torch.randperm(config.samples, generator=draw)[: config.backup_samples]
        with torch.no_grad():
            chunk_BND = self.worlds.executed_part(table.chunk_RNHA[ahead_B][:, looked].float())
            next_B = self._values(self.slow, table.seen[ahead_B], chunk_BND).amin(dim=0).amax(dim=1)
            target_B = bellman_target(table.reward_R[row_B], table.discount_R[row_B], next_B)
        done_BHA = table.chunk_RNHA[row_B, table.picked_R[row_B]].float()
        done_BND = self.worlds.executed_part(done_BHA[:, None])
        loss = squared_error(
            self._values(self.critic, table.seen[row_B], done_BND)[..., 0], target_B
        )
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        move_towards(self.slow, self.critic, config.tau)
        return loss.detach(), target_B.mean()

    def _values(self, critic: EnsembleMlp, seen: Tensor, chunk_BND: Tensor) -> Tensor:
        """(E, B, N)."""
        rows, samples, _ = chunk_BND.shape
        seen_BF = seen.flatten(1).repeat_interleave(samples, dim=0)
        return critic(torch.cat([seen_BF, chunk_BND.flatten(0, 1)], dim=1))[..., 0].unflatten(
            1, (rows, samples)
        )

    def _draw(self, stream: BestOfNStream) -> torch.Generator:
        """All chance hangs on the seed and the number of the rollout, so that a killed run goes on
        alike."""
        return torch.Generator().manual_seed(sequence_seed(self.seed, self.done, stream))


class _Experience:
    """All rollouts as one table, which grows to twice its size when it is full."""

    def __init__(self) -> None:
        self._ends = [0]
        self._room: Chosen | None = None
        self.acted = torch.zeros(0, dtype=torch.int64)
        """Rows in which a chunk was executed."""

    @property
    def table(self) -> Chosen:
        """All rows."""
        return self._rows(0, self._ends[-1])

    def add(self, part: Chosen) -> None:
        """Another rollout, whose `next_R` counts from its own first row."""
        begin, end = self._ends[-1], self._ends[-1] + len(part.picked_R)
        if self._room is None or end > len(self._room.picked_R):
            grown = Chosen(*(column.new_zeros((2 * end, *column.shape[1:])) for column in part))
            if self._room is not None:
                for new, old in zip(grown, self._room, strict=True):
                    new[:begin] = old[:begin]
            self._room = grown
        self._ends.append(end)
        for room, column in zip(
            self._rows(begin, end), part._replace(next_R=part.next_R + begin), strict=True
        ):
            room.copy_(column)
        self.acted = torch.cat([self.acted, begin + torch.nonzero(part.picked_R >= 0)[:, 0]])

    def acted_since(self, number: int) -> Tensor:
        """Of `acted` those of rollout `number` and later ones."""
        return self.acted[self.acted >= self._ends[number]]

    def part(self, number: int) -> Chosen:
        """A rollout, as it was added."""
        begin, end = self._ends[number : number + 2]
        rows = self._rows(begin, end)
        return Chosen(*(column.clone() for column in rows._replace(next_R=rows.next_R - begin)))

    def _rows(self, begin: int, end: int) -> Chosen:
        assert self._room is not None
        return Chosen(*(column[begin:end] for column in self._room))


class _Rows:
    """States as they are met, and what came of the decisions there."""

    def __init__(self) -> None:
        self._seen: list[Tensor] = []
        self._chunks: list[Tensor] = []
        self._acted: list[tuple[Tensor, Tensor, Decided, Tensor]] = []
        self._count = 0

    def meet(self, seen: Tensor, chunks: Tensor) -> Tensor:
        """Their rows."""
        self._seen.append(seen)
        self._chunks.append(chunks.half())
        self._count += len(seen)
        return torch.arange(self._count - len(seen), self._count)

    def act(self, here: Tensor, picked: Tensor, led: Decided, after: Tensor) -> None:
        """In the rows `here`."""
        self._acted.append((here, picked, led, after))

    def chosen(self) -> Chosen:
        """All of it."""
        picked, after = torch.full((self._count,), -1), torch.zeros(self._count, dtype=torch.int64)
        reward, discount = torch.zeros(self._count), torch.zeros(self._count)
        for here, which, led, next_W in self._acted:
            picked[here], after[here], reward[here] = which, next_W, led.reward_N
            discount[here] = led.discount_N * ~led.terminated_N
        return Chosen(
            torch.cat(self._seen), torch.cat(self._chunks), picked, reward, discount, after
        )


def _file(out: Path, number: int) -> Path:
    return out / KEPT / f"rollout-{number:05d}.pt"
