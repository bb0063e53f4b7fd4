"""A world without physics for the gripper's service: an arm that never moves and a gripper with
first-order fingers."""

from __future__ import annotations

import numpy as np

from robots.franka import find_robot
from robots.franka.robot import JointFriction
from sim.scene.deviations import Deviations
from sim.scene.scene import GRIPPER_DAMPING, GRIPPER_STIFFNESS

FR3 = find_robot("fr3")

Q = np.array([0.0, -0.785, 0.0, -2.356, 0.0, 1.571, 0.785])


class SpringGripper:
    """Fingers without mass: servo against damper, 30 ms behind their target. Implements
    `sim.twin.world.TwinGripper`."""

    def __init__(self, width: float = 0.08) -> None:
        self.width = self.target = width
        self.lowest, self.highest = 0.0, FR3.gripper.width_max
        """Openings at which the fingers touch an object between them, or around them [m]."""
        self.limit = 0.0
        self.force = 0.0
        """What each finger pressed with in the last step, outwards positive [N]."""

    def press(self, target: float, force: float) -> None:
        """See `TwinGripper`."""
        self.target, self.limit = target, force

    def step(self) -> None:
        """1 ms."""
        self.force = max(
            -self.limit, min(0.5 * GRIPPER_STIFFNESS * (self.target - self.width), self.limit)
        )
        moved = self.width + 2.0 * self.force / GRIPPER_DAMPING * 1e-3
        self.width = max(self.lowest, min(moved, self.highest))


class StillWorld:
    """Implements `sim.twin.world.World`: whatever the torques, the arm stands."""

    robot = FR3
    ee_mass, ee_com, ee_inertia = 0.73, np.zeros(3), np.eye(3) * 1e-3
    flange_T_ee = np.eye(4)

    def __init__(self, gripper: SpringGripper | None) -> None:
        self.gripper = gripper
        self.time = 0.0
        self.q, self.dq, self.tau_J, self.tau_ext = Q.copy(), np.zeros(7), np.zeros(7), np.zeros(7)

    @property
    def base_T_ee(self) -> np.ndarray:
        """See `World`."""
        return FR3.chain.forward_kinematics(self.q)

    def rub(self, friction: JointFriction | None) -> None:
        """See `World`; what never moves has no friction."""

    def deviate(self, deviations: Deviations) -> None:
        """See `World`; what never moves has no values that matter."""

    def step(self, tau: np.ndarray) -> None:
        """See `World`."""
        self.time += 1e-3
        if self.gripper is not None:
            self.gripper.step()


class GripperWorld(StillWorld):
    """The arm with a gripper, and methods for the tests."""

    def __init__(self) -> None:
        self.fingers = SpringGripper()
        super().__init__(self.fingers)

    def place(self, width: float, size: float = 0.0) -> None:
        """Sets the opening to `width` [m] at rest, with an object of `size` [m] between the
        fingers."""
        self.fingers.width = self.fingers.target = width
        self.fingers.lowest = size

    def take(self) -> None:
        """Removes the object."""
        self.fingers.lowest = 0.0

    def servo(self) -> tuple[float, float]:
        """Target [m] and most force [N] of the fingers' servo."""
        return self.fingers.target, self.fingers.limit


class PusherWorld(StillWorld):
    """The same arm with another tool."""

    def __init__(self) -> None:
        super().__init__(None)
