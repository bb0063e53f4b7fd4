"""On-policy distillation: a student acts in simulated worlds and learns, in its own states, to
answer as teachers do.

Imitation of what teachers recorded knows their states alone; a student that errs leaves them. Here
it is asked of every decision that the student itself made how likely the teacher would have made it
(DiffusionOPD, arXiv 2605.15055; RLinf's and verl-omni's OPD). Teachers that each master one task so
become one student: the instruction of a row says which of them teaches it. A teacher is at most as
good as itself, and so is the student; no reward is looked at.

What is learned is saved every few rollouts, whole, and all worlds then begin new episodes, in a run
that goes on as in one that was killed: both end with the same weights.
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
    from policies.distillation.teachers import Teachers
    from policies.policy import ChunkPolicy

STATE, CURVE, PICTURE = "teaching.pt", "teaching.jsonl", "teaching.png"
DRAWN = (
    ("asked", "decisions put before a teacher"),
    {"kl": "divergence [nat per decision]", "success": "success", "return": "return"},
)
"""What the picture shows: the entry and label of its horizontal axis, and of each vertical one."""


def on_policy_distil(
    config: OnPolicyDistilConfig,
    student: Path,
    teachers: Path | Mapping[str, Path],
    make_env: Callable[[], VecEnv],
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Teaches and writes the student to `out`, with its curve (`teaching.jsonl`, `teaching.png`)
    and the states that it met last (`policies.data.visited_states`).

    Args:
        config: how.
        student: folder of the policy that it begins as: of action tokens, flowing, or denoising
            vectors.
        teachers: folder of the teacher of all, or one by sentence, which the worlds speak or the
            student always hears.
        make_env: worlds that freeze when they end; closed at the end.
        out: folder; goes on from what a killed run left there.
        progress: told every rollout.

    Returns:
        Metrics: rollouts, steps (actions executed), asked (decisions put before a teacher),
        episodes, success and return (of the last ones), kl (of the last rollout, nat per decision),
        cpu_seconds.

    Raises:
        HandoffError: a student or form that cannot be taught, a teacher of another family, of other
            units, bins or samplers, a sentence that nobody teaches, worlds of other fields, a loss
            that is not finite, or a teacher that is not at the end what it was at the beginning.
    """
    from policies.checkpoint import save_policy
    from policies.data.visited_states import save_practised
    from policies.distillation.teachers import Teachers
    from policies.load import load_module
    from policies.training.loop import torch_threads
    from policies.training.plots import draw_entries

    with torch_threads(config.threads):
        module, card = load_module(student, trainable=True)
        asked = Teachers(teachers, module, card, config)
        run = _Distillation(
            config, (student, module), card.model.n_action_steps, asked, make_env, out
        )
        try:
            while run.done < config.rollouts:
                run.rollout(progress)
        finally:
            run.worlds.env.close()
        asked.check_unchanged()
        resumable = run.resumable
        resumable.write_curve()
        draw_entries(resumable.entries, out / PICTURE, *DRAWN)
    # Before the policy's card, which makes the folder one.
    save_practised(out, run.worlds.visited_states())
    model = card.model if config.steps is None else card.model.with_sampler_steps(config.steps)
    save_policy(out, replace(card, model=model), module.state_dict(), module.extra_files())
    resumable.finish()
    names = ("steps", "asked", "episodes", "success", "return", "kl", "cpu_seconds")
    return {"rollouts": run.done} | {name: resumable.entries[-1][name] for name in names}


