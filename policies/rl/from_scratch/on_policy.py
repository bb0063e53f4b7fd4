"""Trains a Gaussian policy on its own rollouts: PPO and PPO-Lagrangian.

Rollout and update alternate; episodes continue from one rollout to the next. Observations are
normalised by their running mean and standard deviation, which change between rollouts only, so that
the ratios of an update compare policies with the same normalisation. The complete state is saved
every few rollouts, and a killed run resumes bit-identically, or with new episodes if the
environments cannot be saved.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor

from policies.rl.collection.collector import Collector
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.actor_critic import StateActorCritic
from policies.rl.from_scratch.config import PpoAlgorithm, PpoLagrangianAlgorithm, PpoOptions
from policies.rl.from_scratch.device_env import DeviceStateEnv
from policies.rl.from_scratch.rollout_env import StateRolloutEnv
from policies.rl.from_scratch.run import SavedActor, ScratchRun, checked_figures, episode_figures
from policies.rl.networks.running_normaliser import RunningNormaliser
from policies.rl.on_policy.config import CostConstraint, OnPolicyConfig, PpoConfig
from policies.rl.on_policy.ppo import OnPolicyLearner, UpdateStatistics
from policies.rl.on_policy.rollout import Rollout
from policies.rl.replay.transitions import Sizes
from robots.interfaces import Progress

LOGGED = ("policy_loss", "value_loss", "kl", "clipped", "explained", "rate")
"""Statistics of an update in the learning curve; with a limit also the multiplier."""


class RolloutRun:
    """State of one run.

    Args:
        algorithm: the algorithm with its options.
        run: environments, curve and folder of the run. The policy is trained on the device of the
            environments, which may be one that they do not leave.
    """

    def __init__(
        self,
        algorithm: PpoAlgorithm | PpoLagrangianAlgorithm,
        run: ScratchRun[StateEnv] | ScratchRun[DeviceStateEnv],
    ) -> None:
        self.run = run
        self._algorithm = algorithm
        self._constraint = _constraint(algorithm)
        env, seed = run.env, run.config.seed
        sizes = Sizes(observation=env.entries, action=env.env.action_spec.size)
        values = 1 if self._constraint is None else 2
        limit = algorithm.cost_limit if isinstance(algorithm, PpoLagrangianAlgorithm) else None
        self._env = (
            env
            if isinstance(env, DeviceStateEnv)
            else StateRolloutEnv(env, algorithm.discount, limit)
        )
        self.model = StateActorCritic(algorithm, sizes, values, seed).to(self._env.device)
        self._normaliser = RunningNormaliser(self.model.features)
        self._collector = Collector(
            self._env, self.model.actor, self.model.critic, algorithm.discount, seed
        )
        if isinstance(env, DeviceStateEnv):
            self._collector.statistics = env.statistics
        self.learner = OnPolicyLearner(
            _on_policy(algorithm),
            self.model.actor,
            self.model.critic,
            seed,
            constraint=self._constraint,
        )

    def resume(self) -> None:
        """Restores the state of a killed run with the same configuration, or starts a new one."""
        state = self.run.resumable.resume()
        if state is None:
            self._collector.begin()
            self._normalise(self._env.observation())
            return
        self.model.load_state_dict(state["model"])
        self.learner.load_state_dict(state["learner"])
        self._normaliser.load_state_dict(state["normaliser"])
        self._collector.load_state_dict(state["collector"])
        self.run.load_state_dict(state)
        if isinstance(self._env, DeviceStateEnv) and not self._env.running:
            self._collector.begin()

    def learn(self, progress: Progress) -> None:
        """Runs the remaining rollouts and updates."""
        algorithm = self._algorithm
        while self.learner.rollouts < algorithm.rollouts:
            statistics = self.update(self.collect())
            done = self.learner.rollouts
            if done % algorithm.save_every == 0 or done == algorithm.rollouts:
                entry = self._entry(statistics)
                self.run.resumable.entries.append(entry)
                self._save()
                progress(done, algorithm.rollouts, _note(entry))

    def collect(self) -> Rollout:
        """The next rollout; waits for its device.

        Raises:
            HandoffError: values of the environments that are not finite.
        """
        rollout = self._collector.rollout(self._algorithm.rollout_steps)
        # On a device, values are checked once per rollout, before anything is learned.
        self._env.check()
        self._collector.statistics.flush()
        return rollout

    def update(self, rollout: Rollout) -> UpdateStatistics:
        """Learns from the newest rollout."""
        costs = self._env.take_costs()
        # No episode may have ended in a short rollout; the multiplier then stays.
        episode_cost = float(np.mean(costs)) if costs and self._constraint else None
        statistics = self.learner.update(rollout, episode_cost)
        self._normalise(rollout.obs.flatten(0, 1))
        return statistics

    def actor(self) -> SavedActor:
        """The deterministic policy."""
        return SavedActor(*self.model.exported(), version=self.learner.rollouts)

    def counts(self) -> dict[str, int]:
        """Number of rollouts, steps of all environments, and updates."""
        done = self.learner.rollouts
        return {"rollouts": done, "steps": self._steps(), "updates": done}

    def finish(self) -> None:
        """Removes the files that only a resumed run needs."""
        self.run.resumable.finish()

    def _normalise(self, vector_NO: Tensor) -> None:
        self._normaliser.update(vector_NO.cpu().numpy())

    def _steps(self) -> int:
        return self.learner.rollouts * self._algorithm.rollout_steps * self.run.env.num_envs

    def _entry(self, statistics: UpdateStatistics) -> dict[str, float]:
        logged = LOGGED if self._constraint is None else (*LOGGED, "multiplier")
        figures = {name: asdict(statistics)[name] for name in logged}
        hint = "Is actor_learning_rate small enough?"
        return {
            "rollouts": self.learner.rollouts,
            "steps": self._steps(),
            "cpu_seconds": round(self.run.resumable.cpu_seconds(), 1),
            **episode_figures(self.run.env),
            **checked_figures(figures, f"{self.learner.rollouts} rollouts", hint),
        }

    def _save(self) -> None:
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "learner": self.learner.state_dict(),
            "normaliser": self._normaliser.state_dict(),
            "collector": self._collector.state_dict(),
            **self.run.state_dict(),
        }
        self.run.resumable.save(state)


def _constraint(algorithm: PpoAlgorithm | PpoLagrangianAlgorithm) -> CostConstraint | None:
    if not isinstance(algorithm, PpoLagrangianAlgorithm):
        return None
    # The environments tell costs in limits.
    return CostConstraint(limit=1.0, rate=algorithm.cost_rate, gain=algorithm.cost_gain)


def _on_policy(options: PpoOptions) -> OnPolicyConfig:
    return OnPolicyConfig(
        ppo=PpoConfig(clip=options.clip, value_clip=options.value_clip),
        clip_min=None,
        discount=options.discount,
        gae_lambda=options.gae_lambda,
        epochs=options.epochs,
        batch_size=options.batch_size,
        actor_learning_rate=options.actor_learning_rate,
        critic_learning_rate=options.critic_learning_rate,
        target_kl=options.target_kl,
        adaptive_kl_target=options.adaptive_kl_target,
        critic_warmup_rollouts=0,
        max_grad_norm=options.max_grad_norm,
    )


def _note(entry: dict[str, float]) -> str:
    note = f"success {entry['success']:.2f}, return {entry['return']:.2f}"
    return f"{note}, cost {entry['cost']:.2f}" if "cost" in entry else note
