"""Renders a recorded push-T episode: the table scene with OpenGL, or a plan view if OpenGL is not
available.

Headless OpenGL needs system packages, on Debian `libegl1 libgl1-mesa-dri` (EGL) or `libosmesa6`
(OSMesa). mujoco chooses between them once per process, at its import, so each is probed, and the
scene rendered, in a separate process.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import numpy as np

from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.robot import Robot
from sim.rendering.video import write_video
from sim.scene.view import FREE_JOINT
from sim.tasks.push_t.geometry import (
    AGENT_RADIUS,
    BOARD_SIZE,
    GOAL_POSE,
    base_pose_of_tee,
    board_from_base,
    build_scene,
    tee_polygons,
)

Renderer = Literal["egl", "osmesa", "plan"]
PROBE_SECONDS = 60.0
"""Time after which a graphics driver that does not respond counts as absent [s]."""


def render_episode(
    path: Path,
    q: np.ndarray,
    tee_pose: np.ndarray,
    fps: float,
    robot: Robot,
    *,
    size: tuple[int, int] = (480, 640),
    renderer: Renderer | None = None,
) -> Renderer:
    """Writes the video of one episode.

    Args:
        path: MP4 file to write.
        q: (T, J) joint positions [rad], one per frame.
        tee_pose: (T, 3) block x, y [m], angle [rad], board frame, one per frame.
        fps: frames per second.
        robot: the arm.
        size: height and width [px], at most 960 by 1280.
        renderer: renderer to use; None takes the first of EGL, OSMesa and plan view that works.

    Returns:
        The renderer used.

    Raises:
        HandoffError: arrays of other shapes, or an error of `write_video`.
    """
    q, tee_pose = np.asarray(q, dtype=float), np.asarray(tee_pose, dtype=float)
    if q.ndim != 2 or q.shape[1] != robot.num_joints or tee_pose.shape != (len(q), 3):
        raise HandoffError(
            f"render: q {q.shape} and tee_pose {tee_pose.shape}, expected (T, {robot.num_joints}) and (T, 3) of equal "
            "length. Were the streams recorded at different rates?"
        )
    renderer = renderer or available_renderer()
    if renderer == "plan":
        write_video(path, plan_frames(q, tee_pose, size, robot), fps)
        return renderer
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        process.submit(
            _write_scene_video, renderer, path, q, tee_pose, fps, size, robot.config_name
        ).result()
    return renderer


def available_renderer() -> Renderer:
    """The first of EGL and OSMesa that can create an OpenGL context on this machine, otherwise the
    plan view."""
    for backend in ("egl", "osmesa"):
        try:
            probe = subprocess.run(
                [sys.executable, "-c", "import mujoco; mujoco.GLContext(16, 16).make_current()"],
                env=_gl_environment(backend),
                capture_output=True,
                timeout=PROBE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            continue
        if probe.returncode == 0:
            return backend
    return "plan"


def _gl_environment(backend: str) -> dict[str, str]:
    # If PyOpenGL's own variable named another backend, mujoco would refuse this one.
    return {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}


def _write_scene_video(
    backend: str,
    path: Path,
    q: np.ndarray,
    tee_pose: np.ndarray,
    fps: float,
    size: tuple[int, int],
    robot: str,
) -> None:
    os.environ.update(_gl_environment(backend))
    write_video(path, scene_frames(q, tee_pose, size, find_robot(robot)), fps)


def scene_frames(
    q: np.ndarray, tee_pose: np.ndarray, size: tuple[int, int], robot: Robot
) -> Iterator[np.ndarray]:
    """Renders frames (H, W, 3) uint8 of the table scene; requires a process in which mujoco has
    OpenGL."""
    import mujoco

    model = build_scene(robot)
    data = mujoco.MjData(model)
    tee = int(model.joint("tee_free").qposadr[0])
    with mujoco.Renderer(model, *size) as picture:
        for joints, pose in zip(q, tee_pose, strict=True):
            data.qpos[: robot.num_joints] = joints
            data.qpos[tee : tee + FREE_JOINT] = base_pose_of_tee(pose)
            mujoco.mj_kinematics(model, data)
            mujoco.mj_camlight(model, data)
            picture.update_scene(data, camera="overview")
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                picture.scene.flags[flag] = False
            yield picture.render()


PLAN_TOP = -0.06
"""Board y at the plan view's upper edge [m]."""
PLAN_HEIGHT = 0.92
"""Board length that fills the plan view's height [m]; the arm's base is just inside its lower
edge."""
SMOOTHING = 3
"""Supersampling factor per axis."""
PAPER = (250, 250, 247)
TABLE = (222, 205, 184)
GOAL = (144, 222, 144)
BLOCK = (107, 122, 148)
PUSHER = (65, 105, 225)
ARM = (160, 165, 172)
JOINT = (56, 61, 69)


def plan_frames(
    q: np.ndarray, tee_pose: np.ndarray, size: tuple[int, int], robot: Robot
) -> Iterator[np.ndarray]:
    """Renders frames (H, W, 3) uint8 from above, with board axes as in gym-pusht and the arm at the
    bottom."""
    from PIL import Image, ImageDraw

    height, width = size
    # Pillow does not anti-alias, so frames are drawn larger and averaged.
    scale = SMOOTHING * height / PLAN_HEIGHT
    corner = np.array([(BOARD_SIZE - SMOOTHING * width / scale) / 2, PLAN_TOP])

    def pixels(points: np.ndarray) -> list[tuple[float, float]]:
        return [(x, y) for x, y in np.round((points - corner) * scale).tolist()]

    ground = Image.new("RGB", (SMOOTHING * width, SMOOTHING * height), TABLE)
    pencil = ImageDraw.Draw(ground)
    pencil.rectangle(pixels(np.array([[0.0, 0.0], [BOARD_SIZE, BOARD_SIZE]])), fill=PAPER)
    for polygon in tee_polygons(GOAL_POSE):
        pencil.polygon(pixels(polygon), fill=GOAL)

    for joints, pose in zip(q, tee_pose, strict=True):
        frame = ground.copy()
        pencil = ImageDraw.Draw(frame)
        for polygon in tee_polygons(pose):
            pencil.polygon(pixels(polygon), fill=BLOCK)
        arm = robot.chain.joint_frames(joints)[:, :3, 3]
        links = pixels(board_from_base(np.vstack([np.zeros(3), arm])))
        pencil.line(links, fill=ARM, width=max(2, round(0.035 * scale)), joint="curve")
        for joint in links[:-1]:
            pencil.circle(joint, max(2.0, 0.012 * scale), fill=JOINT)
        pencil.circle(links[-1], max(2.0, AGENT_RADIUS * scale), fill=PUSHER)
        yield np.asarray(frame.reduce(SMOOTHING))
