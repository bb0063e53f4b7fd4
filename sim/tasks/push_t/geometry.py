"""Defines the geometry of push-T: push a T-shaped block onto a painted T with a round stick.

The task is that of Chi et al., Diffusion Policy (RSS 2023), after Florence et al. (CoRL 2021);
dimensions follow gym-pusht 0.1.8 with 1 px = 1 mm. Frame "board": origin in the image's upper left
corner, x right, y down, hence z into the table. The block's pose is that of gym-pusht's body: its
origin is the middle of the bar's outer edge, not the centre of gravity. On the arm's table the
board's centre is at (`BOARD_CENTRE_X`, 0) in the base frame, with board x along base -y, board y
along base -x and board z along base -z; the table top is at z = 0 of the base frame.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robots.episodes.formats.pusht import KEYPOINTS
from robots.franka.robot import Robot
from sim.scene.scene import add_table

if TYPE_CHECKING:
    import mujoco

BOARD_SIZE = 0.512
"""Side of the square board [m]."""
GOAL_POSE = np.array([0.256, 0.256, np.pi / 4])
"""(3,) x, y [m], angle [rad] of the block at the goal, board frame."""
SUCCESS_COVERAGE = 0.95
"""Coverage above which the published protocol counts an episode as solved."""
AGENT_RADIUS = 0.015
"""Radius of the pusher [m]."""
AGENT_RANGE = (0.030, 0.480)
"""Minimum and maximum board coordinate of the arm's pusher [m]."""

TEE_RECTANGLES = np.array([[[-0.060, 0.0], [0.060, 0.030]], [[-0.015, 0.030], [0.015, 0.120]]])
"""(2, 2, 2) lower and upper corners of bar and stem in the block frame [m] (gym-pusht `add_tee`,
scale 30)."""
TEE_THICKNESS = 0.030
"""Thickness of the block [m]; our choice, the published block is flat."""
TEE_GYM_COG = np.array([0.0, 0.045])
"""(2,) point about which gym-pusht rotates the block [m]: the mean of the two rectangles' centres,
block frame."""


def _rotation(angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s], [s, c]])


def keypoints(block_pose: np.ndarray) -> np.ndarray:
    """Keypoints of the block.

    Args:
        block_pose: (..., 3) x, y [m], angle [rad], board frame.

    Returns:
        (..., 9, 2) [m], board frame.
    """
    pose = np.asarray(block_pose, dtype=float)
    c, s = np.cos(pose[..., 2, None]), np.sin(pose[..., 2, None])
    x, y = KEYPOINTS[:, 0], KEYPOINTS[:, 1]
    return pose[..., None, :2] + np.stack([c * x - s * y, s * x + c * y], axis=-1)


def tee_polygons(block_pose: np.ndarray) -> np.ndarray:
    """(2, 4, 2) corners of the bar and the stem of a block at `block_pose` (3,) [m], board
    frame."""
    (x0, y0), (x1, y1) = np.moveaxis(TEE_RECTANGLES, 0, -1)
    corners = np.stack(
        [np.stack(p, axis=-1) for p in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))], axis=1
    )
    return corners @ _rotation(block_pose[2]).T + block_pose[:2]


def coverage(block_pose: np.ndarray) -> float:
    """Fraction of the goal T that the block at `block_pose` (3,) [m, m, rad] covers, 0 to 1,
    computed like gym-pusht."""
    from shapely.geometry import Polygon
    from shapely.ops import unary_union

    block, goal = (
        unary_union([Polygon(p) for p in tee_polygons(pose)]) for pose in (block_pose, GOAL_POSE)
    )
    return float(goal.intersection(block).area / goal.area)


