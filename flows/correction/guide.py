"""Lets a saved policy guide the episodes of a correction session (JSRL)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.rl.hil.config import HilAlgorithm, HilJsrlConfig
from policies.rl.off_policy.jsrl import GuideSchedule
from real.hil.interfaces import ActionMapping
from robots.interfaces import Observation

if TYPE_CHECKING:
    from sim.evaluation.agent import Agent
    from sim.vec_env import EngineVecEnv


class GuidePolicy:
    """A `real.hil.interfaces.Guide`: a saved policy that acts in one environment by a schedule.

    Args:
        policy: folder of the policy.
        schedule: steps for which it acts.
        env: the session's environment.
        actions: mapping between the actions of learner and environment.
    """

    def __init__(
        self, policy: Path, schedule: GuideSchedule, env: EngineVecEnv, actions: ActionMapping
    ) -> None:
        from flows.evaluation.agents import chunking_of, load_agent
        from sim.evaluation.protocol import Sampling

        self.schedule = schedule
        self._agent: Agent = load_agent(policy, None, chunking_of(policy), Sampling())(env)
        self._actions = actions
        self._episode = -1

    def propose(
        self,
        episode: np.ndarray,
        number: np.ndarray,
        observation: Observation,
        proposed: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `real.hil.interfaces.Guide`; the policy's noise belongs to the episode."""
        if episode[0] != self._episode:
            self._episode = int(episode[0])
            self._agent.reset([self._episode])
        guided = number < self.schedule.horizon(episode)
        if not guided.any():
            return proposed, guided
        action = self._agent.act(observation, guided)
        guide = self._actions.from_env(action, observation)
        return self.schedule.act(episode, number, guide, proposed), guided


def recorded_schedule(algorithm: HilAlgorithm, store: Path, seed: int) -> GuideSchedule | None:
    """Schedule of JSRL after the recorded episodes of a session, or None for other algorithms.

    These episodes are its only state, so a session that resumes goes on where it was. An episode
    in which the person acted does not count as solved by guide and learner.

    Args:
        algorithm: options of the session's algorithm.
        store: episodes of the session; there are none if it does not exist.
        seed: seed of the session.

    Raises:
        HandoffError: the guide solved too few episodes.
    """
    from flows.reports.learning_curve import read_history

    if not isinstance(algorithm, HilJsrlConfig):
        return None
    schedule = GuideSchedule(algorithm.schedule, seed)
    if store.exists():
        history = read_history(store)
        for solved in history.success & (history.corrected == 0.0):
            schedule.record_episode(bool(solved))
    return schedule


def guide_metrics(algorithm: HilAlgorithm, store: Path, seed: int) -> dict[str, Any]:
    """Metrics of the guide after a session; none for algorithms without one."""
    schedule = recorded_schedule(algorithm, store, seed)
    if schedule is None:
        return {}
    last = schedule.horizons[schedule.stage]
    return {
        "guide_success": schedule.guide_success,
        "guide_evaluations": schedule.evaluations,
        "guide_steps": int(last),
    }
