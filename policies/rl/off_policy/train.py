"""A state task learned from nothing in simulated worlds, by FastTD3 or PQL: from worlds to a
policy's folder.

Worlds and learner take turns (`policies.rl.off_policy.online`), so the ratios of updates to steps
are exact counts, where PQL's three processes hold them by waiting. What is learned is saved every
few collections, whole: weights, optimisers, statistics, deviations, worlds, and the new steps of
the replay in a file of their own. A run that was killed goes on from there bit by bit; where worlds
cannot be saved, with new episodes.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.rl.collection.seeds import CountedSeeds
from policies.rl.off_policy.fast_td3_config import ReinforceConfig
from robots.config import to_plain
from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv

if TYPE_CHECKING:
    import numpy as np

    from policies.rl.off_policy.online import Learner, Progressed
    from policies.rl.replay.buffer import Replay
    from robots.wire.steps import Steps

STATE = "reinforce.pt"
CURVE = "reinforce.jsonl"
PICTURE = "reinforce.png"
KEPT = "experience"
DRAWN = (
    ("steps", "steps in all worlds"),
    {"success": "success, last 100 episodes", "return": "return, last 100 episodes"},
)
"""What the picture shows: the entry and label of its horizontal axis, and of each vertical one."""


def reinforce(
    config: ReinforceConfig,
    task: str,
    make_env: Callable[[], VecEnv],
    out: Path,
    progress: Progress,
    robot: str = "",
) -> dict[str, Any]:
    """Learns and writes the policy, which acts without noise, to `out`, with its curve
    (`reinforce.jsonl`, `.png`).

    Args:
        config: how.
        task: its name, for the policy's card.
        make_env: worlds that freeze when they end and take actions in [-1, 1]; closed at the end.
        out: folder; goes on from what a killed run left there.
        progress: told every `save_every` collections.
        robot: name of the worlds' robot; empty where they have none of ours.

    Returns:
        Metrics: collections, steps (of all worlds), updates, policy_updates, episodes, success and
        return (of the last episodes), cpu_seconds.

    Raises:
        HandoffError: worlds of other fields or actions, or numbers that are not finite.
    """
    from policies.training.loop import torch_threads
    from policies.training.plots import draw_entries

    with torch_threads(config.threads):
        run = _OffPolicyTraining(config, make_env(), out)
        try:
            run.resume()
            run.learn(progress)
        finally:
            run.worlds.env.close()
    run.save_policy(task, robot)
    resumable = run.resumable
    draw_entries(resumable.entries, out / PICTURE, *DRAWN)
    resumable.finish()
    shutil.rmtree(out / KEPT, ignore_errors=True)
    told = {name: resumable.entries[-1][name] for name in ("episodes", "success", "return")}
    done = run.done
    return {
        "collections": config.collections,
        "steps": done.steps,
        "updates": done.updates,
        "policy_updates": run.learner.policy_updates,
        **told,
        "cpu_seconds": round(resumable.cpu_seconds(), 1),
    }


class _OffPolicyTraining:
    """One training, from worlds to a policy."""

    def __init__(self, config: ReinforceConfig, env: VecEnv, out: Path) -> None:
        from policies.rl.collection.state_env import StateWorlds
        from policies.rl.off_policy.config import OnlineConfig
        from policies.rl.off_policy.fast_td3 import FastTd3
        from policies.rl.off_policy.online import Batches, Progressed
        from policies.rl.replay.buffer import Replay
        from policies.rl.replay.config import ReplayConfig
        from policies.rl.replay.transitions import Sizes
        from policies.training.resumable_run import ResumableRun

        self.config = config
        self.out = out
        self._seeds = CountedSeeds(config.first_seed)
        self.worlds = StateWorlds(env, config.fields, self._seeds, config.reward)
        n, size = env.num_envs, env.action_spec.size
        self.learner = FastTd3(
            config.learner, Sizes(observation=self.worlds.entries, action=size), n, config.seed
        )
        kept = ReplayConfig(
            capacity=config.capacity * n, discount=config.discount, n_step=config.n_step
        )
        self._replay = Replay(kept, self.worlds.entries, size)
        self._online = OnlineConfig(
            batch_size=config.batch_size,
            demo_share=0.0,
            updates_per_step=config.critic_per_collection / n,
            training_starts=config.learning_starts * n,
            random_steps=config.random_collections * n,
        )
        self._batches = Batches(self._online, self._replay)
        identity = json.dumps(
            {"config": to_plain(config), "worlds": n, "fields": self.worlds.fields}
        )
        self.resumable = ResumableRun(out, identity, state=STATE, curve=CURVE)
        self.done = Progressed()
        self._kept = _Kept(out / KEPT)

    def resume(self) -> None:
        """Takes over what a killed run of the same configuration left, or begins."""
        from policies.rl.off_policy.online import Progressed

        state = self.resumable.resume()
        if state is None:
            shutil.rmtree(self.out / KEPT, ignore_errors=True)
            self.worlds.begin()
            return
        self.learner.load_state_dict(state["learner"])
        self._kept.load(self._replay, state["parts"])
        self._seeds.used = state["seeds"]
        self.worlds.load_state_dict(state["worlds"])
        self.done = Progressed(*state["done"])

    def learn(self, progress: Progress) -> None:
        """All collections that are still to be made."""
        from policies.rl.off_policy.online import learn_online

        n, config = self.worlds.num_envs, self.config

        def watch(done: Progressed, metrics: dict[str, Any]) -> None:
            self.done, collections = done, done.steps // n
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
        """Writes the deterministic policy."""
        from policies.card import PolicyCard
        from policies.families.rl_actor import save_actor
        from policies.policy_config import LearnedActorConfig
        from policies.rl.actor_export import fast_td3_actor
        from robots.spec import FieldSpec
        from robots.wire.learner import Parameters

        card, arrays = fast_td3_actor(self.learner)
        env = self.worlds.env
        spec = env.action_spec
        policy = PolicyCard(
            task=task,
            rate_hz=env.rate_hz,
            observation=self.worlds.shown,
            action=FieldSpec(
                shape=(spec.size,),
                unit=spec.unit,
                about=f"{spec.interface}: {', '.join(spec.names)}",
            ),
            model=LearnedActorConfig(observation_fields=self.worlds.fields, card=card),
            robot=robot,
        )
        save_actor(self.out, policy, Parameters(self.learner.updates, card, arrays))

    def _collect(self, actor: Learner, draw: np.random.Generator) -> Steps:
        seen_NO = self.worlds.seen
        self.learner.observe(seen_NO, self.worlds.number == 0, draw)
        return self.worlds.step(actor.act(seen_NO, draw))

    def _entry(self, collections: int, metrics: dict[str, Any]) -> dict[str, float]:
        figures = {name: float(value) for name, value in metrics.items()}
        lost = [name for name, value in figures.items() if not math.isfinite(value)]
        if lost:
            raise HandoffError(
                f"reinforce: {lost} not finite after {collections} collections. Are rewards of a size that "
                f"{self.config.learner.low} to {self.config.learner.high} can hold, and the rates small enough?"
            )
        statistics = self.worlds.statistics
        # Added up in their order; NumPy's mean rounds otherwise.
        returns = [one.total_reward for one in statistics.newest()]
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
        parts = self._kept.save(self._replay)
        state = {
            "learner": self.learner.state_dict(),
            "parts": parts,
            "seeds": self._seeds.used,
            "worlds": self.worlds.state_dict(),
            "done": list(self.done),
        }
        self.resumable.save(state)
        self._kept.forget_others(parts)


class _Kept:
    """The replay's steps on the disk: what is new at each save in a file of its own, written once.

    `Replay.save` keeps one state only, which may be newer than that of all else when a run is
    killed between the two; here the other state names the files that belong to it.

    Args:
        folder: of the files; need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[list[int]] = []

    def save(self, replay: Replay) -> list[list[int]]:
        """Writes the steps since the last call; returns first and end (serial numbers) of every
        part that counts."""
        import torch

        from policies.checkpoint import save_state

        self._folder.mkdir(exist_ok=True)
        oldest = replay.added - len(replay)
        begin = max(oldest, self._parts[-1][1] if self._parts else 0)
        if begin < replay.added:
            columns = {
                name: torch.from_numpy(column) for name, column in replay.rows(begin).items()
            }
            save_state(self._file(begin), {"identity": KEPT, "end": replay.added, **columns})
            self._parts.append([begin, replay.added])
        self._parts = [part for part in self._parts if part[1] > oldest]
        return [list(part) for part in self._parts]

    def forget_others(self, parts: list[list[int]]) -> None:
        """Removes the files of parts that count no more."""
        names = {self._file(begin).name for begin, _ in parts}
        for file in self._folder.glob("*.pt"):
            if file.name not in names:
                file.unlink()

    def load(self, replay: Replay, parts: list[list[int]]) -> None:
        """Fills the replay as it was, slot for slot.

        Raises:
            HandoffError: a file is gone, damaged, or of another state.
        """
        import numpy as np

        from policies.checkpoint import read_state

        self._parts = [list(part) for part in parts]
        tables = []
        for begin, end in parts:
            table = read_state(self._file(begin), KEPT)
            if table is None or table["end"] != end:
                raise HandoffError(
                    f"{self._file(begin)}: is gone, or of another run. Remove its folder to start anew."
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
