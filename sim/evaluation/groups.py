"""Compares groups of evaluations under one protocol: the evaluations of a group differ only in
their seed, as those of policies that were trained several times.

All evaluations play the same episodes, so a group of S evaluations with E episodes is a table
(S, E) of scores. Its interval resamples rows and columns, which covers both training and episodes.
With several evaluations per group, AdaStop decides which groups differ; with one, the episodes are
paired and a McNemar test of success with Holm's correction takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import comb
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from robots.config import config
from robots.errors import HandoffError
from sim.evaluation.adastop import AdaStop, AdaStopConfig, PairDecision
from sim.evaluation.comparison import Comparison, Result, compare_all
from sim.evaluation.evaluate import BOOTSTRAP_SEED
from sim.evaluation.protocol import differences

BATCH = 1000
"""Bootstrap samples drawn at a time, which bounds memory."""


@config
class CompareConfig:
    """Comparison of groups of evaluations."""

    measure: Literal["score", "success"] = "score"
    """Compared figure of every episode."""
    confidence: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.95
    """Two-sided confidence of every interval."""
    alpha: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Family-wise error: upper bound on the probability of any wrong decision."""
    stages: Annotated[int, Field(ge=1)] = 1
    """Stages of AdaStop, over which the seeds of a group are spread evenly; a decision in an early
    stage shows that fewer seeds would have sufficed."""
    permutations: Annotated[int, Field(ge=100)] = 10_000
    """Samples of AdaStop's null distribution."""
    resamples: Annotated[int, Field(ge=100)] = 10_000
    """Bootstrap samples of every interval."""


class Group(NamedTuple):
    """Evaluations that differ only in their seed."""

    name: str
    results: tuple[Result, ...]
    values_SE: np.ndarray
    """(S, E) the compared figure of every evaluation and episode."""
    mean: float
    low: float
    high: float
    """Mean over evaluations and episodes, with its interval."""


class Difference(NamedTuple):
    """Difference of a group from the reference."""

    reference: str
    group: str
    mean: float
    """Mean of the group minus that of the reference."""
    low: float
    high: float
    """Interval of the difference; the episodes are paired."""


class GroupComparison(NamedTuple):
    """Comparison of two or more groups."""

    config: CompareConfig
    groups: tuple[Group, ...]
    """The groups in the order in which they first appear; the first one is the reference."""
    differences: tuple[Difference, ...]
    """Every other group minus the reference."""
    adastop: tuple[AdaStop, tuple[PairDecision, ...]] | None
    """The test and its decisions; None with one evaluation per group."""
    paired: tuple[Comparison, ...]
    """Paired comparisons with the reference; empty with several evaluations per group."""
    holm: tuple[float, ...]
    """McNemar p-values of `paired` with Holm's correction."""

    @property
    def smallest_p_value(self) -> float:
        """Smallest p-value that a permutation of S evaluations of two groups can reach."""
        runs = len(self.groups[0].results)
        return 2.0 / comb(2 * runs, runs)


def group_name(name: str) -> str:
    """`name` of an evaluation without the seeds of its labels.

    Labels follow an `@`, separated by commas: `scores@policy.kind=mlp,training.seed=0` belongs to
    the group `scores@policy.kind=mlp`.
    """
    first, *labels = name.split("@")
    kept = []
    for label in labels:
        parts = [part for part in label.split(",") if not re.search(r"(^|\.)seed=", part)]
        if parts:
            kept.append(",".join(parts))
    return "@".join([first, *kept])


def compare_groups(results: Sequence[Result], config: CompareConfig) -> GroupComparison:
    """Compares groups of evaluations; the first evaluation's group is the reference.

    Raises:
        HandoffError: fewer than two groups, groups of different sizes, evaluations of one name,
            protocols that differ, or stages that do not divide the evaluations of a group.
    """
    members = _members(results)
    _check(results, members, config)
    groups = tuple(_group(name, group, config) for name, group in members.items())
    reference, others = groups[0], groups[1:]
    differences_ = tuple(
        Difference(reference.name, other.name, *_interval(other, reference, config))
        for other in others
    )
    if len(reference.results) > 1:
        return GroupComparison(config, groups, differences_, _adastop(groups, config), (), ())
    paired = compare_all(
        [replace(group.results[0], name=group.name) for group in groups], config.confidence
    )
    corrected = holm([float(each.success["p_value"]) for each in paired])
    return GroupComparison(config, groups, differences_, None, tuple(paired), tuple(corrected))


