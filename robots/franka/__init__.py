"""Franka's robot arms: one `Robot` object per robot, with kinematics, limits, masses and gripper.

- `catalog` finds a robot by the name that a configuration gives it.
- `robot` defines what a robot consists of, `chain` the kinematics of its joints.
- `fr3`, `fr3v2` and `panda` hold the published figures of the three arms, each with its MuJoCo
  model, built from primitive shapes, beside it; `research_3` holds what the first two share.
- `gripper` holds the figures of the gripper that all three carry.
- `kinematics` has inverse kinematics and rotation vectors, `urdf_limits` reads a robot's own URDF.
"""

from robots.franka.catalog import RobotName, find_robot

__all__ = ["RobotName", "find_robot"]
