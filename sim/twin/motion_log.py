"""Counts ticks and wall time of the twin's motions, and keeps the states of their last ticks."""

from __future__ import annotations

import time

import numpy as np

from sim.twin.protocol import STATE
from sim.twin.unit.checks import PERIOD


class MotionLog:
    """Times of all motions since the start.

    Args:
        ticks: number of states that are kept.
    """

    def __init__(self, ticks: int) -> None:
        self._states = np.zeros(ticks, STATE)
        self._added = 0
        self._times = dict.fromkeys(
            ("motion_ticks", "motion_s", "wait_s", "world_s", "state_s"), 0.0
        )
        self._counted: float | None = None
        """Wall time up to which the running motion is part of `motion_s`."""

    def begin(self) -> None:
        """Begins a motion, whose wall time counts from its first tick on."""
        self._counted = None

    def add_state(self, state: np.void) -> None:
        """Keeps the state of one tick."""
        if len(self._states):
            self._states[self._added % len(self._states)] = state
            self._added += 1

    def add_tick(self, began: float, sent: float, received: float, ended: float) -> None:
        """Adds a tick by four wall times [s]: its begin, the state sent, the command received, the
        world advanced."""
        times = self._times
        times["motion_ticks"] += 1
        times["state_s"] += sent - began
        times["wait_s"] += received - sent
        times["world_s"] += ended - received
        # Tick by tick, so that it is right however the motion ends.
        times["motion_s"] += ended - (began if self._counted is None else self._counted)
        self._counted = ended

    def states(self) -> np.ndarray:
        """(T,) the kept states, oldest first."""
        count = min(self._added, len(self._states))
        if not count:
            return self._states[:0]
        return np.roll(self._states, -self._added)[len(self._states) - count :]

    def stats(self, moving: bool) -> dict[str, float]:
        """Ticks and times, see `sim.twin.twin.Twin.stats`.

        Args:
            moving: whether a motion runs, whose time since its last tick counts.
        """
        wall = self._times["motion_s"]
        if moving and self._counted is not None:
            wall += time.perf_counter() - self._counted
        ticks = self._times["motion_ticks"]
        factor = ticks * PERIOD / wall if wall > 0.0 else 0.0
        return {**self._times, "motion_s": wall, "realtime_factor": factor}
