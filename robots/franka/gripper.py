"""The Franka Hand: published figures, each with its source."""

from __future__ import annotations

import numpy as np

MASS = 0.73
"""Hand with fingers [kg], Franka Hand data sheet."""
COM = np.array([-0.01, 0.0, 0.03])
"""(3,) centre of mass from the flange, hand axes [m]; Desk's default end effector."""
INERTIA = np.array([0.001, 0.0025, 0.0017])
"""(3,) principal inertia, hand axes [kg m^2]; Desk's default end effector."""
FINGER_MASS = 0.015
"""One finger [kg], franka_description `franka_hand/finger`."""
FLANGE_T_HAND_YAW = -np.pi / 4
"""The hand is turned about the flange's z by so much [rad]; Desk's default end effector."""
TCP_OFFSET = 0.1034
"""Flange to the point between the fingertips [m]; Desk's default end effector."""
WIDTH_MAX = 0.08
"""Largest opening [m], data sheet: 40 mm of travel per finger."""
SPEED_MAX = 0.1
"""Rate of change of the opening [m/s], data sheet: 50 mm/s per finger."""
FORCE_CONTINUOUS = 70.0
"""Grasping force that the hand keeps up [N], data sheet."""

FLANGE_R_GRASP = np.array(
    [
        [np.cos(FLANGE_T_HAND_YAW), np.sin(FLANGE_T_HAND_YAW), 0.0],
        [np.sin(FLANGE_T_HAND_YAW), -np.cos(FLANGE_T_HAND_YAW), 0.0],
        [0.0, 0.0, -1.0],
    ]
)
"""(3, 3) axes of the frame "grasp" in the flange's: that of the hand turned by half a turn about
its x, so that a hand that points straight down with its fingers left and right has the base's axes.
Fingers open along the frame's y."""
