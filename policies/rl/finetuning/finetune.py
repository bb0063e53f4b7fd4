"""Fine-tuning a saved policy by practice in simulated worlds: from the policy's folder to another
one like it.

How it learns is a `Practice`: `policies.rl.finetuning.dppo`, `policies.rl.finetuning.best_of_n`,
for policies that read `policies.rl.finetuning.vla` or, with the demonstrations at hand,
`policies.rl.finetuning.rl100`. What is learned is saved every few rollouts, whole: weights,
optimisers, chance, scales and how many starts were used. A run that was killed goes on from there;
episodes that were under way are not, the worlds begin new ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from policies.rl.collection.seeds import CountedSeeds
from policies.rl.finetuning.config import (
    BestOfNPracticeConfig,
    DppoPracticeConfig,
    FinetuneConfig,
    RL100PracticeConfig,
    VlaPracticeConfig,
)
from robots.config import to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv
from robots.storage.durable import write_atomically

if TYPE_CHECKING:
    import torch
    from torch import nn

    from policies.policy_config import PolicyConfig
    from policies.rl.collection.device_chunk_env import StaysOnDevice
    from policies.rl.collection.episode_statistics import EpisodeTally

STATE, CURVE, PICTURE = "practice.pt", "practice.jsonl", "practice.png"


class Practice(Protocol):
    """A way to learn from practice; the policy it was given learns in place."""

    @property
    def tally(self) -> EpisodeTally:
        """Of the episodes that ended."""
        ...

    def rollout(self, decisions: int) -> dict[str, float]:
        """Decides so many times in every world and learns from it; returns figures of the learning.

        Raises:
            HandoffError: nothing is learned any more, or all is lost.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next rollout depends on but the worlds and what `save_new` has written."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over and begins new episodes."""
        ...

    def save_new(self, out: Path) -> None:
        """Writes what has been experienced since the last call, where it is to be kept."""
        ...

    def load_kept(self, out: Path) -> None:
        """Reads what `save_new` had written when the state was saved; called after
        `load_state_dict`."""
        ...

    @property
    def due(self) -> bool:
        """Whether longer work stands before the next rollout."""
        ...

    def settle(self, identity: str, out: Path, progress: Progress) -> None:
        """Does the work that is due.

        Args:
            identity: of the whole practice, to go on from what a killed run left.
            out: folder.
            progress: told of longer work.
        """
        ...

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """Brings the policy into its last form after all rollouts; returns what its card is to say
        of it.

        Args: as of `settle`.
        """
        ...


def finetune(
    config: FinetuneConfig,
    policy: Path,
    make_env: Callable[[], VecEnv | StaysOnDevice],
    out: Path,
    progress: Progress,
    demos: Path | None = None,
) -> dict[str, Any]:
    """Practises and writes the improved policy to `out`, with its curve (`practice.jsonl`,
    `practice.png`) and the states that it met last (`policies.data.visited_states`).

    Args:
        config: how.
        policy: folder of a diffusion or flow policy of vectors.
        make_env: worlds that freeze when they end, or stay on a device, where the policy then
            practises, too; closed at the end.
        out: folder; goes on from what a killed run left there.
        progress: told every rollout.
        demos: folder of the demonstrations' `store.zarr`, for a practice that learns from them,
            too.

    Returns:
        Metrics: rollouts, steps (actions executed), episodes, success and return (of the last
            rollout), cpu_seconds.

    Raises:
        HandoffError: a policy that cannot practise, worlds of other fields, or a run that is dead:
            no gradient, ratios that stay 1, values that explode, numbers that are not finite; no
            demonstrations where they are needed.
    """
    from policies.checkpoint import save_policy
    from policies.data.visited_states import save_practised
    from policies.load import load_module
    from policies.training.loop import torch_threads

    with torch_threads(config.threads):
        module, card = load_module(policy, trainable=isinstance(config.practice, VlaPracticeConfig))
        run = _Run(config, module, card.model, make_env(), out, demos)
        try:
            run.go_on()
            while run.done < config.rollouts:
                run.settle(progress)
                run.rollout(progress)
        finally:
            run.worlds.env.close()
        run.keep_curve()
        _draw(run.entries, out / PICTURE)
        began = time.process_time()
        model = run.practice.finish(run.identity, out, progress)
        run.cpu_seconds += time.process_time() - began
        module.cpu()
    # Before the policy's card, which makes the folder one.
    save_practised(out, run.worlds.met)
    save_policy(out, replace(card, model=model), module.state_dict(), module.extra_files())
    (out / STATE).unlink(missing_ok=True)
    told = {name: run.entries[-1][name] for name in ("episodes", "success", "return")}
    return {
        "rollouts": run.done,
        "steps": run.steps,
        **told,
        "cpu_seconds": round(run.cpu_seconds, 1),
    }


