"""Augmentation of pictures: what every quantity does to a picture, and what one draw holds for."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from policies.augmentation.config import ImageAugmentationConfig
from policies.augmentation.images import (
    LUMINANCE,
    augment,
    draw_augmentation,
    random_shift,
    recolour,
    warp,
)

ALL = ImageAugmentationConfig(
    shift=2,
    rotation=0.1,
    zoom=0.1,
    perspective=0.1,
    brightness=0.3,
    contrast=0.3,
    saturation=0.3,
    hue=0.1,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int, height: int = 9, width: int = 12) -> Tensor:
    drawn = torch.randint(0, 256, (count, height, width, 3), generator=generator(7))
    return drawn.to(torch.uint8)


def augmented(config: ImageAugmentationConfig, images: Tensor, windows: int, seed: int) -> Tensor:
    draw = draw_augmentation(config, windows, generator(seed))
    assert draw is not None
    return augment(images, draw)


def test_all_that_is_off_draws_nothing() -> None:
    source = generator()
    before = source.get_state()
    assert draw_augmentation(ImageAugmentationConfig(), 4, source) is None
    assert source.get_state().equal(before)


def test_equal_generators_augment_alike_and_others_differently() -> None:
    images = pictures(6)
    first = augmented(ALL, images, 6, 1)
    assert first.equal(augmented(ALL, images, 6, 1))
    assert not first.equal(augmented(ALL, images, 6, 2))


def test_the_steps_of_a_window_share_a_draw_and_windows_do_not() -> None:
    images = pictures(1).repeat(4, 1, 1, 1)
    changed = augmented(ALL, images, 2, 0)
    assert changed[0].equal(changed[1])
    assert changed[2].equal(changed[3])
    assert not changed[0].equal(changed[2])


@pytest.mark.parametrize("pad", [1, 3])
def test_a_shift_moves_a_point_by_whole_pixels_up_to_the_given_number(pad: int) -> None:
    images = torch.zeros(400, 11, 11, 3, dtype=torch.uint8)
    images[:, 5, 5] = 255
    moved = augmented(ImageAugmentationConfig(shift=pad), images, 400, 0)
    place = moved[..., 0].flatten(1).argmax(1)
    shift = torch.stack([place // 11 - 5, place % 11 - 5])
    assert moved.dtype == torch.uint8
    assert (moved.flatten(1).float().sum(1) == 3 * 255).all()
    assert sorted(set(shift.flatten().tolist())) == list(range(-pad, pad + 1))


def test_a_shift_moves_the_picture_and_repeats_its_edge() -> None:
    picture = torch.arange(9).reshape(1, 3, 3, 1)
    still = random_shift(picture, torch.tensor([[1], [1]]), 1)
    down_right = random_shift(picture, torch.tensor([[0], [0]]), 1)
    up = random_shift(picture, torch.tensor([[2], [1]]), 1)
    assert still.equal(picture)
    assert down_right[0, :, :, 0].tolist() == [[0, 0, 1], [0, 0, 1], [3, 3, 4]]
    assert up[0, :, :, 0].tolist() == [[3, 4, 5], [6, 7, 8], [6, 7, 8]]


def test_the_shift_is_the_same_whatever_else_is_on() -> None:
    shifted = draw_augmentation(replace(ImageAugmentationConfig(), shift=2), 8, generator())
    every = draw_augmentation(ALL, 8, generator())
    assert shifted is not None
    assert every is not None
    assert shifted.offset_2B is not None
    assert every.offset_2B is not None
    assert shifted.offset_2B.equal(every.offset_2B)


def test_the_identity_leaves_a_picture() -> None:
    images = pictures(2)
    unchanged = warp(images, torch.eye(3).repeat(2, 1, 1))
    torch.testing.assert_close(unchanged, images.float(), atol=1e-2, rtol=0.0)


def test_a_quarter_turn_moves_rows_to_columns() -> None:
    images = pictures(1, 7, 7)
    quarter = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
    expected = images.float().rot90(1, (1, 2))
    torch.testing.assert_close(warp(images, quarter), expected, atol=1e-2, rtol=0.0)


def test_zoom_and_perspective_sample_where_worked_by_hand() -> None:
    # Red grows by 10 per column: its value tells the column that was sampled.
    images = torch.zeros(1, 8, 16, 3)
    images[..., 0] = 10.0 * torch.arange(16.0)
    zoomed = warp(images, torch.diag(torch.tensor([0.5, 0.5, 1.0]))[None])
    # The centre of the last column is at 15/16, half of which is 7.5/16: column 11.25.
    assert zoomed[0, 3, 15, 0].item() == pytest.approx(112.5, abs=1e-3)
    tilted = torch.eye(3)[None].clone()
    tilted[0, 2, 0] = 0.5
    # 15/16 / (1 + 0.5 * 15/16) = 30/47, which is column (30/47 + 1) * 8 - 0.5.
    expected = 10.0 * ((30.0 / 47.0 + 1.0) * 8.0 - 0.5)
    assert warp(images, tilted)[0, 3, 15, 0].item() == pytest.approx(expected, abs=1e-3)


def test_factors_of_one_leave_the_colours() -> None:
    images = pictures(2)
    same = recolour(images, torch.ones(2, 3), torch.zeros(2))
    torch.testing.assert_close(same, images.float(), atol=1e-3, rtol=0.0)


def test_brightness_contrast_and_saturation_are_worked_by_hand() -> None:
    images = torch.tensor([[[[100.0, 50.0, 20.0], [60.0, 60.0, 60.0]]]])
    luminance = 100 * LUMINANCE[0] + 50 * LUMINANCE[1] + 20 * LUMINANCE[2]
    mean = (luminance + 60.0) / 2.0

    def first(brightness: float, contrast: float, saturation: float) -> list[float]:
        factors = torch.tensor([[brightness, contrast, saturation]])
        return recolour(images, factors, torch.zeros(1))[0, 0, 0].tolist()

    assert first(1.5, 1.0, 1.0) == pytest.approx([150.0, 75.0, 30.0], abs=1e-3)
    expected = [mean + 0.5 * (value - mean) for value in (100.0, 50.0, 20.0)]
    assert first(1.0, 0.5, 1.0) == pytest.approx(expected, abs=1e-3)
    assert first(1.0, 1.0, 0.0) == pytest.approx([luminance] * 3, abs=1e-3)


def test_the_hue_turns_at_equal_luminance() -> None:
    images = 100.0 + 20.0 * torch.rand(1, 4, 4, 3, generator=generator())
    turned = recolour(images, torch.ones(1, 3), torch.full((1,), 0.5 * math.pi))
    weights = torch.tensor(LUMINANCE)
    torch.testing.assert_close(turned @ weights, images @ weights, atol=1e-3, rtol=0.0)
    assert (turned - images).abs().max() > 1.0
    whole = recolour(images, torch.ones(1, 3), torch.full((1,), 2.0 * math.pi))
    torch.testing.assert_close(whole, images, atol=1e-2, rtol=0.0)


def test_colours_stay_in_their_range() -> None:
    changed = augmented(ALL, pictures(32), 32, 3)
    assert changed.dtype == torch.float32
    assert changed.min() >= 0.0
    assert changed.max() <= 255.0


def test_reduced_precision_of_the_networks_leaves_the_pictures() -> None:
    images = pictures(4)
    expected = augmented(ALL, images, 4, 5)
    with torch.autocast("cpu", torch.bfloat16):
        found = augmented(ALL, images, 4, 5)
    assert found.equal(expected)
