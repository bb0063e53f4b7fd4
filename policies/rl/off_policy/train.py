"""Trains a policy from scratch with FastTD3 or PQL in simulated environments.

Environments and learner alternate (`policies.rl.off_policy.online`), so the ratio of updates to
steps is exact; PQL's three processes maintain it by waiting. The complete state is saved every few
collections: weights, optimisers, statistics, exploration noise, environments, and the new steps of
the replay in a separate file. A killed run resumes bit-identically, or with new episodes if the
environments cannot be saved.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.rl.collection.seeds import CountedSeeds
from policies.rl.off_policy.fast_td3_config import RlFromScratchConfig
from robots.config import to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv

if TYPE_CHECKING:
    import numpy as np

    from policies.rl.off_policy.online import Learner, OnlineProgress
    from policies.rl.replay.buffer import Replay
    from robots.wire.steps import Steps

STATE = "reinforce.pt"
CURVE = "reinforce.jsonl"
PICTURE = "reinforce.png"
REPLAY_FOLDER = "experience"
PLOT_ENTRIES = (
    ("steps", "steps in all environments"),
    {"success": "success, last 100 episodes", "return": "return, last 100 episodes"},
)
"""Entries and labels of the learning curve: horizontal axis, then each vertical axis."""


def train_from_scratch(
    config: RlFromScratchConfig,
    task: str,
    make_env: Callable[[], VecEnv],
    out: Path,
    progress: Progress,
    robot: str = "",
) -> dict[str, Any]:
    """Trains a policy and writes it, without exploration noise, to `out`, with its learning curve
    (`reinforce.jsonl`, `reinforce.png`).

    Args:
        config: options of learner and training.
        task: name of the task, for the policy card.
        make_env: makes a vectorised environment without auto-reset and with actions in [-1, 1]; it
            is closed at the end.
        out: output folder; a killed run in it is resumed.
        progress: called every `save_every` collections.
        robot: name of the robot; empty if it is not one of Handoff's robots.

    Returns:
        Metrics: collections, steps (of all environments), updates, policy_updates, episodes,
        success and return (of the last episodes), cpu_seconds.

    Raises:
        HandoffError: observation fields or actions are unsuitable, or values are not finite.
    """
    from policies.training.loop import torch_threads
    from policies.training.plots import draw_entries

    with torch_threads(config.threads):
        run = _OffPolicyTraining(config, make_env(), out)
        try:
            run.resume()
            run.learn(progress)
        finally:
            run.env.env.close()
    run.save_policy(task, robot)
    resumable = run.resumable
    draw_entries(resumable.entries, out / PICTURE, *PLOT_ENTRIES)
    resumable.finish()
    shutil.rmtree(out / REPLAY_FOLDER, ignore_errors=True)
    final = {name: resumable.entries[-1][name] for name in ("episodes", "success", "return")}
    done = run.done
    return {
        "collections": config.collections,
        "steps": done.steps,
        "updates": done.updates,
        "policy_updates": run.learner.policy_updates,
        **final,
        "cpu_seconds": round(resumable.cpu_seconds(), 1),
    }


class _OffPolicyTraining:
    """State of one training run."""

    def __init__(self, config: RlFromScratchConfig, env: VecEnv, out: Path) -> None:
        from policies.rl.collection.state_env import StateEnv
        from policies.rl.off_policy.config import OnlineConfig
        from policies.rl.off_policy.fast_td3 import FastTd3
        from policies.rl.off_policy.online import MinibatchSampler, OnlineProgress
        from policies.rl.replay.buffer import Replay
        from policies.rl.replay.config import ReplayConfig
        from policies.rl.replay.transitions import Sizes
        from policies.training.resumable_run import ResumableRun

        self.config = config
        self.out = out
        self._seeds = CountedSeeds(config.first_seed)
        self.env = StateEnv(env, config.fields, self._seeds, config.reward)
        n, size = env.num_envs, env.action_spec.size
        self.learner = FastTd3(
            config.learner, Sizes(observation=self.env.entries, action=size), n, config.seed
        )
        replay_config = ReplayConfig(
            capacity=config.capacity * n, discount=config.discount, n_step=config.n_step
        )
        self._replay = Replay(replay_config, self.env.entries, size)
        self._online = OnlineConfig(
            batch_size=config.batch_size,
            demo_share=0.0,
            updates_per_step=config.critic_per_collection / n,
            training_starts=config.learning_starts * n,
            random_steps=config.random_collections * n,
        )
        self._batches = MinibatchSampler(self._online, self._replay)
        identity = json.dumps({"config": to_plain(config), "env": n, "fields": self.env.fields})
        self.resumable = ResumableRun(out, identity, state=STATE, curve=CURVE)
        self.done = OnlineProgress()
        self._replay_files = _ReplayFiles(out / REPLAY_FOLDER)

    def resume(self) -> None:
        """Restores the state of a killed run with the same configuration, or starts a new one."""
        from policies.rl.off_policy.online import OnlineProgress

        state = self.resumable.resume()
        if state is None:
            shutil.rmtree(self.out / REPLAY_FOLDER, ignore_errors=True)
            self.env.begin()
            return
        self.learner.load_state_dict(state["learner"])
        self._replay_files.load(self._replay, state["parts"])
        self._seeds.used = state["seeds"]
        self.env.load_state_dict(state["env"])
        self.done = OnlineProgress(*state["done"])

    def learn(self, progress: Progress) -> None:
        """Runs the remaining collections."""
        from policies.rl.off_policy.online import learn_online

        n, config = self.env.num_envs, self.config

        def watch(done: OnlineProgress, metrics: dict[str, Any]) -> None:
            self.done = done
            collections = done.steps // n
            if collections % config.save_every == 0 or collections == config.collections:
                entry = self._entry(collections, metrics)
                self.resumable.entries.append(entry)
                self._save()
                note = f"success {entry['success']:.2f}, return {entry['return']:.2f}"
                progress(collections, config.collections, note)

        with self.resumable.timed():
            learn_online(
                self.learner,
                self._batches,
                self._collect,
                self._online,
                config.collections * n,
                config.seed,
                watch,
                self.done,
            )

    def save_policy(self, task: str, robot: str) -> None:
        """Writes the deterministic policy to the output folder."""
        from policies.card import PolicyCard
        from policies.families.rl_actor import save_actor
        from policies.policy_config import LearnedActorConfig
        from policies.rl.actor_export import fast_td3_actor
        from robots.spec import FieldSpec
        from robots.wire.learner import Parameters

        card, arrays = fast_td3_actor(self.learner)
        env = self.env.env
        spec = env.action_spec
        policy = PolicyCard(
            task=task,
            rate_hz=env.rate_hz,
            observation=self.env.observation_spec,
            action=FieldSpec(
                shape=(spec.size,),
                unit=spec.unit,
                about=f"{spec.interface}: {', '.join(spec.names)}",
            ),
            model=LearnedActorConfig(observation_fields=self.env.fields, card=card),
            robot=robot,
        )
        save_actor(self.out, policy, Parameters(self.learner.updates, card, arrays))

    def _collect(self, actor: Learner, rng: np.random.Generator) -> Steps:
        obs_NO = self.env.observation
        self.learner.observe(obs_NO, self.env.step_index == 0, rng)
        return self.env.step(actor.act(obs_NO, rng))

    def _entry(self, collections: int, metrics: dict[str, Any]) -> dict[str, float]:
        figures = {name: float(value) for name, value in metrics.items()}
        not_finite = [name for name, value in figures.items() if not math.isfinite(value)]
        if not_finite:
            raise HandoffError(
                f"reinforce: {not_finite} not finite after {collections} collections. Are returns within "
                f"{self.config.learner.low} to {self.config.learner.high} (low, high), and learning rates small enough?"
            )
        statistics = self.env.statistics
        # Summed in order; NumPy's mean rounds differently.
        returns = [episode.total_reward for episode in statistics.newest()]
        return {
            "collections": collections,
            "steps": self.done.steps,
            "updates": self.done.updates,
            "cpu_seconds": round(self.resumable.cpu_seconds(), 1),
            "episodes": statistics.episodes,
            "success": statistics.success_rate(),
            "return": sum(returns) / max(1, len(returns)),
            **figures,
        }

    def _save(self) -> None:
        parts = self._replay_files.save(self._replay)
        state = {
            "learner": self.learner.state_dict(),
            "parts": parts,
            "seeds": self._seeds.used,
            "env": self.env.state_dict(),
            "done": list(self.done),
        }
        self.resumable.save(state)
        self._replay_files.remove_others(parts)


class _ReplayFiles:
    """Files of the replay's steps: each save writes the new steps to a separate file.

    `Replay.save` keeps a single state, which can be newer than the rest of the checkpoint if a run
    is killed in between. Here the checkpoint lists the files that belong to it.

    Args:
        folder: folder of the files; created by `save`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[list[int]] = []

    def save(self, replay: Replay) -> list[list[int]]:
        """Writes the steps added since the last call; returns the range of serial numbers (begin,
        end) of each file that is still needed."""
        import torch

        from policies.checkpoint import save_state

        self._folder.mkdir(exist_ok=True)
        oldest = replay.added - len(replay)
        begin = max(oldest, self._parts[-1][1] if self._parts else 0)
        if begin < replay.added:
            columns = {
                name: torch.from_numpy(column) for name, column in replay.rows(begin).items()
            }
            save_state(
                self._file(begin), {"identity": REPLAY_FOLDER, "end": replay.added, **columns}
            )
            self._parts.append([begin, replay.added])
        self._parts = [part for part in self._parts if part[1] > oldest]
        return [list(part) for part in self._parts]

    def remove_others(self, parts: list[list[int]]) -> None:
        """Removes files that are not in `parts`."""
        names = {self._file(begin).name for begin, _ in parts}
        for file in self._folder.glob("*.pt"):
            if file.name not in names:
                file.unlink()

    def load(self, replay: Replay, parts: list[list[int]]) -> None:
        """Restores the replay with the same slots.

        Raises:
            HandoffError: a file is missing, damaged, or of another checkpoint.
        """
        import numpy as np

        from policies.checkpoint import read_state

        self._parts = [list(part) for part in parts]
        tables = []
        for begin, end in parts:
            table = read_state(self._file(begin), REPLAY_FOLDER)
            if table is None or table["end"] != end:
                raise HandoffError(
                    f"{self._file(begin)}: is missing, or of another run. Remove the output folder to start a new run."
                )
            tables.append(table)
        added = parts[-1][1] if parts else 0
        if not added:
            return
        names = replay.rows(0, 0)
        size = min(added, replay.config.capacity)
        columns = {
            name: np.concatenate([table[name].numpy() for table in tables])[-size:]
            for name in names
        }
        replay.load_state_dict({"columns": columns, "added": added})

    def _file(self, begin: int) -> Path:
        return self._folder / f"{begin}.pt"
