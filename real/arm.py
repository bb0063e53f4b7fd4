"""What the deploy loop knows of an arm: its state, its targets and its faults. No vendor library
here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from robots.errors import SafetyError, words


@dataclass(frozen=True)
class ArmState:
    """One sample of the robot's state."""

    time: float
    """Robot time [s]."""
    q: np.ndarray
    """(7,) measured joint positions [rad]."""
    dq: np.ndarray
    """(7,) measured joint velocities [rad/s]."""
    base_T_ee: np.ndarray
    """(4, 4) measured pose of the end effector in the base frame [m]."""
    tau_J: np.ndarray
    """(7,) measured joint torques, gravity included [Nm]."""
    tau_ext: np.ndarray
    """(7,) estimated external torques, filtered [Nm]."""
    success_rate: float
    """Share of the last 100 control commands that arrived in time; 0 outside of control."""
    mode: str
    """The robot's mode, e.g. `Idle`, `Move`, `Reflex`, `UserStopped`."""
    errors: tuple[str, ...]
    """Names of the error flags that are set now."""


class PoseTarget(NamedTuple):
    """What the Cartesian impedance is to follow, base frame."""

    base_T_ee: np.ndarray
    """(4, 4) [m]."""
    twist: np.ndarray
    """(6,) linear [m/s], angular [rad/s]."""
    acceleration: np.ndarray
    """(6,) linear [m/s^2], angular [rad/s^2]."""


class Arm(Protocol):
    """An arm under impedance control."""

    def state(self) -> ArmState:
        """The newest state.

        Raises:
            ArmFaultError: the robot has stopped by itself.
        """
        ...

    def start(self) -> None:
        """Takes control, holding the present pose."""
        ...

    def set_target(self, target: PoseTarget) -> None:
        """Replaces what the impedance follows, from the next control cycle on."""
        ...

    def stop(self) -> None:
        """Brings the arm to rest and gives up control; harmless when there is none."""
        ...


@contextmanager
def stopping(arm: Arm) -> Iterator[None]:
    """Brings the arm to rest when the context is left, in whatever way.

    What ended the context goes on: where the arm cannot be stopped either, this is noted on it.
    """
    try:
        yield
    except BaseException as error:
        try:
            arm.stop()
        except Exception as second:  # noqa: BLE001  the first error tells what happened
            error.add_note(f"Stopping the arm failed: {words(second)}")
        raise
    arm.stop()


class ArmFaultError(SafetyError):
    """The robot stopped by itself. It stays stopped until a person has looked and recovers it on
    purpose."""

    def __init__(self, errors: tuple[str, ...], mode: str, time: float) -> None:
        """`errors` are the names of the flags that were set, `mode` and robot time [s] those of the
        last state."""
        unflagged = "the user stop was pressed" if mode == "UserStopped" else "no error flag set"
        causes = ", ".join(errors) or unflagged
        super().__init__(
            f"arm: stopped at robot time {time:.3f} s in mode {mode}: {causes}. "
            "Find the cause, clear the workspace, then recover it on purpose (Desk, or `recover`)."
        )
        self.errors, self.mode, self.time = errors, mode, time
