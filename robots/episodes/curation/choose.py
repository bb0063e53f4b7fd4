"""Chooses episodes of a store: by what is known about them, or at random as one part of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np

from robots.config import Count, OpenShare, Seed, Unbounded, Whole, config
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError, suggest
from robots.language.text import INSTRUCTION

INTERVENTION = "intervention"
"""Field that is 1 where a person acted, see `robots.episodes.corrections`."""


@config
class FilterConfig:
    """Conditions on episodes; an episode is kept if it meets all of them."""

    success: bool | None = None
    """Recorded success of the episodes that are kept; None keeps both, and episodes of unknown
    success."""
    min_steps: Count | None = None
    """Smallest number of steps; None sets no limit."""
    max_steps: Count | None = None
    """Largest number of steps; None sets no limit."""
    operators: tuple[str, ...] = ()
    """Persons (`operator` in the metadata) whose episodes are kept; `*` stands for any characters;
    empty keeps all."""
    instructions: tuple[str, ...] = ()
    """Instructions whose episodes are kept; `*` stands for any characters; empty keeps all."""
    corrections: Literal["all", "with", "without"] = "all"
    """Whether a person took over from a policy in the episodes that are kept."""
    ranges: dict[str, tuple[Unbounded, Unbounded]] = field(default_factory=dict)
    """Smallest and largest accepted value of numbers in the metadata, such as `quality: [3, 5]`; an
    episode without the number is left out."""
    exclude: tuple[Whole, ...] = ()
    """Numbers of episodes that are left out, such as those of a doctor's findings."""


@config
class SplitConfig:
    """One part of a store that is split at random."""

    part: Literal["train", "held_out"] = "train"
    """Part that is written; two stages with the same seed and fraction write the two parts."""
    fraction: OpenShare = 0.1
    """Fraction of the episodes, or of the groups, that is held out, rounded up."""
    seed: Seed = 0
    """Seed of the choice."""
    group: str = ""
    """Entry of the metadata, such as `session` or `operator`, whose episodes stay together; empty
    splits single episodes."""
    names: tuple[str, ...] = ()
    """Parts that the data set states (`split` in the metadata, as robomimic's masks), of which the
    episodes are taken in place of a random choice."""


def filtered(store: EpisodeStore, conditions: FilterConfig) -> tuple[list[int], dict[str, int]]:
    """Numbers of the episodes that meet all conditions, and how many episodes every condition alone
    left out, by its name.

    Raises:
        HandoffError: no episode meets them, one to exclude does not exist, or nothing is known of
            what a condition asks for.
    """
    missing = [episode for episode in conditions.exclude if episode >= store.num_episodes]
    if missing:
        raise HandoffError(
            f"filter.exclude: no episode {missing[0]}, the store has 0 to {store.num_episodes - 1}."
        )
    stream = next(iter(store.schema.streams))
    if "policy" in store.schema.streams:
        stream = "policy"
    if conditions.corrections != "all" and INTERVENTION not in store.schema.streams[stream].fields:
        raise HandoffError(
            f"filter.corrections: the store has no field '{INTERVENTION}', so no person took over from a policy."
        )
    known = {key for episode in range(store.num_episodes) for key in store.metadata(episode)}
    for key in _asked(conditions):
        if key not in known:
            raise HandoffError(
                f"filter: no episode states '{key}'; {suggest(key, sorted(known), 'episodes state')}"
            )
    lengths = np.diff(store.ends(stream), prepend=0)
    kept: list[int] = []
    refused: dict[str, int] = dict.fromkeys(_CONDITIONS, 0)
    for episode in range(store.num_episodes):
        failed = [
            name
            for name, holds in _fulfilled(
                store, stream, episode, int(lengths[episode]), conditions
            ).items()
            if not holds
        ]
        for name in failed:
            refused[name] += 1
        if not failed:
            kept.append(episode)
    left_out = {name: count for name, count in refused.items() if count}
    if not kept:
        raise HandoffError(
            f"filter: none of {store.num_episodes} episodes meets all conditions; left out by "
            f"{', '.join(f'{name} ({count})' for name, count in left_out.items())}."
        )
    return kept, left_out


_CONDITIONS: tuple[str, ...] = (
    "success",
    "min_steps",
    "max_steps",
    "operators",
    "instructions",
    "corrections",
    "ranges",
    "exclude",
)


