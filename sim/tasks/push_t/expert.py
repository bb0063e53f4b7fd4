"""Scripted expert of push-T: from where the pusher and the block are now, where to send the pusher.

A push is a contact point on the block's outline, a direction and a length. What it does to the
block follows from the quasi-static model with an ellipsoidal limit surface (Lynch and Mason 1996):
at low speed the block's twist is normal to the surface of friction loads the table can take, so the
motion per push, seen from the block, is the same wherever the block lies, and is computed once. The
expert takes the push that brings the block nearest to the goal per second, counting the time to get
there round the block; being there shortens that time, so the choice holds without memory.
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
"""Largest friction moment over largest friction force of the block on the table [m]: it rests on
its outer corners."""
ANGLE_WEIGHT = 0.040
"""Metres of displacement that one radian of turn counts for: both then cost about the same
coverage."""
LENGTHS = 1e-3 * np.array(
    [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 20.0, 27.0, 36.0, 48.0, 64.0]
)
"""Lengths of pushes considered [m]."""
OBLIQUE = np.deg2rad([-14.0, 0.0, 14.0])
"""Directions of pushes from the side's normal [rad]; the friction cone's half angle is 16.7
degrees."""
SPACING, EDGE = 0.004, 0.002
"""Between contact points on a side and from the outline's corners [m]."""
GAP = 0.010
"""Distance from the block at which the pusher goes round it and from which it begins a push [m]."""
CLEARANCE = 0.0015
"""Distance from the block that counts as free on the way [m]."""
SUNK = 0.003
"""How far inside its contact point the pusher may be while it pushes, the side having turned under
it [m]."""
TRAVEL_SPEED, PUSH_SPEED = 0.20, 0.08
"""Mean speeds [m/s]."""
TRAVEL_OVERHEAD, PUSH_OVERHEAD = 0.6, 0.3
"""Time to get under way and to come to rest [s]."""
LEAD, PUSH_LEAD = 0.07, 0.025
"""How far the target is put ahead of the pusher at most [m]; the agent's speed is five times that
per second."""
FAR = 1e3
"""A distance [m] that nothing has."""


class Pushes(NamedTuple):
    """All pushes considered: C contacts in different directions, L lengths. Block frame."""

    contact: np.ndarray
    """(C, 2) the pusher's centre when it touches [m]."""
    normal: np.ndarray
    """(C, 2) outward normal of the side."""
    direction: np.ndarray
    """(C, 2) of the push."""
    motion: np.ndarray
    """(C, L, 3) displacement of the block's centre of mass: x, y [m], and angle [rad]; `FAR` away
    where the pusher leaves the side."""
    loop: np.ndarray
    """(I, 2) closed path round the block, equidistant [m]."""
    step: float
    """Distance between its points [m]."""
    gate: np.ndarray
    """(C,) index of the loop's point next to the start of each push."""


def push_to_goal(agent: np.ndarray, block_pose: np.ndarray) -> np.ndarray:
    """The next position target of the pusher.

    Args:
        agent: (N, 2) the pusher's centre [m], board.
        block_pose: (N, 3) x, y [m], angle [rad], board.

    Returns:
        (N, 2) [m], board.
    """
    pushes = _pushes()
    n = len(agent)
    rows = np.arange(n)
    turn = _rotations(block_pose[:, 2])
    seen = np.einsum("nji,nj->ni", turn, agent - block_pose[:, :2])
    along, across = _relative(seen, pushes)
    ready = (along > -SUNK) & (along < GAP + 0.002) & (np.abs(across) < 0.5 * SPACING + 0.0005)
    road = _road(seen, _outside(pushes.loop, turn, block_pose))
    start = pushes.contact + GAP * pushes.normal
    direct = _free(seen[:, None], start[None])
    straight = np.linalg.norm(seen[:, None] - start[None], axis=2)
    # The loop's next point is about half a step from the start of a push.
    travel = np.where(direct, straight, road.distance[:, pushes.gate] + pushes.step) + GAP
    wait = np.where(
        ready, np.maximum(along, 0.0) / PUSH_SPEED, travel / TRAVEL_SPEED + TRAVEL_OVERHEAD
    )
    rate = _gain(block_pose) / (wait[:, :, None] + LENGTHS / PUSH_SPEED + PUSH_OVERHEAD)
    rate[_outside(start, turn, block_pose) & ~ready] = -np.inf
    rate[_push_leaves(pushes, turn, block_pose)] = -np.inf
    best = rate.reshape(n, -1).argmax(axis=1)
    chosen, length = np.divmod(best, len(LENGTHS))
    end = pushes.contact[chosen] + LENGTHS[length, None] * pushes.direction[chosen]
    on_the_way = np.where(
        direct[rows, chosen][:, None], start[chosen], road.point(rows, pushes.gate[chosen])
    )
    target = np.where(ready[rows, chosen][:, None], end, on_the_way)
    lead = np.where(ready[rows, chosen], PUSH_LEAD, LEAD)
    ahead = target - seen
    distance = np.linalg.norm(ahead, axis=1)
    ahead *= np.minimum(1.0, lead / np.maximum(distance, 1e-9))[:, None]
    return np.clip(agent + np.einsum("nij,nj->ni", turn, ahead), *AGENT_RANGE)


