"""Features of pictures as entries of the observation vector."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from policies.data.frames import Frames
from policies.networks.config import PictureFeaturesConfig
from policies.networks.images.efficientnet_lite import pretrained_trunk
from policies.networks.images.picture_features import PictureEncoder, PictureFeatures
from robots.errors import HandoffError
from robots.spec import FieldSpec
from tests.policies.rl.seeing import CAMERA, picture

CONFIG = PictureFeaturesConfig(stride=8, cells=(2, 2))
PLACES = (-1.5, -0.2, 0.4, 1.9)


@pytest.fixture(scope="module")
def encoder() -> PictureEncoder:
    return PictureEncoder(CONFIG, ["front"], {"place": FieldSpec(shape=(1,)), "front": CAMERA})


def pictures() -> np.ndarray:
    return np.stack([picture(place) for place in PLACES])


def test_a_feature_is_the_mean_of_a_channel_in_its_cell(encoder: PictureEncoder) -> None:
    features_NF = encoder({"front": pictures()})
    image_NCHW = torch.from_numpy(pictures()).permute(0, 3, 1, 2).float() / 255.0
    with torch.no_grad():
        map_NCHW = pretrained_trunk(8)(image_NCHW)
    corner_NC = map_NCHW[:, :, :2, 2:].mean(dim=(2, 3))
    assert features_NF.shape == (4, encoder.size) == (4, 40 * 4)
    np.testing.assert_allclose(features_NF.reshape(4, 40, 4)[:, :, 1], corner_NC.numpy(), atol=1e-4)


def test_torch_and_onnx_runtime_agree_on_rows_and_on_recorded_frames(
    encoder: PictureEncoder,
) -> None:
    module = PictureFeatures(CONFIG, {"front": CAMERA.shape})
    module.load_pretrained()
    with torch.no_grad():
        expected = module({"front": torch.from_numpy(pictures())[:, None]})[:, 0].numpy()
    np.testing.assert_allclose(encoder({"front": pictures()}), expected, atol=1e-4)
    frames = {"front": Frames([torch.from_numpy(pictures())])}
    np.testing.assert_array_equal(encoder.of_frames(frames), encoder({"front": pictures()}))


def test_cells_that_do_not_divide_the_places_overlap_as_in_adaptive_pooling() -> None:
    module = PictureFeatures(PictureFeaturesConfig(stride=8, cells=(3, 3)), {"front": (32, 32, 3)})
    map_NCP = torch.randn(2, 5, 16)
    pooled = torch.nn.functional.adaptive_avg_pool2d(map_NCP.unflatten(2, (4, 4)), 3)
    torch.testing.assert_close(map_NCP @ module.get_buffer("cells_0"), pooled.flatten(2))


def test_an_unknown_camera_and_too_many_cells_are_refused() -> None:
    with pytest.raises(HandoffError, match=r"no pictures of the cameras \['side'\]; available"):
        PictureEncoder(CONFIG, ["side"], {"front": CAMERA})
    with pytest.raises(HandoffError, match=r"2 x 2 places\. Set fewer cells"):
        PictureFeatures(PictureFeaturesConfig(), {"front": (32, 32, 3)})
