"""Computes weights of episodes: by groups of their metadata, by their returns, or by hand.

Groups of unequal size get totals in proportion to `steps ** exponent`. An exponent of 1 leaves the
natural shares, 0 makes all groups equal. Conneau and Lample (XLM, 2019) smooth the sizes of corpora
of several languages this way, mT5 (arXiv 2010.11934) takes 0.3, and pi0 (arXiv 2410.24164) takes
0.43 for its combinations of task and robot. A sampling temperature T (arXiv 1907.05019) is the
exponent 1 / T.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from robots.config import LARGEST, NonNegative, Share, config
from robots.episodes.curation.dataset_quality import QualityConfig, normalised_returns
from robots.episodes.curation.edit import steps_stream
from robots.episodes.curation.weights import MOST_WEIGHTS, WEIGHT, check_weights, episode_weight
from robots.episodes.metadata.labels import parse_labels
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError, suggest
from robots.interfaces import Progress, no_progress

NOT_STATED = "-"
"""Name of the group of the episodes that do not state the entry."""
_DIGITS = (3, 2)
"""Significant digits of new weights; fewer if there are too many different ones."""
_LEAST = 1e-12
"""Smallest weight that does not become 0."""


@config
class HandWeight:
    """Weight of the episodes whose metadata have one value."""

    key: str
    """Entry of the metadata."""
    value: Any
    """Value of the entry; in a text, `*` stands for any characters."""
    weight: NonNegative
    """Factor of the episodes' weight."""


@config
class WeightsConfig:
    """Ways to weight the episodes of a store; factors of several ways are multiplied."""

    balance: str = ""
    """Entry of the metadata, such as `instruction`, whose groups of equal values are balanced;
    empty balances nothing."""
    exponent: Share = 0.0
    """Exponent of a group's steps in its share; 0 gives all groups the same share, 1 leaves the
    natural one."""
    quality: QualityConfig | None = None
    """References of the returns that become weights, see
    `robots.episodes.curation.dataset_quality`; None uses no returns."""
    by_hand: tuple[HandWeight, ...] = ()
    """Weights by values of the metadata."""


class WeightGroup(NamedTuple):
    """Episodes of one group, with their shares of the windows that a training draws."""

    name: str
    episodes: int
    steps: int
    before: float
    """Share with the weights of the store."""
    after: float
    """Share with the new weights."""


def computed_weights(
    store: EpisodeStore, config: WeightsConfig, progress: Progress = no_progress
) -> np.ndarray:
    """(E,) float64 new weights of a store, which do not depend on those that it states.

    Weights by hand, then returns, are multiplied. `balance` then gives every group its share of the
    sum of weight times steps, and leaves this sum and the ratios within a group as they are. The
    result is rounded to three significant digits, or to two if there are too many different
    weights.

    Args:
        store: the episodes.
        config: ways to weight them.
        progress: counts episodes whose rewards are read.

    Raises:
        HandoffError: no episode has the entry or the value that is named, no rewards, or nothing
            would be left.
    """
    weights = np.ones(store.num_episodes)
    metadata = [store.metadata(number) for number in range(store.num_episodes)]
    for each in config.by_hand:
        _check_stated(store, each.key, metadata)
        chosen = np.array([_has(entry, each) for entry in metadata], bool)
        if not chosen.any():
            known = sorted({group_name(entry, each.key) for entry in metadata})
            raise HandoffError(
                f"{store.path}: no episode has {each.key}={each.value}; "
                f"{suggest(str(each.value), known, 'there are')}"
            )
        weights[chosen] *= each.weight
    if config.quality is not None:
        weights *= normalised_returns(store, config.quality, progress)
    if config.balance:
        _check_stated(store, config.balance, metadata)
        groups = [group_name(entry, config.balance) for entry in metadata]
        weights *= _balancing(groups, weights * episode_steps(store), config.exponent)
    rounded = np.array([_rounded(weight, _DIGITS[0]) for weight in weights])
    if len(np.unique(rounded)) > MOST_WEIGHTS:
        rounded = np.array([_rounded(weight, _DIGITS[1]) for weight in weights])
    check_weights(str(store.path), rounded)
    return rounded


