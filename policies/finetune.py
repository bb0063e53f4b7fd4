"""Fine-tuning a saved policy by practice: DPPO in simulated worlds, from the policy's folder to another one like it.

What is learned is saved every few rollouts, whole: weights, optimisers, chance, scales and how many starts were used. A
run that was killed goes on from there; episodes that were under way are not, the worlds begin new ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.rl.dppo import DppoConfig
from policies.rl.on_policy import OnPolicyConfig
from robots.config import config, to_plain
from robots.durable import write_atomically
from robots.errors import HandoffError
from robots.types import Progress, VecEnv

if TYPE_CHECKING:
    from torch import nn

    from policies.diffusion import DiffusionPolicy
    from policies.rl.collector import Collector
    from policies.rl.on_policy import Learned, OnPolicyLearner

STATE, CURVE, PICTURE = "practice.pt", "practice.jsonl", "practice.png"
RECENT = 100
"""Episodes over which success in practice is told."""
PATIENCE = 3
"""Rollouts in a row that may look dead before the run is stopped."""
EXPLODED = 1e4
"""Loss of the values, of scaled rewards, above which they count as exploding."""


@config
class FinetuneConfig:
    """How a policy practises."""

    dppo: DppoConfig = field(default_factory=DppoConfig)
    learning: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    rollouts: int = 40
    decisions: int = 50
    """Of every world in a rollout."""
    reward_offset: float = 0.0
    """Added to the reward of every action. Where a step pays up to r and solving the task ends the episode, -r: else
    it would pay to wait short of the goal."""
    critic: tuple[int, ...] = (256, 256, 256)
    """Hidden units; Mish, as released."""
    first_seed: int = 1_000_000
    """Of the first start; protocols' starts lie below."""
    seed: int = 0
    save_every: int = 5
    """Rollouts between two states on the disk."""
    threads: int = 1
    """Of torch."""


def finetune(
    config: FinetuneConfig, policy: Path, make_env: Callable[[], VecEnv], out: Path, progress: Progress
) -> dict[str, Any]:
    """Practises and writes the improved policy to `out`, with its curve (`practice.jsonl`, `practice.png`).

    Args:
        config: how.
        policy: folder of a diffusion or flow policy of vectors.
        make_env: worlds that freeze when they end; closed at the end.
        out: folder; goes on from what a killed run left there.
        progress: told every rollout.

    Returns:
        Metrics: rollouts, steps (actions executed), episodes, success (of the last practice), cpu_seconds, kl.

    Raises:
        HandoffError: a policy that cannot practise, worlds of other fields, or a run that is dead: no gradient, ratios
            that stay 1, values that explode, numbers that are not finite.
    """
    from policies.checkpoint import save_policy
    from policies.load import load_module
    from policies.training import torch_threads

    with torch_threads(config.threads):
        module, card = load_module(policy)
        run = _Run(config, module, card.model.n_action_steps, make_env(), out)
        try:
            run.go_on()
            while run.learner.rollouts < config.rollouts:
                run.rollout(progress)
        finally:
            run.worlds.env.close()
    run.keep_curve()
    save_policy(out, replace(card, model=run.practised_model()), module.state_dict(), module.extra_files())
    _draw(run.entries, out / PICTURE)
    (out / STATE).unlink(missing_ok=True)
    last = run.entries[-1]
    return {
        "rollouts": run.learner.rollouts,
        "steps": run.steps,
        "episodes": last["episodes"],
        "success": last["success"],
        "kl": last["kl"],
        "cpu_seconds": round(run.cpu_seconds, 1),
    }


