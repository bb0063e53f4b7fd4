"""Distils teachers into a student on-policy: the student acts in simulated environments and learns
to match its teachers at the states it visits.

Imitation of recorded teachers covers their states alone; a student that errs leaves them. Here the
teacher is evaluated at every decision that the student itself made (DiffusionOPD, arXiv 2605.15055;
RLinf's and verl-omni's OPD). Several teachers that master one task each become one student: the
instruction of a row selects its teacher. Without instructions, the mean of all teachers'
divergences is minimised. No reward is used, so a student is at most as good as its
teachers.

Pictures and point clouds are encoded once, when they are observed: by the student's encoder, which
is not trained, and by those of teachers with other encoders. A vision-language student sees the
pictures themselves.

The complete state is saved every few rollouts, and all environments are then reset, in an
uninterrupted run as in a resumed one: both end with the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.distillation.config import OnPolicyDistilConfig
from robots.config import to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv

if TYPE_CHECKING:
    from policies.distillation.teachers import TeacherFolders, Teachers
    from policies.policy import ChunkPolicy

STATE = "distillation.pt"
CURVE = "distillation.jsonl"
PICTURE = "distillation.png"
DRAWN = (
    ("asked", "decisions evaluated by a teacher"),
    {"kl": "divergence [nat per decision]", "success": "success", "return": "return"},
)
"""Axes of the learning curve: entry and label of the horizontal axis, and of each vertical one."""


def on_policy_distil(
    config: OnPolicyDistilConfig,
    student: Path,
    teachers: TeacherFolders,
    make_env: Callable[[], VecEnv],
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Trains the student and writes it to `out`, with its learning curve (`distillation.jsonl`,
    `distillation.png`) and the most recent states it visited (`policies.data.visited_states`).

    Args:
        config: options of the run.
        student: folder of the initial student: a policy of action tokens, or a diffusion or flow
            policy.
        teachers: folder of one teacher for all rows, teachers by instruction, or several teachers;
            `config.instructions` assigns one instruction to each of them, otherwise all teach every
            row.
        make_env: makes environments that freeze when their episode ends; closed at the end.
        out: output folder; a killed run resumes from its content.
        progress: called after every rollout.

    Returns:
        Metrics: rollouts, steps (executed actions), asked (decisions evaluated by a teacher),
        episodes, success and return (of the last ones), kl (of the last rollout, nat per decision),
        cpu_seconds.

    Raises:
        HandoffError: a student or form that cannot be distilled, a teacher of another family or
            with other units, bins or samplers, an instruction without a teacher, environments with
            other fields, a loss that is not finite, or a teacher that changed during the run.
    """
    from policies.checkpoint import save_policy
    from policies.data.visited_states import save_visited_states
    from policies.distillation.teachers import Teachers, assign_instructions
    from policies.load import load_module
    from policies.training.loop import torch_threads
    from policies.training.plots import draw_entries

    with torch_threads(config.threads):
        module, card = load_module(student, trainable=True)
        if not isinstance(teachers, Mapping):
            several = [teachers] if isinstance(teachers, Path) else teachers
            teachers = assign_instructions(several, config.instructions)
        loaded_teachers = Teachers(teachers, module, card, config)
        run = _Distillation(
            config, (student, module), card.model.n_action_steps, loaded_teachers, make_env, out
        )
        try:
            while run.done < config.rollouts:
                run.rollout(progress)
        finally:
            run.env.env.close()
            run.resumable.close()
        loaded_teachers.check_unchanged()
        resumable = run.resumable
        resumable.write_curve()
        draw_entries(resumable.entries, out / PICTURE, *DRAWN)
        resumable.log_image("curve", out / PICTURE)
        resumable.close()
    # Before the policy's card, which makes the folder one.
    save_visited_states(out, loaded_teachers.student_part(run.env.visited_states()))
    model = card.model if config.steps is None else card.model.with_sampler_steps(config.steps)
    save_policy(out, replace(card, model=model), module.state_dict(), module.extra_files())
    resumable.finish()
    names = ("steps", "asked", "episodes", "success", "return", "kl", "cpu_seconds")
    return {"rollouts": run.done} | {name: resumable.entries[-1][name] for name in names}


