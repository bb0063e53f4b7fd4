"""Implements `handoff episodes weights`: weights of the episodes of a store, and of several stores
in a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.datasets import edit, find_store
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.storage.location import bucket_of

if TYPE_CHECKING:
    import numpy as np

    from robots.episodes.curation.weighting import WeightsConfig
    from robots.episodes.store import EpisodeStore

MOST_GROUPS = 50
"""Largest number of groups that are listed."""
MOST_WEIGHT_GROUPS = 10
"""Number of different weights above which episodes are listed by ranges of their weights."""


def weights_config(
    balance: str,
    exponent: float | None,
    quality: bool,
    reward: str | None,
    returns: tuple[float, float] | None,
    by_hand: Sequence[str],
) -> WeightsConfig:
    """Builds the options of the weights from those of the command.

    Args:
        balance: entry of the metadata whose groups are balanced; empty for none.
        exponent: exponent of the groups' steps; None takes 0.
        quality: whether returns become weights.
        reward: field of the reward; None takes the only one.
        returns: returns of a random policy and of the best one; None takes those of the set.
        by_hand: words `KEY=VALUE:WEIGHT`.

    Raises:
        HandoffError: `reward` or `returns` without `quality`, or an invalid value.
    """
    from robots.config import to_plain, validate
    from robots.episodes.curation.dataset_quality import QualityConfig
    from robots.episodes.curation.weighting import WeightsConfig, parse_hand_weights

    references: dict[str, float | str | None] = {"reward": reward}
    if returns is not None:
        references |= {"random_return": returns[0], "best_return": returns[1]}
    if not quality and (reward is not None or returns is not None):
        raise HandoffError(
            "--reward, --returns: choose the returns of --quality, which is missing."
        )
    chosen = to_plain(validate(QualityConfig, references)) if quality else None
    hand = [to_plain(each) for each in parse_hand_weights(by_hand)]
    options = {"balance": balance, "exponent": exponent or 0.0, "quality": chosen, "by_hand": hand}
    return validate(WeightsConfig, options)


def weight_lines(
    path: Path,
    config: WeightsConfig,
    out: Path | None,
    edited: tuple[str, str],
    progress: Progress,
) -> Iterator[str]:
    """Yields a table of the groups of a store with their shares, and writes a copy with the new
    weights.

    Args:
        path: the store, or the artifact with it.
        config: ways to weight its episodes; without any, the weights of the store are listed.
        out: folder of the copy; None writes none.
        edited: person who edits, and the reason, for the lineage.
        progress: counts episodes.

    Raises:
        HandoffError: `out` without a way to weight the episodes, a person or reason without `out`,
            or see `computed_weights`.
    """
    import numpy as np

    from robots.episodes.curation.edit import Edits
    from robots.episodes.curation.weighting import computed_weights, episode_steps, weight_groups
    from robots.episodes.curation.weights import WEIGHT, store_weights
    from robots.episodes.store import EpisodeStore

    ways = _ways(config)
    if out is not None and not ways:
        raise HandoffError("--out: nothing to write; give --balance, --quality or --set.")
    if out is None and any(edited):
        raise HandoffError("--by, --reason: are written into the copy of --out, which is missing.")
    with EpisodeStore.open(find_store(path)) as store:
        stated, steps = store_weights(str(path), store), episode_steps(store)
        new = computed_weights(store, config, progress) if ways else stated
        before = stated if ways else np.ones(len(steps))
        groups = weight_groups(_group_names(store, config, new), steps, before, new)
    if not _group_keys(config):
        groups.sort(key=lambda group: group.after / max(group.steps, 1), reverse=True)
    headings = ("share now", "share with weights") if ways else ("share of steps", "share drawn")
    rows = [("group", "episodes", "steps", *headings)]
    for group in groups[:MOST_GROUPS]:
        parts = (f"{100 * share:.1f} %" for share in (group.before, group.after))
        rows.append((group.name, str(group.episodes), f"{group.steps:,}", *parts))
    yield from _aligned(rows)
    if len(groups) > MOST_GROUPS:
        yield f"and {len(groups) - MOST_GROUPS} more groups"
    yield f"{len(np.unique(new))} different weights, {new.min():g} to {new.max():g}"
    if out is not None:
        by, reason = edited
        reason = f"{reason} ({ways})" if reason else ways
        labels = {number: {WEIGHT: float(weight)} for number, weight in enumerate(new)}
        edit(path, out, Edits(labels=labels, by=by, reason=reason), progress=progress)
        yield f"written to {out}"


def _ways(config: WeightsConfig) -> str:
    """Words for the ways in which episodes are weighted; empty if there is none."""
    import json

    parts = [f"{each.key}={json.dumps(each.value)}: {each.weight:g}" for each in config.by_hand]
    parts += ["normalised returns"] if config.quality is not None else []
    if config.balance:
        parts.append(f"balanced by {config.balance} with the exponent {config.exponent:g}")
    return f"weights: {', '.join(parts)}" if parts else ""


def _group_keys(config: WeightsConfig) -> list[str]:
    """Entries of the metadata by which the table is grouped; empty groups by weight."""
    keys = [config.balance, *(each.key for each in config.by_hand)]
    return [key for key in dict.fromkeys(keys) if key]


def _group_names(store: EpisodeStore, config: WeightsConfig, weights_E: np.ndarray) -> list[str]:
    """Group of every episode in the table."""
    import numpy as np

    from robots.episodes.curation.weighting import group_name

    if keys := _group_keys(config):
        metadata = [store.metadata(number) for number in range(store.num_episodes)]
        return [", ".join(group_name(entry, key) for key in keys) for entry in metadata]
    if len(np.unique(weights_E)) <= MOST_WEIGHT_GROUPS:
        return [f"weight {weight:g}" for weight in weights_E]
    width = weights_E.max() / MOST_WEIGHT_GROUPS
    bins = np.minimum(weights_E // width, MOST_WEIGHT_GROUPS - 1)
    return [f"weight from {low * width:.3g} to {(low + 1) * width:.3g}" for low in bins]


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Lines of a table, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        name, *numbers = (
            f"{cell:<{width}}" if column == 0 else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([name, *numbers])


def mixture_lines(paths: Sequence[Path], exponent: float) -> Iterator[str]:
    """Yields the options of a stage `pretrain` that draw from every store in proportion to
    `steps ** exponent`, as YAML; the first store is the input `demos` of the stage.

    Args:
        paths: stores, or artifacts with them.
        exponent: 0 gives all stores the same share, 1 that of their steps.

    Raises:
        HandoffError: a store is named twice, or holds no episode of a weight above 0.
    """
    import yaml

    from robots.episodes.curation.weighting import episode_steps, shares
    from robots.episodes.curation.weights import store_weights
    from robots.episodes.store import EpisodeStore

    found = [find_store(path) for path in paths]
    if len({store.resolve() for store in found}) < len(found):
        raise HandoffError(
            f"weights: the stores {', '.join(map(str, paths))}, expected each once. Give one store a larger weight."
        )
    steps, episodes = [], []
    for path, place in zip(paths, found, strict=True):
        with EpisodeStore.open(place) as store:
            drawn = store_weights(str(path), store) > 0
            steps.append(int(episode_steps(store)[drawn].sum()))
            episodes.append(int(drawn.sum()))
    wanted = shares(steps, exponent)
    for number, path in enumerate(paths):
        part, place = steps[number] / max(sum(steps), 1), "mixture" if number else "demos"
        yield (
            f"# {place} {path}: {episodes[number]} episodes, {steps[number]:,} steps ({100 * part:.1f} %), "
            f"share {100 * wanted[number]:.1f} %"
        )
    weights = [float(f"{share:.4g}") for share in wanted]
    others = [
        {"path": str(bucket_of(path) or path), "weight": weight}
        for path, weight in zip(paths[1:], weights[1:], strict=True)
    ]
    options = {"demos_weight": weights[0], "mixture": others}
    yield from yaml.safe_dump(options, sort_keys=False).splitlines()