def batched_coverage(block_pose: np.ndarray) -> np.ndarray:
    """`coverage` of many blocks at once, without a geometry library.

    In the goal's frame its two rectangles are axis-aligned windows. By Green's theorem, the area of
    a polygon within a window is the contour integral of y dx with x and y clamped to the window.

    Args:
        block_pose: (N, 3) x, y [m], angle [rad], board frame.

    Returns:
        (N,), equal to `coverage` to 1e-9.
    """
    angle = block_pose[:, 2] - GOAL_POSE[2]
    c, s = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    shift = (block_pose[:, :2] - GOAL_POSE[:2]) @ _rotation(GOAL_POSE[2])
    corners = tee_polygons(np.zeros(3))
    x = c * corners[..., 0] - s * corners[..., 1] + shift[:, 0, None, None]
    y = s * corners[..., 0] + c * corners[..., 1] + shift[:, 1, None, None]
    area = sum(_area_within(x, y, window) for window in TEE_RECTANGLES)
    return area / np.prod(TEE_RECTANGLES[:, 1] - TEE_RECTANGLES[:, 0], axis=1).sum()


def _area_within(x: np.ndarray, y: np.ndarray, window: np.ndarray) -> np.ndarray:
    """(N,) area [m^2] of polygons (N, P, corners) within `window` (2, 2): lower and upper corner
    [m]."""
    (x0, y0), (x1, y1) = window
    ends = np.stack([x, np.roll(x, -1, axis=-1)])
    heights = np.stack([y, np.roll(y, -1, axis=-1)]) - y0
    run = ends[1] - ends[0]
    within = np.clip(ends, x0, x1)
    # A vertical side has no extent in x, so its fraction is irrelevant.
    share = (within - ends[0]) / np.where(np.abs(run) < 1e-12, 1.0, run)
    low, high = heights[0] + share * (heights[1] - heights[0])
    # Mean of the clamped height along the side, by its antiderivative unless the side is
    # horizontal.
    top = y1 - y0
    below = [0.5 * np.clip(h, 0.0, top) ** 2 + top * np.maximum(h - top, 0.0) for h in (low, high)]
    level = np.abs(high - low) < 1e-9
    sloping = (below[1] - below[0]) / np.where(level, 1.0, high - low)
    mean = np.where(level, np.clip(0.5 * (low + high), 0.0, top), sloping)
    # The corners are ordered from x to y: lower sides run forward, upper sides backward.
    return -(mean * (within[1] - within[0])).sum(axis=(1, 2))


