"""Fine-tunes a saved policy in simulated environments and saves the result.

The method is a `policies.rl.finetuning.method.FinetuneMethod`: one of this package, or that of an
algorithm outside the repository. The complete state is saved every few rollouts: weights,
optimisers, random generators, reward scales and the number of used seeds. A killed run resumes from
it with new episodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.rl.collection.seeds import CountedSeeds
from policies.rl.finetuning.base import check_runs_on_device
from policies.rl.finetuning.config import (
    BestOfNFinetuneConfig,
    DppoFinetuneConfig,
    DsrlFinetuneConfig,
    ExpoFinetuneConfig,
    FinetuneConfig,
    FpoFinetuneConfig,
    QChunkingFinetuneConfig,
    ReinFlowFinetuneConfig,
    RL100FinetuneConfig,
    RlTokenFinetuneConfig,
    VlaFinetuneConfig,
)
from policies.rl.finetuning.method import FinetuneMethod, FinetuneSetup
from robots.config import to_plain
from robots.interfaces import Progress, VecEnv

if TYPE_CHECKING:
    import torch
    from torch import nn

    from policies.policy import ChunkPolicy
    from policies.policy_config import PolicyConfig
    from policies.rl.collection.device_episodes import DeviceEnv

STATE = "finetune.pt"
CURVE = "finetune.jsonl"
PICTURE = "finetune.png"
LOGS = "finetune"
"""Folder of the loggers' files."""
DRAWN = (
    ("steps", "fine-tuning steps"),
    {
        "success": "success rate per rollout",
        "return": "mean return per rollout",
        "largest": "mean largest reward per rollout",
    },
)
"""Axes of the learning curve: entry and label of the horizontal axis, and of each vertical one."""


def finetune(
    config: FinetuneConfig,
    policy: Path,
    make_env: Callable[[], VecEnv | DeviceEnv],
    out: Path,
    progress: Progress,
    demos: Path | None = None,
) -> dict[str, Any]:
    """Fine-tunes a policy and writes it to `out`, with its learning curve (`finetune.jsonl`,
    `finetune.png`) and the most recent states it visited (`policies.data.visited_states`).

    Args:
        config: options of the run.
        policy: folder of the pretrained policy.
        make_env: makes environments that freeze when their episode ends, or that stay on a device,
            where the policy is then trained; closed at the end.
        out: output folder; a killed run resumes from its content.
        progress: called after every rollout.
        demos: folder with the demonstrations' `store.zarr`, for methods that learn from them.

    Returns:
        Metrics: rollouts, steps (executed actions), episodes, success and return (of the last
            rollout), cpu_seconds.

    Raises:
        HandoffError: a policy that the method cannot fine-tune, environments with other fields, a
            collapsed run (no gradient, ratios stuck at 1, diverging values, numbers that are not
            finite), or missing demonstrations.
    """
    from policies.checkpoint import save_policy
    from policies.data.visited_states import save_visited_states
    from policies.load import load_module
    from policies.training.loop import torch_threads
    from policies.training.plots import draw_entries

    with torch_threads(config.threads):
        module, card = load_module(policy, trainable=config.algorithm.trains_frozen_parts)
        env = make_env()
        run = _Finetuning(config, module, card.model, env, out, demos)
        try:
            run.resume()
            while run.done < config.rollouts:
                run.run_phase(progress)
                run.rollout(progress)
        finally:
            env.close()
            run.resumable.close()
        resumable = run.resumable
        resumable.write_curve()
        draw_entries(resumable.entries, out / PICTURE, *DRAWN)
        resumable.log_image("curve", out / PICTURE)
        resumable.close()
        with resumable.timed():
            model = run.method.finish(resumable.identity, out, progress)
        module.cpu()
    # Before the policy's card, which makes the folder one.
    save_visited_states(out, run.env.visited_states())
    save_policy(out, replace(card, model=model), module.state_dict(), module.extra_files())
    resumable.finish()
    metrics = {name: resumable.entries[-1][name] for name in ("episodes", "success", "return")}
    return {
        "rollouts": run.done,
        "steps": run.steps,
        **metrics,
        "cpu_seconds": round(resumable.cpu_seconds(), 1),
    }


