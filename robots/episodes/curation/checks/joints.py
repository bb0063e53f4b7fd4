"""Checks the robot's values: limits of its joints, its gripper, and quaternions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from robots.episodes.curation.checks.control import unit_faults
from robots.episodes.curation.checks.evidence import EpisodeEvidence, finding, name_episodes
from robots.episodes.curation.checks.layout import StateField
from robots.episodes.curation.examination import Finding
from robots.franka import find_robot
from robots.franka.catalog import ROBOTS


def check_joint_limits(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Joint positions beyond the limits of the robot that the configuration or the store names.

    Raises:
        HandoffError: the configuration names no robot that exists.
    """
    if evidence.config.robot is not None:
        robot = find_robot(evidence.config.robot)
    elif evidence.robot in ROBOTS:
        robot = find_robot(evidence.robot)
    else:
        # A store from elsewhere must not choose a module to be imported.
        if evidence.robot:
            evidence.notes.append(
                f"The limits of the robot '{evidence.robot}' are not checked: Handoff does not know it. "
                f"Known are {', '.join(sorted(ROBOTS))}; the option robot names one."
            )
        return
    fields = list(_joint_fields(evidence, robot.num_joints))
    if not fields:
        evidence.notes.append(
            f"No field has the {robot.num_joints} joint positions of {robot.title} in rad, so its limits are unchecked."
        )
    total, margin = len(evidence.summaries), evidence.config.limit_margin
    wrong_units = unit_faults(evidence)
    for field in fields:
        joints = slice(field.first, field.first + robot.num_joints)
        above = evidence.entry("high")[:, joints] - robot.limits.q_max
        below = robot.limits.q_min - evidence.entry("low")[:, joints]
        beyond = np.maximum(above, below)
        found = [
            episode
            for episode in np.flatnonzero((beyond > margin).any(axis=1)).tolist()
            if (episode, field.name) not in wrong_units
        ]
        if not found:
            continue
        row, joint = np.unravel_index(int(beyond[found].argmax()), beyond[found].shape)
        episode, joint = int(found[int(row)]), int(joint)
        over = above[episode, joint] >= below[episode, joint]
        limit = robot.limits.q_max[joint] if over else robot.limits.q_min[joint]
        many = len(found) > total / 2 and (beyond[found] > margin).any(axis=0).sum() > 2
        cause = (
            "Is it another robot, or another order of joints?"
            if many
            else "Is the calibration right?"
        )
        yield finding(
            "joint_limits",
            "error",
            f"{field.labels[joint]} reaches {limit + (1 if over else -1) * beyond[episode, joint]:.3f} rad in "
            f"{name_episodes(found, total)}, limit {limit:.3f} rad of {robot.title} by its data sheet. {cause}",
            found,
            [field.name],
        )


def _joint_fields(evidence: EpisodeEvidence, joints: int) -> Iterator[StateField]:
    """Fields that begin with the positions of all joints: measured ones, and actions that are
    targets of them."""
    measured = {
        field.name
        for field in evidence.layout.states
        if field.role == "observation"
        and field.unit[:joints] == ("rad",) * joints
        and len(field.labels) in (joints, joints + 1, joints + 2)
    }
    for field in evidence.layout.states:
        if field.name in measured:
            yield field
        elif field.role == "action" and field.unit[:joints] == ("rad",) * joints:
            paired = [
                pair
                for number, pair in enumerate(evidence.profile.pairings)
                if evidence.pair_fields(number)[0] == field
                and evidence.pair_fields(number)[1].name in measured
                and pair.motion == "position"
            ]
            if paired or field.interface == "joint_target":
                yield field


def check_gripper(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Grippers that never move."""
    low, high = evidence.entry("low"), evidence.entry("high")
    total, config = len(evidence.summaries), evidence.config
    span = high.max(axis=0) - low.min(axis=0)
    for entry in np.flatnonzero(evidence.layout.is_gripper):
        label = evidence.layout.labels[entry]
        field = evidence.layout.field_of(int(entry)).name
        if span[entry] == 0.0:
            yield finding(
                "gripper",
                "warning",
                f"{label} is {low[0, entry]:.4g} in every step of all episodes. Was the gripper connected?",
                fields=[field],
            )
            continue
        still = np.flatnonzero((high - low)[:, entry] < config.gripper_motion * span[entry])
        if len(still):
            yield finding(
                "gripper",
                "warning",
                f"{label} never moves by {100 * config.gripper_motion:g} % of its range in "
                f"{name_episodes(still, total)}. Was nothing grasped, or the gripper disconnected?",
                still,
                [field],
            )


def check_quaternions(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Quaternions that are not of unit length, or whose sign flips."""
    errors, flips = evidence.stack("quaternion_error"), evidence.stack("quaternion_flips")
    total, config = len(evidence.summaries), evidence.config
    for number, entry in enumerate(evidence.layout.quaternions):
        name = evidence.layout.field_of(entry).name
        long = np.flatnonzero(errors[:, number] > config.quaternion_error)
        if len(long):
            yield finding(
                "quaternions",
                "error",
                f"The quaternion of {name} has a length that differs from 1 by up to {errors[:, number].max():.3g} in "
                f"{name_episodes(long, total)}, limit {config.quaternion_error:g}. Was it interpolated, or are its "
                "entries in another order?",
                long,
                [name],
            )
        flipped = np.flatnonzero(flips[:, number])
        if len(flipped):
            yield finding(
                "quaternions",
                "warning",
                f"The quaternion of {name} changes its sign in {name_episodes(flipped, total)} "
                f"({flips[:, number].sum()} changes, expected none). The rotation is the same, but a "
                "network sees a jump: keep the sign nearest to the step before.",
                flipped,
                [name],
            )