class _Run:
    """One practice, from its policy to its end."""

    def __init__(
        self,
        config: FinetuneConfig,
        module: Any,
        model: PolicyConfig,
        env: VecEnv | StaysOnDevice,
        out: Path,
        demos: Path | None,
    ) -> None:
        from policies.checkpoint import digest_file
        from policies.rl.collection.split_chunk_env import worlds_of

        _check_practises(config, module)
        self.config, self.out = config, out
        told = {"config": to_plain(config), "policy": _digest(module)}
        if demos is not None and isinstance(config.practice, RL100PracticeConfig):
            # A store only ever grows, and its index tells every segment with its size.
            told["demos"] = digest_file(demos / "store.zarr" / "index.json")
        self.identity = json.dumps(told, sort_keys=True)
        module.to(_device(config, env))
        self._seeds = CountedSeeds(config.first_seed)
        discount = _discount(config)
        self.worlds = worlds_of(
            env, module, model.n_action_steps, self._seeds, discount, config.reward
        )
        self.practice = _practice(config, module, model, self.worlds, demos)
        self.entries: list[dict[str, float]] = []
        self.done, self.steps, self.episodes_before, self.cpu_seconds = 0, 0, 0, 0.0

    def rollout(self, progress: Progress) -> None:
        """One rollout, what is learned from it, one line of the curve."""
        began, ended = time.process_time(), len(self.practice.tally.solved)
        figures = self.practice.rollout(self.config.decisions)
        self.done += 1
        self.steps += self.worlds.executed
        self.worlds.executed = 0
        self.cpu_seconds += time.process_time() - began
        entry = self._entry(figures, ended)
        self.entries.append(entry)
        if self.done % self.config.save_every == 0:
            self._save()
        progress(
            self.done,
            self.config.rollouts,
            f"success {entry['success']:.2f}, return {entry['return']:.2f}",
        )

    def settle(self, progress: Progress) -> None:
        """What is due before the next rollout; done once, also by a run that is killed in the
        middle of it."""
        if not self.practice.due:
            return
        self._save()
        began = time.process_time()
        self.practice.settle(self.identity, self.out, progress)
        self.cpu_seconds += time.process_time() - began
        self._save()

    def go_on(self) -> None:
        """Takes over what a killed run of the same policy and configuration left."""
        from policies.checkpoint import read_state

        state = read_state(self.out / STATE, self.identity)
        if state is None:
            return
        self._seeds.used = state["seeds"]
        self.practice.load_state_dict(state["practice"])
        self.practice.load_kept(self.out)
        self.worlds.met = state["met"]
        self.entries, self.steps, self.cpu_seconds = (
            state["entries"],
            state["steps"],
            state["cpu_seconds"],
        )
        # Longer work may stand before the first rollout.
        self.done, self.episodes_before = (
            len(self.entries),
            int(self.entries[-1]["episodes"]) if self.entries else 0,
        )

    def keep_curve(self) -> None:
        """Writes a line per rollout."""
        lines = "".join(json.dumps(entry) + "\n" for entry in self.entries)
        write_atomically(self.out / CURVE, lines.encode())

    def _entry(self, figures: dict[str, float], ended: int) -> dict[str, float]:
        tally = self.practice.tally
        recent = tally.recent(ended)
        return {
            "rollout": self.done,
            "steps": self.steps,
            "cpu_seconds": round(self.cpu_seconds, 1),
            "episodes": self.episodes_before + len(tally.solved),
            "success": recent.success,
            "return": recent.returned,
            "largest": recent.largest,
            **figures,
        }

    def _save(self) -> None:
        from policies.checkpoint import save_state

        self.practice.save_new(self.out)
        state = {
            "identity": self.identity,
            "practice": self.practice.state_dict(),
            "seeds": self._seeds.used,
            "met": self.worlds.met,
            "entries": self.entries,
            "steps": self.steps,
            "cpu_seconds": self.cpu_seconds,
        }
        save_state(self.out / STATE, state)
        self.keep_curve()