class _Finetuning:
    """One fine-tuning run."""

    def __init__(
        self,
        config: FinetuneConfig,
        module: ChunkPolicy,
        model: PolicyConfig,
        env: VecEnv | DeviceEnv,
        out: Path,
        demos: Path | None,
    ) -> None:
        from policies.checkpoint import digest_file
        from policies.policy import refuse_actors
        from policies.rl.collection.split_chunk_env import make_chunk_env
        from policies.training.resumable_run import ResumableRun

        refuse_actors(module, "finetune: the policy")
        self.config = config
        self.out = out
        identity_of = {"config": to_plain(config), "policy": _digest(module)}
        if demos is not None and config.algorithm.learns_from_demos:
            # A store only grows, and its index lists every segment with its size.
            identity_of["demos"] = digest_file(demos / "store.zarr" / "index.json")
        identity = json.dumps(identity_of, sort_keys=True)
        # Imitation phases log in `out`.
        self.resumable = ResumableRun(
            out, identity, state=STATE, curve=CURVE, logging=config, logs=out / LOGS, step="rollout"
        )
        module.to(_device(config, env))
        self._seeds = CountedSeeds(config.first_seed)
        discount = config.algorithm.reward_discount()
        self.env = make_chunk_env(
            env, module, model.n_action_steps, self._seeds, discount, config.reward
        )
        setup = FinetuneSetup(module, model, self.env, config.seed, config.reward, demos)
        self.method = _make_method(config, setup)
        self.done = 0
        self.steps = 0
        self._previous_episodes = 0

    def rollout(self, progress: Progress) -> None:
        """Collects one rollout, learns from it, and appends an entry to the curve."""
        statistics = self.method.statistics
        statistics.flush()
        since = statistics.episodes
        with self.resumable.timed():
            figures = self.method.rollout(self.config.decisions)
            self.done += 1
            self.steps += self.env.take_executed()
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

    def run_phase(self, progress: Progress) -> None:
        """Runs the phase that is due before the next rollout; a killed phase resumes without
        repeating the rollout before it."""
        if not self.method.phase_due:
            return
        self._save()
        # A phase is a training with loggers of its own.
        self.resumable.close()
        with self.resumable.timed():
            self.method.run_phase(self.resumable.identity, self.out, progress)
        self._save()

    def resume(self) -> None:
        """Restores the state of a killed run with the same policy and configuration."""
        state = self.resumable.resume()
        if state is None:
            return
        self._seeds.used = state["seeds"]
        self.method.load_state_dict(state["method"])
        self.method.load_rollouts(self.out)
        self.env.load_state_dict(state)
        self.steps = state["steps"]
        entries = self.resumable.entries
        self.done = len(entries)
        # A phase may have run before the first rollout.
        self._previous_episodes = int(entries[-1]["episodes"]) if entries else 0

    def _entry(self, figures: dict[str, float], since: int) -> dict[str, float]:
        statistics = self.method.statistics
        return {
            "rollout": self.done,
            "steps": self.steps,
            "cpu_seconds": round(self.resumable.cpu_seconds(), 1),
            "episodes": self._previous_episodes + statistics.episodes,
            "success": statistics.success_rate(since),
            "return": statistics.mean_return(since),
            "largest": statistics.mean_largest_reward(since),
            **figures,
        }

    def _save(self) -> None:
        self.method.save_rollouts(self.out)
        state = {
            "method": self.method.state_dict(),
            "seeds": self._seeds.used,
            "steps": self.steps,
        }
        self.resumable.save(state | self.env.state_dict())


def _device(config: FinetuneConfig, env: VecEnv | DeviceEnv) -> torch.device:
    """Device on which the policy is trained.

    Raises:
        HandoffError: environments on a device with a method that runs on the host.
    """
    import torch

    from policies.rl.collection.device_episodes import DeviceEnv

    if not isinstance(env, DeviceEnv):
        return torch.device("cpu")
    check_runs_on_device(config.algorithm)
    return env.device


def _make_method(config: FinetuneConfig, setup: FinetuneSetup) -> FinetuneMethod:
    match config.algorithm:
        case DppoFinetuneConfig() as options:
            from policies.rl.finetuning.denoising.dppo import DppoFinetuning

            policy = setup.diffusion_policy(instructed=True)
            return DppoFinetuning(options, policy, setup.env, setup.seed)
        case FpoFinetuneConfig() as options:
            from policies.rl.finetuning.denoising.fpo import FpoFinetuning

            return FpoFinetuning(options, setup.flow_policy(), setup.env, setup.seed)
        case ReinFlowFinetuneConfig() as options:
            from policies.rl.finetuning.denoising.reinflow import ReinFlowFinetuning

            return ReinFlowFinetuning(options, setup.plain_flow_policy(), setup.env, setup.seed)
        case BestOfNFinetuneConfig() as options:
            from policies.rl.finetuning.best_of_n import BestOfNFinetuning

            return BestOfNFinetuning(options, setup.diffusion_policy(), setup.env, setup.seed)
        case ExpoFinetuneConfig() as options:
            from policies.rl.finetuning.expo import ExpoFinetuning

            return ExpoFinetuning(options, setup)
        case QChunkingFinetuneConfig() as options:
            from policies.rl.finetuning.q_chunking import QChunkingFinetuning

            return QChunkingFinetuning(options, setup)
        case VlaFinetuneConfig() as options:
            from policies.rl.finetuning.vla import VlaFinetuning, check_language_conditioned

            policy = check_language_conditioned(setup.policy)
            return VlaFinetuning(options, policy, setup.env, setup.seed)
        case DsrlFinetuneConfig() as options:
            from policies.rl.finetuning.dsrl import DsrlFinetuning

            return DsrlFinetuning(options, setup.denoising_policy(), setup.env, setup.seed)
        case RlTokenFinetuneConfig() as options:
            from policies.rl.finetuning.rl_token.finetuning import RlTokenFinetuning

            return RlTokenFinetuning(options, setup.denoising_policy(), setup.env, setup.seed)
        case RL100FinetuneConfig() as options:
            from policies.rl.finetuning.rl100 import RL100Finetuning

            policy = setup.diffusion_policy()
            demonstrations = setup.demonstrations(options.discount)
            return RL100Finetuning(options, policy, setup.env, setup.seed, demonstrations)
        case outside:
            # An algorithm outside the repository makes its own method.
            return outside.method(setup)


def _digest(module: nn.Module) -> str:
    """SHA-256 (hex) of the weights."""
    import hashlib

    digest = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        digest.update(name.encode() + weight.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
