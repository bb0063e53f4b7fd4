"""Computes fields of one thing relative to another, such as a cube and the gripper, from what is
measured of both in the base frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from robots.franka.kinematics import rotation_of
from robots.spec import WXYZ, XYZ, FieldSpec, Place, Relation

GRASP_POSE = "grasp_pose"
"""Field of the gripper's pose, which the arm measures."""


def offset_from_gripper(target: str | Place, fixture: str = "") -> Relation:
    """The relation of a field that points from the gripper to a place or a field with a position,
    in the axes of the field `fixture`, or of the base."""
    return Relation(kind="offset", origin=GRASP_POSE, target=target, fixture=fixture)


def turns_from_gripper(quaternion: str) -> Relation:
    """The relation of a field with the quarter turns from the gripper to a box with the field
    `quaternion`."""
    return Relation(kind="quarter_turns", origin=GRASP_POSE, target=quaternion)


def measured_for(spec: FieldSpec) -> list[str]:
    """Fields that have to be measured beside the arm, so that a field can be computed; none for a
    field without relations."""
    return [*measured_specs({"": spec})]


def measured_specs(observation: Mapping[str, FieldSpec]) -> dict[str, FieldSpec]:
    """All fields that `measured_for` names for those of an observation; what is observed itself is
    described as it is observed."""
    specs: dict[str, FieldSpec] = {}
    for field, spec in observation.items():
        for relation in spec.relations:
            for name, described in _named(relation, field).items():
                if name != GRASP_POSE:
                    specs[name] = observation.get(name) or described
    return specs


def related(relations: Sequence[Relation], values: Mapping[str, np.ndarray]) -> np.ndarray:
    """The value (n,) of a field with relations.

    Args:
        relations: its parts.
        values: all fields that they name: positions (3,) [m], or poses that begin with one;
            quaternions (4,), wxyz, about of unit length; the pose of a fixture (3,) [m, m, rad].
    """
    parts = []
    for relation in relations:
        part = _part(relation, values)
        parts.append(part[list(relation.entries)] if relation.entries else part)
    return np.concatenate(parts)


def box_yaw(quaternion: np.ndarray) -> np.ndarray:
    """(N,) yaw [rad] of boxes with orientation `quaternion` (N, 4), wxyz, up to quarter turns: that
    of the most horizontal axis, whichever face a box lies on."""
    axes = rotation_of(quaternion)
    level = np.argmin(np.abs(axes[:, 2]), axis=1)
    axis = axes[np.arange(len(axes)), :, level]
    return np.arctan2(axis[:, 1], axis[:, 0])


def square_turn(turn: np.ndarray) -> np.ndarray:
    """Rotations [rad] of something square, of any shape, less the quarter turns in them: from -pi/4
    to pi/4."""
    return turn - np.round(turn / (np.pi / 2)) * (np.pi / 2)


def _part(relation: Relation, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """The whole result of a relation, of which a field may have some entries."""
    origin, target = (_place(end) for end in (relation.origin, relation.target))
    match relation.kind:
        case "quarter_turns":
            turn = 4.0 * (box_yaw(_unit(values[target.position])) - values[origin.position][5])
            return np.concatenate([np.cos(turn), np.sin(turn)])
        case "square_turn":
            return square_turn(_yaw(target, values) - _yaw(origin, values))
        case "lean":
            return _axes(target, values)[:2, 2]
        case "offset":
            apart = _point(target, values) - _point(origin, values)
            return _axes(Place(fixture=relation.fixture), values).T @ apart


def _place(end: str | Place) -> Place:
    return Place(position=end) if isinstance(end, str) else end


def _point(place: Place, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """(3,) the point of a place [m], base frame."""
    if place.position:
        position = values[place.position][:3]
    elif place.fixture:
        position = np.array([*values[place.fixture][:2], 0.0])
    else:
        position = np.zeros(3)
    return position + _axes(place, values) @ np.array(place.point)


def _yaw(place: Place, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """(1,) yaw of the x axis of a thing [rad]."""
    axes = _axes(place, values)
    return np.arctan2(axes[1:2, 0], axes[0:1, 0])


def _axes(place: Place, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """(3, 3) axes of the thing of a place as columns, base frame; those of the base where it has no
    orientation."""
    if place.quaternion:
        return rotation_of(_unit(values[place.quaternion]))[0]
    yaw = values[place.fixture][2] if place.fixture else 0.0
    c, s = np.cos(yaw), np.sin(yaw)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def _unit(quaternion: np.ndarray) -> np.ndarray:
    """(1, 4) a quaternion (4,) of length 1: a tracker's may have a little more or less."""
    return quaternion[None] / np.linalg.norm(quaternion)


def _named(relation: Relation, field: str) -> dict[str, FieldSpec]:
    """Fields that a relation of `field` names, as they are described where nothing else does."""
    about = f"from which {field} is computed"
    yaw = (("x", "y", "yaw"),)
    position = FieldSpec(shape=(3,), unit="m", frame="base", about=about, names=XYZ)
    quaternion = FieldSpec(shape=(4,), frame="base", about=about, names=WXYZ)
    fixture = FieldSpec(shape=(3,), unit="m, m, rad", frame="base", about=about, names=yaw)
    named: dict[str, FieldSpec] = {}
    for end in (relation.origin, relation.target):
        place = _place(end)
        named[place.position] = quaternion if relation.kind == "quarter_turns" else position
        named |= {place.quaternion: quaternion, place.fixture: fixture}
    named[relation.fixture] = fixture
    return {name: spec for name, spec in named.items() if name}
