"""Describes an episode store by numbers: sizes, values of every field, instructions, success and
returns, in one pass and bounded memory.

Pictures are thinned to a grid, and only every few steps are read. All other figures come from every
step; quantiles are exact up to a number of steps, and from a uniform sample beyond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from math import prod
from typing import Annotated

import numpy as np
from pydantic import Field

from robots.config import (
    Count,
    Finite,
    NonNegative,
    OpenShare,
    Positive,
    Seed,
    Share,
    Whole,
    config,
)
from robots.episodes.curation.checks.layout import StreamLayout, stream_layout
from robots.episodes.curation.checks.pictures import CHUNK, colours, picture_blocks, thinned
from robots.episodes.curation.examination import as_number
from robots.episodes.curation.readable import ReadableEpisodes
from robots.episodes.curation.running import QuantileSample, RunningMoments
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.language.text import INSTRUCTION, decode
from robots.proportions import wilson
from robots.spec import FieldSpec, describe

_POOLED_ENTRIES = 1024
"""Number of entries of a field above which all of them are described together."""
_SAMPLE_BYTES = 2**25
"""Largest size of the sample of one field [bytes]."""


@config
class StatisticsConfig:
    """Accuracy of the statistics."""

    quantiles: tuple[OpenShare, ...] = (0.01, 0.1, 0.5, 0.9, 0.99)
    """Shares of the steps whose quantiles are given."""
    sample_steps: Count = 50_000
    """Number of steps up to which quantiles are exact; more are sampled uniformly."""
    picture_every: Count = 10
    """Number of steps from one picture that is read to the next one."""
    picture_points: Annotated[int, Field(ge=4, le=4096)] = 64
    """Largest number of rows, and of columns, of the grid to which a picture is thinned."""
    seed: Seed = 0
    """Seed of the sample."""


@config
class FieldStatistics:
    """Values of one field; one number per entry, or per colour of a picture."""

    name: str
    """Name of the field."""
    about: str
    """Number type, shape, unit and role."""
    samples: Whole
    """Number of values per entry."""
    entries: tuple[str, ...]
    """Names of the entries."""
    low: tuple[Finite, ...]
    """Smallest values."""
    high: tuple[Finite, ...]
    """Largest values."""
    mean: tuple[Finite, ...]
    """Means."""
    std: tuple[NonNegative, ...]
    """Standard deviations of the population."""
    quantiles: tuple[tuple[Finite, ...], ...]
    """One row of values per share of `StatisticsConfig.quantiles`."""
    exact_quantiles: bool
    """Whether the quantiles come from all values that were read."""


@config
class ReturnStatistics:
    """Sums of the rewards of the episodes."""

    field: str
    """Field of the reward."""
    low: Finite
    """Smallest return."""
    high: Finite
    """Largest return."""
    mean: Finite
    """Mean return."""
    std: NonNegative
    """Standard deviation of the returns."""
    quantiles: tuple[Finite, ...]
    """Quantiles of the returns."""


@config
class StoreStatistics:
    """Sizes and values of an episode store."""

    name: str
    """Name of the task."""
    stream: str
    """Stream that was described."""
    rate_hz: Positive
    """Steps per second."""
    episodes: Whole
    """Number of episodes."""
    steps: Whole
    """Number of steps."""
    seconds: NonNegative
    """Length of all episodes [s]."""
    shortest: Whole
    """Steps of the shortest episode."""
    median_steps: NonNegative
    """Median number of steps."""
    longest: Whole
    """Steps of the longest episode."""
    fields: tuple[FieldStatistics, ...]
    """Values of the fields."""
    instructions: tuple[tuple[str, Whole], ...]
    """Instructions with their numbers of episodes, the most frequent first."""
    without_instruction: Whole
    """Number of episodes without an instruction."""
    successes: Whole
    """Number of successful episodes."""
    labelled: Whole
    """Number of episodes that state their success."""
    success_interval: tuple[Share, Share] | None
    """95 % Wilson interval of the share of successful episodes; None without labels."""
    returns: tuple[ReturnStatistics, ...]
    """Returns by the field of the reward."""
    config: StatisticsConfig = field(default_factory=StatisticsConfig)
    """Accuracy of the statistics."""


def statistics(
    store: ReadableEpisodes,
    config: StatisticsConfig | None = None,
    progress: Progress = no_progress,
) -> StoreStatistics:
    """Describes the stream `policy`, or the first stream, of a store.

    Args:
        store: the episodes.
        config: accuracy; None takes the defaults.
        progress: called with the number of episodes that were read.

    Raises:
        HandoffError: the store has no episodes, or damaged files.
    """
    config = config or StatisticsConfig()
    if store.num_episodes == 0:
        raise HandoffError(
            f"{store.path}: has no episodes to describe. Was the recording committed?"
        )
    layout = stream_layout(store.schema, _POOLED_ENTRIES)
    collected = {
        name: _FieldValues(name, spec, config, name in layout.pictures)
        for name, spec in layout.specs.items()
        if name not in layout.texts and prod(spec.shape) > 0
    }
    returns: dict[str, list[float]] = {name: [] for name in layout.rewards}
    words: list[str] = []
    lengths = np.diff(store.ends(layout.stream), prepend=0)
    for episode, steps in enumerate(lengths.tolist()):
        names = [name for name in layout.specs if name not in layout.pictures]
        arrays = store.read(episode, layout.stream, names)
        for name in names:
            if name in collected:
                collected[name].add(arrays[name])
        for name in layout.pictures:
            for pictures in _pictures(store, episode, layout.stream, name, steps, config):
                collected[name].add(pictures)
        for name, values in returns.items():
            values.append(float(arrays[name].sum(dtype=np.float64)))
        words.append(_words(store, episode, layout, arrays))
        progress(episode + 1, store.num_episodes, "episodes")
    return _described(store, layout, config, lengths, collected, returns, words)


class _FieldValues:
    """Values of one field that were read so far."""

    def __init__(self, name: str, spec: FieldSpec, config: StatisticsConfig, picture: bool) -> None:
        self._name = name
        self._spec = spec
        self._config = config
        self._picture = picture
        entries = prod(spec.shape)
        pooled = picture or entries > _POOLED_ENTRIES
        # All points of a picture are values of its colours, all entries of a large field of one.
        self._columns = _colour_columns(spec, picture) if pooled else entries
        self._moments = RunningMoments(self._columns)
        self._grey = np.zeros((self._columns, 256), np.int64) if spec.dtype == "uint8" else None
        size = max(min(config.sample_steps, _SAMPLE_BYTES // (8 * self._columns)), 2)
        self._sample = QuantileSample(size, config.seed)

    def add(self, values: np.ndarray) -> None:
        """Adds `(T, *field shape)`, or thinned pictures `(T, points * colours)`."""
        rows = values.reshape(-1, self._columns)
        self._moments.add(rows)
        if self._grey is not None:
            for histogram, column in zip(self._grey, rows.T, strict=True):
                histogram += np.bincount(column, minlength=256)
        else:
            self._sample.add(rows)

    def described(self) -> FieldStatistics:
        """The statistics of the field."""
        moments, shares = self._moments, self._config.quantiles
        if self._grey is None:
            quantiles = self._sample.quantiles(shares)
        else:
            quantiles = np.array([_grey_quantiles(counts, shares) for counts in self._grey]).T
        quantiles = quantiles.reshape(len(shares), self._columns)
        return FieldStatistics(
            name=self._name,
            about=describe(self._spec),
            samples=moments.count,
            entries=tuple(self._names()),
            low=_numbers(moments.low),
            high=_numbers(moments.high),
            mean=_numbers(moments.mean),
            std=_numbers(moments.std),
            quantiles=tuple(_numbers(row) for row in quantiles),
            exact_quantiles=self._grey is not None or self._sample.exact,
        )

    def _names(self) -> list[str]:
        if self._picture or prod(self._spec.shape) > _POOLED_ENTRIES:
            colours = {3: ["red", "green", "blue"], 1: ["all entries"]}
            return colours.get(self._columns, [f"channel {i}" for i in range(self._columns)])
        if self._spec.names and [len(n) for n in self._spec.names] == list(self._spec.shape):
            indices = np.ndindex(self._spec.shape)
            return [
                ".".join(names[i] for names, i in zip(self._spec.names, index, strict=True))
                for index in indices
            ]
        return [str(i) for i in range(self._columns)]


def _colour_columns(spec: FieldSpec, picture: bool) -> int:
    """Number of columns of a picture, or of a field of many entries."""
    return colours(spec) if picture and colours(spec) <= 4 else 1


def _grey_quantiles(counts: np.ndarray, shares: tuple[float, ...]) -> list[float]:
    """Quantiles of whole numbers 0 to 255 by their counts, interpolated linearly as NumPy does."""
    total, ends = int(counts.sum()), np.cumsum(counts)
    values = []
    for share in shares:
        place = share * (total - 1)
        below, above = np.floor(place), np.ceil(place)
        low = int(np.searchsorted(ends, below, side="right"))
        high = int(np.searchsorted(ends, above, side="right"))
        values.append(low + (place - below) * (high - low))
    return values


def _numbers(values: np.ndarray) -> tuple[float, ...]:
    return tuple(as_number(value) for value in values)


def _pictures(
    store: ReadableEpisodes,
    episode: int,
    stream: str,
    name: str,
    steps: int,
    config: StatisticsConfig,
) -> Iterator[np.ndarray]:
    """Thinned pictures of an episode, every few steps. Pictures that are stored together are read
    together, unless most of them are skipped."""
    spec = store.schema.stream(stream).fields[name]
    every = config.picture_every
    if every >= CHUNK:
        for step in range(0, steps, every):
            block = store.read(episode, stream, [name], slice(step, step + 1))[name]
            yield thinned(block, spec, config.picture_points)
        return
    first = 0
    for block in picture_blocks(store, episode, stream, name, steps):
        yield thinned(block[-first % every :: every], spec, config.picture_points)
        first += len(block)


def _words(
    store: ReadableEpisodes, episode: int, layout: StreamLayout, arrays: dict[str, np.ndarray]
) -> str:
    """Instruction of an episode, from its metadata or the first row of a text field."""
    given = store.metadata(episode).get(INSTRUCTION)
    if isinstance(given, str):
        return given.strip()
    for name in layout.texts:
        try:
            return decode(arrays[name][:1].reshape(1, -1))[0].strip()
        except HandoffError:
            continue
    return ""


def _described(
    store: ReadableEpisodes,
    layout: StreamLayout,
    config: StatisticsConfig,
    lengths: np.ndarray,
    collected: dict[str, _FieldValues],
    returns: dict[str, list[float]],
    words: list[str],
) -> StoreStatistics:
    labels = [store.metadata(episode).get("success") for episode in range(store.num_episodes)]
    labelled = [label for label in labels if isinstance(label, bool)]
    successes = sum(labelled)
    counts = Counter(text for text in words if text)
    return StoreStatistics(
        name=store.schema.name,
        stream=layout.stream,
        rate_hz=layout.rate_hz,
        episodes=store.num_episodes,
        steps=int(lengths.sum()),
        seconds=float(lengths.sum()) / layout.rate_hz,
        shortest=int(lengths.min()),
        median_steps=float(np.median(lengths)),
        longest=int(lengths.max()),
        fields=tuple(values.described() for values in collected.values()),
        instructions=tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        without_instruction=sum(not text for text in words),
        successes=successes,
        labelled=len(labelled),
        success_interval=wilson(successes, len(labelled)) if labelled else None,
        returns=tuple(
            _return_statistics(name, np.array(values), config) for name, values in returns.items()
        ),
        config=config,
    )


def _return_statistics(
    name: str, returns: np.ndarray, config: StatisticsConfig
) -> ReturnStatistics:
    return ReturnStatistics(
        field=name,
        low=as_number(returns.min()),
        high=as_number(returns.max()),
        mean=as_number(returns.mean()),
        std=as_number(returns.std()),
        quantiles=_numbers(np.quantile(returns, config.quantiles)),
    )
