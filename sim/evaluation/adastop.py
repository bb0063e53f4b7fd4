"""Compares agents sequentially with AdaStop: samples until all differences are significant or a
limit is reached, with the family-wise error controlled.

Mathieu et al., "AdaStop: adaptive statistical testing for sound comparisons of Deep RL agents",
arXiv 2306.10882. After each stage of `n` scores per agent, every pair's absolute sum of differences
is compared with a boundary from random permutations of the same scores. A pair beyond the boundary
is decided and removed, the largest difference first; sampling continues for the other pairs. After
stage k, at most alpha (k + 1) / stages of the error has been spent.

Where this differs from the released code (adastop, 2025-08-13):
- Its null holds signed differences and is compared with absolute ones, which doubles the error:
  about .105 at alpha .05. Here the null is absolute, too, as in the paper.
- Each null sample is a trajectory over all stages. Samples beyond an earlier boundary are dropped
  and counted as spent; the released code resamples the remaining ones, which requires weights for
  the same result.
- Every pair is permuted independently. The null of the maximum over pairs then lies above the true
  one (Sidak's inequality for absolute values), so with several agents the test is conservative.
- `permute = "pairs"` exchanges the two agents within an episode instead of all scores of a stage:
  exact and more powerful when the agents ran the same seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from robots.config import Count, OpenShare, Seed, config
from robots.errors import HandoffError

Pair = tuple[str, str]
BATCH = 1_000_000
"""Maximum random numbers drawn at a time, which bounds memory."""


@config
class AdaStopConfig:
    """Sample sizes and error probability of the test."""

    n: Count = 5
    """Scores per agent and stage."""
    stages: Count = 5
    """Maximum number of stages."""
    permutations: Count = 10_000
    """Samples of the null distribution."""
    alpha: OpenShare = 0.05
    """Family-wise error: upper bound on the probability of any wrong decision."""
    permute: Literal["all", "pairs"] = "all"
    """Scores that are exchangeable under the null hypothesis: all scores of a stage, or the two
    scores of one episode, if score i of every agent comes from the same seed."""
    seed: Seed = 0
    """Seed of the permutations."""


@dataclass(frozen=True)
class PairDecision:
    """A pair of agents whose difference is significant."""

    better: str
    worse: str
    stage: int
    """Index of the stage, from 0, after which the pair was decided."""
    difference: float
    """Mean score of `better` minus that of `worse`, over the scores so far."""


class AdaStop:
    """Tests all pairs of agents. Add the scores of one stage after the other until `over`."""

    def __init__(self, agents: Sequence[str], config: AdaStopConfig | None = None) -> None:
        """Starts without scores.

        Args:
            agents: at least two distinct names.
            config: sample sizes and error probability.

        Raises:
            HandoffError: fewer than two agents, a duplicate name, or sizes out of range.
        """
        self.config = config or AdaStopConfig()
        self.agents = tuple(agents)
        sizes = (self.config.n, self.config.stages, self.config.permutations)
        if len(self.agents) < 2 or len(set(self.agents)) != len(self.agents):
            raise HandoffError(
                f"adastop: agents {list(self.agents)}, expected at least two distinct names."
            )
        if min(sizes) < 1 or not 0.0 < self.config.alpha < 1.0:
            raise HandoffError(
                f"adastop: (n, stages, permutations) = {sizes} at alpha {self.config.alpha}; each size must be at "
                "least 1, alpha between 0 and 1."
            )
        self.undecided: tuple[Pair, ...] = tuple(combinations(self.agents, 2))
        self.stage = 0
        self._rng = np.random.default_rng(self.config.seed)
        self._sums = dict.fromkeys(self.undecided, 0.0)
        self._null = {pair: np.zeros(self.config.permutations) for pair in self.undecided}
        self._alive = np.ones(self.config.permutations, dtype=bool)

    @property
    def over(self) -> bool:
        """Whether every pair is decided or all stages have been run."""
        return not self.undecided or self.stage == self.config.stages

    @property
    def running(self) -> tuple[str, ...]:
        """Agents whose scores are needed for the next stage, in their original order."""
        return (
            ()
            if self.over
            else tuple(a for a in self.agents if any(a in pair for pair in self.undecided))
        )

    def add(self, scores: Mapping[str, Sequence[float] | np.ndarray]) -> tuple[PairDecision, ...]:
        """Adds the scores of one stage.

        Args:
            scores: `(n,)` for each of `running`; in the order of seeds if `permute` is `pairs`.

        Returns:
            The decisions of this stage, largest difference first.

        Raises:
            HandoffError: the test is over, or scores are missing, too few or not finite.
        """
        stage = {name: self._checked(name, scores) for name in self.running}
        if self.over:
            raise HandoffError(
                f"adastop: over after stage {self.stage}, no more scores are needed."
            )
        for pair in self.undecided:
            first, second = stage[pair[0]], stage[pair[1]]
            self._sums[pair] += float(np.sum(first - second))
            self._null[pair] += null_differences(
                first, second, self.config.permute, self.config.permutations, self._rng
            )
        self.stage += 1
        return self._step_down()

    def _step_down(self) -> tuple[PairDecision, ...]:
        """Decides the pair with the largest difference for as long as it exceeds the boundary of
        the undecided pairs."""
        decisions: list[PairDecision] = []
        level = self.config.alpha * self.stage / self.config.stages
        while self.undecided:
            largest = max_over_pairs(
                np.stack([self._null[pair] for pair in self.undecided], axis=1)
            )
            spent = int(np.sum(~self._alive))
            limit = boundary(largest[self._alive], spent, self.config.permutations, level)
            pair = max(self.undecided, key=lambda pair: abs(self._sums[pair]))
            # Sums of the same scores in another order differ in their last bits, which must not
            # count as a difference.
            if abs(self._sums[pair]) <= limit * (1.0 + 1e-9) + 1e-12:
                self._alive &= largest <= limit
                break
            decisions.append(self._decision(pair))
            self.undecided = tuple(other for other in self.undecided if other != pair)
        return tuple(decisions)

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
    """Samples until every pair is decided or all stages have been run.

    Args:
        agents: distinct names.
        run_stage: called with the stage, from 0, and the agents to run; returns `(n,)` scores of
            each.
        config: sample sizes and error probability.

    Returns:
        The test, whose `undecided` pairs are not significantly different, and all decisions in
        order.
    """
    test, decisions = AdaStop(agents, config), []
    while not test.over:
        decisions += test.add(run_stage(test.stage, test.running))
    return test, tuple(decisions)


def null_differences(
    first: np.ndarray, second: np.ndarray, permute: str, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Sums of differences `(draws,)` of two agents' scores `(n,)` after random permutations."""
    n = len(first)
    batches: list[np.ndarray] = []
    while (missing := draws - sum(len(batch) for batch in batches)) > 0:
        rows = min(missing, max(1, BATCH // (2 * n)))
        if permute == "pairs":
            signs = rng.integers(0, 2, size=(rows, n)) * 2.0 - 1.0
            batches.append(signs @ (first - second))
        else:
            scores = np.concatenate([first, second])
            picks = rng.random((rows, 2 * n)).argsort(axis=1)[:, :n]
            batches.append(2.0 * scores[picks].sum(axis=1) - scores.sum())
    return np.concatenate(batches)


def max_over_pairs(differences_BP: np.ndarray) -> np.ndarray:
    """Largest absolute difference over the pairs, (B,): samples of the maximum under the null
    hypothesis."""
    return np.abs(differences_BP).max(axis=1)


def boundary(values: np.ndarray, spent: int, draws: int, level: float) -> float:
    """Smallest of `values` for which the larger ones, together with those `spent` before, number
    less than `level * draws`.

    Args:
        values: `(M,)` null samples that stayed within all earlier boundaries.
        spent: number of null samples beyond earlier boundaries.
        draws: total number of null samples.
        level: error probability that may be spent up to this stage.

    Returns:
        The boundary; inf if no error is left to spend.
    """
    allowed = int(np.ceil(level * draws - 1e-9)) - 1 - spent
    if allowed < 0:
        return float("inf")
    ordered = np.sort(values)
    return float(ordered[max(len(ordered) - 1 - allowed, 0)]) if len(ordered) else float("inf")
