"""Denoisers and encoders. Numbers of parameters are computed from the papers' layer lists, not
taken from the code."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv_transpose1d, linear

from policies.families.diffusion import new_denoiser
from policies.networks.config import MlpConfig, NetworkConfig, TransformerConfig, UnetConfig
from policies.networks.images.image_encoder import (
    ImageEncoder,
    ResNet18,
    crop_images,
    expected_positions,
    random_corners,
)
from policies.networks.point_encoder import PointCloudEncoder
from policies.networks.unet import Convolution, Upsample, linear_keeping_layout
from robots.errors import HandoffError

SMALL = {
    "mlp": MlpConfig(width=16, blocks=1, time_embedding=8),
    "unet": UnetConfig(widths=(8, 16, 32), groups=4, time_embedding=8),
    "transformer": TransformerConfig(layers=2, heads=2, width=16),
}
HORIZON, ACTION, STEPS, OBSERVATION = 8, 2, 2, 3


def denoiser(network: NetworkConfig) -> nn.Module:
    """Untrained, with weights large enough that every input matters, and without dropout."""
    torch.manual_seed(0)
    made = new_denoiser(network, (HORIZON, ACTION), (STEPS, OBSERVATION), timesteps=20)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.2)
    return made.eval()


def inputs(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    noisy = torch.randn(rows, HORIZON, ACTION, generator=draw)
    return noisy, torch.arange(rows) % 20, torch.randn(rows, STEPS, OBSERVATION, generator=draw)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("kind", SMALL)
def test_a_velocity_has_the_shape_of_the_chunk(kind: str):
    assert denoiser(SMALL[kind])(*inputs(5)).shape == (5, HORIZON, ACTION)


@pytest.mark.parametrize("kind", SMALL)
def test_the_gradient_reaches_every_parameter(kind: str):
    network = denoiser(SMALL[kind])
    network(*inputs(5)).square().sum().backward()
    dead = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert dead == []


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("changed", range(3))
def test_the_velocity_depends_on_every_input(kind: str, changed: int):
    network, given = denoiser(SMALL[kind]), list(inputs(1))
    before = network(*given)
    given[changed] = given[changed] + 1
    assert not torch.allclose(network(*given), before, atol=1e-3)


@pytest.mark.parametrize("kind", SMALL)
def test_rows_do_not_see_one_another(kind: str):
    network, given = denoiser(SMALL[kind]), inputs(4)
    alone = torch.cat([network(*(part[i : i + 1] for part in given)) for i in range(4)])
    assert torch.allclose(network(*given), alone, atol=1e-5)


@pytest.mark.parametrize(("embedding", "expected"), [(128, 63_554_434), (256, 65_783_298)])
def test_the_unet_has_the_parameters_of_the_paper(embedding: int, expected: int):
    # Condition: embedding and two observations of 20 entries. Kernel 5, actions of 2 entries.
    condition = embedding + 2 * 20

    def convolution(inputs: int, outputs: int, kernel: int = 5) -> int:
        return outputs * (kernel * inputs + 1)

    def block(inputs: int, outputs: int) -> int:
        norms, film = 2 * 2 * outputs, 2 * outputs * (condition + 1)
        shortcut = convolution(inputs, outputs, 1) if inputs != outputs else 0
        return (
            convolution(inputs, outputs) + convolution(outputs, outputs) + norms + film + shortcut
        )

    time = 4 * embedding * (embedding + 1) + embedding * (4 * embedding + 1)
    down = (
        block(2, 256)
        + block(256, 256)
        + block(256, 512)
        + block(512, 512)
        + block(512, 1024)
        + block(1024, 1024)
    )
    halvings = convolution(256, 256, 3) + convolution(512, 512, 3)
    middle = 2 * block(1024, 1024)
    up = block(2048, 512) + block(512, 512) + block(1024, 256) + block(256, 256)
    doublings = convolution(512, 512, 4) + convolution(256, 256, 4)
    last = convolution(256, 256) + 2 * 256 + convolution(256, 2, 1)
    assert time + down + halvings + middle + up + doublings + last == expected
    with torch.device("meta"):
        network = new_denoiser(UnetConfig(time_embedding=embedding), (16, 2), (2, 20), 100)
    assert count(network) == expected


def test_the_transformer_has_the_parameters_of_the_paper():
    # Attention: four matrices with bias, to itself and to the memory. Feed-forward: four times as
    # wide. Three norms.
    attention, feed_forward, norm = 4 * 256 * 257, 1024 * 257 + 256 * 1025, 2 * 256
    layers = 8 * (2 * attention + feed_forward + 3 * norm)
    tokens = 256 * (2 + 1) + 256 * (20 + 1) + 16 * 256 + 3 * 256
    memory = 1024 * 257 + 256 * 1025
    assert layers + tokens + memory + norm + 2 * 257 == 8_965_122
    assert count(new_denoiser(TransformerConfig(), (16, 2), (2, 20), 100)) == 8_965_122


def test_an_action_does_not_see_later_ones():
    network, (noisy, level, observation) = denoiser(SMALL["transformer"]), inputs(1)
    before, changed = network(noisy, level, observation), noisy.clone()
    changed[:, 5] += 1.0
    moved = (network(changed, level, observation) - before).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.tolist() == [False] * 5 + [True] * 3


def test_an_action_does_not_see_observations_after_it():
    network, (noisy, level, observation) = denoiser(SMALL["transformer"]), inputs(1)
    before, changed = network(noisy, level, observation), observation.clone()
    changed[:, 1] += 1.0
    moved = (network(noisy, level, changed) - before).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.tolist() == [False] + [True] * 7


def test_dropout_is_for_training_only():
    network, given = denoiser(replace(SMALL["transformer"], dropout=0.5)), inputs(2)
    assert torch.equal(network(*given), network(*given))
    network.train()
    assert not torch.equal(network(*given), network(*given))


@pytest.mark.parametrize("horizon", [6, 10, 15])
def test_a_horizon_that_cannot_be_halved_is_refused(horizon: int):
    with pytest.raises(
        HandoffError, match=f"horizon {horizon} is not a multiple of 4; 3 widths halve it 2 times"
    ):
        new_denoiser(SMALL["unet"], (horizon, 2), (1, 3), 20)


@pytest.mark.parametrize("wrong", [{"kernel": 4}, {"groups": 3}, {"widths": ()}])
def test_sizes_of_the_unet_that_do_not_fit_are_refused(wrong: dict):
    with pytest.raises(HandoffError, match="unet: widths"):
        new_denoiser(replace(SMALL["unet"], **wrong), (8, 2), (1, 3), 20)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(HandoffError, match="width 16 with 3 heads"):
        new_denoiser(replace(SMALL["transformer"], heads=3), (8, 2), (1, 3), 20)


@pytest.mark.parametrize(("kernel", "stride"), [(5, 1), (3, 2)])
def test_the_product_over_neighbours_is_a_convolution(kernel: int, stride: int):
    torch.manual_seed(0)
    own, hidden = Convolution(3, 4, kernel, stride), torch.randn(2, 8, 3)
    weight = own.weight.unflatten(1, (kernel, 3)).transpose(1, 2)
    expected = conv1d(hidden.transpose(1, 2), weight, own.bias, stride, kernel // 2).transpose(1, 2)
    assert torch.allclose(own(hidden), expected, atol=1e-6)


def test_doubling_is_a_transposed_convolution():
    torch.manual_seed(0)
    own, hidden = Upsample(3), torch.randn(2, 4, 3)
    earlier, later = own.weight.detach().transpose(1, 2).split(3, dim=1)
    # Of torch's four taps the even output takes 3 and 1, the odd one 2 and 0, from the earlier and
    # the later step.
    weight = torch.stack([later[1], later[0], earlier[1], earlier[0]], dim=-1)
    expected = conv_transpose1d(hidden.transpose(1, 2), weight, own.bias, 2, 1).transpose(1, 2)
    assert torch.allclose(own(hidden), expected, atol=1e-6)


@pytest.mark.parametrize(("bf16", "tolerance"), [(False, 1e-6), (True, 0.02)])
def test_gradients_of_the_product_are_those_of_linear(bf16: bool, tolerance: float):
    draw = torch.Generator().manual_seed(0)
    given = [
        torch.randn(*shape, generator=draw).requires_grad_() for shape in ((2, 3, 4), (5, 4), (5,))
    ]
    weighting = torch.randn(2, 3, 5, generator=draw)
    expected = torch.autograd.grad((linear(*given) * weighting).sum(), given)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        value = linear_keeping_layout(*given)
    own = torch.autograd.grad((value.float() * weighting).sum(), given)
    for one, other in zip(own, expected, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() <= tolerance * other.abs().max()


def test_the_trunk_is_resnet_18_with_group_norm_throughout():
    trunk = ResNet18()
    # The published 11 689 512 without the classifier's 512 * 1000 + 1000.
    assert count(trunk) == 11_176_512
    norms = [module for module in trunk.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 20
    assert all(norm.num_channels // norm.num_groups == 16 for norm in norms)
    assert not any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) for module in trunk.modules()
    )
    assert trunk(torch.zeros(1, 3, 84, 84)).shape == (1, 512, 3, 3)


def test_a_trunk_may_have_other_channels_and_fewer_stages():
    # 44 px: 22 after the stem's convolution, 11 after its pooling, 6 after the second stage.
    assert ResNet18((16, 32))(torch.zeros(1, 3, 44, 44)).shape == (1, 32, 6, 6)
    assert ResNet18((16, 16, 16))(torch.zeros(1, 3, 44, 44)).shape == (1, 16, 3, 3)


@pytest.mark.parametrize("channels", [(), (64, 100), (0, 16)])
def test_channels_that_do_not_fall_into_groups_are_refused(channels: tuple[int, ...]):
    with pytest.raises(HandoffError, match="expected at least one, multiples of 16"):
        ResNet18(channels)


@pytest.mark.parametrize(
    ("row", "column", "place"),
    [(0, 0, (-1, -1)), (0, 4, (1, -1)), (2, 1, (-0.5, 1)), (1, 2, (0, 0))],
)
def test_the_keypoint_of_one_peak_is_its_place(row: int, column: int, place: tuple[float, float]):
    logits = torch.zeros(1, 1, 3, 5)
    logits[0, 0, row, column] = 100.0
    assert expected_positions(logits)[0, 0].tolist() == pytest.approx(place, abs=1e-6)


def test_the_keypoint_of_two_equal_peaks_is_between_them():
    logits = torch.full((1, 1, 3, 5), -100.0)
    logits[0, 0, 0, 0] = logits[0, 0, 0, 2] = 0.0
    assert expected_positions(logits)[0, 0].tolist() == pytest.approx((-0.5, -1.0))


def test_crops_lie_at_their_corners_or_in_the_middle():
    image = torch.arange(2 * 4 * 6).reshape(2, 4, 6, 1)
    middle = crop_images(image, (2, 2), None)
    assert middle[0, :, :, 0].tolist() == [[8, 9], [14, 15]]
    cornered = crop_images(image, (2, 2), torch.tensor([[0, 0], [2, 4]]))
    assert cornered[..., 0].tolist() == [[[0, 1], [6, 7]], [[24 + 16, 24 + 17], [24 + 22, 24 + 23]]]


def test_random_corners_reach_every_place_that_fits_and_no_other():
    corners = random_corners((100, 2), (5, 4), (3, 4), torch.Generator().manual_seed(0))
    assert corners[..., 0].unique().tolist() == [0, 1, 2]
    assert corners[..., 1].unique().tolist() == [0]
    assert (corners[:, 0] != corners[:, 1]).any()


def test_pictures_become_features_and_every_parameter_learns():
    torch.manual_seed(0)
    encoder = ImageEncoder(crop=(64, 64), keypoints=4, features=6)
    pictures = torch.randint(0, 256, (2, 2, 70, 66, 3), dtype=torch.uint8)
    features = encoder(
        pictures, random_corners((2, 2), (70, 66), (64, 64), torch.Generator().manual_seed(0))
    )
    assert features.shape == (2, 2, 6)
    features.square().sum().backward()
    # A softmax over places does not see what is added to all of them.
    dead = [name for name, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert set(dead) <= {"softmax.maps.bias"}


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (torch.zeros(1, 1, 96, 96, 3), "images are torch.float32"),
        (torch.zeros(1, 1, 3, 96, 96, dtype=torch.uint8), r"shape \(1, 1, 3, 96, 96\)"),
        (torch.zeros(1, 1, 96, 80, 3, dtype=torch.uint8), "84x84 px from images of 96x80 px"),
    ],
)
def test_pictures_that_are_not_as_expected_are_refused(pictures: Tensor, message: str):
    with pytest.raises(HandoffError, match=message):
        ImageEncoder()(pictures)


def test_the_order_of_the_points_does_not_matter():
    torch.manual_seed(0)
    encoder, points = PointCloudEncoder(), torch.randn(2, 2, 50, 3)
    features = encoder(points)
    assert features.shape == (2, 2, 64)
    assert torch.allclose(encoder(points[:, :, torch.randperm(50)]), features, atol=1e-6)
    assert not torch.allclose(encoder(points + 0.5), features, atol=1e-2)


def test_a_point_that_is_there_twice_changes_nothing():
    torch.manual_seed(0)
    encoder, points = PointCloudEncoder(), torch.randn(1, 1, 20, 3)
    assert torch.allclose(
        encoder(torch.cat([points, points[:, :, :5]], dim=2)), encoder(points), atol=1e-6
    )


@pytest.mark.parametrize("shape", [(1, 1, 0, 3), (1, 1, 10, 6), (1, 10, 3)])
def test_points_of_another_size_are_refused(shape: tuple[int, ...]):
    with pytest.raises(HandoffError, match="points of shape"):
        PointCloudEncoder()(torch.zeros(shape))


def test_the_configuration_of_a_network_imports_without_torch():
    code = "import sys, policies.card; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