class _Distillation:
    """One distillation run, new or resumed."""

    def __init__(
        self,
        config: OnPolicyDistilConfig,
        student: tuple[Path, ChunkPolicy],
        n_action_steps: int,
        teachers: Teachers,
        make_env: Callable[[], VecEnv],
        out: Path,
    ) -> None:
        import torch

        from policies.checkpoint import WEIGHTS, digest_file
        from policies.distillation.losses import distillation_loss
        from policies.rl.collection.chunk_env import ChunkEnv
        from policies.rl.collection.episode_statistics import EpisodeStatistics
        from policies.training.resumable_run import ResumableRun

        folder, module = student
        self.config = config
        self._module = module
        self._loss = distillation_loss(config, module, teachers)
        self._parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        self._optimizer = torch.optim.Adam(self._parameters, config.learning_rate)
        self._generator = torch.Generator().manual_seed(config.seed)
        self._steps = 0
        self._teacher_queries = 0
        identity_of = {
            "config": to_plain(config),
            "teachers": teachers.identity,
            "student": digest_file(folder / WEIGHTS),
        }
        identity = json.dumps(identity_of, sort_keys=True)
        self.resumable = ResumableRun(
            out, identity, state=STATE, curve=CURVE, logging=config, step="rollout"
        )
        state = self.resumable.resume()
        self._seeds = count(config.first_seed if state is None else state["seed"] + 1)
        env = make_env()
        self.env = ChunkEnv(
            env, module, n_action_steps, self._seeds, discount=1.0, encode=teachers.encode
        )
        self._statistics = EpisodeStatistics(env.num_envs)
        if state is not None:
            self._restore(state)

    @property
    def done(self) -> int:
        """Number of finished rollouts."""
        return len(self.resumable.entries)

    def rollout(self, progress: Progress) -> None:
        """Collects one rollout, learns from it, and appends an entry to the curve."""
        import torch

        since = self._statistics.episodes
        with self.resumable.timed():
            obs, traces = [], []
            for _ in range(self.config.decisions):
                obs.append(self.env.observation())
                chunk_NHA, trace = self._loss.decide(obs[-1], self._generator)
                self._statistics.add(self.env.step(chunk_NHA))
                traces.append(trace)
            trace = {name: torch.cat([trace[name] for trace in traces]) for name in traces[0]}
            figures = self._learn(torch.cat(obs), trace)
            self._steps += self.env.take_executed()
            self._statistics.flush()
        entry = self._entry(figures, since)
        self.resumable.entries.append(entry)
        if self.done % self.config.save_every == 0:
            self._save()
        progress(
            self.done,
            self.config.rollouts,
            f"success {entry['success']:.2f}, divergence {entry['kl']:.3g}",
        )

    def _learn(self, obs: Any, trace: dict[str, Any]) -> dict[str, float]:
        """Runs epochs of minibatches over a rollout; returns means over its rows."""
        import torch
        from torch import nn

        config, rows = self.config, len(obs)
        kl = loss = 0.0
        for _ in range(config.epochs):
            order = torch.randperm(rows, generator=self._generator)
            for batch in order.chunk(max(1, round(rows / config.batch_size))):
                batch_divergence = self._loss.divergence(
                    obs[batch], {name: values[batch] for name, values in trace.items()}
                )
                if not bool(torch.isfinite(batch_divergence.loss)):
                    raise HandoffError(
                        f"distillation: the loss of rollout {self.done + 1} is {batch_divergence.loss.item()}, "
                        "expected a finite number. Is the learning rate too high, or is the student's "
                        "token impossible under the teacher?"
                    )
                self._optimizer.zero_grad()
                batch_divergence.loss.backward()
                if config.max_grad_norm is not None:
                    nn.utils.clip_grad_norm_(self._parameters, config.max_grad_norm)
                self._optimizer.step()
                weight = len(batch) / (rows * config.epochs)
                kl += weight * batch_divergence.kl_B.mean().item()
                loss += weight * batch_divergence.loss.item()
        self._teacher_queries += rows * config.epochs
        return {"kl": kl, "loss": loss}

    def _entry(self, figures: dict[str, float], since: int) -> dict[str, float]:
        statistics = self._statistics
        return {
            "rollout": self.done + 1,
            "steps": self._steps,
            "asked": self._teacher_queries,
            "cpu_seconds": round(self.resumable.cpu_seconds(), 1),
            "episodes": statistics.episodes,
            "success": statistics.success_rate(since),
            "return": statistics.mean_return(since),
            **figures,
        }

    def _save(self) -> None:
        """Saves the complete state and resets the environments, whose episodes are not saved."""
        newest = self._statistics.newest()
        state = {
            "student": self._module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self._generator.get_state(),
            # This seed is skipped; the next episodes use those after it.
            "seed": next(self._seeds),
            "solved": [episode.success for episode in newest],
            "returns": [episode.total_reward for episode in newest],
        }
        self.resumable.save(state | self.env.state_dict())
        self.env.begin()
        self._statistics.begin()

    def _restore(self, state: dict[str, Any]) -> None:
        self._module.load_state_dict(state["student"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        self.env.load_state_dict(state)
        last = self.resumable.entries[-1]
        self._steps = int(last["steps"])
        self._teacher_queries = int(last["asked"])
        rows = zip(state["solved"], state["returns"], strict=True)
        self._statistics.load_returns(int(last["episodes"]), rows)