def distance_to_goal(block_pose: np.ndarray) -> np.ndarray:
    """(N,) displacement of the centre of mass and turn from the goal, in one norm [m], of poses (N,
    3)."""
    offset = _centre(block_pose) - _centre(GOAL_POSE)
    turn = _wrapped(block_pose[..., 2] - GOAL_POSE[2])
    return np.sqrt((offset**2).sum(axis=-1) + (ANGLE_WEIGHT * turn) ** 2)


def _wrapped(angle: np.ndarray) -> np.ndarray:
    """(...) the same angle [rad] in [-pi, pi]."""
    return angle - 2.0 * np.pi * np.round(angle / (2.0 * np.pi))


def _centre(pose: np.ndarray) -> np.ndarray:
    c, s = np.cos(pose[..., 2]), np.sin(pose[..., 2])
    return pose[..., :2] + np.stack([-s * CENTRE[1], c * CENTRE[1]], axis=-1)


def _gain(block_pose: np.ndarray) -> np.ndarray:
    """(N, C, L) by how much each push brings the blocks nearer to the goal [m]."""
    motion = _pushes().motion.reshape(-1, 3)
    offset = _centre(block_pose) - _centre(GOAL_POSE)
    seen = np.einsum("nji,nj->ni", _rotations(block_pose[:, 2]), offset)
    shift = (seen[:, :1] + motion[:, 0]) ** 2 + (seen[:, 1:] + motion[:, 1]) ** 2
    turn = _wrapped(block_pose[:, 2:] - GOAL_POSE[2] + motion[:, 2])
    after = np.sqrt(shift + (ANGLE_WEIGHT * turn) ** 2)
    return (distance_to_goal(block_pose)[:, None] - after).reshape(
        len(block_pose), *_pushes().motion.shape[:2]
    )


def _relative(seen: np.ndarray, pushes: Pushes) -> tuple[np.ndarray, np.ndarray]:
    """(N, C) distance of the pusher from each contact [m]: outward along the side's normal, and
    along the side."""
    offset = seen[:, None] - pushes.contact[None]
    n = pushes.normal
    return (offset * n).sum(axis=2), offset[..., 0] * -n[:, 1] + offset[..., 1] * n[:, 0]


def _rotations(angle: np.ndarray) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([c, -s], axis=-1), np.stack([s, c], axis=-1)], axis=-2)


def _outside(points: np.ndarray, turn: np.ndarray, block_pose: np.ndarray) -> np.ndarray:
    """(N, P) bool: points (P, 2) of the block frame that the pusher may not be sent to."""
    low, high = AGENT_RANGE
    # Written out: a matrix product rounds a row differently in batches of different sizes.
    c, s = turn[:, 0, :1], turn[:, 1, :1]
    x = c * points[:, 0] - s * points[:, 1] + block_pose[:, :1]
    y = s * points[:, 0] + c * points[:, 1] + block_pose[:, 1:2]
    return (np.minimum(x, y) < low) | (np.maximum(x, y) > high)


def _push_leaves(pushes: Pushes, turn: np.ndarray, block_pose: np.ndarray) -> np.ndarray:
    """(N, C, L) bool: pushes that end where the pusher may not be sent to."""
    ends = pushes.contact[:, None] + LENGTHS[:, None] * pushes.direction[:, None]
    return _outside(ends.reshape(-1, 2), turn, block_pose).reshape(
        len(turn), len(pushes.contact), len(LENGTHS)
    )


