"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

_OWN = (
    (os.sched_getscheduler(0), os.sched_getparam(0)) if hasattr(os, "sched_getscheduler") else None
)
"""Scheduling of the thread in which tests run, as it was when they began."""


@pytest.fixture(autouse=True)
def _own_priority() -> Iterator[None]:
    """Takes back the real-time priority that franky's constructor gives to the thread that calls
    it.

    Threads inherit it, and those of a later test would spin on all processors while the one they
    wait for never runs.
    """
    yield
    if _OWN is not None and os.sched_getscheduler(0) != _OWN[0]:
        os.sched_setscheduler(0, *_OWN)


@pytest.fixture(scope="module")
def unoptimised_kernels() -> Iterator[None]:
    """mujoco-warp's kernels are compiled at their first use; without optimisation, to save time."""
    import warp  # pyright: ignore[reportMissingImports]

    before = warp.config.optimization_level
    warp.config.optimization_level = 0
    yield
    warp.config.optimization_level = before
