"""Published figures of the Franka Hand, the parallel gripper of all robots in this package."""

from __future__ import annotations

import numpy as np

from robots.franka.robot import Gripper

FRANKA_HAND = Gripper(
    # Data sheet: 40 mm of travel and 50 mm/s per finger.
    width_max=0.08,
    speed_max=0.1,
    force_max=70.0,
    mass=0.73,
    # franka_description, `franka_hand/finger`.
    finger_mass=0.015,
    # The next four: the default end effector of Franka's Desk.
    com=np.array([-0.01, 0.0, 0.03]),
    inertia=np.array([0.001, 0.0025, 0.0017]),
    yaw=-np.pi / 4,
    tcp_offset=0.1034,
    source="Franka Hand data sheet (opening, speed, sustained force, mass); default end effector of "
    "Franka's Desk (frame, centre of mass, inertia); franka_description, franka_hand (finger)",
)
"""Franka Hand."""
