"""Videos whose writer was killed, and videos whose files are damaged."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.segments.video import VideoField, VideoWriter, recover
from robots.episodes.segments.video_codec import HEADER, read_header, write_header
from robots.episodes.segments.video_packets import PACKETS, VIDEO
from robots.errors import HandoffError
from tests.robots.episodes.segments.numbered_pictures import (
    CONFIGS,
    HEIGHT,
    WIDTH,
    numbers_in,
    picture,
    write,
)

WRITER = """
import sys
from pathlib import Path
import time
from robots.episodes.segments.video import VideoWriter
from tests.robots.episodes.segments.numbered_pictures import CONFIGS, picture
writer = VideoWriter(Path(sys.argv[1]), picture(0).shape, 30.0, CONFIGS[sys.argv[2]])
for number in range(500):
    writer.append(picture(number))
    print(number + 1, flush=True)
    time.sleep(0.002)
time.sleep(60)
"""


@pytest.mark.parametrize("name", ["h264", "av1", "ffv1"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_killed_writer_costs_the_last_few_frames(tmp_path, name, seed):
    folder = tmp_path / "camera"
    command = [sys.executable, "-c", WRITER, str(folder), name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    chance = random.Random(seed)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(chance.randrange(20, 90))]
    time.sleep(chance.random() * 0.02)
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.read().splitlines()
    process.wait()
    appended = int(lines[-1])
    with pytest.raises(HandoffError, match=r"incomplete. Was its writer killed"):
        VideoField(folder)

    frames = recover(folder)

    assert appended - 4 <= frames <= appended + 1
    assert numbers_in(VideoField(folder).read(0, frames)) == list(range(frames))
    assert recover(folder) == frames


def test_a_recording_that_was_cut_anywhere_is_recovered_up_to_there(tmp_path):
    folder = tmp_path / "camera"
    writer = VideoWriter(folder, (HEIGHT, WIDTH, 3), 30.0)
    for number in range(30):
        writer.append(picture(number))
    written = (folder / VIDEO).read_bytes()
    writer.abort()
    before = 0
    for size in sorted(random.Random(0).sample(range(len(written)), 100)):
        cut = unfinished(tmp_path / str(size), written[:size])
        frames = recover(cut)
        assert frames >= before
        before = frames
        if frames:
            assert numbers_in(VideoField(cut).read(0, frames)) == list(range(frames))
    assert before >= 24


def unfinished(folder: Path, video: bytes) -> Path:
    """A folder with the file of a writer that was killed before it wrote the other files."""
    writer = VideoWriter(folder, (HEIGHT, WIDTH, 3), 30.0)
    header = (folder / HEADER).read_bytes()
    writer.abort()
    folder.mkdir()
    (folder / HEADER).write_bytes(header)
    (folder / VIDEO).write_bytes(video)
    return folder


def test_writers_that_are_killed_while_they_finish_cost_no_frame(tmp_path):
    writer = VideoWriter(tmp_path / "v", (HEIGHT, WIDTH, 3), 30.0)
    for number in range(21):
        writer.append(picture(number))
    fragments = (tmp_path / "v" / VIDEO).read_bytes()
    writer.finish()
    finished = (tmp_path / "v" / VIDEO).read_bytes()
    index = finished.index(b"moov", len(fragments)) - 4
    last = finished[len(fragments) : index]
    states = {
        "complete": (finished, 21),
        "with half an index": (fragments + last + finished[index : index + 200], 21),
        "with two indices": (fragments + last + finished[index:], 21),
        "without the last fragment": (fragments, 20),
    }
    for name, (video, frames) in states.items():
        folder = unfinished(tmp_path / name, video)
        assert (name, recover(folder)) == (name, frames)
        assert numbers_in(VideoField(folder).read(0, frames)) == list(range(frames))


@pytest.mark.parametrize(
    ("name", "mask", "left"),
    [
        ("ffv1", 0, 14),
        ("h264", 0, 14),
        ("av1", 0, 14),
        ("ffv1", 0x55, 14),
        ("h264", 0x55, 12),
        ("av1", 0x55, 12),
    ],
)
def test_damage_ends_what_is_recovered(tmp_path, name, mask, left):
    folder = tmp_path / "v"
    write(folder, [picture(n) for n in range(30)], CONFIGS[name])
    header = read_header(folder)
    packets = np.load(folder / PACKETS)
    with (folder / VIDEO).open("r+b") as file:
        file.seek(packets["offset"][14])
        coded = file.read(int(packets["size"][14]))
        file.seek(packets["offset"][14])
        file.write(bytes(byte ^ mask for byte in coded) if mask else bytes(len(coded)))
    (folder / PACKETS).unlink()
    write_header(folder, replace(header, frames=0))
    assert recover(folder) == left
    assert numbers_in(VideoField(folder).read(0, left)) == list(range(left))


def test_a_folder_without_frames_recovers_none(tmp_path):
    assert recover(tmp_path / "missing") == 0
    writer = VideoWriter(tmp_path / "v", (HEIGHT, WIDTH, 3), 30.0)
    assert recover(tmp_path / "v") == 0
    writer.abort()


@pytest.mark.parametrize("name", [VIDEO, PACKETS, HEADER])
def test_a_changed_byte_is_found_or_changes_no_frame(tmp_path, name):
    folder = tmp_path / "camera"
    expected = write(folder, [picture(n) for n in range(20)]).read(0, 20)
    whole = (folder / name).read_bytes()
    chance = random.Random(0)
    found = unchanged = 0
    for _ in range(120):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        (folder / name).write_bytes(damaged)
        try:
            read = VideoField(folder).read(0, 20)
        except HandoffError as error:
            found += str(folder) in str(error) and "\n" not in str(error)
        else:
            unchanged += 1
            np.testing.assert_array_equal(read, expected)
    assert found + unchanged == 120
    assert found > 30


@pytest.mark.parametrize("name", [VIDEO, PACKETS, HEADER])
def test_a_file_that_was_cut_short_is_named(tmp_path, name):
    folder = tmp_path / "camera"
    write(folder, [picture(n) for n in range(20)])
    whole = (folder / name).read_bytes()
    for size in (0, 1, len(whole) // 3, len(whole) // 2):
        (folder / name).write_bytes(whole[:size])
        with pytest.raises(HandoffError, match=r"camera.*(cut short|damaged)"):
            VideoField(folder)


@pytest.mark.parametrize("name", [VIDEO, PACKETS])
def test_a_file_of_another_video_is_refused(tmp_path, name):
    write(tmp_path / "other", [picture(n) for n in range(64)])
    write(tmp_path / "v", [picture(n) for n in range(200, 264)])
    (tmp_path / "v" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(HandoffError, match=r"(have changed|does not belong|cut short)"):
        VideoField(tmp_path / "v").read(0, 64)


@pytest.mark.parametrize("name", [VIDEO, PACKETS, HEADER])
def test_a_missing_file_is_an_incomplete_video(tmp_path, name):
    write(tmp_path / "v", [picture(0)])
    (tmp_path / "v" / name).unlink()
    with pytest.raises(HandoffError, match=r"(cannot be read|holds no video)"):
        VideoField(tmp_path / "v")


def test_frames_that_are_larger_than_the_header_states_are_refused(tmp_path):
    write(tmp_path / "v", np.zeros((2, 480, 640, 3), np.uint8))
    header = read_header(tmp_path / "v")
    for shape in ((16, 16, 3), (470, 640, 3)):
        write_header(tmp_path / "v", replace(header, shape=shape))
        with pytest.raises(HandoffError, match=r"(cannot be decoded|of another size)"):
            VideoField(tmp_path / "v").read(0, 2)


def test_a_newer_version_is_refused(tmp_path):
    write(tmp_path / "v", [picture(0)])
    path = tmp_path / "v" / HEADER
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(HandoffError, match="newer Handoff"):
        VideoField(tmp_path / "v")
