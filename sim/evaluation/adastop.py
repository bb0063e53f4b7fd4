"""AdaStop: how many runs tell agents apart, decided while they run, with the family-wise error
controlled.

Mathieu et al., "AdaStop: adaptive statistical testing for sound comparisons of Deep RL agents",
arXiv 2306.10882. After each stage of `n` scores per agent, every pair's absolute sum of differences
is held against a boundary taken from random permutations of the same scores; a pair beyond it is
decided and leaves, the largest first, and sampling goes on for the rest. Stage k may have spent
alpha (k + 1) / stages of the error.

Where this differs from the released code (adastop, 2025-08-13):
- Its null holds signed differences and is compared with absolute ones, which doubles the error:
  about .105 at alpha .05. Here the null is absolute too, as in the paper.
- Each draw is a whole trajectory over the stages. Draws beyond an earlier boundary are dropped and
  counted as spent; the released code resamples the survivors, which needs weights to the same end.
- Every pair is permuted by itself. The largest over pairs then has a null that lies above the true
  one (Sidak's inequality for absolute values), so several agents err on the careful side.
- `permute = "pairs"` exchanges the two agents within an episode instead of all scores of a stage:
  exact, and sharper, when agents met the same seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from robots.config import config
from robots.errors import HandoffError

Pair = tuple[str, str]
BATCH = 1_000_000
"""Random numbers drawn at a time, at most; it bounds memory."""


@config
class AdaStopConfig:
    """How much is sampled, and how sure a decision is."""

    n: int = 5
    """Scores per agent and stage."""
    stages: int = 5
    """Stages, at most."""
    permutations: int = 10_000
    """Draws of the null."""
    alpha: float = 0.05
    """Probability, at most, of any wrong decision among all pairs."""
    permute: Literal["all", "pairs"] = "all"
    """What is exchangeable if agents are alike: all scores of a stage, or the two scores of one
    episode, when score i of every agent comes from the same seed."""
    seed: int = 0
    """Seed of the permutations."""


@dataclass(frozen=True)
class PairDecision:
    """A pair that was told apart."""

    better: str
    worse: str
    stage: int
    """After which stage, counted from 0."""
    difference: float
    """Mean score of `better` minus that of `worse`, over the scores so far."""


class AdaStop:
    """The test of all pairs of agents. Feed it stage by stage until `undecided` is empty or `over`
    says so."""

    def __init__(self, agents: Sequence[str], config: AdaStopConfig | None = None) -> None:
        """Begins with no scores.

        Args:
            agents: different names, at least two.
            config: how much is sampled.

        Raises:
            HandoffError: fewer than two agents, one name twice, or sizes out of range.
        """
        self.config = config or AdaStopConfig()
        self.agents = tuple(agents)
        sizes = (self.config.n, self.config.stages, self.config.permutations)
        if len(self.agents) < 2 or len(set(self.agents)) != len(self.agents):
            raise HandoffError(
                f"adastop: agents {list(self.agents)}, expected at least two different names."
            )
        if min(sizes) < 1 or not 0.0 < self.config.alpha < 1.0:
            raise HandoffError(
                f"adastop: (n, stages, permutations) = {sizes} at alpha {self.config.alpha}; each size must be at "
                "least 1, alpha between 0 and 1."
            )
        self.undecided: tuple[Pair, ...] = tuple(combinations(self.agents, 2))
        self.stage = 0
        self._random = np.random.default_rng(self.config.seed)
        self._sums = dict.fromkeys(self.undecided, 0.0)
        self._null = {pair: np.zeros(self.config.permutations) for pair in self.undecided}
        self._alive = np.ones(self.config.permutations, dtype=bool)

    @property
    def over(self) -> bool:
        """Every pair is decided, or all stages are run."""
        return not self.undecided or self.stage == self.config.stages

    @property
    def running(self) -> tuple[str, ...]:
        """Agents whose scores the next stage needs, in their order."""
        return (
            ()
            if self.over
            else tuple(a for a in self.agents if any(a in pair for pair in self.undecided))
        )

    def add(self, scores: Mapping[str, Sequence[float] | np.ndarray]) -> tuple[PairDecision, ...]:
        """One more stage.

        Args:
            scores: `(n,)` for each of `running`; in the order of seeds where `permute` is `pairs`.

        Returns:
            What it decided, surest first.

        Raises:
            HandoffError: the test is over, or scores are missing, too few or not finite.
        """
        stage = {name: self._checked(name, scores) for name in self.running}
        if self.over:
            raise HandoffError(
                f"adastop: over after stage {self.stage}, no more scores are needed."
            )
        for pair in self.undecided:
            one, two = stage[pair[0]], stage[pair[1]]
            self._sums[pair] += float(np.sum(one - two))
            self._null[pair] += null_differences(
                one, two, self.config.permute, self.config.permutations, self._random
            )
        self.stage += 1
        return self._step_down()

    def _step_down(self) -> tuple[PairDecision, ...]:
        """Decides the most different pair as long as it lies beyond the boundary of those that are
        left."""
        decided: list[PairDecision] = []
        level = self.config.alpha * self.stage / self.config.stages
        while self.undecided:
            largest = max_over_pairs(
                np.stack([self._null[pair] for pair in self.undecided], axis=1)
            )
            spent = int(np.sum(~self._alive))
            limit = boundary(largest[self._alive], spent, self.config.permutations, level)
            pair = max(self.undecided, key=lambda pair: abs(self._sums[pair]))
            # Sums of the same scores in another order differ in their last bits; that is no
            # difference.
            if abs(self._sums[pair]) <= limit * (1.0 + 1e-9) + 1e-12:
                self._alive &= largest <= limit
                break
            decided.append(self._decision(pair))
            self.undecided = tuple(other for other in self.undecided if other != pair)
        return tuple(decided)

    def _decision(self, pair: Pair) -> PairDecision:
        total = self._sums[pair]
        better, worse = pair if total > 0 else pair[::-1]
        return PairDecision(
            better, worse, self.stage - 1, abs(total) / (self.config.n * self.stage)
        )

    def _checked(self, name: str, scores: Mapping[str, Sequence[float] | np.ndarray]) -> np.ndarray:
        values = np.asarray(scores.get(name, ()), dtype=np.float64)
        if values.shape != (self.config.n,) or not np.isfinite(values).all():
            raise HandoffError(
                f"adastop: scores of {name} are {values.tolist()[:8]}, expected {self.config.n} finite numbers."
            )
        return values


def adastop(
    agents: Sequence[str],
    run_stage: Callable[[int, Sequence[str]], Mapping[str, Sequence[float] | np.ndarray]],
    config: AdaStopConfig | None = None,
) -> tuple[AdaStop, tuple[PairDecision, ...]]:
    """Samples until every pair is decided or all stages are run.

    Args:
        agents: their names.
        run_stage: given the stage, from 0, and the agents to run, returns `(n,)` scores of each.
        config: how much is sampled.

    Returns:
        The test, whose `undecided` pairs were not told apart, and all decisions in their order.
    """
    test, decisions = AdaStop(agents, config), []
    while not test.over:
        decisions += test.add(run_stage(test.stage, test.running))
    return test, tuple(decisions)


def null_differences(
    first: np.ndarray, second: np.ndarray, permute: str, draws: int, random: np.random.Generator
) -> np.ndarray:
    """Sums of differences `(draws,)` of two agents' scores `(n,)` after random permutations."""
    n = len(first)
    parts: list[np.ndarray] = []
    while (missing := draws - sum(len(part) for part in parts)) > 0:
        rows = min(missing, max(1, BATCH // (2 * n)))
        if permute == "pairs":
            signs = random.integers(0, 2, size=(rows, n)) * 2.0 - 1.0
            parts.append(signs @ (first - second))
        else:
            both = np.concatenate([first, second])
            chosen = random.random((rows, 2 * n)).argsort(axis=1)[:, :n]
            parts.append(2.0 * both[chosen].sum(axis=1) - both.sum())
    return np.concatenate(parts)


def max_over_pairs(differences_BP: np.ndarray) -> np.ndarray:
    """Largest absolute difference over the pairs, (B,): what chance alone makes of the most
    different pair."""
    return np.abs(differences_BP).max(axis=1)


def boundary(values: np.ndarray, spent: int, draws: int, level: float) -> float:
    """Smallest of `values` beyond which lie so few that, with those `spent` before, they are under
    `level * draws`.

    Args:
        values: `(M,)` of the draws that stayed within all earlier boundaries.
        spent: draws beyond earlier boundaries.
        draws: of the null in all.
        level: error that may be spent so far.

    Returns:
        inf when nothing is left to spend.
    """
    allowed = int(np.ceil(level * draws - 1e-9)) - 1 - spent
    if allowed < 0:
        return float("inf")
    ordered = np.sort(values)
    return float(ordered[max(len(ordered) - 1 - allowed, 0)]) if len(ordered) else float("inf")
