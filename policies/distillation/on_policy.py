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
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.distillation.config import OnPolicyDistilConfig
from policies.policy_config import DiffusionPolicyConfig, VlaConfig
from robots.config import to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv
from robots.storage.durable import write_atomically

if TYPE_CHECKING:
    from policies.distillation.teachers import Teachers

STATE, CURVE, PICTURE = "teaching.pt", "teaching.jsonl", "teaching.png"


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

    with torch_threads(config.threads):
        module, card = load_module(student, trainable=True)
        asked = Teachers(teachers, module, card, config)
        run = _Run(config, (student, module), card.model.n_action_steps, asked, make_env, out)
        try:
            while run.done < config.rollouts:
                run.rollout(progress)
        finally:
            run.worlds.env.close()
        asked.check_unchanged()
        run.keep_curve()
        _draw(run.entries, out / PICTURE)
    # Before the policy's card, which makes the folder one.
    save_practised(out, run.worlds.met)
    model = card.model
    if config.steps is not None and isinstance(model, DiffusionPolicyConfig | VlaConfig):
        model = replace(model, inference_steps=config.steps)
    save_policy(out, replace(card, model=model), module.state_dict(), module.extra_files())
    (out / STATE).unlink(missing_ok=True)
    names = ("steps", "asked", "episodes", "success", "return", "kl", "cpu_seconds")
    return {"rollouts": run.done} | {name: run.entries[-1][name] for name in names}


class _Run:
    """One student's lessons, from its beginning or from where a killed run stood."""

    def __init__(
        self,
        config: OnPolicyDistilConfig,
        student: tuple[Path, Any],
        n_action_steps: int,
        teachers: Teachers,
        make_env: Callable[[], VecEnv],
        out: Path,
    ) -> None:
        import torch

        from policies.checkpoint import WEIGHTS, digest_file, read_state
        from policies.distillation.teachers import lessons
        from policies.rl.collection.chunk_env import ChunkWorlds
        from policies.rl.collection.episode_statistics import EpisodeTally

        folder, module = student
        self.config, self.out, self._module = config, out, module
        self._lessons = lessons(config, module, teachers)
        self._trained = [part for part in module.parameters() if part.requires_grad]
        self._optimizer = torch.optim.Adam(self._trained, config.learning_rate)
        self._generator = torch.Generator().manual_seed(config.seed)
        self.entries: list[dict[str, float]] = []
        self._steps, self._asked, self._episodes, self._cpu_seconds = 0, 0, 0, 0.0
        told = {
            "config": to_plain(config),
            "teachers": teachers.identity,
            "student": digest_file(folder / WEIGHTS),
        }
        self._identity = json.dumps(told, sort_keys=True)
        state = read_state(out / STATE, self._identity)
        self._seeds = count(config.first_seed if state is None else state["seed"] + 1)
        env = make_env()
        self.worlds = ChunkWorlds(env, module, n_action_steps, self._seeds, discount=1.0)
        self._tally = EpisodeTally(env.num_envs)
        if state is not None:
            self._take_over(state)

    @property
    def done(self) -> int:
        """Rollouts."""
        return len(self.entries)

    def rollout(self, progress: Progress) -> None:
        """The next decisions in all worlds, what is learned from them, one line of the curve."""
        import torch

        began, ended = time.process_time(), len(self._tally.solved)
        seen, traces = [], []
        for _ in range(self.config.decisions):
            seen.append(self.worlds.seen())
            chunk_NHA, trace = self._lessons.decide(seen[-1], self._generator)
            self._tally.add(self.worlds.step(chunk_NHA))
            traces.append(trace)
        whole = {name: torch.cat([trace[name] for trace in traces]) for name in traces[0]}
        figures = self._learn(torch.cat(seen), whole)
        self._steps += self.worlds.executed
        self.worlds.executed = 0
        self._episodes += len(self._tally.solved) - ended
        self._cpu_seconds += time.process_time() - began
        entry = self._entry(figures, ended)
        self.entries.append(entry)
        if self.done % self.config.save_every == 0:
            self._save()
        progress(
            self.done,
            self.config.rollouts,
            f"success {entry['success']:.2f}, divergence {entry['kl']:.3g}",
        )

    def keep_curve(self) -> None:
        """Writes a line per rollout."""
        lines = "".join(json.dumps(entry) + "\n" for entry in self.entries)
        write_atomically(self.out / CURVE, lines.encode())

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

    def _entry(self, figures: dict[str, float], ended: int) -> dict[str, float]:
        recent = self._tally.recent(ended)
        return {
            "rollout": self.done + 1,
            "steps": self._steps,
            "asked": self._asked,
            "cpu_seconds": round(self._cpu_seconds, 1),
            "episodes": self._episodes,
            "success": recent.success,
            "return": recent.returned,
            **figures,
        }

    def _save(self) -> None:
        """Writes all that the next rollout depends on, and begins anew what would not come back:
        the episodes."""
        from policies.checkpoint import save_state
        from policies.rl.collection.episode_statistics import RECENT

        state = {
            "identity": self._identity,
            "student": self._module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self._generator.get_state(),
            # This number starts no episode; those of the next ones are behind it.
            "seed": next(self._seeds),
            "met": self.worlds.met,
            "solved": self._tally.solved[-RECENT:],
            "returns": self._tally.returns[-RECENT:],
            "entries": self.entries,
        }
        save_state(self.out / STATE, state)
        self.keep_curve()
        self.worlds.begin()
        self._tally.begin()

    def _take_over(self, state: dict[str, Any]) -> None:
        self._module.load_state_dict(state["student"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        self.worlds.met = state["met"]
        self._tally.solved, self._tally.returns = state["solved"], state["returns"]
        self.entries = state["entries"]
        last = self.entries[-1]
        self._steps, self._asked, self._episodes = (
            int(last[name]) for name in ("steps", "asked", "episodes")
        )
        self._cpu_seconds = last["cpu_seconds"]


def _draw(entries: list[dict[str, float]], path: Path) -> None:
    """Divergence, success and return over the decisions that were put before a teacher."""
    from matplotlib.figure import Figure

    labels = {"kl": "divergence [nat per decision]", "success": "success", "return": "return"}
    figure = Figure(figsize=(9.0, 3.0), layout="constrained")
    for axes, (name, label) in zip(figure.subplots(1, 3), labels.items(), strict=True):
        axes.plot(
            [entry["asked"] for entry in entries], [entry[name] for entry in entries], linewidth=1
        )
        axes.set(xlabel="decisions put before a teacher", ylabel=label)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
