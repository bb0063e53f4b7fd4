"""Franka's robot arms: one `Robot` object per robot, with kinematics, limits, masses and gripper.

- `catalog`: robots by the names in configurations.
- `robot`: the classes that describe a robot.
- `chain`: forward kinematics and Jacobians.
- `kinematics`: inverse kinematics and rotation vectors.
- `fr3`, `fr3v2`, `panda`: published figures of the three arms, each with its MuJoCo model.
- `research_3`: figures that FR3 and FR3v2 share.
- `gripper`: published figures of the Franka Hand.
- `friction`: published friction of the joints.
- `urdf_limits`: comparison with the URDF of a connected robot.
"""

from robots.franka.catalog import RobotName, find_robot

__all__ = ["RobotName", "find_robot"]
