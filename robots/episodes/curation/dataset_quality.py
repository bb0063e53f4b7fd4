"""Measures a data set for learning from rewards: trajectory quality (TQ) and state-action coverage
(SACo), and which learners suit it.

Source: Schweighofer et al., A Dataset Perspective on Offline Reinforcement Learning, CoLLAs 2022
(arXiv 2111.04714), and its repository. TQ is the mean return of the set, 0 for a random policy and
1 for the best policy of online learning. SACo is the number of distinct pairs of state and action,
divided by that of a reference of the same size, which the paper takes from the replay buffer of
online learning. Numbers are put into bins; with more than ten entries almost every pair is
distinct, so that SACo depends on the number of bins, which is part of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from robots.config import Count, Finite, NonNegative, Share, Whole, config
from robots.episodes.curation.checks.layout import StreamLayout, stream_layout
from robots.episodes.curation.examination import as_number
from robots.episodes.curation.readable import ReadableEpisodes
from robots.episodes.curation.running import DistinctRows, RunningMoments
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress

_ABOVE_RANDOM = 0.05
"""Share of the way from a random policy to the best one which at least one episode must reach."""
_DISTINCT_SHARE = 0.95
"""Share of distinct pairs above which bins are too fine to tell data sets apart."""


@config
class QualityConfig:
    """References and accuracy of trajectory quality and coverage."""

    reward: str | None = None
    """Field of the reward; None takes the only one."""
    random_return: Finite | None = None
    """Mean return of a random policy; None takes the worst episode of the set."""
    best_return: Finite | None = None
    """Mean return of the best policy of online learning; None takes the best episode of the set."""
    bins: Annotated[int, Field(ge=2, le=10_000)] = 100
    """Number of bins per entry."""
    entries_per_field: Count = 64
    """Largest number of entries of a field that are counted, evenly spaced."""
    exact_pairs: Count = 4_000_000
    """Number of distinct pairs up to which they are counted exactly, with 8 bytes each; more are
    estimated by HyperLogLog within about 1 %."""
    high_quality: Share = 0.75
    """Trajectory quality from which it counts as high; the paper states no number."""
    high_coverage: Share = 0.5
    """Coverage from which it counts as high; the paper states no number."""


@config
class DatasetQuality:
    """Trajectory quality and coverage of a data set."""

    episodes: Whole
    """Number of episodes."""
    steps: Whole
    """Number of steps whose pairs were counted."""
    mean_return: Finite | None
    """Mean return of the episodes; None without rewards."""
    quality: Finite | None
    """Trajectory quality; None without rewards, or if worst and best return are equal."""
    relative: bool
    """Whether the quality is relative to episodes of the set, because references are missing."""
    entries: Whole
    """Number of entries of state and action."""
    bins: Count
    """Number of bins per entry."""
    pairs: Whole
    """Number of distinct pairs of state and action."""
    exact: bool
    """Whether that number is exact."""
    reference_pairs: Whole | None
    """Distinct pairs of the reference; None without one."""
    coverage: NonNegative | None
    """State-action coverage; None without a reference."""
    advice: tuple[str, ...]
    """Sentences about the learners that suit the data set, and about the limits of the figures."""


def dataset_quality(
    store: ReadableEpisodes,
    config: QualityConfig | None = None,
    reference: ReadableEpisodes | None = None,
    progress: Progress = no_progress,
) -> DatasetQuality:
    """Computes TQ and SACo of a store.

    Args:
        store: the episodes.
        config: references of the returns, and accuracy; None takes the defaults.
        reference: episodes with the same states and actions, such as those of online learning; of
            the larger set only the first steps are counted, as many as the smaller one has.
        progress: called with the number of episodes that were read.

    Raises:
        HandoffError: no episodes, several rewards of which none is chosen, no such reward, or a
            reference with other fields.
    """
    config = config or QualityConfig()
    layout = stream_layout(store.schema, config.entries_per_field)
    if store.num_episodes == 0 or not layout.labels:
        raise HandoffError(
            f"{store.path}: has {store.num_episodes} episodes and {len(layout.labels)} entries of states and actions, "
            "expected at least one of both. Does it hold only pictures?"
        )
    stores = [store] if reference is None else [store, reference]
    if reference is not None:
        _check_same(store, layout, reference, config)
    reward = _reward(store, layout, config)
    steps = min(int(one.ends(layout.stream)[-1]) for one in stores)
    ranges, returns = RunningMoments(len(layout.labels)), []
    passes = 2 * sum(one.num_episodes for one in stores)
    done = 0
    for one in stores:
        for rows, total in _episodes(one, layout, reward if one is store else None):
            ranges.add(rows)
            returns += [total] if one is store and reward else []
            done += 1
            progress(done, passes, "episodes")
    counts = []
    for one in stores:
        distinct, left = DistinctRows(config.exact_pairs), steps
        for rows, _ in _episodes(one, layout, None):
            distinct.add(_binned(rows[:left], ranges, config.bins))
            left -= len(rows[:left])
            done += 1
            progress(done, passes, "episodes")
        counts.append(distinct)
    return _measured(store, layout, config, steps, np.array(returns), counts)


def normalised_returns(
    store: ReadableEpisodes, config: QualityConfig, progress: Progress = no_progress
) -> np.ndarray:
    """(E,) return of every episode between that of a random policy, 0, and that of the best one, 1.

    Their mean is the trajectory quality of the set, but for returns outside the references, which
    are cut to [0, 1]. Without references the worst episode has 0 and the best one 1.

    Args:
        store: the episodes.
        config: field of the reward, and references of the returns.
        progress: called with the number of episodes that were read.

    Raises:
        HandoffError: no reward, several of which none is chosen, or no difference of the returns.
    """
    layout = stream_layout(store.schema, config.entries_per_field)
    reward = _reward(store, layout, config)
    if reward is None:
        raise HandoffError(
            f"{store.path}: has no reward, so its episodes have no returns; the stream has "
            f"{', '.join(sorted(layout.specs))}."
        )
    returns = np.zeros(store.num_episodes)
    for episode in range(store.num_episodes):
        rewards = store.read(episode, layout.stream, [reward])[reward]
        returns[episode] = rewards.sum(dtype=np.float64)
        progress(episode + 1, store.num_episodes, "episodes")
    worst, best = _references(returns, config)
    if not best > worst:
        raise HandoffError(
            f"{store.path}: the best return is {best:g}, expected more than {worst:g}, that of a random policy or the "
            "worst episode. Are all rewards the same?"
        )
    return np.clip((returns - worst) / (best - worst), 0.0, 1.0)


def _references(returns: np.ndarray, config: QualityConfig) -> tuple[float, float]:
    """Returns of a random policy and of the best one; those that are not stated come from the
    set."""
    worst = returns.min() if config.random_return is None else config.random_return
    best = returns.max() if config.best_return is None else config.best_return
    return float(worst), float(best)


def _check_same(
    store: ReadableEpisodes,
    layout: StreamLayout,
    reference: ReadableEpisodes,
    config: QualityConfig,
) -> None:
    other = stream_layout(reference.schema, config.entries_per_field)
    if other.stream != layout.stream or other.labels != layout.labels:
        raise HandoffError(
            f"{reference.path}: has the states and actions {other.labels[:6]}, expected {layout.labels[:6]} as in "
            f"{store.path}. Is it of another task?"
        )
    if reference.num_episodes == 0:
        raise HandoffError(f"{reference.path}: has no episodes to compare with.")


def _reward(store: ReadableEpisodes, layout: StreamLayout, config: QualityConfig) -> str | None:
    if config.reward is None:
        if len(layout.rewards) > 1:
            raise HandoffError(
                f"{store.path}: has the rewards {', '.join(layout.rewards)}; choose one by reward=."
            )
        return layout.rewards[0] if layout.rewards else None
    if config.reward not in layout.specs or int(np.prod(layout.specs[config.reward].shape)) != 1:
        raise HandoffError(
            f"{store.path}: '{config.reward}' is no field of one number, so it is no reward; the stream has "
            f"{', '.join(sorted(layout.specs))}."
        )
    return config.reward


def _episodes(
    store: ReadableEpisodes, layout: StreamLayout, reward: str | None
) -> Iterator[tuple[np.ndarray, float]]:
    """Rows `(T, D)` and return of every episode."""
    names = [field.name for field in layout.states]
    for episode in range(store.num_episodes):
        wanted = names if reward is None else [*names, reward]
        arrays = store.read(episode, layout.stream, wanted)
        total = 0.0 if reward is None else float(arrays[reward].sum(dtype=np.float64))
        yield layout.rows({name: arrays[name] for name in names}), total


def _binned(rows: np.ndarray, ranges: RunningMoments, bins: int) -> np.ndarray:
    """(T, D) number of the bin of every entry, of equal bins over the range of all data."""
    span = np.where(ranges.high > ranges.low, ranges.high - ranges.low, 1.0)
    return np.clip(np.floor((rows - ranges.low) / span * bins), 0, bins - 1).astype(np.int64)


def _measured(
    store: ReadableEpisodes,
    layout: StreamLayout,
    config: QualityConfig,
    steps: int,
    returns: np.ndarray,
    counts: list[DistinctRows],
) -> DatasetQuality:
    quality = highest = None
    relative = config.random_return is None or config.best_return is None
    if len(returns):
        worst, best = _references(returns, config)
        if best > worst:
            quality = as_number((returns.mean() - worst) / (best - worst))
            highest = as_number((returns.max() - worst) / (best - worst))
    coverage = counts[0].count / max(counts[1].count, 1) if len(counts) > 1 else None
    return DatasetQuality(
        episodes=store.num_episodes,
        steps=steps,
        mean_return=as_number(returns.mean()) if len(returns) else None,
        quality=quality,
        relative=relative and quality is not None,
        entries=len(layout.labels),
        bins=config.bins,
        pairs=counts[0].count,
        exact=all(count.exact for count in counts),
        reference_pairs=counts[1].count if len(counts) > 1 else None,
        coverage=coverage,
        advice=tuple(
            _advice(config, quality, highest, relative, coverage, counts[0].count / steps)
        ),
    )


def _advice(
    config: QualityConfig,
    quality: float | None,
    highest: float | None,
    relative: bool,
    coverage: float | None,
    distinct: float,
) -> Iterator[str]:
    """Sentences about learners by the findings of the paper, and about limits of the figures."""
    if quality is None:
        yield "There are no rewards that differ: imitation is the only learner that does not need them."
    elif highest is not None and highest < _ABOVE_RANDOM:
        # The paper's rewards are dense; where a set never reaches a goal, coverage does not help.
        yield (
            "No episode is better than a random policy, so rewards teach nothing here, whatever the coverage. Add "
            "episodes that succeed."
        )
    else:
        high = quality >= config.high_quality
        wide = coverage is not None and coverage >= config.high_coverage
        if high:
            yield "Quality is high: behaviour cloning does as well as the best offline methods, or better."
        if wide:
            yield "Coverage is high: unconstrained off-policy learning (DQN in the paper) can find a good policy."
        if high or wide:
            yield "Methods that stay near the data (BCQ, CQL, CRR in the paper) suit the set."
        elif coverage is not None:
            yield "Quality and coverage are low: no offline method can be expected to do well. Collect better data."
        else:
            yield "Quality is low: cloning copies it. Whether methods with values can do better depends on coverage."
        if relative:
            yield "The quality is relative to the worst and best episode; set random_return= and best_return=."
    if coverage is None:
        yield "Coverage needs a reference, such as the replay buffer of online learning on the same task."
    if distinct > _DISTINCT_SHARE:
        yield (
            f"{100 * distinct:.0f} % of the pairs are distinct with {config.bins} bins per entry, so that their number "
            "says little about the set. Count in coarser bins by dataset_quality(store, QualityConfig(bins="
            f"{max(2, config.bins // 10)})) of robots.episodes.curation.dataset_quality."
        )
