"""One episode per seed: an agent acts in N worlds, and each episode is scored by the protocol's
rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation, Progress, Step, VecEnv, no_progress
from sim.evaluation.agent import Agent
from sim.evaluation.protocol import ScoreRule


@dataclass(frozen=True)
class EpisodeResult:
    """What one world came to."""

    seed: int
    score: float
    """By the protocol's rule."""
    success: bool
    """By the protocol's rule."""
    steps: int
    """Control periods until the world ended or the time limit."""
    largest: dict[str, float]
    """Largest value at any step of every number that the world tells in `info`, such as push-T's
    `coverage`."""
    actions: np.ndarray
    """(steps, A) as they were executed: the same seed and actions give the same episode again."""
    trajectory: dict[str, np.ndarray] | None = None
    """Per field `(steps, ...)`: the observation before each action, and `action`; None unless
    recorded."""


def rollout(
    agent: Agent,
    env: VecEnv,
    seeds: Sequence[int],
    max_steps: int,
    score: ScoreRule,
    *,
    success: Literal["once", "at_end"] = "once",
    record: bool = False,
    watch: Callable[[Observation], None] = lambda observation: None,
    progress: Progress = no_progress,
) -> list[EpisodeResult]:
    """Runs one episode per seed.

    Args:
        agent: acts in the units of `env`.
        env: `len(seeds)` worlds that freeze when they end.
        seeds: of each episode's start and chance.
        max_steps: time limit [control periods].
        score: how an episode becomes one number.
        success: solved at any step, or at the last one.
        record: keep observations.
        watch: shown the observation after the reset and after every control period, to take
            pictures.
        progress: counts control periods of `max_steps`.

    Raises:
        HandoffError: a world tells no such number as is to be scored, or what agent and worlds
            find.
    """
    observation = env.reset(seeds)
    agent.reset(seeds)
    watch(observation)
    tally = _Tally(seeds, score, success, record)
    for step in range(max_steps):
        action_NA = agent.act(observation, tally.running)
        result = env.step(action_NA)
        tally.add(observation, action_NA, result)
        observation = result.observation
        watch(observation)
        progress(step + 1, max_steps, f"{int(tally.success.sum())}/{len(seeds)} solved")
        if not tally.running.any():
            break
    return tally.episodes()


class _Tally:
    """Score, success, length and extremes of N episodes, their actions, and on request their
    observations."""

    def __init__(self, seeds: Sequence[int], score: ScoreRule, success: str, record: bool) -> None:
        n = len(seeds)
        self.running = np.ones(n, dtype=bool)
        self.success = np.zeros(n, dtype=bool)
        self._seeds, self._rule, self._once = seeds, score, success == "once"
        self._score = np.full(n, -np.inf) if score.over == "max" else np.zeros(n)
        self._steps = np.zeros(n, dtype=int)
        self._largest: dict[str, np.ndarray] = {}
        self._actions: list[np.ndarray] = []
        self._before: list[Observation] | None = [] if record else None

    def add(self, before: Observation, action: np.ndarray, result: Step) -> None:
        """One control period: the observation `before` it, the `action` taken, and what came of
        it."""
        run = self.running
        self._steps[run] += 1
        self._add_score(self._scored(result), run)
        for name, values in _numbers(result.info).items():
            largest = self._largest.setdefault(name, np.full(len(run), -np.inf))
            largest[run] = np.fmax(largest, values)[run]
        solved = result.info["success"].astype(bool)
        self.success[run] = (self.success | solved)[run] if self._once else solved[run]
        self.running = run & ~(result.terminated | result.truncated)
        self._actions.append(np.array(action))
        if self._before is not None:
            self._before.append(before)

    def episodes(self) -> list[EpisodeResult]:
        """One per seed."""
        return [
            EpisodeResult(
                seed=int(seed),
                score=float(self._score[i]),
                success=bool(self.success[i]),
                steps=int(self._steps[i]),
                largest={name: float(values[i]) for name, values in self._largest.items()},
                actions=np.stack([action[i] for action in self._actions[: self._steps[i]]]),
                trajectory=self._trajectory(i),
            )
            for i, seed in enumerate(self._seeds)
        ]

    def _scored(self, result: Step) -> np.ndarray:
        """(N,) the number that the rule is about."""
        known = {
            "reward": result.reward,
            "success": result.info["success"],
            **_numbers(result.info),
        }
        if self._rule.of not in known:
            raise HandoffError(
                f"protocol: score.of is '{self._rule.of}', this world tells {sorted(known)}."
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
        if self._before is None:
            return None
        steps = range(self._steps[i])
        fields = {
            name: np.stack([self._before[t][name][i] for t in steps]) for name in self._before[0]
        }
        return {**fields, "action": np.stack([self._actions[t][i] for t in steps])}


def _numbers(info: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The diagnostics with one number per world, without `success`, which has its own rule."""
    return {
        name: values
        for name, values in info.items()
        if name != "success" and values.ndim == 1 and values.dtype.kind in "fiub"
    }
