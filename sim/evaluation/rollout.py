"""Runs one episode per seed: an agent acts in N environments, and each episode is scored by the
protocol's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation, Progress, Step, VecEnv, no_progress
from robots.specifications.monitor import SpecificationMonitors
from sim.evaluation.agent import Agent
from sim.evaluation.protocol import ScoreRule


@dataclass(frozen=True)
class EpisodeResult:
    """Result of one episode."""

    seed: int
    score: float
    """Score by the protocol's rule."""
    success: bool
    """Success by the protocol's criterion."""
    steps: int
    """Control periods until the episode ended or the time limit."""
    largest: dict[str, float]
    """Maximum over the steps of every number in the environment's `info`, such as push-T's
    `coverage`."""
    actions: np.ndarray
    """(steps, A) executed actions; the same seed and actions reproduce the episode."""
    trajectory: dict[str, np.ndarray] | None = None
    """Per field `(steps, ...)` the observation before each action, and `action`; None unless
    recorded."""
    cost: float | None = None
    """Sum of the environment's costs over the steps; None where it reports none."""
    specifications: dict[str, float] = field(default_factory=dict)
    """Robustness of every specification (`robots.specifications`), from the first observation to
    the last; inf or -inf where no step decides."""


def rollout(
    agent: Agent,
    env: VecEnv,
    seeds: Sequence[int],
    max_steps: int,
    score: ScoreRule,
    *,
    success: Literal["once", "at_end"] = "once",
    record: bool = False,
    specifications: Mapping[str, str] = MappingProxyType({}),
    watch: Callable[[Observation], None] = lambda observation: None,
    progress: Progress = no_progress,
) -> list[EpisodeResult]:
    """Runs one episode per seed.

    Args:
        agent: acts in the units of `env`.
        env: `len(seeds)` environments that freeze when they end.
        seeds: seed of each episode's initial state and randomness.
        max_steps: time limit [control periods].
        score: rule that computes an episode's score.
        success: solved at any step, or at the last one.
        record: whether to store observations.
        specifications: formulas of signal temporal logic by name.
        watch: called with the observation after the reset and after every control period, for
            example to render videos.
        progress: counts control periods of `max_steps`.

    Raises:
        HandoffError: the environments do not report the scored quantity, a specification does not
            fit them, or an error of the agent or the environments.
    """
    monitors = SpecificationMonitors(
        specifications,
        env.observation_spec,
        rate_hz=env.rate_hz,
        max_steps=max_steps,
        robots=len(seeds),
    )
    observation = env.reset(seeds)
    agent.reset(seeds)
    watch(observation)
    monitors.update(observation)
    statistics = _EpisodeStatistics(seeds, score, success, record)
    for step in range(max_steps):
        action_NA = agent.act(observation, statistics.running)
        result = env.step(action_NA)
        monitors.update(result.final_observation, statistics.running)
        statistics.add(observation, action_NA, result)
        observation = result.observation
        watch(observation)
        progress(step + 1, max_steps, f"{int(statistics.success.sum())}/{len(seeds)} solved")
        if not statistics.running.any():
            break
    return [
        replace(episode, specifications=robustness)
        for episode, robustness in zip(statistics.episodes(), monitors.finish(), strict=True)
    ]


class _EpisodeStatistics:
    """Score, success, length, maxima and actions of N episodes, and their observations if
    requested."""

    def __init__(self, seeds: Sequence[int], score: ScoreRule, success: str, record: bool) -> None:
        n = len(seeds)
        self.running = np.ones(n, dtype=bool)
        self.success = np.zeros(n, dtype=bool)
        self._seeds = seeds
        self._rule = score
        self._once = success == "once"
        self._score = np.full(n, -np.inf) if score.over == "max" else np.zeros(n)
        self._steps = np.zeros(n, dtype=int)
        self._largest: dict[str, np.ndarray] = {}
        self._cost: np.ndarray | None = None
        self._actions: list[np.ndarray] = []
        self._observations: list[Observation] | None = [] if record else None

    def add(self, observation: Observation, action: np.ndarray, result: Step) -> None:
        """Adds one control period: the `action` taken after `observation`, and its `result`."""
        run = self.running
        self._steps[run] += 1
        self._add_score(self._scored(result), run)
        if "cost" in result.info:
            cost = np.zeros(len(run)) if self._cost is None else self._cost
            self._cost = cost + np.where(run, result.info["cost"], 0.0)
        for name, values in _numbers(result.info).items():
            largest = self._largest.setdefault(name, np.full(len(run), -np.inf))
            largest[run] = np.fmax(largest, values)[run]
        solved = result.info["success"].astype(bool)
        self.success[run] = (self.success | solved)[run] if self._once else solved[run]
        self.running = run & ~(result.terminated | result.truncated)
        self._actions.append(np.array(action))
        if self._observations is not None:
            self._observations.append(observation)

    def episodes(self) -> list[EpisodeResult]:
        """Results of all episodes, in the order of seeds."""
        return [
            EpisodeResult(
                seed=int(seed),
                score=float(self._score[i]),
                success=bool(self.success[i]),
                steps=int(self._steps[i]),
                largest={name: float(values[i]) for name, values in self._largest.items()},
                actions=np.stack([action[i] for action in self._actions[: self._steps[i]]]),
                trajectory=self._trajectory(i),
                cost=None if self._cost is None else float(self._cost[i]),
            )
            for i, seed in enumerate(self._seeds)
        ]

    def _scored(self, result: Step) -> np.ndarray:
        """(N,) the quantity that the rule scores."""
        known = {
            "reward": result.reward,
            "success": result.info["success"],
            **_numbers(result.info),
        }
        if self._rule.of not in known:
            raise HandoffError(
                f"protocol: score.of is '{self._rule.of}', this environment reports {sorted(known)}."
            )
        return known[self._rule.of].astype(np.float64)

    def _add_score(self, values: np.ndarray, run: np.ndarray) -> None:
        match self._rule.over:
            case "max":
                self._score[run] = np.maximum(self._score, values)[run]
            case "sum":
                self._score[run] += values[run]
            case "last":
                self._score[run] = values[run]

    def _trajectory(self, i: int) -> dict[str, np.ndarray] | None:
        recorded = self._observations
        if recorded is None:
            return None
        steps = range(self._steps[i])
        fields = {name: np.stack([recorded[t][name][i] for t in steps]) for name in recorded[0]}
        return {**fields, "action": np.stack([self._actions[t][i] for t in steps])}


def _numbers(info: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The entries of `info` with one number per environment, except `success`."""
    return {
        name: values
        for name, values in info.items()
        if name != "success" and values.ndim == 1 and values.dtype.kind in "fiub"
    }