def initial_state(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The initial state that gym-pusht's `reset(seed)` draws.

    gym-pusht assigns the position and then the angle, and pymunk rotates a body about its centre of
    gravity c. The drawn p is thus the block's position at angle 0, and its final position is p + c
    - R(angle) c. If the agent or a wall overlaps the block, gym-pusht's first physics step also
      pushes
    the block a little; that effect is not part of the initial state and is omitted.

    Returns:
        agent (2,) [m] and block pose (3,) [m, m, rad], both in the board frame.
    """
    return draw_state(np.random.Generator(np.random.PCG64(seed)))


def draw_state(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws an `initial_state` from a generator."""
    drawn = [
        rng.integers(50, 450),
        rng.integers(50, 450),
        rng.integers(100, 400),
        rng.integers(100, 400),
    ]
    angle = rng.uniform(-np.pi, np.pi)
    agent, position = (
        1e-3 * np.array(drawn[:2], dtype=float),
        1e-3 * np.array(drawn[2:], dtype=float),
    )
    position += TEE_GYM_COG - _rotation(angle) @ TEE_GYM_COG
    return agent, np.array([*position, angle])


def clear_of_tee(agent: np.ndarray, block_pose: np.ndarray, gap: float = 0.002) -> np.ndarray:
    """Moves an agent that overlaps or nearly touches the block to the nearest free position.

    gym-pusht may start with the two overlapping, which real bodies cannot.

    Args:
        agent: (2,) [m], board frame.
        block_pose: (3,) [m, m, rad], board frame.
        gap: minimum distance between pusher and block [m].

    Returns:
        (2,) [m], board frame; `agent` if it is already clear.
    """
    from shapely.geometry import Point, Polygon
    from shapely.ops import nearest_points, unary_union

    block = unary_union([Polygon(p) for p in tee_polygons(block_pose)])
    # Shapely's round corners lie inside the true offset curve by up to 0.03 % of the distance at 64
    # segments.
    keep_out = block.buffer(AGENT_RADIUS + gap, quad_segs=64)
    point = Point(agent)
    if not keep_out.contains(point):
        return np.asarray(agent, dtype=float)
    return np.array(nearest_points(keep_out.exterior, point)[0].coords[0])


# The scene on the arm's table.

BOARD_CENTRE_X = 0.52
"""Distance of the board's centre from the base [m]: every point of `AGENT_RANGE` is then reachable
with the pusher upright, at least 0.098 rad from each joint limit and with a smallest singular value
of the Jacobian above 0.06."""
BASE_R_BOARD = np.array([[0.0, -1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
"""(3, 3) board axes in base axes."""
BOARD_CENTRE = np.array([BOARD_SIZE / 2, BOARD_SIZE / 2])

PUSHER_LENGTH = 0.120
"""Distance from flange to tip [m]."""
PUSHER_CLEARANCE = 0.004
"""Height of the pusher's tip above the table in use [m]."""
BASE_R_PUSHER = np.diag([1.0, -1.0, -1.0])
"""(3, 3) orientation of flange and pusher in use: z down, x away from the base."""
Q_BOARD_CENTRE = np.array([0.0, 0.518, 0.0, -2.290, 0.0, 2.807, 0.0])
"""Posture of a Franka arm above the board's centre [rad]; seed of inverse kinematics."""

TEE_DENSITY = 600.0
"""Density of the block [kg/m^3]; beech or birch plywood has 600 to 700."""
PUSHER_DENSITY = 1240.0
"""Density of the pusher [kg/m^3]: solid PLA."""
FRICTION_TEE_TABLE = 0.35
"""Sliding friction of wood on a laminate table, handbooks: 0.2 to 0.5. Chosen once, never tuned."""
FRICTION_TEE_PUSHER = 0.30
"""Sliding friction of PLA on wood, handbooks: 0.2 to 0.4. Chosen once, never tuned."""
CONTACT_TIME = 0.008
"""Time constant of the contact constraint [s]. Bodies penetrate by at most 0.15 mm in use; at 4 ms
the pushed block chatters on the table, at 20 ms it penetrates by 0.3 mm."""


def base_from_board(xy: np.ndarray, height: float = 0.0) -> np.ndarray:
    """(..., 3) position in base [m] of board points `xy` (..., 2) [m], `height` above the table
    [m]."""
    offset = np.asarray(xy, dtype=float) - BOARD_CENTRE
    return np.stack(
        [
            BOARD_CENTRE_X - offset[..., 1],
            -offset[..., 0],
            np.full(offset.shape[:-1], float(height)),
        ],
        axis=-1,
    )


def board_from_base(position: np.ndarray) -> np.ndarray:
    """(..., 2) board coordinates [m] of base positions (..., 3) or (..., 2) [m]."""
    position = np.asarray(position, dtype=float)
    return np.stack([-position[..., 1], BOARD_CENTRE_X - position[..., 0]], axis=-1) + BOARD_CENTRE


def flange_target(agent: np.ndarray, height: float = PUSHER_CLEARANCE) -> np.ndarray:
    """(4, 4) base_T_flange [m] with the pusher upright over `agent` (2,) [m], its tip `height`
    above the table [m]."""
    target = np.eye(4)
    target[:3, :3] = BASE_R_PUSHER
    target[:3, 3] = base_from_board(agent, height + PUSHER_LENGTH)
    return target


def base_pose_of_tee(block_pose: np.ndarray) -> np.ndarray:
    """(7,) position [m] and unit quaternion (wxyz) in base of the frame of a block lying at
    `block_pose` (3,)."""
    # BASE_R_BOARD is half a turn about (1, -1, 0) / sqrt(2); turning by `angle` about its z
    # multiplies from the right.
    c, s = np.cos(block_pose[2] / 2) * np.sqrt(0.5), np.sin(block_pose[2] / 2) * np.sqrt(0.5)
    return np.concatenate([base_from_board(block_pose[:2]), [0.0, c - s, -c - s, 0.0]])


def build_scene(robot: Robot) -> mujoco.MjModel:
    """Compiles the table scene: arm with pusher, board with painted goal, free block `tee`."""
    return scene_spec(robot).compile()


def scene_spec(robot: Robot) -> mujoco.MjSpec:
    """The scene before compilation, for randomisation and other tools; see `build_scene`."""
    import mujoco

    spec = mujoco.MjSpec.from_file(str(robot.model_xml))
    spec.modelname = "push_t"
    add_table(spec)
    _add_board(spec)
    _add_goal(spec)
    _add_tee(spec)
    _add_pusher(spec, robot)
    _add_contacts(spec)
    return spec


def _add_board(spec: mujoco.MjSpec) -> None:
    import mujoco

    half = BOARD_SIZE / 2
    spec.worldbody.add_geom(
        name="board",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        pos=[BOARD_CENTRE_X, 0, -0.0005],
        size=[half, half, 0.0004],
        rgba=[0.86, 0.87, 0.86, 1],
        contype=0,
        conaffinity=0,
    )


def _add_goal(spec: mujoco.MjSpec) -> None:
    import mujoco

    pose = base_pose_of_tee(GOAL_POSE)
    goal = spec.worldbody.add_body(name="goal", pos=pose[:3], quat=pose[3:])
    for (x0, y0), (x1, y1) in TEE_RECTANGLES:
        goal.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=[(x0 + x1) / 2, (y0 + y1) / 2, 0],
            size=[(x1 - x0) / 2, (y1 - y0) / 2, 0.0003],
            rgba=[0.45, 0.78, 0.45, 1],
            contype=0,
            conaffinity=0,
        )


def _add_tee(spec: mujoco.MjSpec) -> None:
    import mujoco

    pose = base_pose_of_tee(GOAL_POSE)
    tee = spec.worldbody.add_body(name="tee", pos=pose[:3], quat=pose[3:])
    tee.add_freejoint(name="tee_free")
    for name, ((x0, y0), (x1, y1)) in zip(("tee_bar", "tee_stem"), TEE_RECTANGLES, strict=True):
        tee.add_geom(
            name=name,
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=[(x0 + x1) / 2, (y0 + y1) / 2, -TEE_THICKNESS / 2],
            size=[(x1 - x0) / 2, (y1 - y0) / 2, TEE_THICKNESS / 2],
            density=TEE_DENSITY,
            rgba=[0.42, 0.48, 0.58, 1],
            contype=0,
            conaffinity=1,
        )


def _add_pusher(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Adds a solid stick with a hemispherical tip, whose cylindrical part touches the block's
    side."""
    import mujoco

    flange = spec.site(robot.flange_name).pos
    pusher = spec.body(robot.link_names[-1]).add_body(name="pusher", pos=flange, gravcomp=1.0)
    pusher.add_geom(
        name="pusher",
        type=mujoco.mjtGeom.mjGEOM_CAPSULE,
        fromto=[0, 0, AGENT_RADIUS, 0, 0, PUSHER_LENGTH - AGENT_RADIUS],
        size=[AGENT_RADIUS, 0, 0],
        density=PUSHER_DENSITY,
        rgba=[0.25, 0.41, 0.88, 1],
        contype=0,
        conaffinity=0,
    )
    pusher.add_site(
        name="pusher_tip", pos=[0, 0, PUSHER_LENGTH], size=[0.002, 0, 0], rgba=[0, 0, 0, 0]
    )


def _add_contacts(spec: mujoco.MjSpec) -> None:
    """Adds explicit contact pairs, so that friction is set per pair instead of the larger of two
    materials."""
    frictions = {
        ("tee_bar", "table"): FRICTION_TEE_TABLE,
        ("tee_stem", "table"): FRICTION_TEE_TABLE,
        ("pusher", "tee_bar"): FRICTION_TEE_PUSHER,
        ("pusher", "tee_stem"): FRICTION_TEE_PUSHER,
        ("pusher", "table"): FRICTION_TEE_PUSHER,
    }
    for (first, second), friction in frictions.items():
        spec.add_pair(
            geomname1=first,
            geomname2=second,
            condim=3,
            friction=[friction, friction, 0, 0, 0],
            solref=[CONTACT_TIME, 1.0],
        )
