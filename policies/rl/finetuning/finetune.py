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

if TYPE_CHECKING:
    import torch
    from torch import nn

    from policies.families.diffusion import DiffusionPolicy
    from policies.policy import ChunkPolicy
    from policies.policy_config import PolicyConfig
    from policies.rl.collection.device_chunk_env import StaysOnDevice
    from policies.rl.collection.episode_statistics import EpisodeStatistics
    from policies.rl.collection.interfaces import DecisionEnv

STATE, CURVE, PICTURE = "practice.pt", "practice.jsonl", "practice.png"
DRAWN = (
    ("steps", "steps of practice"),
    {
        "success": "success, episodes of a rollout",
        "return": "return, episodes of a rollout",
        "largest": "largest reward, episodes of a rollout",
    },
)
"""What the picture shows: the entry and label of its horizontal axis, and of each vertical one."""


class Practice(Protocol):
    """A way to learn from practice; the policy it was given learns in place."""

    @property
    def statistics(self) -> EpisodeStatistics:
        """Figures of the episodes that ended; `flush` them before they are read."""
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
    from policies.training.plots import draw_entries

    with torch_threads(config.threads):
        module, card = load_module(policy, trainable=isinstance(config.practice, VlaPracticeConfig))
        env = make_env()
        run = _Finetuning(config, module, card.model, env, out, demos)
        try:
            run.resume()
            while run.done < config.rollouts:
                run.settle(progress)
                run.rollout(progress)
        finally:
            env.close()
        resumable = run.resumable
        resumable.write_curve()
        draw_entries(resumable.entries, out / PICTURE, *DRAWN)
        with resumable.timed():
            model = run.practice.finish(resumable.identity, out, progress)
        module.cpu()
    # Before the policy's card, which makes the folder one.
    save_practised(out, run.worlds.visited_states())
    save_policy(out, replace(card, model=model), module.state_dict(), module.extra_files())
    resumable.finish()
    told = {name: resumable.entries[-1][name] for name in ("episodes", "success", "return")}
    return {
        "rollouts": run.done,
        "steps": run.steps,
        **told,
        "cpu_seconds": round(resumable.cpu_seconds(), 1),
    }


class _Finetuning:
    """One practice, from its policy to its end."""

    def __init__(
        self,
        config: FinetuneConfig,
        module: ChunkPolicy,
        model: PolicyConfig,
        env: VecEnv | StaysOnDevice,
        out: Path,
        demos: Path | None,
    ) -> None:
        from policies.checkpoint import digest_file
        from policies.rl.collection.split_chunk_env import worlds_of
        from policies.training.resumable_run import ResumableRun

        _check_practises(config, module)
        self.config = config
        self.out = out
        told = {"config": to_plain(config), "policy": _digest(module)}
        if demos is not None and isinstance(config.practice, RL100PracticeConfig):
            # A store only ever grows, and its index tells every segment with its size.
            told["demos"] = digest_file(demos / "store.zarr" / "index.json")
        identity = json.dumps(told, sort_keys=True)
        self.resumable = ResumableRun(out, identity, state=STATE, curve=CURVE)
        module.to(_device(config, env))
        self._seeds = CountedSeeds(config.first_seed)
        discount = _discount(config)
        self.worlds = worlds_of(
            env, module, model.n_action_steps, self._seeds, discount, config.reward
        )
        self.practice = _practice(config, module, model, self.worlds, demos)
        self.done = 0
        self.steps = 0
        self._episodes_before = 0

    def rollout(self, progress: Progress) -> None:
        """One rollout, what is learned from it, one line of the curve."""
        statistics = self.practice.statistics
        statistics.flush()
        since = statistics.episodes
        with self.resumable.timed():
            figures = self.practice.rollout(self.config.decisions)
            self.done += 1
            self.steps += self.worlds.take_executed()
            statistics.flush()
        entry = self._entry(figures, since)
        self.resumable.entries.append(entry)
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
        with self.resumable.timed():
            self.practice.settle(self.resumable.identity, self.out, progress)
        self._save()

    def resume(self) -> None:
        """Takes over what a killed run of the same policy and configuration left."""
        state = self.resumable.resume()
        if state is None:
            return
        self._seeds.used = state["seeds"]
        self.practice.load_state_dict(state["practice"])
        self.practice.load_kept(self.out)
        self.worlds.load_state_dict(state)
        self.steps = state["steps"]
        entries = self.resumable.entries
        self.done = len(entries)
        # Longer work may stand before the first rollout.
        self._episodes_before = int(entries[-1]["episodes"]) if entries else 0

    def _entry(self, figures: dict[str, float], since: int) -> dict[str, float]:
        statistics = self.practice.statistics
        return {
            "rollout": self.done,
            "steps": self.steps,
            "cpu_seconds": round(self.resumable.cpu_seconds(), 1),
            "episodes": self._episodes_before + statistics.episodes,
            "success": statistics.success_rate(since),
            "return": statistics.mean_return(since),
            "largest": statistics.mean_largest_reward(since),
            **figures,
        }

    def _save(self) -> None:
        self.practice.save_new(self.out)
        state = {
            "practice": self.practice.state_dict(),
            "seeds": self._seeds.used,
            "steps": self.steps,
        }
        self.resumable.save(state | self.worlds.state_dict())


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


def _check_practises(config: FinetuneConfig, module: ChunkPolicy) -> None:
    if isinstance(config.practice, VlaPracticeConfig):
        from policies.rl.finetuning.vla import check_reads

        check_reads(module)
    else:
        _check_denoises(module)


def _check_denoises(module: ChunkPolicy) -> DiffusionPolicy:
    """The policy, if DPPO, best of N and RL-100 can improve it.

    Raises:
        HandoffError: it is another one.
    """
    from policies.families.diffusion import DiffusionPolicy

    if not isinstance(module, DiffusionPolicy):
        raise HandoffError(
            f"practice: a {type(module).__name__}, expected a diffusion or flow policy of vectors alone."
        )
    if module.shapes.sensors:
        raise HandoffError(
            "practice: a policy of pictures or point clouds, expected a diffusion or flow policy of vectors alone."
        )
    return module


def _practice(
    config: FinetuneConfig,
    policy: ChunkPolicy,
    model: PolicyConfig,
    worlds: DecisionEnv,
    demos: Path | None,
) -> Practice:
    match config.practice:
        case DppoPracticeConfig() as way:
            from policies.rl.finetuning.dppo import DppoPractice

            return DppoPractice(way, _check_denoises(policy), worlds, config.seed)
        case BestOfNPracticeConfig() as way:
            from policies.rl.finetuning.best_of_n import BestOfNPractice

            return BestOfNPractice(way, _check_denoises(policy), worlds, config.seed)
        case VlaPracticeConfig() as way:
            from policies.rl.finetuning.vla import VlaPractice, check_reads

            return VlaPractice(way, check_reads(policy), worlds, config.seed)
        case RL100PracticeConfig() as way:
            from policies.rl.finetuning.offline_dataset import demonstrated
            from policies.rl.finetuning.rl100 import RL100Practice

            if demos is None:
                raise HandoffError(
                    "practice: rl100 learns from demonstrations, too, and none were given. Does the stage name them "
                    "among its inputs?"
                )
            shown = demonstrated(demos, policy, model, config.reward, way.discount)
            return RL100Practice(way, _check_denoises(policy), worlds, config.seed, shown)


def _digest(module: nn.Module) -> str:
    """Of its weights."""
    import hashlib

    found = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        found.update(name.encode() + weight.detach().contiguous().numpy().tobytes())
    return found.hexdigest()
