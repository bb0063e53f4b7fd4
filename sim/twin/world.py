"""Defines what the twin needs from a simulated arm, and from the gripper it may carry."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from robots.franka.robot import Robot


class Hand(Protocol):
    """Two fingers that move in step along one axis; the world's `step` advances them."""

    @property
    def width(self) -> float:
        """Measured opening between the fingertips [m]."""
        ...

    def press(self, target: float, force: float) -> None:
        """The fingers' servo goes for the opening `target` [m], each finger pressing with at most
        `force` [N].

        Holds from the next step on. A target beyond the travel, a negative opening too, is how the
        servo presses.
        """
        ...


class World(Protocol):
    """A robot with a tool in some surroundings, advanced 1 ms at a time. J is its number of joints.

    The arrays are the world's own buffers, overwritten by the next `step`: copy what must last. A
    task adds methods of its own (`reset`, object poses), which the twin calls by name between
    steps.
    """

    robot: Robot
    """The arm."""
    ee_mass: float
    """Mass of the end effector [kg]; the world compensates its gravity, as the robot does once it
    is configured."""
    ee_com: np.ndarray
    """(3,) its centre of mass in the flange frame [m]."""
    ee_inertia: np.ndarray
    """(3, 3) its inertia about the centre of mass, flange axes [kg m^2]."""
    flange_T_ee: np.ndarray
    """(4, 4) end-effector frame in the flange frame [m]."""

    @property
    def hand(self) -> Hand | None:
        """The hand, one and the same object as long as the world lives; None: the arm carries
        another tool."""
        ...

    @property
    def time(self) -> float:
        """Seconds since the last reset."""
        ...

    @property
    def q(self) -> np.ndarray:
        """(J,) joint positions [rad]."""
        ...

    @property
    def dq(self) -> np.ndarray:
        """(J,) joint velocities [rad/s]."""
        ...

    @property
    def tau_J(self) -> np.ndarray:
        """(J,) joint torques of the last step [Nm], gravity included (libfranka's `tau_J`)."""
        ...

    @property
    def tau_ext(self) -> np.ndarray:
        """(J,) joint torques J^T F [Nm] of the forces that the surroundings exerted on the arm in
        the last step."""
        ...

    @property
    def base_T_ee(self) -> np.ndarray:
        """(4, 4) end-effector pose at the present `q` [m]; a new array."""
        ...

    def step(self, tau: np.ndarray) -> None:
        """Advances exactly 1 ms under joint torques `tau` (J,) [Nm] that exclude gravity
        (libfranka's convention).

        Raises:
            HandoffError: a torque or the state is not finite.
        """
        ...
