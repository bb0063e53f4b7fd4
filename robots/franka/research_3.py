"""Published figures that both hardware versions of the Franka Research 3 share, for system 5.9.

Earlier firmware states other joint limits (q_max of joint 1 was 2.7437 rad), so a driver compares
this table with the limits in the connected robot's own URDF before it moves.
"""

from __future__ import annotations

import numpy as np

from robots.franka.chain import KinematicChain
from robots.franka.robot import CartesianLimits, JointLimits

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
"""Kinematics; the Panda has the same parameters."""

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
    # libfranka's own rate limiter limits the elbow to 1.5 rad/s.
    velocity=np.array([3.0, 2.5, 2.62]),
    acceleration=np.array([9.0, 17.0, 10.0]),
    jerk=np.array([4500.0, 8500.0, 5000.0]),
    source=f"{SPECIFICATION}, Cartesian limits",
)
"""Limits of end effector and elbow."""

Q_HOME = np.array([0.0, -np.pi / 4, 0.0, -3 * np.pi / 4, 0.0, np.pi / 2, np.pi / 4])
"""(7,) the ready posture of libfranka's examples [rad]."""
REACH = 0.855
"""Reach by the data sheet [m]."""
