"""The ranges of start seeds: apart, without gaps, and where every earlier result drew them."""

from __future__ import annotations

from itertools import pairwise

from robots import seed_ranges
from robots.seed_ranges import SESSION_SPACING

RANGES = {name: value for name, value in vars(seed_ranges).items() if isinstance(value, range)}


def test_the_ranges_are_those_of_every_earlier_result() -> None:
    assert {
        "DEMONSTRATIONS": range(0, 20_000),
        "CLASSIFIER": range(20_000, 40_000),
        "ROLLOUTS": range(40_000, 100_000),
        "EVALUATION": range(100_000, 200_000),
        "PLAY": range(200_000, 450_000),
        "WORST_CASE": range(450_000, 500_000),
        "RECORDING": range(500_000, 1_000_000),
        "TRAINING": range(1_000_000, 2_147_483_648),
    } == RANGES


def test_no_two_ranges_share_a_seed() -> None:
    ordered = sorted(RANGES.values(), key=lambda seeds: seeds.start)
    assert all(first.stop <= second.start for first, second in pairwise(ordered))


def test_every_seed_of_an_environment_belongs_to_a_range() -> None:
    assert sum(len(seeds) for seeds in RANGES.values()) == 2**31, "seeds have 31 bits"


def test_the_ranges_of_the_next_session_begin_behind_those_of_the_first() -> None:
    sessions = (seed_ranges.DEMONSTRATIONS, seed_ranges.CLASSIFIER, seed_ranges.ROLLOUTS)
    assert max(seeds.stop for seeds in sessions) <= SESSION_SPACING
    assert seed_ranges.EVALUATION.stop <= SESSION_SPACING


def test_the_table_in_the_docstring_names_every_range() -> None:
    table = seed_ranges.__doc__ or ""
    for name, seeds in RANGES.items():
        last = "2^31-1" if seeds.stop == 2**31 else f"{seeds.stop - 1:,}"
        assert f"| `{name}`" in table, name
        assert f"| {seeds.start:,} to {last} " in table, name
