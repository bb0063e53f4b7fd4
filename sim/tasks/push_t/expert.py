"""Computes the scripted expert of push-T: the pusher's next target from the current positions of
pusher and block.

A push is a contact point on the block's outline, a direction and a length. Its effect follows from
the quasi-static model with an ellipsoidal limit surface (Lynch and Mason 1996): at low speed the
block's twist is normal to the surface of friction loads that the table can take, so the motion per
push in the block's frame does not depend on the block's pose and is computed once. The expert takes
the push with the largest progress towards the goal per second, including the time to reach the
contact around the block. Once the pusher is there that time is shorter, so the choice is stable
without memory.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from sim.tasks.push_t.geometry import (
    AGENT_RADIUS,
    AGENT_RANGE,
    FRICTION_TEE_PUSHER,
    GOAL_POSE,
    TEE_RECTANGLES,
)

CENTRE = np.array([0.0, 0.0407])
"""(2,) the block's centre of mass [m], block frame: bar and stem weighted by area."""
LOAD_RADIUS = 0.042
"""Ratio of maximum friction moment to maximum friction force of the block on the table [m]: it
rests on its outer corners."""
ANGLE_WEIGHT = 0.040
"""Displacement that is equivalent to a rotation of one radian [m]: both cost about the same
coverage."""
LENGTHS = 1e-3 * np.array(
    [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 20.0, 27.0, 36.0, 48.0, 64.0]
)
"""Lengths of the candidate pushes [m]."""
OBLIQUE = np.deg2rad([-14.0, 0.0, 14.0])
"""Directions of pushes relative to the side's normal [rad]; the friction cone's half angle is 16.7
degrees."""
SPACING, EDGE = 0.004, 0.002
"""Distance between contact points on a side, and from the outline's corners [m]."""
GAP = 0.010
"""Distance from the block at which the pusher moves around it and starts a push [m]."""
CLEARANCE = 0.0015
"""Minimum distance from the block on the path [m]."""
SUNK = 0.003
"""Maximum depth of the pusher inside its contact point during a push, because the side turns
[m]."""
TRAVEL_SPEED, PUSH_SPEED = 0.20, 0.08
"""Mean speeds of travelling and pushing [m/s]."""
TRAVEL_OVERHEAD, PUSH_OVERHEAD = 0.6, 0.3
"""Time to accelerate and to stop, for travelling and pushing [s]."""
LEAD, PUSH_LEAD = 0.07, 0.025
"""Maximum distance of the target ahead of the pusher, for travelling and pushing [m]; the agent
moves at five times that distance per second."""
FAR = 1e3
"""Distance that stands for unreachable [m]."""


class Pushes(NamedTuple):
    """All candidate pushes: C contacts with directions, L lengths. Block frame."""

    contact: np.ndarray
    """(C, 2) the pusher's centre in contact [m]."""
    normal: np.ndarray
    """(C, 2) outward normal of the side."""
    direction: np.ndarray
    """(C, 2) direction of the push."""
    motion: np.ndarray
    """(C, L, 3) displacement of the block's centre of mass: x, y [m], and angle [rad]; `FAR` if the
    pusher leaves the side."""
    loop: np.ndarray
    """(I, 2) equidistant points of a closed path around the block [m]."""
    step: float
    """Distance between the path's points [m]."""
    gate: np.ndarray
    """(C,) index of the path's point closest to the start of each push."""


