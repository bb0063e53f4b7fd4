"""Trains a policy from a replay buffer: SAC, RLPD, FastTD3, PQL, MR.Q and CQN-AS.

Environments and learner alternate (`policies.rl.off_policy.online`), so the ratio of updates to
steps is exact; PQL's three processes maintain it by waiting. The complete state is saved every few
collections: weights, optimisers, statistics, exploration noise, environments, and the new steps of
the replay in a separate file. A killed run resumes bit-identically, or with new episodes if the
environments cannot be saved. In environments that stay on a device, FastTD3 and PQL act and learn
there.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from policies.rl.coarse_to_fine.learner import CqnAs
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.config import (
    CqnAsAlgorithm,
    FastTd3Algorithm,
    MrqAlgorithm,
    PqlAlgorithm,
    online_options,
)
from policies.rl.from_scratch.device_env import DeviceStateEnv
from policies.rl.from_scratch.experience.cqn_as import CqnAsExperience
from policies.rl.from_scratch.experience.device import DeviceExperience
from policies.rl.from_scratch.experience.host import HostExperience
from policies.rl.from_scratch.experience.mrq import MrqExperience
from policies.rl.from_scratch.learners import ReplayAlgorithm, exported_actor
from policies.rl.from_scratch.replay_files import REPLAY_FOLDER, ReplayFiles
from policies.rl.from_scratch.run import (
    SavedActor,
    SavedCritic,
    ScratchRun,
    checked_figures,
    episode_figures,
)
from policies.rl.off_policy.online import OnlineProgress
from policies.rl.replay.config import ReplayConfig
from robots.interfaces import Progress
from robots.wire.steps import Steps


class ReplayRun:
    """State of one run.

    Args:
        algorithm: the algorithm with its options; FastTD3 or PQL in environments that stay on a
            device.
        run: environments, curve and folder of the run.
        demos: episodes of demonstrations; needed by RLPD and CQN-AS.
    """

    def __init__(
        self,
        algorithm: ReplayAlgorithm,
        run: ScratchRun[StateEnv] | ScratchRun[DeviceStateEnv],
        demos: Sequence[Steps] = (),
    ) -> None:
        self.run = run
        self._algorithm = algorithm
        self._experience = _experience(algorithm, run.env, run.config.seed, demos)
        self.learner = self._experience.learner
        self.done = OnlineProgress()
        self._replay_files = ReplayFiles(run.out / REPLAY_FOLDER)

    def resume(self) -> None:
        """Restores the state of a killed run with the same configuration, or starts a new one."""
        state = self.run.resumable.resume()
        if state is None:
            shutil.rmtree(self.run.out / REPLAY_FOLDER, ignore_errors=True)
            self._experience.begin()
            return
        self._experience.load_state_dict(state["learner"])
        self._replay_files.load(self._experience.replay, state["parts"])
        self.run.load_state_dict(state)
        self._experience.resume()
        self.done = OnlineProgress(*state["done"])

    def learn(self, progress: Progress) -> None:
        """Runs the remaining collections."""
        n, algorithm = self.run.env.num_envs, self._algorithm

        def watch(done: OnlineProgress, metrics: dict[str, Any]) -> None:
            self.done = done
            collections = done.steps // n
            if collections % algorithm.save_every == 0 or collections == algorithm.collections:
                self._experience.look()
                entry = self._entry(collections, metrics)
                self.run.resumable.entries.append(entry)
                self._save()
                note = f"success {entry['success']:.2f}, return {entry['return']:.2f}"
                progress(collections, algorithm.collections, note)

        self._experience.learn(
            algorithm.collections * n, watch, self.done, algorithm.random_collections * n
        )

    def actor(self) -> SavedActor | SavedCritic:
        """The deterministic policy."""
        if isinstance(self.learner, CqnAs):
            return SavedCritic(self.learner.config, self.learner.acting_weights())
        return SavedActor(*exported_actor(self.learner), version=self.learner.updates)

    def counts(self) -> dict[str, int]:
        """Number of collections, steps of all environments, updates, and updates of the actor."""
        return {
            "collections": self._algorithm.collections,
            "steps": self.done.steps,
            "updates": self.done.updates,
            "policy_updates": self.learner.policy_updates,
        }

    def finish(self) -> None:
        """Removes the files that only a resumed run needs."""
        self.run.resumable.finish()
        shutil.rmtree(self.run.out / REPLAY_FOLDER, ignore_errors=True)

    def _entry(self, collections: int, metrics: dict[str, Any]) -> dict[str, float]:
        hint = "Are learning rates small enough?"
        if isinstance(self._algorithm, FastTd3Algorithm | PqlAlgorithm):
            low, high = self._algorithm.learner.low, self._algorithm.learner.high
            hint = (
                f"Are returns within {low} to {high} (low, high), and learning rates small enough?"
            )
        figures = checked_figures(metrics, f"{collections} collections", hint)
        return {
            "collections": collections,
            "steps": self.done.steps,
            "updates": self.done.updates,
            "cpu_seconds": round(self.run.resumable.cpu_seconds(), 1),
            **episode_figures(self.run.env),
            **figures,
        }

    def _save(self) -> None:
        parts = self._replay_files.save(self._experience.replay)
        state = {
            "learner": self._experience.state_dict(),
            "parts": parts,
            "done": list(self.done),
            **self.run.state_dict(),
        }
        self.run.resumable.save(state)
        self._replay_files.remove_others(parts)


def _experience(
    algorithm: ReplayAlgorithm, env: StateEnv | DeviceStateEnv, seed: int, demos: Sequence[Steps]
) -> HostExperience | DeviceExperience | MrqExperience | CqnAsExperience:
    n = env.num_envs
    online = online_options(algorithm, n)
    replay = ReplayConfig(
        capacity=algorithm.capacity * n, discount=algorithm.discount, n_step=algorithm.n_step
    )
    if isinstance(algorithm, MrqAlgorithm):
        assert isinstance(env, StateEnv)
        return MrqExperience(algorithm, env, online, replay, seed)
    if isinstance(algorithm, CqnAsAlgorithm):
        assert isinstance(env, StateEnv)
        return CqnAsExperience(algorithm, env, online, replay, seed, demos)
    if isinstance(env, StateEnv):
        return HostExperience(algorithm, env, online, replay, seed, demos)
    assert isinstance(algorithm, FastTd3Algorithm | PqlAlgorithm)
    return DeviceExperience(algorithm, env, online, replay, seed)
