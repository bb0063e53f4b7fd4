"""A world without physics for the hand's service: an arm that stands and a hand with fingers of the
first order."""

from __future__ import annotations

import numpy as np

from robots.franka import find_robot
from sim.scene.scene import GRIPPER_DAMPING, GRIPPER_STIFFNESS

FR3 = find_robot("fr3")

Q = np.array([0.0, -0.785, 0.0, -2.356, 0.0, 1.571, 0.785])


class SpringHand:
    """Fingers without mass: servo against damper, 30 ms behind their target. Implements
    `sim.twin.world.Hand`."""

    def __init__(self, width: float = 0.08) -> None:
        self.width = self.target = width
        self.lowest, self.highest = 0.0, FR3.gripper.width_max
        """Openings at which the fingers meet a thing between them, or around them [m]."""
        self.limit = 0.0
        self.force = 0.0
        """What each finger pressed with in the last step, outwards positive [N]."""

    def press(self, target: float, force: float) -> None:
        """See `Hand`."""
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

    def __init__(self, hand: SpringHand | None) -> None:
        self.hand = hand
        self.time = 0.0
        self.q, self.dq, self.tau_J, self.tau_ext = Q.copy(), np.zeros(7), np.zeros(7), np.zeros(7)

    @property
    def base_T_ee(self) -> np.ndarray:
        """See `World`."""
        return FR3.chain.forward_kinematics(self.q)

    def step(self, tau: np.ndarray) -> None:
        """See `World`."""
        self.time += 1e-3
        if self.hand is not None:
            self.hand.step()


class HandWorld(StillWorld):
    """The arm with a hand, and methods for the tests."""

    def __init__(self) -> None:
        self.fingers = SpringHand()
        super().__init__(self.fingers)

    def place(self, width: float, thing: float = 0.0) -> None:
        """The fingers `width` [m] apart, resting, with a thing of `thing` [m] between them."""
        self.fingers.width = self.fingers.target = width
        self.fingers.lowest = thing

    def take(self) -> None:
        """Takes the thing away."""
        self.fingers.lowest = 0.0

    def servo(self) -> tuple[float, float]:
        """Target [m] and most force [N] of the fingers' servo."""
        return self.fingers.target, self.fingers.limit


class HandlessWorld(StillWorld):
    """The same arm with another tool."""

    def __init__(self) -> None:
        super().__init__(None)
