"""Videos of cameras: their frames by number, exact depth, and what cannot be stored."""

import errno
import pickle
import random
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import pytest

from robots.episodes.segments.video import VideoField, VideoWriter
from robots.episodes.segments.video_codec import Av1Config, Ffv1Config, H264Config
from robots.episodes.segments.video_packets import VIDEO
from robots.errors import HandoffError
from tests.robots.episodes.segments.numbered_pictures import (
    CONFIGS,
    HEIGHT,
    WIDTH,
    noise,
    numbers_in,
    picture,
    write,
)

FRAMES = 500
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from robots.episodes.segments.video import VideoWriter
from robots.episodes.segments.video_codec import Ffv1Config
from tests.robots.episodes.segments.numbered_pictures import noise
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
folder = Path(sys.argv[1])
try:
    with VideoWriter(folder, (120, 160, 3), 30.0, Ffv1Config()) as writer:
        for seed in range(10):
            writer.append(noise((120, 160, 3), "uint8", seed))
except OSError as error:
    print(error.errno, writer.frames < 10, folder.exists())
"""


@pytest.fixture(scope="module", params=CONFIGS)
def video(request, tmp_path_factory) -> VideoField:
    """500 numbered pictures in each codec."""
    folder = tmp_path_factory.mktemp("video") / "camera"
    return write(folder, [picture(n) for n in range(FRAMES)], CONFIGS[request.param])


@pytest.fixture(scope="module")
def h264(tmp_path_factory) -> VideoField:
    folder = tmp_path_factory.mktemp("video") / "camera"
    return write(folder, [picture(n) for n in range(64)])


def test_every_window_holds_its_own_frames(video):
    chance = random.Random(0)
    for _ in range(150):
        start = chance.randrange(FRAMES)
        stop = min(FRAMES, start + chance.choice((1, 2, 3, 16)))
        assert numbers_in(video.read(start, stop)) == list(range(start, stop))


def test_all_frames_are_read_in_order(video):
    assert numbers_in(video.read(0, FRAMES)) == list(range(FRAMES))
    assert video.shape == (FRAMES, HEIGHT, WIDTH, 3)
    assert video.dtype == np.uint8


def test_frames_are_read_in_any_order_and_repeated(video):
    wanted = [499, 3, 3, 250, 0, 251, 3, 499, 128]
    assert numbers_in(video.frames(wanted)) == wanted


def test_a_frame_is_the_same_in_every_window(video):
    alone = video.read(101, 102)[0]
    np.testing.assert_array_equal(video.read(90, 120)[11], alone)
    np.testing.assert_array_equal(video.frames([400, 101])[1], alone)


def test_no_indices_give_no_frames(h264):
    assert h264.frames([]).shape == (0, HEIGHT, WIDTH, 3)
    assert h264.read(5, 5).shape == (0, HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("wanted", [[-1], [64], [0, 64]])
def test_numbers_outside_the_video_are_refused(h264, wanted):
    with pytest.raises(HandoffError, match=f"has no frame {wanted[-1]}, expected 0 to 63"):
        h264.frames(wanted)


def test_ffv1_returns_the_exact_pictures(tmp_path):
    pictures = noise((6, 31, 33, 3), np.uint8)
    np.testing.assert_array_equal(
        write(tmp_path / "v", pictures, Ffv1Config()).read(0, 6), pictures
    )


@pytest.mark.parametrize("shape", [(48, 64), (47, 61, 1)])
def test_depth_is_exact(tmp_path, shape):
    depth = noise((5, *shape), np.uint16)
    field = write(tmp_path / "v", depth)
    assert field.dtype == np.uint16
    np.testing.assert_array_equal(field.frames([4, 0, 2]), depth[[4, 0, 2]])


@pytest.mark.parametrize("config", [H264Config(), H264Config(pixel_format="yuv444p"), Av1Config()])
def test_the_last_row_and_column_of_odd_sizes_are_kept(tmp_path, config):
    gray = np.full((33, 35, 3), 90, np.uint8)
    gray[-1] = 200
    gray[:, -1] = 200
    read = write(tmp_path / "v", [gray] * 3, config).read(0, 3)
    assert read.shape == (3, 33, 35, 3)
    assert np.abs(read.astype(int) - gray).max() < 30


@pytest.mark.parametrize("config", [H264Config(), H264Config(preset="ultrafast"), Av1Config()])
def test_lossy_colours_of_a_smooth_picture_are_near(tmp_path, config):
    rows, columns = np.mgrid[:120, :160]
    smooth = np.stack([60 + rows, 40 + columns, 200 - rows], axis=-1).astype(np.uint8)
    read = write(tmp_path / "v", [smooth] * 6, config).read(0, 6)
    assert np.abs(read.astype(int) - smooth).mean() < 2.0


def test_av1_keeps_a_change_of_a_plain_surface(tmp_path):
    pictures = np.full((8, 480, 640, 3), 100, np.uint8)
    for number in range(8):
        for bit in range(3):
            if number >> bit & 1:
                pictures[number, :, bit * 71 : (bit + 1) * 71] = 200
    read = write(tmp_path / "v", pictures, Av1Config()).read(0, 8)
    assert np.abs(read.astype(int) - pictures).mean(axis=(1, 2, 3)).max() < 1.0


def test_equal_frames_give_equal_bytes_at_another_time(tmp_path):
    def files(run: str) -> dict[str, bytes]:
        for name, config in CONFIGS.items():
            write(tmp_path / run / name, [picture(n) for n in range(20)], config)
        paths = sorted((tmp_path / run).rglob("*.*"))
        return {str(path.relative_to(tmp_path / run)): path.read_bytes() for path in paths}

    first = files("first")
    time.sleep(1.1)  # times in headers are whole seconds
    assert files("second") == first
    assert len(first) == 3 * len(CONFIGS)


@pytest.mark.parametrize(("rate_hz", "pts"), [(30.0, 1), (10.0, 1), (29.97, 100), (0.5, 2)])
def test_frame_n_has_the_time_n_by_rate_for_other_players(tmp_path, rate_hz, pts):
    import av

    write(tmp_path / "v", [picture(n) for n in range(10)], rate_hz=rate_hz)
    with av.open(str(tmp_path / "v" / VIDEO)) as container:
        frames = list(container.decode(video=0))
    assert [frame.pts for frame in frames] == [n * pts for n in range(10)]
    assert frames[9].time == pytest.approx(9 / rate_hz)
    assert numbers_in(np.stack([f.to_ndarray(format="rgb24") for f in frames])) == list(range(10))


def test_a_video_is_pickled_as_its_path(h264):
    stored = pickle.dumps(h264)
    assert len(stored) < 600
    assert numbers_in(pickle.loads(stored).read(10, 13)) == [10, 11, 12]


def numbers_at(field: VideoField, start: int) -> tuple[int, list[int]]:
    return start, numbers_in(field.read(start, start + 4))


@pytest.mark.parametrize("kind", ["threads", "fork", "spawn"])
def test_threads_and_processes_read_at_once(h264, kind):
    numbers_at(h264, 0)
    pool = (
        ThreadPoolExecutor(4)
        if kind == "threads"
        else ProcessPoolExecutor(2, mp_context=get_context(kind))
    )
    starts = [start * 7 % 60 for start in range(60)]
    with pool:
        for start, numbers in pool.map(numbers_at, [h264] * 60, starts):
            assert numbers == list(range(start, start + 4))


def test_videos_of_one_codec_are_read_in_turn(tmp_path, h264):
    other = write(tmp_path / "v", [picture(n) for n in range(100, 110)])
    lossless = write(tmp_path / "w", [picture(n) for n in range(200, 210)], Ffv1Config())
    for start in range(8):
        assert numbers_in(other.read(start, start + 2)) == [100 + start, 101 + start]
        assert numbers_in(h264.read(start, start + 2)) == [start, start + 1]
        assert numbers_in(lossless.read(start, start + 2)) == [200 + start, 201 + start]


def test_another_shape_than_the_schemas_is_refused(h264):
    VideoField(h264.folder, (HEIGHT, WIDTH, 3))
    with pytest.raises(HandoffError, match=r"shape \(45, 63, 3\), expected \(96, 96, 3\)"):
        VideoField(h264.folder, (96, 96, 3))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((4, 5, 2), None, r"shape \(4, 5, 2\), expected"),
        ((45,), None, r"shape \(45,\), expected"),
        ((48, 64), H264Config(), "is lossy; choose ffv1"),
        ((0, 64, 3), None, "shape"),
        ((9000, 64, 3), None, "8192"),
        ((2, 2, 3), Av1Config(), "cannot be encoded"),
    ],
)
def test_frames_that_cannot_be_stored_are_refused(tmp_path, shape, options, message):
    with pytest.raises(HandoffError, match=message):
        VideoWriter(tmp_path / "v", shape, 30.0, options)
    assert not (tmp_path / "v").exists()


def test_a_frame_of_another_shape_or_type_is_refused(tmp_path):
    with VideoWriter(tmp_path / "v", (HEIGHT, WIDTH, 3), 30.0) as writer:
        writer.append(picture(0))
        with pytest.raises(HandoffError, match=r"frame 1 has the shape \(45, 62, 3\)"):
            writer.append(picture(1)[:, 1:])
        with pytest.raises(HandoffError, match="of float32, expected"):
            writer.append(picture(1).astype(np.float32))
    assert VideoField(tmp_path / "v").shape[0] == 1
    with pytest.raises(HandoffError, match="is closed"):
        writer.append(picture(1))


def test_a_video_without_frames_is_refused_and_deleted(tmp_path):
    with (
        pytest.raises(HandoffError, match="no frames"),
        VideoWriter(tmp_path / "v", (HEIGHT, WIDTH, 3), 30.0),
    ):
        pass
    assert not (tmp_path / "v").exists()


def test_a_failed_recording_is_deleted(tmp_path):
    def fail() -> None:
        with VideoWriter(tmp_path / "v", (HEIGHT, WIDTH, 3), 30.0) as writer:
            writer.append(picture(0))
            raise RuntimeError("camera lost")

    with pytest.raises(RuntimeError):
        fail()
    assert not (tmp_path / "v").exists()


def test_abort_keeps_a_finished_video(tmp_path):
    writer = VideoWriter(tmp_path / "v", (HEIGHT, WIDTH, 3), 30.0)
    writer.append(picture(0))
    writer.finish()
    writer.finish()
    writer.abort()
    assert numbers_in(VideoField(tmp_path / "v").read(0, 1)) == [0]


def test_a_video_is_not_written_over(tmp_path, h264):
    with pytest.raises(HandoffError, match="is not empty"):
        VideoWriter(Path(str(h264.folder)), (HEIGHT, WIDTH, 3), 30.0)
    assert numbers_in(h264.read(0, 2)) == [0, 1]


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "v")], capture_output=True, text=True
    )
    assert done.stdout.split() == [str(errno.EFBIG), "True", "False"], done.stderr


@pytest.mark.parametrize("config", [H264Config(), Ffv1Config()])
def test_the_encoder_and_the_decoder_start_no_threads(tmp_path, config):
    before = psutil.Process().num_threads()
    pictures = noise((6, 480, 640, 3), np.uint8)
    with VideoWriter(tmp_path / "v", (480, 640, 3), 30.0, config) as writer:
        for frame in pictures:
            writer.append(frame)
        assert psutil.Process().num_threads() == before
    VideoField(tmp_path / "v").read(0, 6)
    assert psutil.Process().num_threads() == before
