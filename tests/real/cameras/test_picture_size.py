"""Pictures are cut and resized to a policy's size, without distortion or aliases."""

import numpy as np
import pytest

from real.cameras.config import CameraConfig, CameraOptionError
from real.cameras.picture_size import frame_of, new_converter, resized


def picture(height: int, width: int) -> np.ndarray:
    """Columns that are alternately black and white."""
    image = np.zeros((height, width, 3), np.uint8)
    image[:, ::2] = 255
    return image


def camera(**options) -> CameraConfig:
    return CameraConfig(source="0", **options)


def test_a_fine_pattern_becomes_its_mean_and_no_coarse_pattern():
    small = resized(frame_of(picture(96, 96)), camera(height=24, width=24))
    assert small.shape == (24, 24, 3)
    assert np.abs(small.astype(int) - 127).max() <= 2


def test_the_crop_is_left_top_width_height():
    image = np.zeros((48, 64, 3), np.uint8)
    image[8:40, 16:48] = 200
    cut = resized(frame_of(image), camera(height=16, width=16, crop=(16, 8, 32, 32)))
    assert cut.shape == (16, 16, 3)
    assert cut.min() >= 198


def test_without_a_width_the_proportions_of_the_crop_count():
    whole = resized(frame_of(picture(48, 64)), camera(height=24))
    cut = resized(frame_of(picture(48, 64)), camera(height=24, crop=(0, 0, 24, 48)))
    assert (whole.shape, cut.shape) == ((24, 32, 3), (24, 12, 3))


@pytest.mark.parametrize(
    ("crop", "told"),
    [(None, r"crop=\[8,0,48,48\]"), ((10, 4, 20, 10), r"crop=\[15,4,10,10\]")],
    ids=["whole", "cut"],
)
def test_other_proportions_are_refused_with_a_crop_that_fits(crop, told):
    with pytest.raises(CameraOptionError, match=told):
        resized(frame_of(picture(48, 64)), camera(height=24, width=24, crop=crop))


def test_a_rounded_proportion_is_taken():
    # 1080 x 1920 is 100 x 177.8.
    assert resized(frame_of(picture(1080, 1920)), camera(height=100, width=178)).shape[1] == 178


def test_a_crop_beyond_the_picture_is_refused():
    with pytest.raises(CameraOptionError, match=r"exceeds the camera's pictures of 64 x 48 px"):
        resized(frame_of(picture(48, 64)), camera(crop=(40, 0, 32, 32)))


@pytest.mark.parametrize("layout", ["rgb24", "yuyv422", "yuv420p"])
@pytest.mark.parametrize("height", [96, 60, 33])
def test_a_converter_that_is_kept_changes_no_pixel(layout, height):
    pixels = np.random.default_rng(0).integers(0, 256, (96, 134, 3), dtype=np.uint8)
    converter = new_converter()
    for _ in range(2):
        frame = frame_of(pixels).reformat(format=layout)
        size = {"width": round(134 * height / 96), "height": height}
        expected = frame.to_ndarray(format="rgb24", interpolation="AREA", **size)
        found = resized(frame, camera(height=height), converter)
        np.testing.assert_array_equal(found, expected)
        assert found.flags.c_contiguous