def _free(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """(...) bool: the pusher can go straight from `start` to `end` (..., 2) [m], block frame,
    without touching."""
    margin = AGENT_RADIUS + CLEARANCE
    run = end - start
    blocked = np.zeros(np.broadcast_shapes(start.shape, end.shape)[:-1], dtype=bool)
    # Slabs: parallel to an axis, the shares become infinite with the right sign.
    safe = np.where(np.abs(run) < 1e-12, 1e-12, run)
    for low, high in TEE_RECTANGLES:
        a, b = (low - margin - start) / safe, (high + margin - start) / safe
        enter = np.minimum(a, b).max(axis=-1)
        leave = np.maximum(a, b).min(axis=-1)
        blocked |= np.maximum(enter, 0.0) < np.minimum(leave, 1.0)
    return ~blocked


class _Road(NamedTuple):
    """The way of N pushers to the loop and along it."""

    distance: np.ndarray
    """(N, I) to each of the loop's points [m]."""
    entry: np.ndarray
    """(N, I) distance to points that are reached straight [m]; `FAR` for others."""
    barred: np.ndarray
    """(N, 2 I + 1) barred points before each, twice round."""

    def point(self, rows: np.ndarray, gate: np.ndarray) -> np.ndarray:
        """(N, 2) where to enter the loop on the way to the points `gate` (N,), block frame [m]."""
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


def _road(seen: np.ndarray, outside: np.ndarray) -> _Road:
    pushes = _pushes()
    size = len(pushes.loop)
    direct = np.linalg.norm(seen[:, None] - pushes.loop[None], axis=2)
    visible = _free(seen[:, None], pushes.loop[None])
    # Too near the block to see anything: back to the loop by the shortest way.
    stuck = ~visible.any(axis=1)
    visible[stuck] = direct[stuck] < direct[stuck].min(axis=1, keepdims=True) + 0.5 * pushes.step
    entry = np.where(visible & ~outside, direct, FAR)
    barred = np.concatenate(
        [np.zeros((len(seen), 1)), np.cumsum(np.tile(outside, 2), axis=1)], axis=1
    )
    distance = np.full_like(entry, FAR)
    for sign in (1, -1):
        laps, bars = np.tile(entry, 2)[:, ::sign], np.tile(outside, 2)[:, ::sign].cumsum(axis=1)
        ramp = np.arange(2 * size) * pushes.step + FAR * bars
        # Behind a barred point every earlier entry is `FAR` away.
        reached = np.minimum.accumulate(laps - ramp, axis=1) + ramp
        reached = np.minimum(reached, FAR)[:, ::sign]
        distance = np.minimum(distance, np.minimum(reached[:, :size], reached[:, size:]))
    return _Road(np.where(outside, FAR, distance), entry, barred)


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
    """(C, 2) centres of a pusher that touches one side of the outline and nothing else, and outward
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
    """(8, 2) corners of the block [m], counter-clockwise with y up: the outward normal is on the
    right."""
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
    """(...) [m] of points (..., 2) in the block frame."""
    outside = [
        np.maximum(np.maximum(low - points, points - high), 0.0) for low, high in TEE_RECTANGLES
    ]
    return np.minimum(*(np.linalg.norm(d, axis=-1) for d in outside))


def _loop() -> tuple[np.ndarray, float]:
    """(I, 2) points of the path at `GAP` from the touching pusher's centre, and their distance
    along it [m]."""
    from shapely.geometry import Polygon

    ring = Polygon(_outline()).buffer(AGENT_RADIUS + GAP, quad_segs=8).exterior
    size = 100
    points = np.array([ring.interpolate(i / size, normalized=True).coords[0] for i in range(size)])
    # A little longer than true: of two equal ways the straighter one.
    return points, 1.01 * ring.length / size


def _motions(contact: np.ndarray, normal: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """(C, L, 3) displacement of a block under pushes of `LENGTHS`, block frame at the start of the
    push."""
    dt = 0.00025
    count = len(contact)
    pose = np.zeros((count, 3))
    pusher = contact.copy()
    lost = np.zeros(count, dtype=bool)
    result = np.full((count, len(LENGTHS), 3), FAR)
    mu = FRICTION_TEE_PUSHER
    for i in range(round(LENGTHS[-1] / dt)):
        turn = _rotations(pose[:, 2])
        inward = -np.einsum("cij,cj->ci", turn, normal)
        side = np.stack([-inward[:, 1], inward[:, 0]], axis=1)
        touch = pusher + AGENT_RADIUS * inward
        lever = touch - _centre(pose)
        arm = np.stack([-lever[:, 1], lever[:, 0]], axis=1)
        mobility = np.eye(2) + arm[:, :, None] * arm[:, None, :] / LOAD_RADIUS**2
        # The force that makes the touched point move with the pusher; beyond the friction cone it
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
        seen = np.einsum("cji,cj->ci", _rotations(pose[:, 2]), pusher - pose[:, :2])
        # The touched point has left the side once another part of the outline is nearer than that
        # side's line.
        off = np.abs(((seen - contact) * normal).sum(axis=1)) > 0.001
        lost |= off | (_distance_to_block(seen) > AGENT_RADIUS + 0.0005)
        for k in np.flatnonzero(np.isclose(LENGTHS, (i + 1) * dt)):
            moved = np.concatenate([_centre(pose) - CENTRE, pose[:, 2:]], axis=1)
            result[:, k] = np.where(lost[:, None], [FAR, 0.0, 0.0], moved)
    return result
