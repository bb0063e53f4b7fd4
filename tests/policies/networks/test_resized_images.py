"""Image encoders resize large pictures before the crop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from policies.card import Shapes
from policies.networks.config import ResnetEncoderConfig
from policies.networks.images.image_encoder import ImageEncoder, resize_images
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import ObservationTensors
from policies.policy_config import BehaviourCloningConfig

SMALL = ResnetEncoderConfig(channels=(16, 16), keypoints=4, features=8)


def noise(*shape: int) -> torch.Tensor:
    draw = np.random.default_rng(0)
    return torch.from_numpy(draw.integers(0, 256, (*shape, 3), dtype=np.uint8))


def encoder_of(config: ResnetEncoderConfig, height: int, width: int) -> ObservationEncoder:
    torch.manual_seed(0)
    model = BehaviourCloningConfig(
        observation_fields=(), image_fields=("front",), image_encoder=config
    )
    return ObservationEncoder(model, Shapes({}, 2, None, {"front": (height, width, 3)}))


def encoded(
    encoder: ObservationEncoder, pictures: torch.Tensor, seed: int | None = None
) -> torch.Tensor:
    obs = ObservationTensors(torch.zeros(*pictures.shape[:2], 0), {"front": pictures})
    with torch.no_grad():
        return encoder(obs, None if seed is None else np.random.default_rng(seed))


@pytest.mark.parametrize("recorded", [(480, 640), (97, 131), (300, 100)])
def test_resized_pictures_are_those_of_pillow(recorded: tuple[int, int]) -> None:
    pictures = noise(2, *recorded)
    resized = resize_images(pictures, (64, 48))
    expected = [
        np.asarray(Image.fromarray(picture.numpy()).resize((48, 64), Image.Resampling.BILINEAR))
        for picture in pictures
    ]
    # Pillow rounds to whole numbers after each of its two passes.
    assert np.abs(resized.numpy() - np.stack(expected)).max() <= 1.01


def test_pictures_of_one_colour_keep_it() -> None:
    pictures = torch.full((1, 50, 70, 3), 200, dtype=torch.uint8)
    assert (resize_images(pictures, (20, 28)) - 200.0).abs().max() < 1e-3


@pytest.mark.parametrize("size", [None, (50, 70)])
def test_pictures_of_the_size_are_returned_as_they_are(size: tuple[int, int] | None) -> None:
    pictures = noise(1, 50, 70)
    assert resize_images(pictures, size) is pictures


def test_every_pixel_contributes() -> None:
    pictures = torch.zeros(60, 50, 70, 3, dtype=torch.uint8)
    draw = np.random.default_rng(0)
    for picture_HWC in pictures:
        picture_HWC[draw.integers(50), draw.integers(70)] = 255
    assert (resize_images(pictures, (10, 14)).amax((1, 2, 3)) > 1.0).all()


def test_push_t_is_encoded_as_with_its_published_crop_in_training_and_evaluation() -> None:
    pictures = noise(2, 2, 96, 96)
    published = encoder_of(replace(SMALL, crop=(84, 84)), 96, 96)
    default = encoder_of(SMALL, 96, 96)
    for seed in (None, 0, 1):
        assert torch.equal(encoded(default, pictures, seed), encoded(published, pictures, seed))


def test_what_is_seen_of_480_x_640_reaches_to_the_margin_of_the_crop() -> None:
    encoder = encoder_of(SMALL, 480, 640)
    pictures = torch.zeros(1, 1, 480, 640, 3, dtype=torch.uint8)
    black = encoded(encoder, pictures)
    # The crop leaves out a sixteenth at each side, 30 rows and 40 columns.
    for row, column in ((32, 42), (32, 597), (447, 42), (447, 597)):
        pictures.zero_()
        pictures[0, 0, row, column] = 255
        assert not torch.equal(encoded(encoder, pictures), black)
    pictures.zero_()
    pictures[0, 0, :20] = 255
    assert torch.equal(encoded(encoder, pictures), black)


def test_some_crops_of_training_see_the_margin_of_480_x_640() -> None:
    encoder = encoder_of(SMALL, 480, 640)
    pictures = torch.zeros(8, 4, 480, 640, 3, dtype=torch.uint8)
    black = encoded(encoder, pictures, seed=0)
    pictures[:, :, :20] = 255
    differs_BT = (encoded(encoder, pictures, seed=0) != black).any(-1)
    # The strip is 4 rows after resizing, and a crop begins in one of the first 13.
    assert 0 < differs_BT.sum() < 32


def test_a_crop_in_pixels_sees_the_middle_of_480_x_640_alone_as_before() -> None:
    encoder = encoder_of(replace(SMALL, crop=(84, 84)), 480, 640)
    pictures = noise(1, 1, 480, 640)
    before = encoded(encoder, pictures)
    plain = ImageEncoder((84, 84), 4, 8, (16, 16))
    plain.load_state_dict(encoder.images["front"].state_dict())
    with torch.no_grad():
        middle = plain(pictures[:, :, 198:282, 278:362])
    assert torch.equal(before, middle)
    pictures[:, :, :198] = 0
    assert torch.equal(encoded(encoder, pictures), before)
