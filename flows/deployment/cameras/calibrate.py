"""Implements `handoff camera calibrate`: collects views of the board from a camera or from recorded
episodes, and writes the file of calibrated cameras."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flows.deployment.cameras.pictures import PREFIX
from real.cameras.calibration.board import BoardConfig, BoardFinder
from real.cameras.calibration.calibration_file import add_to_file, calibration_of
from real.cameras.calibration.hand_eye import HandEye, fixed_pose, wrist_pose
from real.cameras.calibration.intrinsics import Intrinsics, calibrate_intrinsics
from real.cameras.calibration.views import ViewChoice
from real.cameras.camera import Camera
from real.cameras.config import CameraConfig
from robots.errors import HandoffError
from robots.franka.kinematics import batched_rotation_vector, rotation_matrix

Mount = Literal["gripper", "table"]
"""Place of a camera."""
FRAMES: dict[Mount, str] = {"gripper": "grasp", "table": "base"}
"""Frame of the camera's pose by its place."""
POSE_FIELD = "grasp_pose"
STILL_SECONDS = 0.3
"""Time for which the arm must have rested before a picture [s], longer than a picture is old."""
STILL_METRES = 0.0005
"""Largest motion of a resting gripper [m]."""
STILL_RADIANS = 0.004
"""Largest rotation of a resting gripper [rad]."""