def push_to_goal(agent: np.ndarray, block_pose: np.ndarray) -> np.ndarray:
    """Computes the next position target of the pusher.

    Args:
        agent: (N, 2) the pusher's centre [m], board frame.
        block_pose: (N, 3) x, y [m], angle [rad], board frame.

    Returns:
        (N, 2) [m], board frame.
    """
    pushes = _pushes()
    n = len(agent)
    rows = np.arange(n)
    # Everything is computed in the block's frame.
    turn = _rotations(block_pose[:, 2])
    pusher = np.einsum("nji,nj->ni", turn, agent - block_pose[:, :2])
    along, across = _relative(pusher, pushes)
    ready = (along > -SUNK) & (along < GAP + 0.002) & (np.abs(across) < 0.5 * SPACING + 0.0005)
    # Time until each push can begin, straight or around the block.
    path = _path(pusher, _outside(pushes.loop, turn, block_pose))
    start = pushes.contact + GAP * pushes.normal
    direct = _free(pusher[:, None], start[None])
    straight = np.linalg.norm(pusher[:, None] - start[None], axis=2)
    # The path's closest point is about half a step from the start of a push.
    travel = np.where(direct, straight, path.distance[:, pushes.gate] + pushes.step) + GAP
    wait = np.where(
        ready, np.maximum(along, 0.0) / PUSH_SPEED, travel / TRAVEL_SPEED + TRAVEL_OVERHEAD
    )
    # The best push is the one with the most progress per second.
    rate = _gain(block_pose) / (wait[:, :, None] + LENGTHS / PUSH_SPEED + PUSH_OVERHEAD)
    rate[_outside(start, turn, block_pose) & ~ready] = -np.inf
    rate[_push_leaves(pushes, turn, block_pose)] = -np.inf
    best = rate.reshape(n, -1).argmax(axis=1)
    contact, length = np.divmod(best, len(LENGTHS))
    end = pushes.contact[contact] + LENGTHS[length, None] * pushes.direction[contact]
    waypoint = np.where(
        direct[rows, contact][:, None], start[contact], path.point(rows, pushes.gate[contact])
    )
    target = np.where(ready[rows, contact][:, None], end, waypoint)
    lead = np.where(ready[rows, contact], PUSH_LEAD, LEAD)
    ahead = target - pusher
    distance = np.linalg.norm(ahead, axis=1)
    ahead *= np.minimum(1.0, lead / np.maximum(distance, 1e-9))[:, None]
    return np.clip(agent + np.einsum("nij,nj->ni", turn, ahead), *AGENT_RANGE)


def distance_to_goal(block_pose: np.ndarray) -> np.ndarray:
    """(N,) distance of poses (N, 3) from the goal [m], a norm of the centre of mass's displacement
    and the rotation."""
    offset = _centre(block_pose) - _centre(GOAL_POSE)
    turn = _wrapped(block_pose[..., 2] - GOAL_POSE[2])
    return np.sqrt((offset**2).sum(axis=-1) + (ANGLE_WEIGHT * turn) ** 2)


def _wrapped(angle: np.ndarray) -> np.ndarray:
    """Wraps angles (...) [rad] to [-pi, pi]."""
    return angle - 2.0 * np.pi * np.round(angle / (2.0 * np.pi))


def _centre(pose: np.ndarray) -> np.ndarray:
    c, s = np.cos(pose[..., 2]), np.sin(pose[..., 2])
    return pose[..., :2] + np.stack([-s * CENTRE[1], c * CENTRE[1]], axis=-1)


def _gain(block_pose: np.ndarray) -> np.ndarray:
    """(N, C, L) decrease of the blocks' distance to the goal by each push [m]."""
    motion = _pushes().motion.reshape(-1, 3)
    offset = _centre(block_pose) - _centre(GOAL_POSE)
    in_block = np.einsum("nji,nj->ni", _rotations(block_pose[:, 2]), offset)
    shift = (in_block[:, :1] + motion[:, 0]) ** 2 + (in_block[:, 1:] + motion[:, 1]) ** 2
    turn = _wrapped(block_pose[:, 2:] - GOAL_POSE[2] + motion[:, 2])
    remaining = np.sqrt(shift + (ANGLE_WEIGHT * turn) ** 2)
    return (distance_to_goal(block_pose)[:, None] - remaining).reshape(
        len(block_pose), *_pushes().motion.shape[:2]
    )


def _relative(pusher: np.ndarray, pushes: Pushes) -> tuple[np.ndarray, np.ndarray]:
    """(N, C) distance of the pusher from each contact [m]: outward along the side's normal, and
    along the side."""
    offset = pusher[:, None] - pushes.contact[None]
    n = pushes.normal
    return (offset * n).sum(axis=2), offset[..., 0] * -n[:, 1] + offset[..., 1] * n[:, 0]


def _rotations(angle: np.ndarray) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([c, -s], axis=-1), np.stack([s, c], axis=-1)], axis=-2)


def _outside(points: np.ndarray, turn: np.ndarray, block_pose: np.ndarray) -> np.ndarray:
    """(N, P) bool: points (P, 2) in the block frame outside the pusher's range."""
    low, high = AGENT_RANGE
    # Not a matrix product, which rounds a row differently in batches of different sizes.
    c, s = turn[:, 0, :1], turn[:, 1, :1]
    x = c * points[:, 0] - s * points[:, 1] + block_pose[:, :1]
    y = s * points[:, 0] + c * points[:, 1] + block_pose[:, 1:2]
    return (np.minimum(x, y) < low) | (np.maximum(x, y) > high)


def _push_leaves(pushes: Pushes, turn: np.ndarray, block_pose: np.ndarray) -> np.ndarray:
    """(N, C, L) bool: pushes that end outside the pusher's range."""
    ends = pushes.contact[:, None] + LENGTHS[:, None] * pushes.direction[:, None]
    return _outside(ends.reshape(-1, 2), turn, block_pose).reshape(
        len(turn), len(pushes.contact), len(LENGTHS)
    )


