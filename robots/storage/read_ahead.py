"""Reads episodes in order, several at the same time where the latency of a storage would add up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def read_ahead(read: Callable[[int], T], numbers: Iterable[int], parallel: int) -> Iterator[T]:
    """Yields `read(number)` of all numbers in order.

    Args:
        read: called by several threads unless `parallel` is 1.
        numbers: numbers of episodes.
        parallel: number of episodes that are read at the same time, and thus in memory.
    """
    if parallel == 1:
        yield from map(read, numbers)
        return
    pool = ThreadPoolExecutor(parallel, thread_name_prefix="episodes")
    pending: deque[Future[T]] = deque()
    try:
        for number in numbers:
            pending.append(pool.submit(read, number))
            if len(pending) == parallel:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