def calibrate_command(
    camera: str,
    board: BoardConfig,
    out: Path,
    *,
    episodes: Path | None,
    mount: Mount,
    views: int,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    """Calibrates a camera; `flows.commands.cameras.calibrate` describes the parameters.

    Raises:
        HandoffError: no such camera or field, or views that do not determine the calibration.
    """
    name, _, source = camera.partition("=")
    if not name or bool(source) == (episodes is not None):
        raise HandoffError(
            f"camera calibrate {camera}: expected NAME=SOURCE, such as front=0, or NAME with --episodes STORE."
        )
    pose: HandEye | None = None
    if episodes is None:
        found = calibrate_intrinsics(board, _collect(source, board, views, seconds, say))
    else:
        found, pose = _of_episodes(episodes, name, board, mount, say)
    about: dict[str, Any] = {
        "reprojection_px": round(found.error, 4),
        "views": len(found.camera_T_board),
        "square_m": board.square,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    for line in _figures(name, found, pose, FRAMES[mount]):
        say(line)
    if pose is not None:
        about["position_scatter_m"] = round(pose.position_scatter, 6)
        about["rotation_scatter_rad"] = round(pose.rotation_scatter, 6)
    frame = "" if pose is None else FRAMES[mount]
    add_to_file(out, name, calibration_of(found, pose, frame), about)
    say(f"written  {out}; give it to record and deploy as calibration={out}")


def _figures(name: str, found: Intrinsics, pose: HandEye | None, frame: str) -> Iterator[str]:
    """What was found, in lines."""
    width, height = found.size
    matrix = found.matrix
    yield (
        f"{name}: reprojection error {found.error:.2f} px over {len(found.camera_T_board)} views of "
        f"{width} x {height} px"
    )
    yield (
        f"focal length {matrix[0, 0]:.1f}, {matrix[1, 1]:.1f} px (standard deviation "
        f"{100 * found.deviation:.2f} %), principal point {matrix[0, 2] + 0.5:.1f}, {matrix[1, 2] + 0.5:.1f} px"
    )
    if pose is None:
        yield "pose: not known, which needs --episodes with the poses of the arm"
        return
    position = ", ".join(f"{1e3 * value:.1f}" for value in pose.frame_T_camera[:3, 3])
    yield (
        f"pose in the frame {frame}: {position} mm; the board scatters by {1e3 * pose.position_scatter:.1f} mm and "
        f"{math.degrees(pose.rotation_scatter):.2f} degrees"
    )


def _collect(
    source: str, board: BoardConfig, views: int, seconds: float, say: Callable[[str], None]
) -> ViewChoice:
    """Collects views of the board from a camera, or from a film until its end.

    Raises:
        HandoffError: the camera cannot be opened, or is lost.
    """
    finder = BoardFinder(board)
    choice: ViewChoice | None = None
    opened = Camera(CameraConfig(source=source))
    until = time.monotonic() + seconds
    if not opened.is_file:
        say(f"Show the board from {views} directions and distances; {seconds:g} s at most.")
    try:
        while opened.is_file or time.monotonic() < until:
            try:
                image = opened.read_whole()
            except HandoffError:
                if opened.is_file and choice is not None:
                    break
                raise
            choice = choice or ViewChoice((image.shape[1], image.shape[0]))
            view = finder.view(image)
            if view is not None and choice.offer(view):
                say(f"view {len(choice.views)}: {len(view.numbers)} corners")
            if choice.full or len(choice.views) >= views:
                break
    finally:
        opened.close()
    if choice is None:
        raise HandoffError(f"camera {source}: sent no picture in {seconds:g} s.")
    return choice


def _of_episodes(
    path: Path, name: str, board: BoardConfig, mount: Mount, say: Callable[[str], None]
) -> tuple[Intrinsics, HandEye]:
    """Calibrates a camera by the pictures of recorded episodes in which the arm rested.

    Raises:
        HandoffError: the episodes have no such pictures or no poses of the gripper, or see
            `calibrate_intrinsics` and `wrist_pose`.
    """
    finder = BoardFinder(board)
    choice: ViewChoice | None = None
    poses = []
    for pose, image in _rests(path, f"{PREFIX}{name}"):
        choice = choice or ViewChoice((image.shape[1], image.shape[0]))
        view = finder.view(image)
        if view is not None and choice.offer(view):
            poses.append(pose)
            say(f"view {len(poses)}: {len(view.numbers)} corners")
    if choice is None:
        raise HandoffError(
            f"camera calibrate: the arm rests nowhere in {path} for {STILL_SECONDS:g} s, so that no picture has a "
            "certain pose. Let it rest in each pose."
        )
    found = calibrate_intrinsics(board, choice)
    solve = wrist_pose if mount == "gripper" else fixed_pose
    return found, solve(np.array(poses), found.camera_T_board)


def _rests(path: Path, field: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The pose (4, 4) of the gripper [m] and the picture (height, width, 3) at the end of every
    rest of the arm."""
    from robots.episodes.store import EpisodeStore

    store = EpisodeStore.open(path, "r")
    stream = store.schema.stream("policy")
    for needed in (field, POSE_FIELD):
        if needed not in stream.fields:
            raise HandoffError(
                f"camera calibrate: {path} has no field {needed}; it has {', '.join(sorted(stream.fields))}. Record it "
                "with handoff record TASK --arm ADDRESS --camera NAME=SOURCE."
            )
    steps = math.ceil(STILL_SECONDS * stream.rate_hz)
    for episode in range(store.num_episodes):
        poses = matrices(store.read(episode, "policy", [POSE_FIELD])[POSE_FIELD])
        for row in rest_ends(poses, steps):
            window = slice(row, row + 1)
            yield poses[row], store.read(episode, "policy", [field], window)[field][0]


def matrices(poses: np.ndarray) -> np.ndarray:
    """(T, 4, 4) of poses (T, 6): position [m] and rotation vector [rad]."""
    found = np.tile(np.eye(4), (len(poses), 1, 1))
    found[:, :3, :3] = [rotation_matrix(pose[3:]) for pose in poses]
    found[:, :3, 3] = poses[:, :3]
    return found


def rest_ends(poses: np.ndarray, steps: int) -> list[int]:
    """Rows at which a rest of at least `steps` steps ends, of poses (T, 4, 4) [m]."""
    still = np.zeros(len(poses) + 1, bool)
    for row in range(steps, len(poses)):
        before = poses[row - steps : row]
        moved = np.linalg.norm(before[:, :3, 3] - poses[row, :3, 3], axis=1).max()
        turns = batched_rotation_vector(before[:, :3, :3] @ poses[row, :3, :3].T)
        still[row] = moved < STILL_METRES and np.linalg.norm(turns, axis=1).max() < STILL_RADIANS
    return [row for row in range(len(poses)) if still[row] and not still[row + 1]]
