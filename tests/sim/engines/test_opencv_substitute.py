import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sim.engines.opencv_substitute import draw_cross, importable_opencv, resize


@pytest.fixture
def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)


@pytest.fixture
def unloadable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which OpenCV and gym-pusht have not been imported, and OpenCV cannot be."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("cv2", "gym_pusht")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cv2", None)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "gym_pusht"]:
        del sys.modules[name]


def test_a_quarter_of_the_size_is_the_mean_of_the_four_in_the_middle() -> None:
    grey = np.arange(16, dtype=np.uint8).reshape(4, 4, 1) * 10
    # The mean of 50, 60, 90 and 100.
    assert resize(grey, (1, 1)).tolist() == [[[75]]]


def test_the_same_size_is_the_same_picture(picture: np.ndarray) -> None:
    np.testing.assert_array_equal(resize(picture, (512, 512)), picture)


@pytest.mark.needs("opencv")
def test_smaller_pictures_are_those_of_opencv_to_the_bit(picture: np.ndarray) -> None:
    import cv2

    for size in ((96, 96), (128, 128), (64, 48), (300, 7)):
        np.testing.assert_array_equal(resize(picture, size), cv2.resize(picture, size))


@pytest.mark.needs("opencv")
def test_larger_pictures_are_those_of_opencv_within_one(picture: np.ndarray) -> None:
    import cv2

    off = np.abs(resize(picture, (680, 680)).astype(int) - cv2.resize(picture, (680, 680)))
    assert off.max() <= 1
    assert (off > 0).mean() < 1 / 2000


@pytest.mark.needs("opencv")
def test_a_cross_covers_what_opencvs_covers() -> None:
    import cv2

    for place, size in ((np.array([40, 50]), 8), (np.array([1, 95]), 9)):
        ours, theirs = np.zeros((96, 96, 3), np.uint8), np.zeros((96, 96, 3), np.uint8)
        draw_cross(ours, place, (255, 0, 0), 0, size, 1)
        point = (int(place[0]), int(place[1]))
        cv2.drawMarker(theirs, point, (255, 0, 0), cv2.MARKER_CROSS, size, 1)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.needs("opencv")
def test_where_opencv_can_be_loaded_it_is_taken() -> None:
    import cv2

    with importable_opencv():
        assert sys.modules["cv2"] is cv2


@pytest.mark.usefixtures("unloadable")
def test_a_failed_import_of_opencv_leaves_no_folder_on_the_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As OpenCV's own loader does if a library of the system is missing."""
    package = tmp_path / "cv2"
    package.mkdir()
    loader = f"import sys\nsys.path.insert(1, {str(package)!r})\nraise ImportError('libGL.so.1')\n"
    (package / "__init__.py").write_text(loader)
    monkeypatch.delitem(sys.modules, "cv2")
    monkeypatch.syspath_prepend(tmp_path)
    paths = list(sys.path)
    with importable_opencv():
        assert sys.modules["cv2"].MARKER_CROSS == 0
    assert sys.path == paths


@pytest.mark.usefixtures("unloadable")
def test_push_t_is_drawn_where_opencv_cannot_be_loaded() -> None:
    from sim.engines.gym_push_t import PushTConfig, PushTEngine

    engine = PushTEngine(1, config=PushTConfig(picture=96))
    assert "cv2" not in sys.modules
    engine.reset(np.array([0]), np.array([100_000]))
    engine.step(np.array([[0.2, 0.3]]), np.array([True]))
    reading = engine.read()
    assert reading.observation["image"].shape == (1, 96, 96, 3)
    assert reading.observation["image"].std() > 10
    assert engine.render(0).shape == (96, 96, 3)
    engine.close()