def crossed_bootstrap(
    values_SE: np.ndarray,
    reference_SE: np.ndarray | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = BOOTSTRAP_SEED,
) -> tuple[float, float]:
    """Percentile interval of a mean over evaluations and episodes, or of a difference of two.

    Evaluations and episodes are resampled independently of each other (Owen, Annals of Applied
    Statistics 1(2), 2007), because every evaluation plays the same episodes; those of a difference
    are common to both. The interval is wide rather than narrow.

    Args:
        values_SE: (S, E) figures.
        reference_SE: (S', E) figures that are subtracted; None subtracts nothing.
        confidence: two-sided, in (0, 1).
        resamples: bootstrap samples.
        seed: seed of the resampling.
    """
    rng = np.random.default_rng(seed)
    means: list[np.ndarray] = []
    for start in range(0, resamples, BATCH):
        count = min(BATCH, resamples - start)
        weight_BE = _counts(rng, count, values_SE.shape[1])
        mean_B = _weighted_mean(values_SE, _counts(rng, count, len(values_SE)), weight_BE)
        if reference_SE is not None:
            rows = _counts(rng, count, len(reference_SE))
            mean_B = mean_B - _weighted_mean(reference_SE, rows, weight_BE)
        means.append(mean_B)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(np.concatenate(means), [tail, 100.0 - tail])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values with Holm's step-down correction (Scandinavian Journal of Statistics 6(2), 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def _members(results: Sequence[Result]) -> dict[str, list[Result]]:
    members: dict[str, list[Result]] = {}
    for result in results:
        members.setdefault(group_name(result.name), []).append(result)
    return members


def _check(
    results: Sequence[Result], members: dict[str, list[Result]], config: CompareConfig
) -> None:
    names = [result.name for result in results]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise HandoffError(f"compare: the evaluations {duplicates} are given more than once.")
    if len(members) < 2:
        raise HandoffError(
            f"compare: the evaluations {names} are one group, expected two or more groups. "
            "Do they differ in their seed alone?"
        )
    first = results[0]
    for other in results[1:]:
        keys = differences(first.table["protocol"], other.table["protocol"])
        if keys:
            raise HandoffError(
                f"compare: the protocols of {first.name} and {other.name} differ in {keys}. Evaluate both under one "
                "protocol."
            )
    sizes = {name: len(group) for name, group in members.items()}
    if len(set(sizes.values())) > 1:
        raise HandoffError(
            f"compare: the groups have {sizes} evaluations, expected as many in each. Was a seed left out?"
        )
    size = len(next(iter(members.values())))
    if size % config.stages:
        raise HandoffError(
            f"compare: {size} evaluations per group cannot be spread evenly over {config.stages} stages."
        )


def _group(name: str, results: Sequence[Result], config: CompareConfig) -> Group:
    values_SE = np.array([result.column(config.measure) for result in results], dtype=np.float64)
    low, high = crossed_bootstrap(
        values_SE, confidence=config.confidence, resamples=config.resamples
    )
    return Group(name, tuple(results), values_SE, float(values_SE.mean()), low, high)


def _interval(group: Group, reference: Group, config: CompareConfig) -> tuple[float, float, float]:
    low, high = crossed_bootstrap(
        group.values_SE,
        reference.values_SE,
        confidence=config.confidence,
        resamples=config.resamples,
    )
    return group.mean - reference.mean, low, high


def _adastop(
    groups: Sequence[Group], config: CompareConfig
) -> tuple[AdaStop, tuple[PairDecision, ...]]:
    """Tests all pairs of groups on the mean figure of every evaluation."""
    n = len(groups[0].results) // config.stages
    options = AdaStopConfig(
        n=n, stages=config.stages, permutations=config.permutations, alpha=config.alpha
    )
    means = {group.name: group.values_SE.mean(axis=1) for group in groups}
    test = AdaStop(list(means), options)
    decisions: list[PairDecision] = []
    while not test.over:
        rows = slice(test.stage * n, (test.stage + 1) * n)
        decisions += test.add({name: means[name][rows] for name in test.running})
    return test, tuple(decisions)


def _counts(rng: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """(rows, size) how often each of `size` items is drawn when `size` are drawn with
    replacement."""
    return rng.multinomial(size, np.full(size, 1.0 / size), size=rows).astype(np.float64)


def _weighted_mean(
    values_SE: np.ndarray, rows_BS: np.ndarray, columns_BE: np.ndarray
) -> np.ndarray:
    """(B,) means of `values_SE` with the given numbers of its rows and columns."""
    return ((rows_BS @ values_SE) * columns_BE).sum(axis=1) / values_SE.size
