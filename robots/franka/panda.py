"""Published figures of the Franka Emika Robot (FER), sold as Panda.

A Panda supports at most version 5 of the control interface; the twin and the franky on PyPI use
version 10. A real Panda needs the build of franky for version 5, which is published separately.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robots.franka.chain import KinematicChain
from robots.franka.friction import PANDA_FRICTION
from robots.franka.gripper import FRANKA_HAND
from robots.franka.robot import CartesianLimits, JointLimits, LinkInertials, Robot

SPECIFICATION = "Franka Robotics, FCI documentation, robot specification of the FER (2026-05)"
"""Publication of limits and kinematics."""

PANDA = Robot(
    name="panda",
    title="Franka Emika Robot (Panda)",
    chain=KinematicChain(
        dh=np.array(
            [
                [0.0, 0.333, 0.0],
                [0.0, 0.0, -np.pi / 2],
                [0.0, 0.316, np.pi / 2],
                [0.0825, 0.0, np.pi / 2],
                [-0.0825, 0.384, -np.pi / 2],
                [0.0, 0.0, np.pi / 2],
                [0.088, 0.0, np.pi / 2],
            ]
        ),
        flange_offset=0.107,
        source=f"{SPECIFICATION}, Denavit-Hartenberg parameters in Craig's convention; "
        "franka_description 1.x, robots/fer/kinematics.yaml",
    ),
    limits=JointLimits(
        q_min=np.array([-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973]),
        q_max=np.array([2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973]),
        dq_max=np.array([2.1750, 2.1750, 2.1750, 2.1750, 2.6100, 2.6100, 2.6100]),
        ddq_max=np.array([15.0, 7.5, 10.0, 12.5, 15.0, 20.0, 20.0]),
        dddq_max=np.array([7500.0, 3750.0, 5000.0, 6250.0, 7500.0, 10000.0, 10000.0]),
        tau_max=np.array([87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0]),
        dtau_max=np.full(7, 1000.0),
        source=f"{SPECIFICATION}, limits of the joints; they do not depend on the position",
    ),
    cartesian=CartesianLimits(
        # libfranka 0.9 limits translations to 2.0 m/s; the documentation is newer and stricter.
        velocity=np.array([1.7, 2.5, 2.1750]),
        acceleration=np.array([13.0, 25.0, 10.0]),
        jerk=np.array([6500.0, 12500.0, 5000.0]),
        source=f"{SPECIFICATION}, Cartesian limits",
    ),
    # Not franka_description's robots/fer: its gravity torques differ by up to 3.0 Nm from those in
    # the robot state that the FCI documentation prints (these figures by 0.2 Nm at most), and its
    # link 4 has an inertia that no rigid body can have.
    inertials=LinkInertials(
        mass=np.array(
            [0.629769, 4.970684, 0.646926, 3.228604, 3.587895, 1.225946, 1.666555, 0.735522]
        ),
        com=np.array(
            [
                [-0.041018, -0.00014, 0.049974],
                [0.003875, 0.002081, -0.04762],
                [-0.003141, -0.02872, 0.003495],
                [0.027518, 0.039252, -0.066502],
                [-0.05317, 0.104419, 0.027454],
                [-0.011953, 0.041065, -0.038437],
                [0.060149, -0.014117, -0.010517],
                [0.010517, -0.004252, 0.061597],
            ]
        ),
        inertia=np.array(
            [
                [0.00315, 0.00388, 0.004285, 0.00000082904, 0.00015, 0.0000082299],
                [0.70337, 0.70661, 0.009117, -0.000139, 0.006772, 0.019169],
                [0.007962, 0.02811, 0.025995, -0.003925, 0.010254, 0.000704],
                [0.037242, 0.036155, 0.01083, -0.004761, -0.011396, -0.012805],
                [0.025853, 0.019552, 0.028323, 0.007796, -0.001332, 0.008641],
                [0.035549, 0.029474, 0.008627, -0.002117, -0.004037, 0.000229],
                [0.001964, 0.004354, 0.005433, 0.000109, -0.001158, 0.000341],
                [0.012516, 0.010027, 0.004815, -0.000428, -0.001196, -0.000741],
            ]
        ),
        source="Gaz, Cognetti, Oliva, Robuffo Giordano, De Luca: Dynamic Identification of the Franka "
        "Emika Panda Robot With Retrieval of Feasible Parameters Using Penalty-Based Optimization "
        "(RA-L 2019), as in franka_ros 0.10, franka_description/robots/common/inertial.yaml",
    ),
    # As for the FR3; no figure for the Panda's drives was found.
    armature=0.1,
    joint_damping=0.1,
    # The ready posture of libfranka's examples.
    q_home=np.array([0.0, -np.pi / 4, 0.0, -3 * np.pi / 4, 0.0, np.pi / 2, np.pi / 4]),
    gripper=FRANKA_HAND,
    friction=PANDA_FRICTION,
    reach=0.855,
    model_xml=Path(__file__).with_name("panda.xml"),
)
"""Franka Emika Robot (Panda)."""
