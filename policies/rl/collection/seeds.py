"""Seeds of episodes, one after another, so that a run which was killed knows how many were used."""

from __future__ import annotations

from collections.abc import Iterator


class CountedSeeds(Iterator[int]):
    """Numbers from the first on, of which is known how many were used.

    Args:
        first: not negative.
    """

    def __init__(self, first: int) -> None:
        self._first, self.used = first, 0

    def __next__(self) -> int:
        self.used += 1
        return self._first + self.used - 1
