"""Compares successes over the same starts, in pairs, for the figures of a stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

COLUMNS = ("only first", "only second", "p", "Holm")
"""Headings of the last cells of `pair_cells`."""


def compare_pairs(
    pairs: Iterable[tuple[Mapping[str, str], Mapping[int, bool], Mapping[int, bool]]],
    seed: int,
    confidence: float,
) -> list[dict[str, Any]]:
    """The paired differences of several pairs.

    Args:
        pairs: names of each pair, and the successes of its first and its second by seed, of the
            same seeds.
        seed: seed of the bootstrap.
        confidence: confidence of its intervals.

    Returns:
        The names of each pair with `mean`, `low` and `high` of the second less the first, the
        numbers of starts that one of them alone solved (`only_first`, `only_second`), McNemar's
        `p_value`, and `p_holm`, corrected for the number of pairs.
    """
    from sim.evaluation.groups import holm
    from sim.evaluation.intervals import mcnemar, paired_difference

    compared: list[dict[str, Any]] = []
    for names, one, other in pairs:
        first = [one[start] for start in sorted(one)]
        second = [other[start] for start in sorted(one)]
        difference = paired_difference(
            [float(each) for each in first], [float(each) for each in second], seed, confidence
        )
        compared.append({**names, **difference, **mcnemar(first, second)})
    corrected = holm([pair["p_value"] for pair in compared])
    return [{**pair, "p_holm": p} for pair, p in zip(compared, corrected, strict=True)]


def pair_cells(pair: Mapping[str, Any]) -> tuple[str, ...]:
    """Cells of a table about a pair: difference, interval, and those of `COLUMNS`."""
    return (
        f"{pair['mean']:+.3f}",
        f"{pair['low']:+.3f} to {pair['high']:+.3f}",
        str(pair["only_first"]),
        str(pair["only_second"]),
        f"{pair['p_value']:.3g}",
        f"{pair['p_holm']:.3g}",
    )
