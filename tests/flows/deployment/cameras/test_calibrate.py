"""`handoff camera board` and `handoff camera calibrate`: by a film, and by recorded episodes."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest

from flows.commands.app import main
from flows.deployment.cameras.calibrate import matrices, rest_ends
from real.cameras.calibration.calibration_file import read_calibrations
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.franka.kinematics import rotation_matrix, rotation_vector
from robots.spec import FieldSpec
from tests.real.cameras.calibration.boards import MATRIX, SIZE, board_poses, seen

POSES = board_poses(20)


@pytest.fixture(scope="module")
def pictures() -> list[np.ndarray]:
    return [seen(pose) for pose in POSES]


def test_a_film_of_the_board_calibrates_a_camera(
    pictures: list[np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    film, out = tmp_path / "film.avi", tmp_path / "cameras.json"
    with av.open(str(film), "w") as container:
        stream = container.add_stream("mjpeg", rate=30)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuvj420p"
        stream.bit_rate = 40_000_000
        for image in pictures:
            # A film has most views several times.
            for _ in range(2):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    assert main(["camera", "calibrate", f"front={film}", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "front: reprojection error 0." in printed
    assert "pose: not known" in printed
    calibration = read_calibrations(out)["front"]
    assert calibration.focal_length == pytest.approx((MATRIX[0, 0], MATRIX[1, 1]), rel=0.01)
    assert (calibration.width, calibration.height) == SIZE
    assert json.loads(out.read_text())["cameras"]["front"]["views"] >= 10


def episodes(path: Path, base_T_grasp: np.ndarray, pictures: list[np.ndarray]) -> Path:
    """A store with one episode: the arm rests for ten steps in each pose, and moves between."""
    rows, images = [], []
    flat = np.array([[*pose[:3, 3], *rotation_vector(pose[:3, :3])] for pose in base_T_grasp])
    for number, (pose, image) in enumerate(zip(flat, pictures, strict=True)):
        rows += [pose] * 10 + [0.5 * (pose + flat[(number + 1) % len(flat)])]
        images += [image] * 10 + [np.zeros_like(image)]
    fields = {
        "grasp_pose": FieldSpec(shape=(6,), dtype="float64", unit="m, rad", frame="base"),
        "image_wrist": FieldSpec(shape=(SIZE[1], SIZE[0], 3), dtype="uint8", unit="u8"),
    }
    schema = EpisodeSchema(
        name="board", streams={"policy": StreamSpec(rate_hz=20.0, fields=fields)}, robot="fr3"
    )
    with EpisodeStore.create(path, schema) as store:
        streams = {"policy": {"grasp_pose": np.array(rows), "image_wrist": np.array(images)}}
        store.append(streams, {"success": True})
    return path


def test_recorded_episodes_also_give_the_pose(
    pictures: list[np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grasp_T_camera, base_T_board = np.eye(4), np.eye(4)
    grasp_T_camera[:3, :3] = rotation_matrix(np.array([0.2, -0.1, 1.5]))
    grasp_T_camera[:3, 3] = 0.05, -0.02, -0.08
    base_T_board[:3, :3] = rotation_matrix(np.array([3.0, 0.0, 0.2]))
    base_T_board[:3, 3] = 0.4, 0.1, 0.0
    base_T_grasp = base_T_board @ np.linalg.inv(POSES) @ np.linalg.inv(grasp_T_camera)
    store = episodes(tmp_path / "demos.zarr", base_T_grasp, pictures)
    out = tmp_path / "cameras.json"
    command = ["camera", "calibrate", "wrist", "--episodes", str(store), "--out", str(out)]
    assert main(command) == 0
    assert "pose in the frame grasp: " in capsys.readouterr().out
    calibration = read_calibrations(out)["wrist"]
    assert calibration.frame == "grasp"
    assert calibration.position is not None
    np.testing.assert_allclose(calibration.position, grasp_T_camera[:3, 3], atol=0.003)
    assert main([*command, "--mount", "table"]) == 1
    assert "--mount the other one" in capsys.readouterr().err


def test_a_picture_counts_at_the_end_of_a_rest_alone() -> None:
    poses = np.zeros((12, 6))
    poses[3:8, 0] = 0.1
    poses[8:, 5] = 0.1
    assert rest_ends(matrices(poses), 3) == [7, 11]
    assert rest_ends(matrices(poses), 2) == [2, 7, 11]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["calibrate", "front"], "expected NAME=SOURCE"),
        (["calibrate", "front=0", "--episodes", "x"], "x: no such file or folder"),
        (["calibrate", "front=/nope/film.mp4"], "cannot be opened"),
        (["board", "board.jpg"], "neither .pdf nor .png"),
        (["board", "--square-mm", "1"], "Must be >= 5"),
    ],
)
def test_arguments_that_do_not_fit_are_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["camera", *words]) != 0
    assert message in capsys.readouterr().err


def test_the_board_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["camera", "board", str(tmp_path / "board.pdf"), "--square-mm", "30"]) == 0
    assert "squares of 30 mm" in capsys.readouterr().out
    assert (tmp_path / "board.pdf").read_bytes().startswith(b"%PDF")