def _check_stated(store: EpisodeStore, key: str, metadata: Sequence[Mapping[str, Any]]) -> None:
    known = sorted({name for entry in metadata for name in entry})
    if key not in known:
        raise HandoffError(
            f"{store.path}: no episode states '{key}'; {suggest(key, known, 'episodes state')}"
        )


def _has(metadata: Mapping[str, Any], wanted: HandWeight) -> bool:
    value = metadata.get(wanted.key)
    if isinstance(wanted.value, str):
        return wanted.key in metadata and fnmatchcase(_named(value), wanted.value)
    # In Python True equals 1, in JSON it does not.
    return value == wanted.value and isinstance(value, bool) == isinstance(wanted.value, bool)


def _balancing(groups: Sequence[str], steps_E: np.ndarray, exponent: float) -> np.ndarray:
    """(E,) factors that give every group its share of the weighted steps."""
    names, group_E = np.unique(np.array(groups), return_inverse=True)
    totals = np.bincount(group_E, weights=steps_E, minlength=len(names))
    targets = shares(totals, exponent) * totals.sum()
    factors = np.divide(targets, totals, out=np.zeros_like(totals), where=totals > 0)
    return factors[group_E]


def shares(sizes: Sequence[float] | np.ndarray, exponent: float) -> np.ndarray:
    """Shares in proportion to `size ** exponent`, which add up to 1; a size of 0 gets none."""
    sizes = np.asarray(sizes, np.float64)
    powers = np.where(sizes > 0, np.maximum(sizes, _LEAST) ** exponent, 0.0)
    return powers / max(powers.sum(), _LEAST)


def _rounded(weight: float, digits: int) -> float:
    return float(f"{weight:.{digits}g}") if weight >= _LEAST else 0.0


def episode_steps(store: EpisodeStore) -> np.ndarray:
    """(E,) steps of the stream `policy`, or of the first stream."""
    return np.diff(store.ends(steps_stream(store.schema)), prepend=0)


def group_name(metadata: Mapping[str, Any], key: str) -> str:
    """Words for the value of an entry of the metadata."""
    return _named(metadata[key]) if key in metadata else NOT_STATED


def _named(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def weight_groups(
    groups: Sequence[str], steps_E: np.ndarray, before_E: np.ndarray, after_E: np.ndarray
) -> list[WeightGroup]:
    """The groups of episodes in the order of their first episodes.

    Args:
        groups: E names of the group of every episode.
        steps_E: steps of the episodes.
        before_E: weights of the store.
        after_E: new weights.
    """
    rows = []
    for name in dict.fromkeys(groups):
        members = np.array([group == name for group in groups])
        parts = [
            float((weights * steps_E)[members].sum() / max((weights * steps_E).sum(), _LEAST))
            for weights in (before_E, after_E)
        ]
        rows.append(WeightGroup(name, int(members.sum()), int(steps_E[members].sum()), *parts))
    return rows


def parse_hand_weights(words: Sequence[str]) -> tuple[HandWeight, ...]:
    """Weights from words `KEY=VALUE:WEIGHT`; a value is JSON, or text if it is none.

    Raises:
        HandoffError: a word of another form, or a weight that is no number of 0 to `LARGEST`.
    """
    found = []
    for word in words:
        entry, _, number = word.rpartition(":")
        if "=" not in entry:
            raise HandoffError(f"{word}: expected KEY=VALUE:WEIGHT, such as operator=ada:2.")
        try:
            weight = episode_weight({WEIGHT: float(number)})
        except ValueError:
            weight = None
        if weight is None:
            raise HandoffError(
                f"{word}: the weight is '{number}', expected a number of 0 to {LARGEST:.0e}."
            )
        for key, value in parse_labels([entry]).items():
            found.append(HandWeight(key=key, value=value, weight=weight))
    return tuple(found)