class _Distillation:
    """One student's lessons, from its beginning or from where a killed run stood."""

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
        from policies.distillation.teachers import lessons
        from policies.rl.collection.chunk_env import ChunkWorlds
        from policies.rl.collection.episode_statistics import EpisodeStatistics
        from policies.training.resumable_run import ResumableRun

        folder, module = student
        self.config = config
        self._module = module
        self._lessons = lessons(config, module, teachers)
        self._trained = [part for part in module.parameters() if part.requires_grad]
        self._optimizer = torch.optim.Adam(self._trained, config.learning_rate)
        self._generator = torch.Generator().manual_seed(config.seed)
        self._steps = 0
        self._asked = 0
        told = {
            "config": to_plain(config),
            "teachers": teachers.identity,
            "student": digest_file(folder / WEIGHTS),
        }
        identity = json.dumps(told, sort_keys=True)
        self.resumable = ResumableRun(out, identity, state=STATE, curve=CURVE)
        state = self.resumable.resume()
        self._seeds = count(config.first_seed if state is None else state["seed"] + 1)
        env = make_env()
        self.worlds = ChunkWorlds(env, module, n_action_steps, self._seeds, discount=1.0)
        self._statistics = EpisodeStatistics(env.num_envs)
        if state is not None:
            self._take_over(state)

    @property
    def done(self) -> int:
        """Rollouts."""
        return len(self.resumable.entries)

    def rollout(self, progress: Progress) -> None:
        """The next decisions in all worlds, what is learned from them, one line of the curve."""
        import torch

        since = self._statistics.episodes
        with self.resumable.timed():
            seen, traces = [], []
            for _ in range(self.config.decisions):
                seen.append(self.worlds.seen())
                chunk_NHA, trace = self._lessons.decide(seen[-1], self._generator)
                self._statistics.add(self.worlds.step(chunk_NHA))
                traces.append(trace)
            whole = {name: torch.cat([trace[name] for trace in traces]) for name in traces[0]}
            figures = self._learn(torch.cat(seen), whole)
            self._steps += self.worlds.take_executed()
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

    def _learn(self, seen: Any, trace: dict[str, Any]) -> dict[str, float]:
        """Epochs of minibatches over a rollout; returns means over the rows."""
        import torch
        from torch import nn

        config, rows = self.config, len(seen)
        divergence = loss = 0.0
        for _ in range(config.epochs):
            order = torch.randperm(rows, generator=self._generator)
            for batch in order.chunk(max(1, round(rows / config.batch_size))):
                found = self._lessons.distance(
                    seen[batch], {name: kept[batch] for name, kept in trace.items()}
                )
                if not bool(torch.isfinite(found.loss)):
                    raise HandoffError(
                        f"teaching: the loss of rollout {self.done + 1} is {found.loss.item()}, expected a number. Is "
                        "the learning rate too high, or does a teacher rule out what the student does?"
                    )
                self._optimizer.zero_grad()
                found.loss.backward()
                if config.max_grad_norm is not None:
                    nn.utils.clip_grad_norm_(self._trained, config.max_grad_norm)
                self._optimizer.step()
                share = len(batch) / (rows * config.epochs)
                divergence += share * found.kl_B.mean().item()
                loss += share * found.loss.item()
        self._asked += rows * config.epochs
        return {"kl": divergence, "loss": loss}

    def _entry(self, figures: dict[str, float], since: int) -> dict[str, float]:
        statistics = self._statistics
        return {
            "rollout": self.done + 1,
            "steps": self._steps,
            "asked": self._asked,
            "cpu_seconds": round(self.resumable.cpu_seconds(), 1),
            "episodes": statistics.episodes,
            "success": statistics.success_rate(since),
            "return": statistics.mean_return(since),
            **figures,
        }

    def _save(self) -> None:
        """Writes all that the next rollout depends on, and begins anew what would not come back:
        the episodes."""
        newest = self._statistics.newest()
        state = {
            "student": self._module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self._generator.get_state(),
            # This number starts no episode; those of the next ones are behind it.
            "seed": next(self._seeds),
            "solved": [one.success for one in newest],
            "returns": [one.total_reward for one in newest],
        }
        self.resumable.save(state | self.worlds.state_dict())
        self.worlds.begin()
        self._statistics.begin()

    def _take_over(self, state: dict[str, Any]) -> None:
        self._module.load_state_dict(state["student"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        self.worlds.load_state_dict(state)
        last = self.resumable.entries[-1]
        self._steps = int(last["steps"])
        self._asked = int(last["asked"])
        rows = zip(state["solved"], state["returns"], strict=True)
        self._statistics.load_returns(int(last["episodes"]), rows)
