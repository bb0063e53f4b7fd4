"""Computes the shares of the episodes that satisfy specifications, and their entries in results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from robots.proportions import wilson


def outcomes(robustness: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """JSON-ready outcome of one episode per specification: `robustness`, None where no step of the
    episode decides (see `robots.specifications.robustness`), and `satisfied`.

    Args:
        robustness: of the episode, by name of the specification.
    """
    return {
        name: {"robustness": value if math.isfinite(value) else None, "satisfied": value >= 0.0}
        for name, value in robustness.items()
    }


def satisfied_shares(
    episodes: Sequence[Mapping[str, Mapping[str, Any]]],
    specifications: Mapping[str, str],
    confidence: float = 0.95,
) -> dict[str, dict[str, Any]]:
    """Share of the episodes that satisfy each specification: `k` of `n`, Wilson interval `low`,
    `high`, the `smallest` and the `mean` of the robustness, None where no step of any episode
    decides, and the `formula`.

    Args:
        episodes: `outcomes` of at least one episode.
        specifications: formulas by name.
        confidence: two-sided confidence of the interval.
    """
    return {
        name: {**_share([each[name] for each in episodes], confidence), "formula": formula}
        for name, formula in specifications.items()
    }


def _share(episodes: Sequence[Mapping[str, Any]], confidence: float) -> dict[str, Any]:
    k, n = sum(each["satisfied"] for each in episodes), len(episodes)
    low, high = wilson(k, n, confidence)
    values = [each["robustness"] for each in episodes if each["robustness"] is not None]
    return {
        "k": k,
        "n": n,
        "low": low,
        "high": high,
        "smallest": min(values, default=None),
        "mean": sum(values) / len(values) if values else None,
    }
