"""Records every 1 kHz robot state of a motion, in memory that is reserved before it begins and that
two processes can share: the one that drives the arm writes, the one that stores the episode reads,
also after the writer has been killed."""

from __future__ import annotations

import mmap
import os
import time
from math import prod
from typing import Any

import numpy as np

from robots.errors import HandoffError

SLACK = 5e-4
"""Difference up to which two robot times count as equal, half their resolution [s]."""


def robot_fields(joints: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a state's fields, for a robot with `joints` joints."""
    per_joint = dict.fromkeys(("q", "dq", "q_d", "tau_J", "tau_J_d", "tau_ext"), (joints,))
    return {"time": (), **per_joint, "base_T_ee": (4, 4), "success_rate": ()}


HEAD = 2
"""Entries before the states: how many were recorded, and how many dropped."""


def reserve(seconds: float, joints: int) -> int:
    """Reserves memory for the states of so many seconds; the system provides it as it is written.

    Args:
        seconds: time for whose states memory is reserved [s].
        joints: number of joints of the robot.

    Returns:
        The descriptor of the memory, to be closed by the caller.
    """
    descriptor = os.memfd_create("handoff-states", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, 8 * (HEAD + _rows(seconds) * _entries(joints)))
    return descriptor


class StateRecorder:
    """A franky motion callback, which is called on franky's queue thread once per control cycle.

    Args:
        seconds: time for whose states memory is reserved [s].
        joints: number of joints of the robot.
        descriptor: memory of `reserve` for the same, which another process may have mapped as well
            and which may be closed afterwards; None reserves some for this process alone.
    """

    def __init__(self, seconds: float, joints: int, descriptor: int | None = None) -> None:
        self._rows = _rows(seconds)
        reserved = reserve(seconds, joints) if descriptor is None else descriptor
        memory = np.frombuffer(mmap.mmap(reserved, 0))
        if descriptor is None:
            os.close(reserved)
        self._head = memory[:HEAD]
        self._arrays: dict[str, np.ndarray] = {}
        begin = HEAD
        for name, shape in robot_fields(joints).items():
            end = begin + self._rows * prod(shape)
            self._arrays[name] = memory[begin:end].reshape(self._rows, *shape)
            begin = end

    @property
    def dropped(self) -> int:
        """Number of states that came after the memory was full."""
        return int(self._head[1])

    @property
    def _count(self) -> int:
        """Number of states that were recorded."""
        return int(self._head[0])

    def __call__(
        self, state: Any, time_step: Any, relative_time: Any, absolute_time: Any, command: Any
    ) -> None:
        """Records one `franky.RobotState`."""
        i = self._count
        if i == self._rows:
            self._head[1] += 1
            return
        arrays = self._arrays
        arrays["time"][i] = state.time.to_msec() * 1e-3
        arrays["q"][i] = state.q
        arrays["dq"][i] = state.dq
        arrays["q_d"][i] = state.q_d
        arrays["tau_J"][i] = state.tau_J
        arrays["tau_J_d"][i] = state.tau_J_d
        arrays["tau_ext"][i] = state.tau_ext_hat_filtered
        arrays["base_T_ee"][i] = state.O_T_EE.matrix
        arrays["success_rate"][i] = state.control_command_success_rate
        # Last, so that a reader never takes a row that is half written.
        self._head[0] = i + 1

    def between(self, begin: float, end: float, patience: float = 2.0) -> dict[str, np.ndarray]:
        """Copies of the states with `begin < time <= end` [robot s], once the queue thread has
        delivered them.

        Raises:
            HandoffError: see `wait`.
        """
        self.wait(end, patience)
        return self.arrived(begin, end)

    def wait(self, end: float, patience: float = 2.0) -> None:
        """Waits until the queue thread has delivered the states up to `end` [robot s].

        Raises:
            HandoffError: they did not arrive within `patience` host seconds.
        """
        deadline = time.monotonic() + patience
        while self._count == 0 or self._arrays["time"][self._count - 1] < end - SLACK:
            if time.monotonic() > deadline:
                last = self._arrays["time"][self._count - 1] if self._count else float("nan")
                raise HandoffError(
                    f"state recorder: has states up to {last:.3f} s, expected up to {end:.3f} s "
                    f"({self.dropped} dropped, room for {self._rows}). Did the motion end early?"
                )
            time.sleep(0.001)

    def arrived(self, begin: float, end: float) -> dict[str, np.ndarray]:
        """Copies of the states with `begin < time <= end` [robot s] that have arrived by now.

        If none of them has, the newest state before; no rows if no state has arrived at all.
        """
        last = self.count(end)
        return self.rows(max(0, min(self.count(begin), last - 1)), last)

    def count(self, end: float) -> int:
        """Number of states up to `end` [robot s] that have arrived by now."""
        return int(np.searchsorted(self._arrays["time"][: self._count], end + SLACK))

    def rows(self, first: int, last: int) -> dict[str, np.ndarray]:
        """Copies of the states from number `first` to `last`, exclusive, in the order of their
        arrival."""
        return {name: array[first:last].copy() for name, array in self._arrays.items()}


def _rows(seconds: float) -> int:
    return round(seconds * 1000)


def _entries(joints: int) -> int:
    """Numbers in one state."""
    return sum(prod(shape) for shape in robot_fields(joints).values())
