"""Practice by RL-100: offline iterations on demonstrations and own rollouts, then PPO online.

Lei et al., arXiv 2510.14830. An iteration learns critics and dynamics from all that is recorded,
improves the policy by offline PPO behind its gate (`policies.rl.offline.offline_ppo`), rolls it
out, and trains it from scratch to imitate the demonstrations and all rollouts that solved the task.
What remains of the practice is PPO over the same denoising steps (`policies.rl.finetuning.dppo`).
The one-step student that RL-100 deploys is made of the result by the stage `distil`;
`policies.distillation.online_student` is the form that is trained alongside.

Where the paper is silent: only solved episodes are imitated, and only they are; the critics see
all.

Shape suffixes: R rows, T decisions of a rollout, N worlds, H horizon, A action.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.families.diffusion import DiffusionPolicy, new_denoiser
from policies.policy import Batch, ObservationTensors
from policies.policy_config import PolicyConfig
from policies.random_streams import Rl100Stream, sequence_seed
from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import Decided, DecisionEnv
from policies.rl.finetuning.config import DppoPracticeConfig, RL100PracticeConfig
from policies.rl.finetuning.dppo import DppoPractice
from policies.rl.finetuning.offline_dataset import RecordedDecisions, merged
from policies.rl.offline.dynamics_ensemble import Decisions, DynamicsEnsemble
from policies.rl.offline.offline_ppo import Judgement, OfflinePpo, fit_critics
from robots.errors import HandoffError
from robots.interfaces import Progress

KEPT = "recorded"
"""Folder of the rollouts, a file each."""


class RL100Practice:
    """Implements `policies.rl.finetuning.finetune.Practice`.

    Args:
        config: how.
        policy: learns in place.
        worlds: in which it practises.
        seed: of weights and chance.
        shown: the demonstrations.
    """

    def __init__(
        self,
        config: RL100PracticeConfig,
        policy: DiffusionPolicy,
        worlds: DecisionEnv,
        seed: int,
        shown: RecordedDecisions,
    ) -> None:
        self.config = config
        self.policy = policy.eval().requires_grad_(False)
        self.worlds = worlds
        self.seed = seed
        self.shown = shown
        self.statistics = EpisodeStatistics(worlds.num_envs)
        self.done = 0
        self._settled = self._written = 0
        self._fresh = True
        self._rollouts: list[_Rollout] = []
        self._online: DppoPractice | None = None

    @property
    def due(self) -> bool:
        """See `Practice.due`: an iteration ends, or the first begins."""
        return (
            self._settled <= self.config.iterations
            and self.done >= self._settled * self.config.offline_every
        )

    def rollout(self, decisions: int) -> dict[str, float]:
        """See `Practice.rollout`.

        Raises:
            HandoffError: an iteration is due and was not settled, or online nothing is learned any
                more.
        """
        if self.due:
            raise HandoffError(
                f"rl100: an iteration is due after {self.done} rollouts. Settle it first."
            )
        if self._online is not None:
            self.done += 1
            return self._online.rollout(decisions)
        self._rollouts.append(self._recorded(decisions))
        self.done += 1
        return {"iteration": float(self._settled)}

    def state_dict(self) -> dict[str, Any]:
        """See `Practice.state_dict`."""
        return {
            "policy": self.policy.state_dict(),
            "done": self.done,
            "settled": self._settled,
            "online": None if self._online is None else self._online.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Practice.load_state_dict`."""
        self.policy.load_state_dict(state["policy"])
        self.done = state["done"]
        self._settled = state["settled"]
        if state["online"] is not None:
            self._practise_online()
            assert self._online is not None
            self._online.load_state_dict(state["online"])
            return
        self.worlds.begin()
        self.statistics.begin()
        self._fresh = True

    def save_new(self, out: Path) -> None:
        """See `Practice.save_new`: a file per offline rollout, written once."""
        from policies.checkpoint import save_state

        if self._written < len(self._rollouts):
            (out / KEPT).mkdir(exist_ok=True)
        for number in range(self._written, len(self._rollouts)):
            save_state(_file(out, number), {"identity": KEPT, **self._rollouts[number].columns()})
        self._written = len(self._rollouts)

    def load_kept(self, out: Path) -> None:
        """See `Practice.load_kept`.

        Raises:
            HandoffError: a file is gone, or damaged.
        """
        from policies.checkpoint import read_state

        if self._online is not None:
            return
        self._rollouts = []
        for number in range(self.done):
            part = read_state(_file(out, number), KEPT)
            if part is None:
                raise HandoffError(
                    f"{_file(out, number)}: is gone. Remove the folder {out} to practise anew."
                )
            self._rollouts.append(_Rollout.of(part))
        self._written = self.done

    def settle(self, identity: str, out: Path, progress: Progress) -> None:
        """See `Practice.settle`: ends an iteration and begins the next, or goes online.

        A run that was killed in it does it again, with the same outcome; of the imitation only what
        is left.
        """
        from policies.training.loop import STATE

        number = self._settled
        recorded = merged([self.shown, *_own(self._rollouts)])
        if number:
            self._imitate(recorded.rows(recorded.solved_R), f"{identity} {number}", out, progress)
        if number < self.config.iterations:
            self._improve(recorded, number, progress)
        else:
            self._practise_online()
            self._rollouts = []
        self._settled = number + 1
        # Episodes that another policy has begun are not this one's.
        self.worlds.begin()
        self.statistics.begin()
        self._fresh = True
        (out / STATE).unlink(missing_ok=True)

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `Practice.finish`: it samples in as many steps as were practised."""
        if self.due:
            self.settle(identity, out, progress)
        shutil.rmtree(out / KEPT, ignore_errors=True)
        return self.policy.config.with_sampler_steps(self.config.offline.walk.steps)

    def _improve(self, recorded: RecordedDecisions, number: int, progress: Progress) -> None:
        """Offline PPO of the policy as it is, on all that is recorded."""
        config, seed = self.config, self._seed(Rl100Stream.ITERATION + number)
        data = Decisions(
            seen_RF=recorded.seen.flatten(1),
            done_RD=self.worlds.executed_part(recorded.chunk_RHA),
            reward_R=recorded.reward_R,
            discount_R=recorded.discount_R,
            next_RF=recorded.next_seen.flatten(1),
        )
        critics = fit_critics(
            config.critics,
            data,
            config.critic_updates,
            config.critic_batch,
            seed,
            progress=progress,
        )
        dynamics = DynamicsEnsemble(
            config.dynamics, data.seen_RF.shape[1], data.done_RD.shape[1], seed
        )
        dynamics.fit(data.rows(recorded.told_R), progress)

        def watch(one: Judgement) -> None:
            note = (
                f"offline PPO, iteration {number + 1}, judged {one.value:.3f}, best {one.best:.3f}"
            )
            progress(one.updates, config.offline.updates, note)

        OfflinePpo(
            config.offline, self.policy, critics, dynamics, self.worlds.executed_part, seed
        ).improve(recorded.seen, watch)
        self.policy.requires_grad_(False)

    def _imitate(
        self, recorded: RecordedDecisions, identity: str, out: Path, progress: Progress
    ) -> None:
        """A policy of the same kind from new weights, of these decisions."""
        from policies.training.loop import Objective, resolve_precision, train
        from policies.training.plots import draw_curve

        seed = self._seed(Rl100Stream.ITERATION + self._settled)
        config, policy = replace(self.config.imitation, seed=seed), self.policy
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            shapes = (policy.chunk_shape, policy.observation_shape, policy.config.train_timesteps)
            policy.denoiser.load_state_dict(
                new_denoiser(policy.config.network, *shapes).state_dict()
            )
        count = len(recorded.reward_R)

        def batch(step: int) -> tuple[Batch, np.random.Generator]:
            draw = np.random.default_rng([config.seed, step])
            rows = torch.from_numpy(draw.integers(0, count, config.batch_size))
            observed = ObservationTensors(recorded.seen[rows])
            return Batch(observed, recorded.chunk_RHA[rows], recorded.padded_RH[rows]), draw

        def loss(made: tuple[Batch, np.random.Generator], step: int) -> Tensor:
            return policy.loss(*made)

        # A run that was killed before has rolled out otherwise since: its training is not gone on
        # with.
        job = f"{identity} {count} {float(recorded.chunk_RHA.double().sum())!r}"
        precision = resolve_precision(config.precision, policy.device)
        policy.train().requires_grad_(True)
        trained = train(
            config, policy, Objective(batch, loss), job, out, progress, precision=precision
        )
        policy.eval().requires_grad_(False).load_state_dict(trained.average)
        draw_curve(out, "imitation of what solved the task")

    def _practise_online(self) -> None:
        config = self.config
        learning = replace(config.online, discount=config.discount)
        dppo = DppoPracticeConfig(walk=config.offline.walk, learning=learning, critic=config.critic)
        self._online = DppoPractice(dppo, self.policy, self.worlds, self.seed, self.statistics)

    @torch.no_grad()
    def _recorded(self, decisions: int) -> _Rollout:
        worlds, policy, draw = (
            self.worlds,
            self.policy,
            torch.Generator().manual_seed(self._seed(Rl100Stream.ROLLOUT + self.done)),
        )
        own_steps, made = len(policy.steps), _Rollout(self._fresh)
        policy.set_sampler_steps(self.config.offline.walk.steps)
        try:
            for _ in range(decisions):
                seen = worlds.seen()
                chunk = policy.sample(
                    ObservationTensors(seen),
                    torch.randn((len(seen), *policy.chunk_shape), generator=draw),
                )
                led = worlds.step(chunk)
                self.statistics.add(led)
                made.add(seen, chunk, led)
        finally:
            policy.set_sampler_steps(own_steps)
        self._fresh = False
        return made

    def _seed(self, stream: int) -> int:
        """All chance hangs on the seed and the number of the draw, so that a killed run goes on
        alike."""
        return sequence_seed(self.seed, stream)


class _Rollout:
    """T decisions in N worlds, as they are made.

    Args:
        fresh: whether all worlds began anew before it.
    """

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        self._steps: list[dict[str, Tensor]] = []

    @classmethod
    def of(cls, columns: dict[str, Any]) -> _Rollout:
        """The one that `columns` told."""
        made = cls(columns["fresh"])
        names = sorted(columns.keys() - {"fresh", "identity"})
        tables = [columns[name].unbind(0) for name in names]
        made._steps = [dict(zip(names, row, strict=True)) for row in zip(*tables, strict=True)]
        return made

    def add(self, seen: Tensor, chunk_NHA: Tensor, led: Decided) -> None:
        """A decision and what it led to."""
        self._steps.append(
            {
                "seen": seen,
                "chunk": chunk_NHA,
                "reward": led.reward_N.float(),
                "discount": led.discount_N * ~led.terminated_N,
                "next": led.final_seen,
                "ended": led.terminated_N | led.truncated_N,
                "solved": torch.as_tensor(led.success_N, dtype=torch.bool),
            }
        )

    def columns(self) -> dict[str, Any]:
        """All of it, to be kept."""
        return {"fresh": self.fresh, **{name: self.column(name) for name in self._steps[0]}}

    def column(self, name: str) -> Tensor:
        """(T, N, ...)."""
        return torch.stack([step[name] for step in self._steps])


def _own(rollouts: list[_Rollout]) -> list[RecordedDecisions]:
    """Of every rollout its decisions; episodes that go on from one to the next are told by how they
    end."""
    found: list[RecordedDecisions] = []
    solved_N: Tensor | None = None
    for rollout in reversed(rollouts):
        ended_TN, told_TN = rollout.column("ended"), rollout.column("solved")
        # An episode that was left is not known to have been solved.
        solved_N = torch.zeros_like(told_TN[0]) if solved_N is None else solved_N
        kept = []
        for ended_N, told_N in zip(reversed(ended_TN), reversed(told_TN), strict=True):
            solved_N = torch.where(ended_N, told_N, solved_N)
            kept.append(solved_N)
        found.append(_flat(rollout, torch.stack(kept[::-1])))
        if rollout.fresh:
            solved_N = None
    return found[::-1]


def _flat(rollout: _Rollout, solved_TN: Tensor) -> RecordedDecisions:
    names = ("seen", "chunk", "reward", "discount", "next")
    seen, chunk, reward, discount, after = (rollout.column(name).flatten(0, 1) for name in names)
    return RecordedDecisions(
        seen=seen,
        chunk_RHA=chunk,
        padded_RH=torch.zeros(chunk.shape[:2], dtype=torch.bool),
        reward_R=reward,
        discount_R=discount,
        next_seen=after,
        told_R=torch.ones(len(seen), dtype=torch.bool),
        solved_R=solved_TN.flatten(),
    )


def _file(out: Path, number: int) -> Path:
    return out / KEPT / f"rollout-{number:05d}.pt"
