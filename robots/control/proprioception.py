"""Defines the observation fields that an arm with a gripper measures itself, the same in simulation
and at a robot."""

from __future__ import annotations

from robots.control.actions import joint_entries
from robots.franka.robot import Robot
from robots.spec import POSE, FieldSpec

DERIVED = ("hand_turn", "hand_velocity")
"""Fields that are computed from those of `proprioception_fields`."""


def proprioception_fields(robot: Robot, use_gripper: bool = True) -> dict[str, FieldSpec]:
    """The joints, the frame "grasp", its target and the gripper, by the name of the field."""
    joints = (robot.num_joints,)
    joint_names = (joint_entries(robot),)
    fields = {
        "q": FieldSpec(shape=joints, unit="rad", about="joint positions", names=joint_names),
        "dq": FieldSpec(shape=joints, unit="rad/s", about="joint velocities", names=joint_names),
        "grasp_pose": FieldSpec(
            shape=(6,),
            unit="m, rad",
            frame="base",
            about="position, rotation vector of the frame grasp",
            names=POSE,
        ),
        # Actions move the target, not the arm: without this field the same arm state would have
        # different successors.
        "target_offset": FieldSpec(
            shape=(6,),
            unit="m, rad",
            frame="base",
            about="the controller's target relative to grasp_pose",
            names=POSE,
        ),
    }
    if use_gripper:
        fields["width"] = FieldSpec(shape=(1,), unit="m", about="opening of the gripper")
        fields["width_target"] = FieldSpec(
            shape=(1,),
            unit="m",
            about="last commanded opening of the gripper, less than `width` while closing",
        )
    return fields