def _free(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """(...) bool: the pusher can move straight from `start` to `end` (..., 2) [m], block frame,
    without contact."""
    margin = AGENT_RADIUS + CLEARANCE
    run = end - start
    blocked = np.zeros(np.broadcast_shapes(start.shape, end.shape)[:-1], dtype=bool)
    # Slab test: for a path parallel to an axis the fractions become huge with the right sign.
    safe = np.where(np.abs(run) < 1e-12, 1e-12, run)
    for low, high in TEE_RECTANGLES:
        a, b = (low - margin - start) / safe, (high + margin - start) / safe
        enter = np.minimum(a, b).max(axis=-1)
        leave = np.maximum(a, b).min(axis=-1)
        blocked |= np.maximum(enter, 0.0) < np.minimum(leave, 1.0)
    return ~blocked


class _Path(NamedTuple):
    """Paths of N pushers to the closed path around the block and along it."""

    distance: np.ndarray
    """(N, I) distance to each point of the closed path [m]."""
    entry: np.ndarray
    """(N, I) distance to points that are reached straight [m]; `FAR` for others."""
    barred: np.ndarray
    """(N, 2 I + 1) number of barred points before each point, for two rounds."""

    def point(self, rows: np.ndarray, gate: np.ndarray) -> np.ndarray:
        """(N, 2) point at which to enter the closed path towards the points `gate` (N,), block
        frame [m]."""
        pushes = _pushes()
        size = len(pushes.loop)
        index = np.arange(size)[None]
        total = np.full((len(rows), size), FAR)
        for ends in ((index, gate[:, None]), (gate[:, None], index)):
            first = np.broadcast_to(ends[0], total.shape)
            last = first + (ends[1] - first) % size
            clear = self.barred[rows[:, None], last + 1] == self.barred[rows[:, None], first]
            total = np.minimum(total, np.where(clear, (last - first) * pushes.step, FAR))
        return pushes.loop[np.argmin(self.entry + total, axis=1)]


def _path(pusher: np.ndarray, outside: np.ndarray) -> _Path:
    pushes = _pushes()
    size = len(pushes.loop)
    direct = np.linalg.norm(pusher[:, None] - pushes.loop[None], axis=2)
    visible = _free(pusher[:, None], pushes.loop[None])
    # Too close to the block for any straight path: take the closest point of the closed path.
    stuck = ~visible.any(axis=1)
    visible[stuck] = direct[stuck] < direct[stuck].min(axis=1, keepdims=True) + 0.5 * pushes.step
    entry = np.where(visible & ~outside, direct, FAR)
    barred = np.concatenate(
        [np.zeros((len(pusher), 1)), np.cumsum(np.tile(outside, 2), axis=1)], axis=1
    )
    distance = np.full_like(entry, FAR)
    for sign in (1, -1):
        laps, bars = np.tile(entry, 2)[:, ::sign], np.tile(outside, 2)[:, ::sign].cumsum(axis=1)
        ramp = np.arange(2 * size) * pushes.step + FAR * bars
        # Behind a barred point every earlier entry is `FAR` away.
        reached = np.minimum.accumulate(laps - ramp, axis=1) + ramp
        reached = np.minimum(reached, FAR)[:, ::sign]
        distance = np.minimum(distance, np.minimum(reached[:, :size], reached[:, size:]))
    return _Path(np.where(outside, FAR, distance), entry, barred)


@cache
def _pushes() -> Pushes:
    contacts, normals = _contacts()
    angles = np.tile(OBLIQUE, len(contacts))
    contact, normal = (
        np.repeat(contacts, len(OBLIQUE), axis=0),
        np.repeat(normals, len(OBLIQUE), axis=0),
    )
    direction = np.einsum("cij,cj->ci", _rotations(angles), -normal)
    loop, step = _loop()
    gate = np.linalg.norm(contact[:, None] + GAP * normal[:, None] - loop[None], axis=2).argmin(
        axis=1
    )
    return Pushes(
        contact, normal, direction, _motions(contact, normal, direction), loop, step, gate
    )


def _contacts() -> tuple[np.ndarray, np.ndarray]:
    """(C, 2) centres of a pusher that touches exactly one side of the outline, and outward
    normals."""
    corners = _outline()
    contacts, normals = [], []
    for first, last in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        length = np.linalg.norm(last - first)
        along = (last - first) / length
        normal = np.array([along[1], -along[0]])
        count = max(1, int((length - 2 * EDGE) / SPACING) + 1)
        for s in 0.5 * length + SPACING * (np.arange(count) - 0.5 * (count - 1)):
            contacts.append(first + s * along + AGENT_RADIUS * normal)
            normals.append(normal)
    starts = np.array(contacts) + GAP * np.array(normals)
    keep = (_distance_to_block(np.array(contacts)) > AGENT_RADIUS - 1e-6) & _free(starts, starts)
    return np.array(contacts)[keep], np.array(normals)[keep]


def _outline() -> np.ndarray:
    """(8, 2) corners of the block [m], counter-clockwise with y up, so that the outward normal is
    on the right."""
    (bx0, by0), (bx1, by1) = TEE_RECTANGLES[0]
    (sx0, _), (sx1, sy1) = TEE_RECTANGLES[1]
    return np.array(
        [
            [bx0, by0],
            [bx1, by0],
            [bx1, by1],
            [sx1, by1],
            [sx1, sy1],
            [sx0, sy1],
            [sx0, by1],
            [bx0, by1],
        ]
    )


def _distance_to_block(points: np.ndarray) -> np.ndarray:
    """(...) distance of points (..., 2) in the block frame from the block [m]."""
    outside = [
        np.maximum(np.maximum(low - points, points - high), 0.0) for low, high in TEE_RECTANGLES
    ]
    return np.minimum(*(np.linalg.norm(d, axis=-1) for d in outside))


def _loop() -> tuple[np.ndarray, float]:
    """(I, 2) points of the closed path at `GAP` from the touching pusher's centre, and their
    distance along it [m]."""
    from shapely.geometry import Polygon

    ring = Polygon(_outline()).buffer(AGENT_RADIUS + GAP, quad_segs=8).exterior
    size = 100
    points = np.array([ring.interpolate(i / size, normalized=True).coords[0] for i in range(size)])
    # Slightly overestimated, so that of two equal paths the straighter one is preferred.
    return points, 1.01 * ring.length / size


def _motions(contact: np.ndarray, normal: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """(C, L, 3) displacement of a block under pushes of `LENGTHS`, in the block frame at the start
    of the push."""
    dt = 0.00025
    count = len(contact)
    pose = np.zeros((count, 3))
    pusher = contact.copy()
    lost = np.zeros(count, dtype=bool)
    result = np.full((count, len(LENGTHS), 3), FAR)
    mu = FRICTION_TEE_PUSHER
    for i in range(round(LENGTHS[-1] / dt)):
        # Contact geometry in the frame at the start of the push.
        turn = _rotations(pose[:, 2])
        inward = -np.einsum("cij,cj->ci", turn, normal)
        side = np.stack([-inward[:, 1], inward[:, 0]], axis=1)
        touch = pusher + AGENT_RADIUS * inward
        lever = touch - _centre(pose)
        arm = np.stack([-lever[:, 1], lever[:, 0]], axis=1)
        mobility = np.eye(2) + arm[:, :, None] * arm[:, None, :] / LOAD_RADIUS**2
        # The force that moves the contact point with the pusher; outside the friction cone it
        # slides.
        force = np.linalg.solve(mobility, direction[..., None])[..., 0]
        push, drag = (force * inward).sum(axis=1), (force * side).sum(axis=1)
        slides = np.abs(drag) > mu * push
        edge = inward + mu * np.sign(drag)[:, None] * side
        yielded = (np.einsum("cij,cj->ci", mobility, edge) * inward).sum(axis=1)
        sliding = edge * ((direction * inward).sum(axis=1) / yielded)[:, None]
        force = np.where(slides[:, None], sliding, force)
        moment = (arm * force).sum(axis=1)
        spin = moment / LOAD_RADIUS**2 * dt
        centre = _centre(pose) + force * dt
        pose[:, 2] += spin
        c, s = np.cos(pose[:, 2]), np.sin(pose[:, 2])
        pose[:, :2] = centre - np.stack([-s * CENTRE[1], c * CENTRE[1]], axis=1)
        pusher = pusher + direction * dt
        in_block = np.einsum("cji,cj->ci", _rotations(pose[:, 2]), pusher - pose[:, :2])
        # The contact has left the side once another part of the outline is closer than the side's
        # line.
        off = np.abs(((in_block - contact) * normal).sum(axis=1)) > 0.001
        lost |= off | (_distance_to_block(in_block) > AGENT_RADIUS + 0.0005)
        for k in np.flatnonzero(np.isclose(LENGTHS, (i + 1) * dt)):
            moved = np.concatenate([_centre(pose) - CENTRE, pose[:, 2:]], axis=1)
            result[:, k] = np.where(lost[:, None], [FAR, 0.0, 0.0], moved)
    return result