def _device(config: FinetuneConfig, env: VecEnv | StaysOnDevice) -> torch.device:
    """Where the policy is to practise.

    Raises:
        HandoffError: worlds that stay on a device, for a practice that meets them on the host.
    """
    import torch

    from policies.rl.collection.device_chunk_env import StaysOnDevice

    if not isinstance(env, StaysOnDevice):
        return torch.device("cpu")
    if not isinstance(config.practice, VlaPracticeConfig) or config.practice.staleness:
        raise HandoffError(
            f"practice: worlds that stay on a device for the kind '{config.practice.kind}', expected 'vla', and no "
            "staleness. Set resident: false."
        )
    return env.device


def _discount(config: FinetuneConfig) -> float:
    practice = config.practice
    if isinstance(practice, DppoPracticeConfig | VlaPracticeConfig):
        return practice.learning.discount
    return practice.discount


def _check_practises(config: FinetuneConfig, module: Any) -> None:
    from policies.families.diffusion import DiffusionPolicy

    if isinstance(config.practice, VlaPracticeConfig):
        from policies.rl.finetuning.vla import check_reads

        check_reads(module)
    elif not isinstance(module, DiffusionPolicy) or module.shapes.sensors:
        kind = (
            "policy of pictures or point clouds"
            if isinstance(module, DiffusionPolicy)
            else type(module).__name__
        )
        raise HandoffError(
            f"practice: a {kind}, expected a diffusion or flow policy of vectors alone."
        )


def _practice(
    config: FinetuneConfig,
    policy: Any,
    model: PolicyConfig,
    worlds: Any,
    demos: Path | None,
) -> Practice:
    match config.practice:
        case DppoPracticeConfig() as way:
            from policies.rl.finetuning.dppo import DppoPractice

            return DppoPractice(way, policy, worlds, config.seed)
        case BestOfNPracticeConfig() as way:
            from policies.rl.finetuning.best_of_n import BestOfNPractice

            return BestOfNPractice(way, policy, worlds, config.seed)
        case VlaPracticeConfig() as way:
            from policies.rl.finetuning.vla import VlaPractice

            return VlaPractice(way, policy, worlds, config.seed)
        case RL100PracticeConfig() as way:
            from policies.rl.finetuning.offline_dataset import demonstrated
            from policies.rl.finetuning.rl100 import RL100Practice

            if demos is None:
                raise HandoffError(
                    "practice: rl100 learns from demonstrations, too, and none were given. Does the stage name them "
                    "among its inputs?"
                )
            shown = demonstrated(demos, policy, model, config.reward, way.discount)
            return RL100Practice(way, policy, worlds, config.seed, shown)


def _draw(entries: list[dict[str, float]], path: Path) -> None:
    """Success, return and the largest reward of an episode over the steps of practice."""
    from matplotlib.figure import Figure

    labels = {"success": "success", "return": "return", "largest": "largest reward"}
    figure = Figure(figsize=(9.0, 3.0), layout="constrained")
    for axes, name in zip(figure.subplots(1, 3), labels, strict=True):
        axes.plot(
            [entry["steps"] for entry in entries], [entry[name] for entry in entries], linewidth=1
        )
        axes.set(xlabel="steps of practice", ylabel=f"{labels[name]}, episodes of a rollout")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _digest(module: nn.Module) -> str:
    """Of its weights."""
    import hashlib

    found = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        found.update(name.encode() + weight.detach().contiguous().numpy().tobytes())
    return found.hexdigest()
