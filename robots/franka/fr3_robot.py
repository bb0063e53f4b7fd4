"""The Franka Research 3 with system 5.9: its published figures.

Earlier firmware states other joint limits (q_max of joint 1 was 2.7437 rad), so a driver compares
this table with the limits in the connected robot's own URDF before it moves.
"""

from __future__ import annotations

import numpy as np

from robots.franka.chain import KinematicChain
from robots.franka.fr3 import MODEL_XML
from robots.franka.franka_hand import FRANKA_HAND
from robots.franka.robot import CartesianLimits, JointLimits, LinkInertials, Robot

SPECIFICATION = "Franka Robotics, FCI documentation, robot specification, FR3 system 5.9 (2026-05)"
"""Publication of limits and kinematics."""

CHAIN = KinematicChain(
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
    source=f"{SPECIFICATION}, Denavit-Hartenberg parameters in Craig's convention",
)
"""Kinematics; those of the FR3v2 and of the Panda are stated by the same table."""

LIMITS = JointLimits(
    q_min=np.array([-2.9007, -1.8361, -2.9007, -3.0770, -2.8763, 0.4398, -3.0508]),
    q_max=np.array([2.9007, 1.8361, 2.9007, -0.1169, 2.8763, 4.6216, 3.0508]),
    dq_max=np.array([2.62, 2.62, 2.62, 2.62, 5.26, 4.18, 5.26]),
    ddq_max=np.full(7, 10.0),
    dddq_max=np.full(7, 5000.0),
    tau_max=np.array([87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0]),
    # 1 Nm per control cycle of 1 ms.
    dtau_max=np.full(7, 1000.0),
    dq_offset=np.array([0.6599, 0.2517, 0.2000, 0.3533, 0.5757, 0.4878, 0.4628]),
    ddq_dec=np.array([6.0, 2.585, 3.5, 4.0, 17.0, 5.5, 17.0]),
    source=f"{SPECIFICATION}, limits of the joints",
)
"""Limits of the joints."""

CARTESIAN = CartesianLimits(
    # libfranka's own rate limiter allows the elbow no more than 1.5 rad/s.
    velocity=np.array([3.0, 2.5, 2.62]),
    acceleration=np.array([9.0, 17.0, 10.0]),
    jerk=np.array([4500.0, 8500.0, 5000.0]),
    source=f"{SPECIFICATION}, Cartesian limits",
)
"""Limits of end effector and elbow."""

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
    # As in the MuJoCo models in common use. Franka's unshaped figure is higher (0.2 to 0.6), but
    # FCI torques are link-side, so that the robot's inner torque loop hides most of the rotor.
    armature=0.1,
    # Our choice, small.
    joint_damping=0.1,
    # The ready posture of libfranka's examples.
    q_home=np.array([0.0, -np.pi / 4, 0.0, -3 * np.pi / 4, 0.0, np.pi / 2, np.pi / 4]),
    gripper=FRANKA_HAND,
    model_xml=MODEL_XML,
)
"""The robot."""
