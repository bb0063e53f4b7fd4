from pathlib import Path

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.franka import find_robot
from sim.rendering import push_t
from sim.rendering.video import write_video
from sim.tasks.push_t.geometry import BOARD_CENTRE, GOAL_POSE, Q_BOARD_CENTRE

FR3 = find_robot("fr3")

Q = np.tile(Q_BOARD_CENTRE, (3, 1))
TEE = np.tile([0.1, 0.1, 0.0], (3, 1))


def decoded(path: Path) -> list[np.ndarray]:
    import av

    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_a_written_video_gives_its_frames_back(tmp_path: Path) -> None:
    frames = [np.full((48, 64, 3), value, dtype=np.uint8) for value in (20, 120, 220)]
    write_video(tmp_path / "v.mp4", frames, fps=10)
    read = decoded(tmp_path / "v.mp4")
    assert [frame.shape for frame in read] == [(48, 64, 3)] * 3
    np.testing.assert_allclose([frame.mean() for frame in read], [20, 120, 220], atol=4)


def test_an_odd_size_loses_one_row_and_column(tmp_path: Path) -> None:
    write_video(tmp_path / "v.mp4", [np.zeros((49, 65, 3), dtype=np.uint8)], fps=10)
    assert decoded(tmp_path / "v.mp4")[0].shape == (48, 64, 3)


def test_a_failed_video_leaves_the_older_one_and_no_fragment(tmp_path: Path) -> None:
    path = tmp_path / "v.mp4"
    path.write_bytes(b"older")
    good = np.zeros((48, 64, 3), dtype=np.uint8)
    with pytest.raises(HandoffError, match="frame 1"):
        write_video(path, [good, good[:40]], fps=10)
    with pytest.raises(HandoffError, match="no frame"):
        write_video(path, [], fps=10)
    assert [p.name for p in tmp_path.iterdir()] == ["v.mp4"]
    assert path.read_bytes() == b"older"


def test_float_frames_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="float64"):
        write_video(tmp_path / "v.mp4", [np.zeros((48, 64, 3))], fps=10)


def test_plan_view_draws_the_pusher_over_the_boards_centre() -> None:
    height, width = 460, 640
    frame = next(push_t.plan_frames(Q, TEE, (height, width), FR3))
    scale = height / push_t.PLAN_HEIGHT
    row = round((BOARD_CENTRE[1] - push_t.PLAN_TOP) * scale)
    assert tuple(frame[row, width // 2]) == push_t.PUSHER


def test_plan_view_needs_no_opengl(tmp_path: Path) -> None:
    assert push_t.render_episode(tmp_path / "v.mp4", Q, TEE, 10, FR3, renderer="plan") == "plan"
    assert len(decoded(tmp_path / "v.mp4")) == 3


def test_without_any_graphics_driver_the_plan_view_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_t, "_gl_environment", lambda backend: {"MUJOCO_GL": "no-such-backend"})
    assert push_t.available_renderer() == "plan"


@pytest.mark.needs("opengl")
def test_table_scene_is_drawn_where_opengl_works(tmp_path: Path) -> None:
    renderer = push_t.available_renderer()
    q = np.concatenate([Q, Q + 0.2])
    tee = np.concatenate([TEE, np.tile(GOAL_POSE, (3, 1))])
    assert (
        push_t.render_episode(
            tmp_path / "v.mp4", q, tee, 10, FR3, size=(120, 160), renderer=renderer
        )
        == renderer
    )
    frames = decoded(tmp_path / "v.mp4")
    assert len(frames) == 6
    assert frames[0].std() > 20
    assert np.abs(frames[0].astype(int) - frames[5]).mean() > 2


def test_streams_of_different_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="equal length"):
        push_t.render_episode(tmp_path / "v.mp4", Q, TEE[:2], 10, FR3)
