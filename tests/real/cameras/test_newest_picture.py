"""The newest picture of a camera in memory that two processes share."""

import threading
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

from real.cameras.camera import Picture
from real.cameras.newest_picture import SLOTS, NewestPicture
from robots.errors import HandoffError


@pytest.fixture
def newest() -> Iterator[NewestPicture]:
    with NewestPicture(8) as made:
        yield made


def grey(level: int, width: int = 10) -> Picture:
    return Picture(np.full((8, width, 3), level, np.uint8), float(level))


def test_there_is_none_before_the_first(newest):
    assert newest.read() is None
    assert newest.count == 0


def test_the_other_process_sees_the_last_one_whole(newest):
    other = NewestPicture(8, newest.name)
    for level in range(3 * SLOTS + 1):
        other.write(grey(level))
        seen = newest.read()
        assert seen.captured == level
        np.testing.assert_array_equal(seen.image, grey(level).image)
    assert newest.count == 3 * SLOTS + 1
    other.__exit__()


def test_a_reader_keeps_its_copy(newest):
    newest.write(grey(1))
    kept = newest.read()
    for level in range(SLOTS):
        newest.write(grey(100 + level))
    assert (kept.image == 1).all()


def test_no_reader_sees_a_picture_that_is_half_written():
    with NewestPicture(120) as newest:
        ended = threading.Event()

        def write() -> None:
            level = 0
            while not ended.is_set():
                level = (level + 1) % 251
                newest.write(Picture(np.full((120, 160, 3), level, np.uint8), float(level)))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(2000):
                seen = newest.read()
                if seen is not None:
                    assert (seen.image == round(seen.captured)).all()
        finally:
            ended.set()
            writer.join()


def test_a_picture_that_does_not_fit_is_refused(newest):
    with pytest.raises(HandoffError, match="8 x 33, expected height 8"):
        newest.write(grey(1, width=33))
    with pytest.raises(HandoffError, match="9 x 10"):
        newest.write(Picture(np.zeros((9, 10, 3), np.uint8), 0.0))


def test_a_fault_is_told_until_the_next_picture(newest):
    assert newest.fault is None
    other = NewestPicture(8, newest.name)
    other.fail("camera 0: cannot be opened.", lasting=False)
    assert newest.fault == ("camera 0: cannot be opened.", False)
    other.fail("é" * 1000, lasting=True)
    assert newest.fault is not None
    assert newest.fault.lasting
    assert newest.fault.message.startswith("é" * 299)
    other.write(grey(1))
    assert newest.fault is None
    other.__exit__()


def test_the_memory_is_freed():
    with NewestPicture(8) as made:
        name = made.name
    with pytest.raises(FileNotFoundError):
        SharedMemory(name=name)
