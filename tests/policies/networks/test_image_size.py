"""What an image encoder sees of a picture: sizes after resizing and of the crop."""

from __future__ import annotations

import pytest

from policies.networks.config import ResnetEncoderConfig
from policies.networks.images.image_size import (
    EncodedSize,
    encoded_size,
    encoded_sizes,
    small_crop_note,
    small_crops,
)
from policies.policy_config import ActConfig, BehaviourCloningConfig
from robots.config import validate
from robots.errors import HandoffError


@pytest.mark.parametrize(
    ("recorded", "resized", "crop"),
    [
        ((96, 96), (96, 96), (84, 84)),
        # 52.5 is rounded up.
        ((60, 80), (60, 80), (53, 70)),
        ((84, 84), (84, 84), (74, 74)),
        ((480, 640), (96, 128), (84, 112)),
        ((640, 480), (128, 96), (112, 84)),
        # 170 2/3 is rounded to 171, seven eighths of which are 149.6.
        ((720, 1280), (96, 171), (84, 150)),
        ((96, 300), (96, 300), (84, 263)),
        ((1, 1), (1, 1), (1, 1)),
    ],
)
def test_by_default_seven_eighths_are_seen_of_pictures_resized_to_96_px(
    recorded: tuple[int, int], resized: tuple[int, int], crop: tuple[int, int]
) -> None:
    assert encoded_size(ResnetEncoderConfig(), recorded, "front") == EncodedSize(resized, crop)


def test_a_crop_in_pixels_is_taken_from_the_picture_as_recorded() -> None:
    config = ResnetEncoderConfig(crop=(216, 288))
    assert encoded_size(config, (240, 320), "front") == ((240, 320), (216, 288))


def test_a_crop_in_pixels_is_taken_from_a_resized_picture_if_resize_is_set() -> None:
    config = ResnetEncoderConfig(resize=240, crop=(216, 288))
    assert encoded_size(config, (480, 640), "front") == ((240, 320), (216, 288))


def test_the_shorter_side_and_the_fraction_may_be_given() -> None:
    config = ResnetEncoderConfig(resize=240, crop_ratio=0.9)
    assert encoded_size(config, (480, 640), "front") == ((240, 320), (216, 288))
    assert encoded_size(config, (200, 100), "front") == ((200, 100), (180, 90))


def test_a_ratio_of_one_sees_the_whole_picture() -> None:
    size = encoded_size(ResnetEncoderConfig(crop_ratio=1.0), (480, 640), "front")
    assert size == ((96, 128), (96, 128))
    assert size.share == 1.0


def test_options_saved_before_crops_were_proportional_resize_nothing() -> None:
    saved = {"channels": [64, 128, 256, 512], "crop": [84, 84], "keypoints": 32, "features": 64}
    config = validate(ResnetEncoderConfig, saved)
    assert encoded_size(config, (480, 640), "front") == ((480, 640), (84, 84))


@pytest.mark.parametrize(
    ("config", "recorded", "message"),
    [
        (
            ResnetEncoderConfig(crop=(84, 84)),
            (60, 90),
            r"image_encoder\.crop: 84 x 84 px .* of 'front', which have 60 x 90 px\. ",
        ),
        (ResnetEncoderConfig(crop=(84, 84)), (90, 60), "which have 90 x 60 px"),
        (
            ResnetEncoderConfig(resize=48, crop=(48, 65)),
            (480, 640),
            "crop: 48 x 65 px .* which have 480 x 640 px, resized to 48 x 64",
        ),
    ],
)
def test_a_crop_larger_than_the_picture_is_refused_with_the_camera_and_its_size(
    config: ResnetEncoderConfig, recorded: tuple[int, int], message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        encoded_size(config, recorded, "front")


def test_crop_and_crop_ratio_exclude_each_other() -> None:
    with pytest.raises(HandoffError, match=r"crop is \[84, 84\] and crop_ratio 0.9, expected one"):
        ResnetEncoderConfig(crop=(84, 84), crop_ratio=0.9)


PICTURES = {"front": (480, 640, 3), "wrist": (96, 96, 3)}


def test_every_camera_has_a_crop_of_its_own() -> None:
    model = BehaviourCloningConfig(image_fields=("front", "wrist"))
    assert encoded_sizes(model, PICTURES) == {
        "front": ((96, 128), (84, 112)),
        "wrist": ((96, 96), (84, 84)),
    }


def test_families_that_see_whole_pictures_have_no_crops() -> None:
    assert encoded_sizes(ActConfig(image_fields=("front",)), PICTURES) == {}


def test_only_crops_of_less_than_half_are_noted() -> None:
    assert small_crop_note(small_crops({"a": EncodedSize((10, 10), (10, 5))})) == ""
    cameras = ("front", "wrist")
    encoder = ResnetEncoderConfig(crop=(84, 84))
    sizes = encoded_sizes(
        BehaviourCloningConfig(image_fields=cameras, image_encoder=encoder), PICTURES
    )
    # 84 * 84 of 480 * 640 pixels.
    assert small_crops(sizes) == {"front": 0.02296875}
    assert small_crop_note(small_crops(sizes)) == (
        "a crop of image_encoder covers only 2% of the pictures of 'front'"
    )
