"""Counts the episode seeds that were used, so that a resumed run continues with the next one."""

from __future__ import annotations

from collections.abc import Iterator


class CountedSeeds(Iterator[int]):
    """Consecutive seeds, with a count of those that were used.

    Args:
        first: first seed, not negative.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self.used = 0

    def __next__(self) -> int:
        self.used += 1
        return self._first + self.used - 1
