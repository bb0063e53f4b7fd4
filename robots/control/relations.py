"""Computes fields of one thing relative to another, such as a cube and the gripper, from what is
measured of both in the base frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from robots.franka.kinematics import rotation_of
from robots.spec import WXYZ, XYZ, FieldSpec, Relation

GRASP_POSE = "grasp_pose"
"""Field of the gripper's pose, which the arm measures."""


def offset_from_gripper(position: str, fixture: str = "") -> Relation:
    """The relation of a field that points from the gripper to the field `position`, in the axes of
    the field `fixture`, or of the base."""
    return Relation(kind="offset", origin=GRASP_POSE, target=position, fixture=fixture)


def turns_from_gripper(quaternion: str) -> Relation:
    """The relation of a field with the quarter turns from the gripper to a box with the field
    `quaternion`."""
    return Relation(kind="quarter_turns", origin=GRASP_POSE, target=quaternion)


def measured_for(spec: FieldSpec) -> list[str]:
    """Fields that have to be measured beside the arm, so that a field can be computed; none for a
    field without relations."""
    named = {
        name: None
        for relation in spec.relations
        for name in (relation.origin, relation.target, relation.fixture)
    }
    return [name for name in named if name not in ("", GRASP_POSE)]


def measured_specs(observation: Mapping[str, FieldSpec]) -> dict[str, FieldSpec]:
    """All fields that `measured_for` names for those of an observation; what is observed itself is
    described as it is observed."""
    specs: dict[str, FieldSpec] = {}
    for field, spec in observation.items():
        for relation in spec.relations:
            for name in measured_for(FieldSpec(shape=(0,), relations=(relation,))):
                specs[name] = observation.get(name) or _spec(name, relation, field)
    return specs


def related(relations: Sequence[Relation], values: Mapping[str, np.ndarray]) -> np.ndarray:
    """The value (n,) of a field with relations.

    Args:
        relations: its parts.
        values: all fields that they name: positions (3,) [m], or poses that begin with one;
            quaternions (4,), wxyz; the pose of a fixture (3,) [m, m, rad].
    """
    return np.concatenate([_part(relation, values) for relation in relations])


def box_yaw(quaternion: np.ndarray) -> np.ndarray:
    """(N,) yaw [rad] of boxes with orientation `quaternion` (N, 4), wxyz, up to quarter turns: that
    of the most horizontal axis, whichever face a box lies on."""
    axes = rotation_of(quaternion)
    level = np.argmin(np.abs(axes[:, 2]), axis=1)
    axis = axes[np.arange(len(axes)), :, level]
    return np.arctan2(axis[:, 1], axis[:, 0])


def _part(relation: Relation, values: Mapping[str, np.ndarray]) -> np.ndarray:
    origin, target = values[relation.origin], values[relation.target]
    if relation.kind == "quarter_turns":
        turn = 4.0 * (box_yaw(target[None])[0] - origin[5])
        return np.array([np.cos(turn), np.sin(turn)])
    x, y, z = target[:3] - origin[:3]
    yaw = values[relation.fixture][2] if relation.fixture else 0.0
    c, s = np.cos(yaw), np.sin(yaw)
    return np.array([c * x + s * y, c * y - s * x, z])


def _spec(name: str, relation: Relation, field: str) -> FieldSpec:
    """A field that a relation of `field` names."""
    about = f"from which {field} is computed"
    if name == relation.fixture:
        yaw = (("x", "y", "yaw"),)
        return FieldSpec(shape=(3,), unit="m, m, rad", frame="base", about=about, names=yaw)
    if name == relation.target and relation.kind == "quarter_turns":
        return FieldSpec(shape=(4,), frame="base", about=about, names=WXYZ)
    return FieldSpec(shape=(3,), unit="m", frame="base", about=about, names=XYZ)
