"""Defines an arm as the deploy loop sees it: its state, its targets and its faults.

No vendor library is imported here. J is the number of the arm's joints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from robots.errors import HandoffError, SafetyError, error_text
from robots.franka.robot import Robot
from robots.signals import delayed_signals


@dataclass(frozen=True)
class ArmState:
    """One sample of the robot's state."""

    time: float
    """Robot time [s]."""
    q: np.ndarray
    """(J,) measured joint positions [rad]."""
    dq: np.ndarray
    """(J,) measured joint velocities [rad/s]."""
    base_T_ee: np.ndarray
    """(4, 4) measured pose of the end effector in the base frame [m]."""
    tau_J: np.ndarray
    """(J,) measured joint torques, gravity included [Nm]."""
    tau_ext: np.ndarray
    """(J,) estimated external torques, filtered [Nm]."""
    wrench_ext: np.ndarray
    """(6,) estimated external force [N] and moment [Nm] at the end effector, base axes, which
    belong to `tau_ext`. Zeros near a singularity. A Franka counts what the arm exerts as positive,
    the twin what acts on the arm."""
    success_rate: float
    """Share of the last 100 control commands that arrived in time; 0 outside of control."""
    mode: str
    """Mode of the robot, e.g. `Idle`, `Move`, `Reflex`, `UserStopped`."""
    errors: tuple[str, ...]
    """Names of the error flags that are set."""


class PoseTarget(NamedTuple):
    """Target of the Cartesian impedance law, in the base frame."""

    base_T_ee: np.ndarray
    """(4, 4) pose of the end effector [m]."""
    twist: np.ndarray
    """(6,) linear velocity [m/s] and angular velocity [rad/s]."""
    acceleration: np.ndarray
    """(6,) linear acceleration [m/s^2] and angular acceleration [rad/s^2]."""


class JointPositionTarget(NamedTuple):
    """Target of the joint impedance law."""

    q: np.ndarray
    """(J,) joint positions [rad]."""
    dq: np.ndarray
    """(J,) joint velocities [rad/s]."""


class TorqueResponse(NamedTuple):
    """Joint torques of the impedance law, as a linear function of its reference, which moves along
    D coordinates of a task, and of the joints' own motion.

    Springs that have reached their error limit, nullspace torques and the gravity, friction and
    Coriolis torques of the robot are left out.
    """

    stiffness: np.ndarray
    """(J, D) torque per distance of the reference from the arm [Nm/m]."""
    damping: np.ndarray
    """(J, D) torque per velocity of the reference [Nms/m]."""
    inertia: np.ndarray
    """(J, D) torque per acceleration of the reference [Nms^2/m]."""
    joint_stiffness: np.ndarray
    """(J, J) torque against a displacement of the joints [Nm/rad]."""
    joint_damping: np.ndarray
    """(J, J) torque against a velocity of the joints [Nms/rad]."""


class Arm(Protocol):
    """An arm under impedance control."""

    @property
    def robot(self) -> Robot:
        """Model of the robot: its limits, kinematics and gripper."""
        ...

    def state(self) -> ArmState:
        """The newest state.

        Raises:
            ArmFaultError: the robot has stopped by itself.
        """
        ...

    def torque_response(self, q: np.ndarray, axes: np.ndarray, along: np.ndarray) -> TorqueResponse:
        """The impedance law's answer to a reference.

        Args:
            q: (J,) joint positions [rad].
            axes: (6, D) twists in the base frame of unit velocities along the coordinates.
            along: (J, D) joint velocities [rad/s] of the same.
        """
        ...

    def start(self) -> None:
        """Takes control and holds the present pose."""
        ...

    def set_target(self, target: PoseTarget | JointPositionTarget) -> None:
        """Replaces the target of the impedance law, from the next control cycle on.

        Raises:
            SafetyError: the law does not follow such a target, or it is not finite.
        """
        ...

    def stop(self) -> None:
        """Brings the arm to rest and gives up control; has no effect without control."""
        ...


class Stops(Protocol):
    """What can be brought to rest."""

    def stop(self) -> None:
        """Comes to rest; has no effect at rest."""
        ...


class YieldingArm(Arm, Protocol):
    """An arm whose joint torques can be commanded, so that it can yield to a hand."""

    @property
    def flange_T_ee(self) -> np.ndarray:
        """(4, 4) end effector in the flange frame [m]."""
        ...

    def start_limp(self, damping: Sequence[float]) -> None:
        """Takes control without stiffness: the arm carries its own weight and yields to every other
        force; `stop` ends it.

        Args:
            damping: (J,) damping of the joints [Nms/rad].
        """
        ...


def note_failed_stop(error: BaseException | None, second: Exception) -> None:
    """Notes the error of a stop on the one that made it necessary, which is the cause and must not
    be hidden; without one it is raised."""
    if error is None:
        raise second
    error.add_note(f"Stopping the arm failed: {error_text(second)}")


@contextmanager
def stopping(arm: Stops) -> Iterator[None]:
    """Brings the arm to rest when the context ends, normally or by an exception.

    The exception propagates; if stopping the arm fails as well, that is noted on it. A signal, such
    as a second Ctrl-C, waits until the arm rests.
    """
    try:
        yield
    except BaseException as error:
        try:
            with delayed_signals():
                arm.stop()
        except KeyboardInterrupt as second:
            second.add_note(error_text(error))
            raise
        except Exception as second:  # noqa: BLE001  the first error is the cause
            note_failed_stop(error, second)
        raise
    with delayed_signals():
        arm.stop()


class ConnectionLostError(HandoffError):
    """The robot's control unit, or its gripper, does not answer, or no longer sends states."""


class ArmFaultError(SafetyError):
    """The robot stopped by itself, and stays stopped until a person recovers it on purpose.

    Args:
        errors: names of the error flags of the last state.
        mode: the robot's mode in that state.
        time: robot time of that state [s].
    """

    def __init__(self, errors: tuple[str, ...], mode: str, time: float) -> None:
        unflagged = "the user stop was pressed" if mode == "UserStopped" else "no error flag set"
        causes = ", ".join(errors) or unflagged
        super().__init__(
            f"arm: stopped at robot time {time:.3f} s in mode {mode}: {causes}. "
            "Find the cause, clear the workspace, then recover it on purpose (Desk, or `recover`)."
        )
        self.errors = errors
        self.mode = mode
        self.time = time
        self.causes = causes
        """The flags, or what stopped a robot without one, as a phrase."""

    def __reduce__(self) -> tuple[Any, ...]:
        """See `object.__reduce__`: an exception is made anew from its message otherwise."""
        return type(self), (self.errors, self.mode, self.time), self.__dict__