def _asked(conditions: FilterConfig) -> list[str]:
    """Entries of the metadata that the conditions need."""
    asked = list(conditions.ranges)
    if conditions.success is not None:
        asked.append("success")
    if conditions.operators:
        asked.append("operator")
    if conditions.instructions:
        asked.append(INSTRUCTION)
    return asked


def _fulfilled(
    store: EpisodeStore, stream: str, episode: int, steps: int, conditions: FilterConfig
) -> dict[str, bool]:
    """Whether an episode meets each condition."""
    metadata = store.metadata(episode)
    corrected = True
    if conditions.corrections != "all":
        acted = bool(store.read(episode, stream, [INTERVENTION])[INTERVENTION].any())
        corrected = acted == (conditions.corrections == "with")
    return {
        "success": conditions.success is None or metadata.get("success") is conditions.success,
        "min_steps": conditions.min_steps is None or steps >= conditions.min_steps,
        "max_steps": conditions.max_steps is None or steps <= conditions.max_steps,
        "operators": _matches(metadata.get("operator"), conditions.operators),
        "instructions": _matches(metadata.get(INSTRUCTION), conditions.instructions),
        "corrections": corrected,
        "ranges": all(
            _within(metadata.get(key), limits) for key, limits in conditions.ranges.items()
        ),
        "exclude": episode not in conditions.exclude,
    }


def _matches(value: Any, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(str(value), pattern) for pattern in patterns)


def _within(value: Any, limits: tuple[float, float]) -> bool:
    return isinstance(value, int | float) and limits[0] <= value <= limits[1]


def split(metadata: Sequence[Mapping[str, Any]], config: SplitConfig) -> list[int]:
    """Numbers of the episodes of one part, ascending.

    Args:
        metadata: metadata of all episodes.
        config: part, fraction and seed.

    Raises:
        HandoffError: fewer than two episodes or groups, or nothing states the group or the parts.
    """
    if config.names:
        return _stated(metadata, config.names)
    groups: dict[str, list[int]] = {}
    for episode, entry in enumerate(metadata):
        if config.group and config.group not in entry:
            raise HandoffError(
                f"split.group: episode {episode} does not state '{config.group}'; it states "
                f"{', '.join(sorted(entry)) or 'nothing'}."
            )
        key = str(entry[config.group]) if config.group else str(episode)
        groups.setdefault(key, []).append(episode)
    check_splits(len(groups), config)
    held_out = min(len(groups) - 1, int(np.ceil(config.fraction * len(groups))))
    order = np.random.default_rng(config.seed).permutation(len(groups))
    names = list(groups)
    chosen = order[:held_out] if config.part == "held_out" else order[held_out:]
    return sorted(episode for index in chosen for episode in groups[names[index]])


def check_splits(number: int, config: SplitConfig) -> None:
    """Checks that there are enough episodes, or groups of episodes, for both parts.

    Args:
        number: number of episodes or groups, or an upper bound of it.
        config: how they are split.

    Raises:
        HandoffError: fewer than two.
    """
    if number >= 2 or config.names:
        return
    what = f"value of '{config.group}'" if config.group else "episode"
    raise HandoffError(
        f"split: {number} {what}{'s' * (number != 1 and not config.group)}, at least 2 needed: one to train, one held "
        "out. Record or import more."
    )


def part_groups(
    metadata: Sequence[Mapping[str, Any]], config: SplitConfig, chosen: Sequence[int]
) -> dict[str, Any]:
    """Metrics of a part whose groups stay together, `groups` and `groups_before`: the fraction is
    one of groups, which may have very different numbers of episodes. Empty without groups.

    Args:
        metadata: metadata of all episodes.
        config: how the part was chosen.
        chosen: numbers of its episodes.
    """
    if not config.group or config.names:
        return {}
    of_episode = [str(entry[config.group]) for entry in metadata]
    groups = {of_episode[number] for number in chosen}
    return {"groups": len(groups), "groups_before": len(set(of_episode))}


def _stated(metadata: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[int]:
    stated = [tuple(entry.get("split") or ()) for entry in metadata]
    known = sorted({name for parts in stated for name in parts})
    for name in names:
        if name not in known:
            raise HandoffError(
                f"split.names: no episode is in the part '{name}'; {suggest(name, known, 'the data set has')}"
            )
    return [episode for episode, parts in enumerate(stated) if set(parts) & set(names)]
