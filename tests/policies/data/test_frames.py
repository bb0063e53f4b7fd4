from pathlib import Path

import numpy as np
import pytest
import torch

from policies.data.frames import Frames, FrameStorage
from robots.errors import HandoffError

PICTURE = ((2, 3, 3), np.dtype(np.uint8))
"""18 bytes per step."""


def pictures(steps: int, first: int = 0) -> np.ndarray:
    """Images filled with the number of their step."""
    return np.broadcast_to(
        np.arange(first, first + steps, dtype=np.uint8)[:, None, None, None], (steps, 2, 3, 3)
    )


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rows_of_any_shape_are_gathered():
    frames = Frames([torch.from_numpy(pictures(9).copy())])
    found = frames.steps(torch.tensor([[4, 5], [0, 8]]))
    assert found.shape == (2, 2, 2, 3, 3)
    assert found.dtype == torch.uint8
    assert found[:, :, 1, 2, 0].tolist() == [[4, 5], [0, 8]]


def test_parts_are_numbered_through_in_any_order():
    frames = Frames(
        [
            torch.from_numpy(pictures(count, first).copy())
            for count, first in ((3, 0), (1, 3), (4, 4))
        ]
    )
    assert len(frames) == 8
    assert frames.steps(torch.tensor([7, 0, 3, 2, 2, 4]))[:, 0, 0, 0].tolist() == [7, 0, 3, 2, 2, 4]
    assert frames.steps(torch.zeros(0, dtype=torch.int64)).shape == (0, 2, 3, 3)


def test_a_row_that_was_never_recorded_is_refused():
    with pytest.raises((IndexError, RuntimeError)):
        Frames([torch.from_numpy(pictures(3).copy())]).steps(torch.tensor([3]))


def test_frames_go_to_a_file_where_memory_ends(tmp_path: Path):
    space = FrameStorage(limit_gb=100e-9, folder=tmp_path)
    kept, laid_out, small = (
        space.reserve(name, steps, PICTURE) for name, steps in (("a", 4), ("b", 2), ("c", 1))
    )
    for writer, steps in ((kept, 4), (laid_out, 2), (small, 1)):
        writer.append(pictures(steps))
    assert [len(writer.finish()) for writer in (kept, laid_out, small)] == [4, 2, 1]
    # 72 of 100 bytes are taken, so 36 more do not fit; 18 do.
    assert len(files(tmp_path)) == 1
    assert (tmp_path / files(tmp_path)[0]).stat().st_size == 36


def test_a_file_holds_what_memory_would(tmp_path: Path):
    writers = [FrameStorage(limit, tmp_path).reserve("a", 5, PICTURE) for limit in (0.0, 1.0)]
    for writer in writers:
        writer.append(pictures(2))
        writer.append(pictures(3, first=2))
    from_file, from_memory = (writer.finish() for writer in writers)
    assert torch.equal(from_file, from_memory)
    assert from_file[3, 0, 0, 0] == 3


def test_numbers_of_another_type_are_stored_as_declared(tmp_path: Path):
    writer = FrameStorage(0.0, tmp_path).reserve("cloud", 1, ((2, 3), np.dtype(np.float32)))
    writer.append(np.full((1, 2, 3), 0.5))
    assert writer.finish().dtype == torch.float32


def test_a_complete_file_is_reused(tmp_path: Path):
    first = FrameStorage(0.0, tmp_path).reserve("a", 3, PICTURE)
    first.append(pictures(3))
    first.finish()
    again = FrameStorage(0.0, tmp_path).reserve("a", 3, PICTURE)
    assert again.complete
    again.append(pictures(3, first=100))
    assert again.finish()[:, 0, 0, 0].tolist() == [0, 1, 2]


def test_a_file_of_other_content_is_not_taken_for_it(tmp_path: Path):
    first = FrameStorage(0.0, tmp_path).reserve("a", 3, PICTURE)
    first.append(pictures(3))
    first.finish()
    assert not FrameStorage(0.0, tmp_path).reserve("b", 3, PICTURE).complete
    assert not FrameStorage(0.0, tmp_path).reserve("a", 4, PICTURE).complete


def test_an_incomplete_file_of_a_killed_run_is_written_again(tmp_path: Path):
    killed = FrameStorage(0.0, tmp_path).reserve("a", 3, PICTURE)
    killed.append(pictures(2, first=50))
    del killed
    assert [name.endswith(".partial") for name in files(tmp_path)] == [True]
    storage = FrameStorage(0.0, tmp_path)
    again = storage.reserve("a", 3, PICTURE)
    assert not again.complete
    again.append(pictures(3))
    assert again.finish()[:, 0, 0, 0].tolist() == [0, 1, 2]
    # Another process of the training may be writing the first one; both go in the end.
    assert sorted(name.endswith(".partial") for name in files(tmp_path)) == [False, True]
    storage.clear()
    assert files(tmp_path) == []


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_fewer_steps_than_were_reserved_are_refused(limit: float, tmp_path: Path):
    writer = FrameStorage(limit, tmp_path).reserve("a", 3, PICTURE)
    writer.append(pictures(2))
    with pytest.raises(HandoffError, match="2 steps were written, expected 3"):
        writer.finish()


def test_clearing_removes_files_and_nothing_else(tmp_path: Path):
    (tmp_path / "training.pt").touch()
    space = FrameStorage(0.0, tmp_path)
    whole, part = space.reserve("a", 1, PICTURE), space.reserve("b", 2, PICTURE)
    whole.append(pictures(1, first=7))
    part.append(pictures(1))
    held = whole.finish()
    space.clear()
    assert files(tmp_path) == ["training.pt"]
    assert held[0, 0, 0, 0] == 7
