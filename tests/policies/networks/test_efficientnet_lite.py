"""EfficientNet-Lite0: its features are those of the implementation that its weights come with."""

import pytest
import torch

from policies.networks.images.efficientnet_lite import EfficientNetLite0, pretrained_trunk
from robots.errors import HandoffError

REFERENCE = {
    4: (24, -0.382157, 11.054934),
    8: (40, -1.645211, 7.282212),
    16: (112, -0.350129, 4.504309),
    32: (320, -0.122689, 1.658783),
}
"""Channels, mean and standard deviation of the feature maps of `images`, by stride, of the package
efficientnet-lite-pytorch 0.1.0 after the last block of each resolution."""


def images(height: int = 96, width: int = 96) -> torch.Tensor:
    return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("stride", REFERENCE)
def test_features_are_those_of_the_reference(stride: int) -> None:
    channels, mean, deviation = REFERENCE[stride]
    trunk = pretrained_trunk(stride)
    features = trunk(images()) / trunk.scale_C11 + trunk.centre_C11
    assert features.shape == (2, channels, 96 // stride, 96 // stride)
    assert float(features.mean()) == pytest.approx(mean, abs=2e-4)
    assert float(features.std()) == pytest.approx(deviation, abs=2e-4)


@pytest.mark.parametrize("stride", REFERENCE)
def test_features_are_of_about_unit_scale(stride: int) -> None:
    features = pretrained_trunk(stride)(images())
    assert abs(float(features.mean())) < 0.5
    assert 0.3 < float(features.std()) < 2.0


def test_sizes_that_are_no_multiple_of_the_stride_are_rounded_up() -> None:
    assert pretrained_trunk(16)(images(84, 113)).shape == (2, 112, 6, 8)


def test_the_weights_are_frozen() -> None:
    trunk = pretrained_trunk(8)
    before = trunk(images())
    assert not any(weight.requires_grad for weight in trunk.parameters())
    assert torch.equal(trunk.train()(images()), before)


def test_weights_of_something_else_are_refused() -> None:
    with pytest.raises(HandoffError, match="do not fit"):
        EfficientNetLite0(16).load({"_conv_stem.weight": torch.zeros(32, 3, 3, 3)})


def test_an_unknown_stride_is_refused() -> None:
    with pytest.raises(HandoffError, match="stride 64"):
        EfficientNetLite0(64)
