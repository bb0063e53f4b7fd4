"""Fine-tunes by RL-100: offline iterations on demonstrations and rollouts, then online PPO.

Lei et al., arXiv 2510.14830. An iteration learns critics and dynamics from all recorded data,
improves the policy by gated offline PPO (`policies.rl.offline.offline_ppo`), collects rollouts, and
retrains the policy from scratch on the demonstrations and all successful rollouts. The remaining
rollouts train by PPO over the same denoising steps (`policies.rl.finetuning.denoising.dppo`). The
stage `distill` makes the one-step student that RL-100 deploys.

Where the paper is silent: only solved episodes are imitated; the critics learn from all episodes.

Shape suffixes: R rows, T decisions of a rollout, N environments, H horizon, A action.
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
from policies.rl.collection.interfaces import DecisionEnv, StepResult
from policies.rl.finetuning.config import DppoFinetuneConfig, RL100FinetuneConfig
from policies.rl.finetuning.denoising.dppo import DppoFinetuning
from policies.rl.offline.dynamics_ensemble import ChunkTransitions, DynamicsEnsemble
from policies.rl.offline.offline_dataset import OfflineDataset, concatenate
from policies.rl.offline.offline_ppo import GateResult, OfflinePpo, fit_critics
from robots.errors import HandoffError
from robots.interfaces import Progress

ROLLOUTS = "recorded"
"""Folder with one file per rollout."""


class RL100Finetuning:
    """Implements `policies.rl.finetuning.method.FinetuneMethod`.

    Args:
        config: options of the method.
        policy: policy that is trained in place.
        env: training environments.
        seed: seed of initial weights and sampling.
        demonstrations: transitions of the demonstrations.
    """

    def __init__(
        self,
        config: RL100FinetuneConfig,
        policy: DiffusionPolicy,
        env: DecisionEnv,
        seed: int,
        demonstrations: OfflineDataset,
    ) -> None:
        self.config = config
        self.policy = policy.eval().requires_grad_(False)
        self.env = env
        self.seed = seed
        self.demonstrations = demonstrations
        self.statistics = EpisodeStatistics(env.num_envs)
        self.done = 0
        self._finished_phases = self._saved_rollouts = 0
        self._after_reset = True
        self._rollouts: list[_Rollout] = []
        self._online: DppoFinetuning | None = None

    @property
    def phase_due(self) -> bool:
        """See `FinetuneMethod.phase_due`: before the first rollout and after every iteration's."""
        return (
            self._finished_phases <= self.config.iterations
            and self.done >= self._finished_phases * self.config.offline_every
        )

    def rollout(self, decisions: int) -> dict[str, float]:
        """See `FinetuneMethod.rollout`.

        Raises:
            HandoffError: a phase is due, or online training has collapsed.
        """
        if self.phase_due:
            raise HandoffError(
                f"rl100: a training phase is due after {self.done} rollouts, call run_phase first."
            )
        if self._online is not None:
            self.done += 1
            return self._online.rollout(decisions)
        self._rollouts.append(self._collect(decisions))
        self.done += 1
        return {"iteration": float(self._finished_phases)}

    def state_dict(self) -> dict[str, Any]:
        """See `FinetuneMethod.state_dict`."""
        return {
            "policy": self.policy.state_dict(),
            "done": self.done,
            "finished_phases": self._finished_phases,
            "online": None if self._online is None else self._online.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `FinetuneMethod.load_state_dict`."""
        self.policy.load_state_dict(state["policy"])
        self.done = state["done"]
        self._finished_phases = state["finished_phases"]
        if state["online"] is not None:
            self._start_online()
            assert self._online is not None
            self._online.load_state_dict(state["online"])
            return
        self.env.begin()
        self.statistics.begin()
        self._after_reset = True

    def save_rollouts(self, out: Path) -> None:
        """See `FinetuneMethod.save_rollouts`: a file per offline rollout, written once."""
        from policies.checkpoint import save_state

        if self._saved_rollouts < len(self._rollouts):
            (out / ROLLOUTS).mkdir(exist_ok=True)
        for number in range(self._saved_rollouts, len(self._rollouts)):
            save_state(
                _file(out, number), {"identity": ROLLOUTS, **self._rollouts[number].columns()}
            )
        self._saved_rollouts = len(self._rollouts)

    def load_rollouts(self, out: Path) -> None:
        """See `FinetuneMethod.load_rollouts`.

        Raises:
            HandoffError: a file is gone, or damaged.
        """
        from policies.checkpoint import read_state

        if self._online is not None:
            return
        self._rollouts = []
        for number in range(self.done):
            part = read_state(_file(out, number), ROLLOUTS)
            if part is None:
                raise HandoffError(
                    f"{_file(out, number)}: the file is missing. Remove the folder {out} to start again."
                )
            self._rollouts.append(_Rollout.from_columns(part))
        self._saved_rollouts = self.done

    def run_phase(self, identity: str, out: Path, progress: Progress) -> None:
        """See `FinetuneMethod.run_phase`: ends an iteration, and begins the next or online
        training.

        A killed phase is repeated with the same outcome; its imitation resumes where it was.
        """
        from policies.training.loop import STATE

        phase = self._finished_phases
        dataset = concatenate([self.demonstrations, *_rollout_datasets(self._rollouts)])
        if phase:
            self._imitate(dataset.rows(dataset.solved_R), f"{identity} {phase}", out, progress)
        if phase < self.config.iterations:
            self._improve(dataset, phase, progress)
        else:
            self._start_online()
            self._rollouts = []
        self._finished_phases = phase + 1
        # Running episodes belong to the previous policy.
        self.env.begin()
        self.statistics.begin()
        self._after_reset = True
        (out / STATE).unlink(missing_ok=True)

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`: keeps the number of denoising steps of fine-tuning."""
        if self.phase_due:
            self.run_phase(identity, out, progress)
        shutil.rmtree(out / ROLLOUTS, ignore_errors=True)
        return self.policy.config.with_sampler_steps(self.config.offline.denoising.steps)

    def _improve(self, dataset: OfflineDataset, iteration: int, progress: Progress) -> None:
        """Improves the current policy by offline PPO on all recorded data."""
        config, seed = self.config, self._seed(Rl100Stream.ITERATION + iteration)
        data = ChunkTransitions(
            obs_RF=dataset.obs.flatten(1),
            action_RD=self.env.executed_part(dataset.chunk_RHA),
            reward_R=dataset.reward_R,
            discount_R=dataset.discount_R,
            next_obs_RF=dataset.next_obs.flatten(1),
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
            config.dynamics, data.obs_RF.shape[1], data.action_RD.shape[1], seed
        )
        dynamics.fit(data.rows(dataset.next_obs_recorded_R), progress)

        def report(judgement: GateResult) -> None:
            note = f"offline PPO, iteration {iteration + 1}, judged {judgement.value:.3f}, best {judgement.best:.3f}"
            progress(judgement.updates, config.offline.updates, note)

        OfflinePpo(
            config.offline, self.policy, critics, dynamics, self.env.executed_part, seed
        ).improve(dataset.obs, report)
        self.policy.requires_grad_(False)

    def _imitate(
        self, dataset: OfflineDataset, identity: str, out: Path, progress: Progress
    ) -> None:
        """Retrains the policy from new weights on these transitions."""
        from policies.training.loop import Objective, resolve_precision, train
        from policies.training.plots import draw_curve

        seed = self._seed(Rl100Stream.ITERATION + self._finished_phases)
        config, policy = replace(self.config.imitation, seed=seed), self.policy
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            shapes = (policy.chunk_shape, policy.encoded_shape, policy.config.train_timesteps)
            policy.denoiser.load_state_dict(
                new_denoiser(policy.config.network, *shapes).state_dict()
            )
        count = len(dataset.reward_R)

        def batch(step: int) -> tuple[Batch, np.random.Generator]:
            rng = np.random.default_rng([config.seed, step])
            rows = torch.from_numpy(rng.integers(0, count, config.batch_size))
            observation = ObservationTensors(dataset.obs[rows])
            return Batch(observation, dataset.chunk_RHA[rows], dataset.padded_RH[rows]), rng

        def loss(batch_and_rng: tuple[Batch, np.random.Generator], step: int) -> Tensor:
            return policy.loss(*batch_and_rng)

        # The identity covers the data, so training on other rollouts is not resumed.
        job = f"{identity} {count} {float(dataset.chunk_RHA.double().sum())!r}"
        precision = resolve_precision(config.precision, policy.device)
        policy.train().requires_grad_(True)
        # The states are encoded.
        policy.encoder.requires_grad_(False)
        trained = train(
            config, policy, Objective(batch, loss), job, out, progress, precision=precision
        )
        policy.eval().requires_grad_(False).load_state_dict(trained.average)
        draw_curve(out, "imitation of solved episodes")

    def _start_online(self) -> None:
        config = self.config
        learning = replace(config.online, discount=config.discount)
        dppo = DppoFinetuneConfig(
            denoising=config.offline.denoising, learning=learning, critic=config.critic
        )
        self._online = DppoFinetuning(dppo, self.policy, self.env, self.seed, self.statistics)

    @torch.no_grad()
    def _collect(self, decisions: int) -> _Rollout:
        env = self.env
        policy = self.policy
        generator = torch.Generator().manual_seed(self._seed(Rl100Stream.ROLLOUT + self.done))
        sampler_steps, rollout = len(policy.steps), _Rollout(self._after_reset)
        policy.set_sampler_steps(self.config.offline.denoising.steps)
        try:
            for _ in range(decisions):
                obs = env.observation()
                chunk = policy.sample(
                    ObservationTensors(obs),
                    torch.randn((len(obs), *policy.chunk_shape), generator=generator),
                )
                result = env.step(chunk)
                self.statistics.add(result)
                rollout.add(obs, chunk, result)
        finally:
            policy.set_sampler_steps(sampler_steps)
        self._after_reset = False
        return rollout

    def _seed(self, stream: int) -> int:
        """Seed that depends only on the run's seed and the stream, so that a resumed run repeats
        it."""
        return sequence_seed(self.seed, stream)


class _Rollout:
    """T decisions in N environments, added one by one.

    Args:
        after_reset: whether all environments were reset before it.
    """

    def __init__(self, after_reset: bool) -> None:
        self.after_reset = after_reset
        self._steps: list[dict[str, Tensor]] = []

    @classmethod
    def from_columns(cls, columns: dict[str, Any]) -> _Rollout:
        """The rollout with these columns, see `columns`."""
        rollout = cls(columns["after_reset"])
        names = sorted(columns.keys() - {"after_reset", "identity"})
        tables = [columns[name].unbind(0) for name in names]
        rollout._steps = [dict(zip(names, row, strict=True)) for row in zip(*tables, strict=True)]
        return rollout

    def add(self, obs: Tensor, chunk_NHA: Tensor, result: StepResult) -> None:
        """Adds one decision of every environment and its result."""
        self._steps.append(
            {
                "obs": obs,
                "chunk": chunk_NHA,
                "reward": result.reward_N.float(),
                "discount": result.discount_N * ~result.terminated_N,
                "next": result.final_obs,
                "ended": result.terminated_N | result.truncated_N,
                "solved": torch.as_tensor(result.success_N, dtype=torch.bool),
            }
        )

    def columns(self) -> dict[str, Any]:
        """All columns, to be saved."""
        return {
            "after_reset": self.after_reset,
            **{name: self.column(name) for name in self._steps[0]},
        }

    def column(self, name: str) -> Tensor:
        """(T, N, ...) one column."""
        return torch.stack([step[name] for step in self._steps])


def _rollout_datasets(rollouts: list[_Rollout]) -> list[OfflineDataset]:
    """The transitions of every rollout, each marked by whether its episode was solved, also where
    it ended in a later rollout."""
    datasets: list[OfflineDataset] = []
    solved_N: Tensor | None = None
    for rollout in reversed(rollouts):
        ended_TN, success_TN = rollout.column("ended"), rollout.column("solved")
        # An abandoned episode counts as not solved.
        solved_N = torch.zeros_like(success_TN[0]) if solved_N is None else solved_N
        solved_rows = []
        for ended_N, success_N in zip(reversed(ended_TN), reversed(success_TN), strict=True):
            solved_N = torch.where(ended_N, success_N, solved_N)
            solved_rows.append(solved_N)
        datasets.append(_dataset(rollout, torch.stack(solved_rows[::-1])))
        if rollout.after_reset:
            solved_N = None
    return datasets[::-1]


def _dataset(rollout: _Rollout, solved_TN: Tensor) -> OfflineDataset:
    names = ("obs", "chunk", "reward", "discount", "next")
    obs, chunk, reward, discount, next_obs = (rollout.column(name).flatten(0, 1) for name in names)
    return OfflineDataset(
        obs=obs,
        chunk_RHA=chunk,
        padded_RH=torch.zeros(chunk.shape[:2], dtype=torch.bool),
        reward_R=reward,
        discount_R=discount,
        next_obs=next_obs,
        next_obs_recorded_R=torch.ones(len(obs), dtype=torch.bool),
        solved_R=solved_TN.flatten(),
    )


def _file(out: Path, number: int) -> Path:
    return out / ROLLOUTS / f"rollout-{number:05d}.pt"
