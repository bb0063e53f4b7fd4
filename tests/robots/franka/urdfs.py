"""URDFs as a connected arm would send them."""

from __future__ import annotations

from robots.franka.robot import Robot


def urdf_of(robot: Robot, name: str | None = None, prefix: str = "") -> str:
    """A URDF with the robot's limits."""
    limits = robot.limits
    joints = "".join(
        f'<joint name="{prefix}joint{i + 1}"><limit lower="{limits.q_min[i]}" upper="{limits.q_max[i]}" '
        f'velocity="{limits.dq_max[i]}" effort="1"/></joint>'
        for i in range(robot.num_joints)
    )
    return f'<robot name="{robot.name if name is None else name}">{joints}</robot>'
