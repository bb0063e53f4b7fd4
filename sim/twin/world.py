"""Defines the interfaces of a simulated arm and of its gripper, which the twin drives."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from robots.franka.robot import JointFriction, Robot
from sim.scene.deviations import Deviations


class TwinGripper(Protocol):
    """Two fingers that move symmetrically along one axis; the world's `step` advances them."""

    @property
    def width(self) -> float:
        """Measured opening between the fingertips [m]."""
        ...

    def press(self, target: float, force: float) -> None:
        """Commands the fingers' servo to the opening `target` [m] with at most `force` [N] per
        finger.

        Takes effect in the next step. The servo applies force by a target beyond the contact, which
        may lie outside the range of travel or be negative.
        """
        ...


class World(Protocol):
    """A robot with a tool and its surroundings, advanced in steps of 1 ms. J is its number of
    joints.

    The arrays are the world's own buffers and are overwritten by the next `step`: copy them to keep
    them. A task adds methods (`reset`, object poses), which the twin calls by name between steps.
    """

    robot: Robot
    """The arm."""
    ee_mass: float
    """Mass of the end effector [kg]; the world compensates its gravity, like a configured robot."""
    ee_com: np.ndarray
    """(3,) centre of mass of the end effector in the flange frame [m]."""
    ee_inertia: np.ndarray
    """(3, 3) inertia of the end effector about its centre of mass, flange axes [kg m^2]."""
    flange_T_ee: np.ndarray
    """(4, 4) end-effector frame in the flange frame [m]."""

    @property
    def gripper(self) -> TwinGripper | None:
        """The gripper, always the same object; None if the arm carries another tool."""
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
        """(J,) joint torques J^T F [Nm] of the contact forces on the arm in the last step."""
        ...

    @property
    def base_T_ee(self) -> np.ndarray:
        """(4, 4) end-effector pose at the current `q` [m]; a new array."""
        ...

    def rub(self, friction: JointFriction | None) -> None:
        """Gives the joints this friction from now on; None, as at the beginning, takes it away."""
        ...

    def deviate(self, deviations: Deviations) -> None:
        """Gives arm and objects other values than their models from now on; called once. A delay of
        targets is not the world's, which is driven by torques."""
        ...

    def step(self, tau: np.ndarray) -> None:
        """Advances exactly 1 ms under joint torques `tau` (J,) [Nm] that exclude gravity
        (libfranka's convention).

        Raises:
            HandoffError: a torque or the state is not finite.
        """
        ...
