"""Published figures of the Franka Research 3, first hardware version."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robots.franka.friction import PANDA_FRICTION
from robots.franka.gripper import FRANKA_HAND
from robots.franka.research_3 import CARTESIAN, CHAIN, LIMITS, Q_HOME, REACH
from robots.franka.robot import LinkInertials, Robot

FR3 = Robot(
    name="fr3",
    title="Franka Research 3",
    chain=CHAIN,
    limits=LIMITS,
    cartesian=CARTESIAN,
    inertials=LinkInertials(
        mass=np.array(
            [2.3966, 2.9274653, 2.935537, 2.2449014, 2.6155956, 2.3271208, 1.8170377, 0.6271433]
        ),
        com=np.array(
            [
                [-0.0172, 0.0004, 0.0745],
                [0.0000004, -0.0181251, -0.0386036],
                [0.0031829, -0.0743222, 0.0088146],
                [0.0407016, -0.0048201, -0.0289731],
                [-0.0459101, 0.0630493, -0.0085188],
                [-0.0016040, 0.0292536, -0.0972966],
                [0.0597131, -0.0410295, -0.0101693],
                [0.0045226, 0.0086262, -0.0161633],
            ]
        ),
        inertia=np.array(
            [
                [0.0090, 0.0115, 0.0085, 0.0, 0.0020, 0.0],
                [0.02392732, 0.02248216, 0.0063501, 0.00001332, -0.00011405, -0.00199503],
                [0.04193895, 0.02514515, 0.06170214, 0.00020257, 0.00407778, -0.00422522],
                [0.02410143, 0.01974053, 0.01904449, 0.00240469, -0.00285627, -0.00210421],
                [0.03452998, 0.02888162, 0.04125471, 0.01322552, 0.01015143, -0.00097628],
                [0.05161028, 0.0478773, 0.01642363, -0.00571517, -0.00356732, 0.01067399],
                [0.00541233, 0.01405833, 0.01608082, 0.00619346, 0.00142193, -0.00131408],
                [0.00021092, 0.00017719, 0.00005993, -0.00002433, 0.00004564, 0.00008744],
            ]
        ),
        source="franka_description 1.x, robots/fr3/inertials.yaml",
    ),
    # As in the common MuJoCo models. Franka's own figure is higher (0.2 to 0.6), but FCI torques
    # are link-side, so that the robot's inner torque loop hides most of the rotor inertia.
    armature=0.1,
    # Not published; chosen small.
    joint_damping=0.1,
    q_home=Q_HOME,
    gripper=FRANKA_HAND,
    friction=PANDA_FRICTION,
    reach=REACH,
    model_xml=Path(__file__).with_name("fr3.xml"),
)
"""Franka Research 3, first hardware version."""
