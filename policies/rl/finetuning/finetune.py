"""Fine-tunes a saved policy in simulated environments and saves the result.

The method is a `FinetuneMethod`: `policies.rl.finetuning.dppo`, `policies.rl.finetuning.best_of_n`,
`policies.rl.finetuning.rl100` with demonstrations, or `policies.rl.finetuning.vla` for
language-conditioned policies. The complete state is saved every few rollouts: weights, optimisers,
random generators, reward scales and the number of used seeds. A killed run resumes from it with new
episodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from policies.rl.collection.seeds import CountedSeeds
from policies.rl.finetuning.config import (
    BestOfNFinetuneConfig,
    DppoFinetuneConfig,
    FinetuneConfig,
    RL100FinetuneConfig,
    VlaFinetuneConfig,
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
    from policies.rl.collection.device_chunk_env import DeviceEnv
    from policies.rl.collection.episode_statistics import EpisodeStatistics
    from policies.rl.collection.interfaces import DecisionEnv

STATE = "finetune.pt"
CURVE = "finetune.jsonl"
PICTURE = "finetune.png"
DRAWN = (
    ("steps", "fine-tuning steps"),
    {
        "success": "success rate per rollout",
        "return": "mean return per rollout",
        "largest": "mean largest reward per rollout",
    },
)
"""Axes of the learning curve: entry and label of the horizontal axis, and of each vertical one."""


class FinetuneMethod(Protocol):
    """A fine-tuning method, which trains its policy in place."""

    @property
    def statistics(self) -> EpisodeStatistics:
        """Statistics of the ended episodes; call `flush` before reading them."""
        ...

    def rollout(self, decisions: int) -> dict[str, float]:
        """Collects `decisions` decisions per environment and learns from them; returns metrics of
        the update.

        Raises:
            HandoffError: the run has collapsed or diverged.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """State that the next rollout depends on, without the environments and the files of
        `save_rollouts`."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict` and begins new episodes."""
        ...

    def save_rollouts(self, out: Path) -> None:
        """Writes the rollouts since the last call, if the method keeps them."""
        ...

    def load_rollouts(self, out: Path) -> None:
        """Reads the files of `save_rollouts`; called after `load_state_dict`."""
        ...

    @property
    def phase_due(self) -> bool:
        """Whether a longer training phase is due before the next rollout."""
        ...

    def run_phase(self, identity: str, out: Path, progress: Progress) -> None:
        """Runs the training phase that is due.

        Args:
            identity: identity of the fine-tuning run, to resume a killed phase.
            out: output folder.
            progress: receives the progress of the phase.
        """
        ...

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """Finalises the policy after the last rollout; returns the configuration for its card.

        Args: see `run_phase`.
        """
        ...


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
        module, card = load_module(
            policy, trainable=isinstance(config.algorithm, VlaFinetuneConfig)
        )
        env = make_env()
        run = _Finetuning(config, module, card.model, env, out, demos)
        try:
            run.resume()
            while run.done < config.rollouts:
                run.run_phase(progress)
                run.rollout(progress)
        finally:
            env.close()
        resumable = run.resumable
        resumable.write_curve()
        draw_entries(resumable.entries, out / PICTURE, *DRAWN)
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
        from policies.rl.collection.split_chunk_env import make_chunk_env
        from policies.training.resumable_run import ResumableRun

        _check_policy(config, module)
        self.config = config
        self.out = out
        identity_of = {"config": to_plain(config), "policy": _digest(module)}
        if demos is not None and isinstance(config.algorithm, RL100FinetuneConfig):
            # A store only grows, and its index lists every segment with its size.
            identity_of["demos"] = digest_file(demos / "store.zarr" / "index.json")
        identity = json.dumps(identity_of, sort_keys=True)
        self.resumable = ResumableRun(out, identity, state=STATE, curve=CURVE)
        module.to(_device(config, env))
        self._seeds = CountedSeeds(config.first_seed)
        discount = _discount(config)
        self.env = make_chunk_env(
            env, module, model.n_action_steps, self._seeds, discount, config.reward
        )
        self.method = _make_method(config, module, model, self.env, demos)
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

    from policies.rl.collection.device_chunk_env import DeviceEnv

    if not isinstance(env, DeviceEnv):
        return torch.device("cpu")
    if not isinstance(config.algorithm, VlaFinetuneConfig) or config.algorithm.staleness:
        raise HandoffError(
            f"finetune: the environments stay on a device, but the algorithm is '{config.algorithm.kind}' "
            f"with staleness {getattr(config.algorithm, 'staleness', 0)}; expected 'vla' with staleness 0. "
            "Set resident: false."
        )
    return env.device


def _discount(config: FinetuneConfig) -> float:
    method = config.algorithm
    if isinstance(method, DppoFinetuneConfig | VlaFinetuneConfig):
        return method.learning.discount
    return method.discount


def _check_policy(config: FinetuneConfig, module: ChunkPolicy) -> None:
    if isinstance(config.algorithm, VlaFinetuneConfig):
        from policies.rl.finetuning.vla import check_language_conditioned

        check_language_conditioned(module)
    else:
        _check_diffusion(module)


def _check_diffusion(module: ChunkPolicy) -> DiffusionPolicy:
    """Returns the policy if DPPO, best-of-N and RL-100 can fine-tune it.

    Raises:
        HandoffError: a policy of another family, or one with images or point clouds.
    """
    from policies.families.diffusion import DiffusionPolicy

    if not isinstance(module, DiffusionPolicy):
        raise HandoffError(
            f"finetune: the policy is a {type(module).__name__}, expected a diffusion or flow policy of vectors alone."
        )
    if module.shapes.sensors:
        raise HandoffError(
            "finetune: the policy reads images or point clouds, expected a diffusion or flow policy of vectors alone."
        )
    return module


def _make_method(
    config: FinetuneConfig,
    policy: ChunkPolicy,
    model: PolicyConfig,
    env: DecisionEnv,
    demos: Path | None,
) -> FinetuneMethod:
    match config.algorithm:
        case DppoFinetuneConfig() as method_config:
            from policies.rl.finetuning.dppo import DppoFinetuning

            return DppoFinetuning(method_config, _check_diffusion(policy), env, config.seed)
        case BestOfNFinetuneConfig() as method_config:
            from policies.rl.finetuning.best_of_n import BestOfNFinetuning

            return BestOfNFinetuning(method_config, _check_diffusion(policy), env, config.seed)
        case VlaFinetuneConfig() as method_config:
            from policies.rl.finetuning.vla import VlaFinetuning, check_language_conditioned

            return VlaFinetuning(
                method_config, check_language_conditioned(policy), env, config.seed
            )
        case RL100FinetuneConfig() as method_config:
            from policies.rl.finetuning.offline_dataset import demonstration_dataset
            from policies.rl.finetuning.rl100 import RL100Finetuning

            if demos is None:
                raise HandoffError(
                    "finetune: rl100 needs demonstrations, but demos is None. Does the stage list them among its "
                    "inputs?"
                )
            demonstrations = demonstration_dataset(
                demos, policy, model, config.reward, method_config.discount
            )
            return RL100Finetuning(
                method_config, _check_diffusion(policy), env, config.seed, demonstrations
            )


def _digest(module: nn.Module) -> str:
    """SHA-256 (hex) of the weights."""
    import hashlib

    digest = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        digest.update(name.encode() + weight.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