class _Run:
    """One practice, from its policy to its end."""

    def __init__(self, config: FinetuneConfig, module: Any, n_action_steps: int, env: VecEnv, out: Path) -> None:
        import torch

        from policies.diffusion import DiffusionPolicy
        from policies.rl.collector import ChunkWorlds, Collector
        from policies.rl.dppo import DenoisingActor
        from policies.rl.on_policy import OnPolicyLearner

        if not isinstance(module, DiffusionPolicy):
            raise HandoffError(f"practice: a {type(module).__name__}, expected a diffusion or flow policy.")
        self.config, self.module, self.out = config, module, out
        self._identity = json.dumps({"config": to_plain(config), "policy": _digest(module)}, sort_keys=True)
        torch.manual_seed(config.seed)
        self.critic = _critic(module, config.critic)
        self.actor = DenoisingActor(module, config.dppo)
        self.seeds = _Seeds(config.first_seed)
        discount = config.learning.discount
        self.worlds = ChunkWorlds(env, module, n_action_steps, self.seeds, discount, config.reward_offset)
        self.collector: Collector = Collector(self.worlds, self.actor, self.critic, discount, config.seed)
        self.learner: OnPolicyLearner = OnPolicyLearner(config.learning, self.actor, self.critic, config.seed)
        self.entries: list[dict[str, float]] = []
        self.steps, self.episodes_before, self.cpu_seconds = 0, 0, 0.0
        self._dead = _Dead(self.actor.parameters())

    def practised_model(self) -> Any:
        """The family's configuration, sampling in as many steps as were practised."""
        return replace(self.module.config, inference_steps=self.config.dppo.steps)

    def rollout(self, progress: Progress) -> None:
        """One rollout, one update, one line of the curve."""
        began, made = time.process_time(), self.collector.rollout(self.config.decisions)
        learned = self.learner.update(made)
        self.steps += self.worlds.executed
        self.worlds.executed = 0
        self.cpu_seconds += time.process_time() - began
        entry = self._entry(learned)
        self.entries.append(entry)
        warm = self.learner.rollouts > self.config.learning.critic_warm_up
        self._dead.look(self.learner.rollouts, learned, practises=warm)
        if self.learner.rollouts % self.config.save_every == 0:
            self._save()
        told = f"success {entry['success']:.2f}, return {entry['return']:.2f}, kl {learned.kl:.4f}"
        progress(self.learner.rollouts, self.config.rollouts, told)

    def go_on(self) -> None:
        """Takes over what a killed run of the same policy and configuration left."""
        from policies.checkpoint import read_state

        state = read_state(self.out / STATE, self._identity)
        if state is None:
            return
        self.module.load_state_dict(state["policy"])
        self.actor.before.load_state_dict(state["before"])
        self.critic.load_state_dict(state["critic"])
        self.learner.load_state_dict(state["learner"])
        self.collector.load_state_dict(state["collector"])
        self.seeds.used = state["seeds"]
        self.collector.begin()
        self.entries, self.steps, self.cpu_seconds = state["entries"], state["steps"], state["cpu_seconds"]
        self.episodes_before = int(self.entries[-1]["episodes"])

    def _entry(self, learned: Learned) -> dict[str, float]:
        solved, returns = self.collector.solved[-RECENT:], self.collector.returns[-RECENT:]
        return {
            "rollout": self.learner.rollouts,
            "steps": self.steps,
            "episodes": self.episodes_before + len(self.collector.solved),
            "success": sum(solved) / max(1, len(solved)),
            "return": sum(returns) / max(1, len(returns)),
            "kl": learned.kl,
            "clipped": learned.clipped,
            "ratio": learned.ratio,
            "explained": learned.explained,
            "value_loss": learned.value_loss,
        }

    def _save(self) -> None:
        from policies.checkpoint import save_state

        state = {
            "identity": self._identity,
            "policy": self.module.state_dict(),
            "before": self.actor.before.state_dict(),
            "critic": self.critic.state_dict(),
            "learner": self.learner.state_dict(),
            "collector": self.collector.state_dict(),
            "seeds": self.seeds.used,
            "entries": self.entries,
            "steps": self.steps,
            "cpu_seconds": self.cpu_seconds,
        }
        save_state(self.out / STATE, state)
        self.keep_curve()

    def keep_curve(self) -> None:
        """Writes a line per rollout."""
        lines = "".join(json.dumps(entry) + "\n" for entry in self.entries)
        write_atomically(self.out / CURVE, lines.encode())


class _Seeds(Iterator[int]):
    """Numbers from the first on, of which is known how many were used."""

    def __init__(self, first: int) -> None:
        self._first, self.used = first, 0

    def __next__(self) -> int:
        self.used += 1
        return self._first + self.used - 1


class _Dead:
    """Stops a run in which nothing is learned any more, or everything is lost."""

    def __init__(self, parameters: list[Any]) -> None:
        self._parameters = parameters
        self._still = self._same = 0
        self._sample = self._sampled()

    def look(self, rollouts: int, learned: Learned, *, practises: bool) -> None:
        """After an update; before the policy learns only the values are looked at.

        Raises:
            HandoffError: see `finetune`.
        """
        if not learned.value_loss < EXPLODED:
            raise HandoffError(
                f"practice: the values' loss is {learned.value_loss:.3g} after rollout {rollouts}, limit {EXPLODED:g}, "
                "of scaled rewards. Is the critic's rate too high?"
            )
        sample = self._sampled()
        moved = bool((sample != self._sample).any())
        self._sample = sample
        if not practises:
            return
        self._still = 0 if moved else self._still + 1
        self._same = 0 if learned.epochs == 1 or abs(learned.ratio - 1.0) > 1e-6 else self._same + 1
        if self._still >= PATIENCE:
            raise HandoffError(
                f"practice: no weight of the policy has moved in the last {PATIENCE} rollouts, up to {rollouts}. Are "
                "all advantages alike (a reward that never differs), or is the actor's rate too low?"
            )
        if self._same >= PATIENCE:
            raise HandoffError(
                f"practice: every ratio has been 1 in the last {PATIENCE} rollouts, up to {rollouts}. Do the policy's "
                "log-probabilities hang on its weights?"
            )

    def _sampled(self) -> Any:
        import torch

        return torch.cat([parameter.detach().flatten()[:64] for parameter in self._parameters])


def _critic(module: DiffusionPolicy, hidden: tuple[int, ...]) -> nn.Module:
    from torch import nn

    history, observation = module.observation_shape
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip((history * observation, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, after), nn.Mish()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], 1))


def _draw(entries: list[dict[str, float]], path: Path) -> None:
    """Success, return and divergence over the steps of practice."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.0), layout="constrained")
    for axes, name in zip(figure.subplots(1, 3), ("success", "return", "kl"), strict=True):
        axes.plot([entry["steps"] for entry in entries], [entry[name] for entry in entries], linewidth=1)
        axes.set(xlabel="steps of practice", ylabel=name)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _digest(module: nn.Module) -> str:
    """Of its weights."""
    import hashlib

    found = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        found.update(name.encode() + weight.detach().contiguous().numpy().tobytes())
    return found.hexdigest()
