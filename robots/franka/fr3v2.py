"""Published figures of the Franka Research 3, second hardware version.

It has the FR3's kinematics and different link masses (franka_description 1.0.1, `robots/fr3v2`).
The robot specification has one table of limits for the FR3 and names no hardware version. That
table is used here as well, because the positions that Franka publishes for fr3v2 round to it:
franka_description 1.1.0 changed the limits of FR3 and FR3v2 together, and libfranka's tests state
2.90074 and 1.83609 rad for joints 1 and 2. The velocity offsets in those tests, 0.6520 and 0.24997
rad/s, lie below the table's, so the table is the stricter of the two.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robots.franka.friction import PANDA_FRICTION
from robots.franka.gripper import FRANKA_HAND
from robots.franka.research_3 import CARTESIAN, CHAIN, LIMITS, Q_HOME, REACH
from robots.franka.robot import LinkInertials, Robot

FR3V2 = Robot(
    name="fr3v2",
    title="Franka Research 3, hardware version 2",
    chain=CHAIN,
    limits=LIMITS,
    cartesian=CARTESIAN,
    inertials=LinkInertials(
        mass=np.array([3.85, 2.4377, 2.2375, 2.185794, 2.175867, 2.174817, 1.567617, 0.682876]),
        com=np.array(
            [
                [-0.0172, 0.0004, 0.0745],
                [-0.00458, 0.027016, -0.0618],
                [-0.003473, -0.168509, -0.010479],
                [0.092968, 0.01801, 0.033533],
                [-0.068745, 0.092947, 0.011195],
                [-0.004197, 0.010257, -0.058103],
                [0.070958, -0.014137, -0.035324],
                [0.008204, 0.001156, 0.061016],
            ]
        ),
        inertia=np.array(
            [
                [0.009, 0.0115, 0.0085, 0.0, 0.002, 0.0],
                [0.02324, 0.02146, 0.0055, 0.000333, -0.000676, 0.003739],
                [0.019026, 0.00566, 0.017114, 0.001241, 0.000499, -0.001804],
                [0.010225, 0.012398, 0.006877, 0.001144, 0.003497, 0.002156],
                [0.008878, 0.007628, 0.010295, -0.003749, 0.001139, -0.00046],
                [0.031874, 0.029674, 0.004751, 0.000134, -0.000265, -0.004734],
                [0.00286, 0.00391, 0.00453, -0.000553, -0.000638, -0.00024],
                [0.000899, 0.001099, 0.000702, 0.0, -0.000013, -0.000022],
            ]
        ),
        source="franka_description 1.0.1, robots/fr3v2/inertials.yaml",
    ),
    # As for the FR3.
    armature=0.1,
    joint_damping=0.1,
    q_home=Q_HOME,
    gripper=FRANKA_HAND,
    friction=PANDA_FRICTION,
    reach=REACH,
    model_xml=Path(__file__).with_name("fr3v2.xml"),
)
"""Franka Research 3, second hardware version."""
