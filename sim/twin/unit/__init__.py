"""The robot's control unit without its network.

- `control_unit`: modes, motions, errors and reflexes of the robot.
- `cartesian_reference`: pose, twist and elbow that a client commands, and the joints that follow.
- `point_to_point`: motions that the robot plans itself.
- `checks`: the robot's limit checks.
- `arm_model`: dynamics model of the controller, and its URDF.
"""
