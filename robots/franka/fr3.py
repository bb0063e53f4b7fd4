"""The Franka Research 3: limits, kinematics and inertial figures, each with its source.

Limits: Franka Robotics' robot specification for FR3 system 5.9 ("Robot limits" of the control
parameters, 2026-05). Earlier firmware states other joint limits (q_max of joint 1 was 2.7437 rad),
so a driver compares this table with the limits of the connected robot's own URDF before it moves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

MODEL_XML = Path(__file__).with_name("fr3.xml")
"""MuJoCo model of the arm alone; its figures equal this file's."""

JOINT_NAMES = tuple(f"fr3_joint{i}" for i in range(1, 8))

Q_MIN = np.array([-2.9007, -1.8361, -2.9007, -3.0770, -2.8763, 0.4398, -3.0508])
"""(7,) [rad], robot specification."""
Q_MAX = np.array([2.9007, 1.8361, 2.9007, -0.1169, 2.8763, 4.6216, 3.0508])
"""(7,) [rad], robot specification."""
DQ_MAX = np.array([2.62, 2.62, 2.62, 2.62, 5.26, 4.18, 5.26])
"""(7,) [rad/s], robot specification; `velocity_limits` tightens it near the position limits."""
DDQ_MAX = np.full(7, 10.0)
"""(7,) [rad/s^2], robot specification."""
DDDQ_MAX = np.full(7, 5000.0)
"""(7,) [rad/s^3], robot specification."""
TAU_MAX = np.array([87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0])
"""(7,) [Nm], robot specification; holds for the whole joint torque, gravity included."""
DTAU_MAX = np.full(7, 1000.0)
"""(7,) [Nm/s], robot specification: 1 Nm per control cycle of 1 ms."""
DQ_OFFSET = np.array([0.6599, 0.2517, 0.2000, 0.3533, 0.5757, 0.4878, 0.4628])
"""(7,) [rad/s], `velocity_offset` of the position-dependent velocity limit, robot specification."""
DDQ_DEC = np.array([6.0, 2.585, 3.5, 4.0, 17.0, 5.5, 17.0])
"""(7,) [rad/s^2], `deceleration_limit` of the position-dependent velocity limit, robot
specification."""

CARTESIAN_VELOCITY_MAX = np.array([3.0, 2.5, 2.62])
"""Translation [m/s], rotation [rad/s], elbow [rad/s], robot specification."""
CARTESIAN_ACCELERATION_MAX = np.array([9.0, 17.0, 10.0])
"""Translation [m/s^2], rotation [rad/s^2], elbow [rad/s^2], robot specification."""
CARTESIAN_JERK_MAX = np.array([4500.0, 8500.0, 5000.0])
"""Translation [m/s^3], rotation [rad/s^3], elbow [rad/s^3], robot specification."""

HALF_PI = np.pi / 2
DH = np.array(
    [
        [0.0, 0.333, 0.0],
        [0.0, 0.0, -HALF_PI],
        [0.0, 0.316, HALF_PI],
        [0.0825, 0.0, HALF_PI],
        [-0.0825, 0.384, -HALF_PI],
        [0.0, 0.0, HALF_PI],
        [0.088, 0.0, HALF_PI],
    ]
)
"""(7, 3) a [m], d [m], alpha [rad] in Craig's (modified) convention, robot specification."""
FLANGE_OFFSET = 0.107
"""Flange along joint 7's axis [m], robot specification."""

LINK_MASS = np.array(
    [2.3966, 2.9274653, 2.935537, 2.2449014, 2.6155956, 2.3271208, 1.8170377, 0.6271433]
)
"""(8,) masses of link0..link7 [kg]. This and the next two: franka_description 1.x,
`robots/fr3/inertials.yaml`."""
LINK_COM = np.array(
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
)
"""(8, 3) centres of mass in the link frames [m]."""
LINK_INERTIA = np.array(
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
)
"""(8, 6) inertia about the centre of mass in link axes, order xx yy zz xy xz yz [kg m^2]."""

ARMATURE = 0.1
"""Apparent rotor inertia per joint [kg m^2], as in the MuJoCo models in common use. Franka's
unshaped figure is higher (0.2 to 0.6), but FCI torques are link-side: the robot's inner torque loop
hides most of the rotor."""
JOINT_DAMPING = 0.1
"""Viscous friction left after the robot's own friction compensation [Nm s/rad]; our choice,
small."""

Q_HOME = np.array([0.0, -np.pi / 4, 0.0, -3 * np.pi / 4, 0.0, np.pi / 2, np.pi / 4])
"""(7,) the ready posture of libfranka's examples [rad]."""


def velocity_limits(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position-dependent joint velocity limits.

    Robot specification:
    `dq_max(q) = min(dq_max, max(0, -offset + sqrt(max(0, 2 dec (q_max - q)))))`, mirrored below.

    Args:
        q: (..., 7) [rad].

    Returns:
        Lowest and highest permitted velocity, each (..., 7) [rad/s].
    """
    to_upper = np.sqrt(np.maximum(0.0, 2.0 * DDQ_DEC * (Q_MAX - q)))
    to_lower = np.sqrt(np.maximum(0.0, 2.0 * DDQ_DEC * (q - Q_MIN)))
    upper = np.minimum(DQ_MAX, np.maximum(0.0, to_upper - DQ_OFFSET))
    lower = -np.minimum(DQ_MAX, np.maximum(0.0, to_lower - DQ_OFFSET))
    return lower, upper


def link_inertia(link: int) -> np.ndarray:
    """(3, 3) inertia tensor of `link` 0..7 about its centre of mass, in link axes [kg m^2]."""
    xx, yy, zz, xy, xz, yz = LINK_INERTIA[link]
    return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
