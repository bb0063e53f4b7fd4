"""Puts distractors on the table: small primitives that cameras see and nothing touches.

They are geoms of the world without mass and contacts, so the states of an episode are the same with
and without them. Their places are off the task's objects as these stand at the start of the
episode.

Shape suffixes: C distractors, G obstacles.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robots.errors import HandoffError

if TYPE_CHECKING:
    import mujoco

PREFIX = "distractor_"
REGION = ((0.25, -0.38), (0.75, 0.38))
"""Smallest and largest x, y of a distractor's centre on the table [m]."""
HALF_SIZE = (0.012, 0.03)
"""Smallest and largest half size of a distractor in each axis [m]."""
MARGIN = 0.02
"""Smallest distance between a distractor and an object of the task [m]."""
TRIES = 500
"""Places drawn for one distractor before it is given up."""
ENTRIES = 10
"""Entries of a distractor: x, y [m], yaw [rad], half sizes (3) [m], red, green, blue, and whether
it is shown."""


def add_clutter(spec: mujoco.MjSpec, count: int) -> None:
    """Adds `count` hidden distractors: boxes, cylinders, spheres and ellipsoids in turn."""
    import mujoco

    shapes = (
        mujoco.mjtGeom.mjGEOM_BOX,
        mujoco.mjtGeom.mjGEOM_CYLINDER,
        mujoco.mjtGeom.mjGEOM_SPHERE,
        mujoco.mjtGeom.mjGEOM_ELLIPSOID,
    )
    for index in range(count):
        spec.worldbody.add_geom(
            name=f"{PREFIX}{index}",
            type=shapes[index % len(shapes)],
            # Inside the table's top, so that the extent of the scene stays what it was.
            pos=[0.4, 0.0, -0.02],
            size=[HALF_SIZE[0]] * 3,
            mass=0,
            contype=0,
            conaffinity=0,
            rgba=[0.0, 0.0, 0.0, 0.0],
        )


def distractor_ids(model: mujoco.MjModel) -> np.ndarray:
    """(C,) the geoms that `add_clutter` added."""
    return np.array(
        [i for i in range(model.ngeom) if model.geom(i).name.startswith(PREFIX)], dtype=np.int64
    )


def draw_clutter(
    model: mujoco.MjModel, data: mujoco.MjData, root: str, shown: int, rng: np.random.Generator
) -> np.ndarray:
    """Draws (C, `ENTRIES`) distractors of which the first `shown` are visible; a larger number adds
    some and leaves those before them.

    Args:
        model: model with the distractors.
        data: start of the episode, with the poses of all geoms.
        root: name of the robot's first body.
        shown: number of visible distractors.
        rng: random number generator.

    Raises:
        HandoffError: the objects of the task leave no place.
    """
    centre_G2, half_G2 = _obstacles(model, data, root)
    low, high = np.array(REGION)
    drawn = np.zeros((len(distractor_ids(model)), ENTRIES))
    for index in range(shown):
        half = rng.uniform(*HALF_SIZE, 3)
        radius = float(np.hypot(half[0], half[1]))
        place = None
        for _ in range(TRIES):
            candidate = rng.uniform(low, high)
            gap_G2 = np.maximum(np.abs(candidate - centre_G2) - half_G2, 0.0)
            if not len(gap_G2) or np.linalg.norm(gap_G2, axis=1).min() > radius + MARGIN:
                place = candidate
                break
        if place is None:
            raise HandoffError(
                f"clutter: no place for distractor {index + 1} of {shown} after {TRIES} tries: the task's objects "
                "fill the table. Use fewer."
            )
        yaw = rng.uniform(-np.pi, np.pi)
        drawn[index] = [*place, yaw, *half, *rng.uniform(0.05, 0.95, 3), 1.0]
        centre_G2 = np.vstack([centre_G2, place])
        half_G2 = np.vstack([half_G2, [radius, radius]])
    return drawn


def place_clutter(model: mujoco.MjModel, drawn: np.ndarray) -> None:
    """Writes the distractors `drawn` (C, `ENTRIES`) into the model."""
    import mujoco

    for geom, entry in zip(distractor_ids(model), drawn, strict=True):
        half = entry[3:6]
        kind = model.geom_type[geom]
        if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
            height = half[0]
        elif kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
            height = half[1]
        else:
            height = half[2]
        model.geom_size[geom] = half
        model.geom_pos[geom] = [entry[0], entry[1], height]
        model.geom_quat[geom] = [np.cos(entry[2] / 2.0), 0.0, 0.0, np.sin(entry[2] / 2.0)]
        # The compiler notes a geom without rotation, whose orientation would not be read.
        model.geom_sameframe[geom] = mujoco.mjtSameFrame.mjSAMEFRAME_NONE
        model.geom_rgba[geom] = entry[6:10]


def _obstacles(
    model: mujoco.MjModel, data: mujoco.MjData, root: str
) -> tuple[np.ndarray, np.ndarray]:
    """Centres and half sizes (G, 2) [m] of the axis-aligned boxes around the task's geoms, seen
    from above."""
    robot = model.body(root).id
    centres: list[np.ndarray] = []
    halves: list[np.ndarray] = []
    for geom in range(model.ngeom):
        body = model.geom_bodyid[geom]
        # Geoms of the world below its origin are the table.
        table = body == 0 and data.geom_xpos[geom, 2] <= 0.0
        if table or model.body_rootid[body] == robot:
            continue
        rotation = data.geom_xmat[geom].reshape(3, 3)
        box = model.geom_aabb[geom]
        centres.append((data.geom_xpos[geom] + rotation @ box[:3])[:2])
        halves.append((np.abs(rotation) @ box[3:])[:2])
    return np.array(centres).reshape(-1, 2), np.array(halves).reshape(-1, 2)
