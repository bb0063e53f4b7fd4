"""Augmentation in the observation encoder: in training only, from the generator of the crops."""

from dataclasses import replace

import numpy as np
import torch

from policies.augmentation.config import ImageAugmentationConfig
from policies.card import Shapes
from policies.networks.config import ResnetEncoderConfig
from policies.networks.images.image_encoder import ImageEncoder, random_corners
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import ObservationTensors
from policies.policy_config import BehaviourCloningConfig

PLAIN = BehaviourCloningConfig(
    image_fields=("front", "wrist"),
    image_encoder=ResnetEncoderConfig(channels=(16,), keypoints=4, features=8),
)
OFF = ImageAugmentationConfig()
JITTER = ImageAugmentationConfig(shift=2, brightness=0.3, hue=0.1, rotation=0.05)


def encoder(augmentation: ImageAugmentationConfig) -> ObservationEncoder:
    torch.manual_seed(0)
    config = replace(PLAIN, image_encoder=replace(PLAIN.image_encoder, augmentation=augmentation))
    sensors = {"front": (24, 32, 3), "wrist": (24, 32, 3)}
    return ObservationEncoder(config, Shapes({"q": (0, 3)}, 2, None, sensors)).eval()


def observations() -> ObservationTensors:
    source = torch.Generator().manual_seed(1)
    sensors = {
        name: torch.randint(0, 256, (5, 2, 24, 32, 3), generator=source).to(torch.uint8)
        for name in ("front", "wrist")
    }
    return ObservationTensors(vector_BTO=torch.zeros(5, 2, 3), sensors=sensors)


def test_without_a_generator_pictures_are_not_augmented() -> None:
    assert encoder(JITTER)(observations()).equal(encoder(OFF)(observations()))


def test_pictures_are_cropped_alone_without_augmentation() -> None:
    plain, obs, generator = encoder(OFF), observations(), np.random.default_rng(3)
    expected = [obs.vector_BTO]
    for name, camera in plain.images.items():
        assert isinstance(camera, ImageEncoder)
        crops = torch.Generator().manual_seed(int(generator.integers(1 << 62)))
        corner = random_corners((5, 2), (24, 32), plain.sizes[name].crop, crops)
        expected.append(camera(obs.sensors[name], corner))
    assert plain(obs, np.random.default_rng(3)).equal(torch.cat(expected, dim=-1))


def test_augmentation_changes_features_and_repeats_with_the_generator() -> None:
    augmenting = encoder(JITTER)
    first = augmenting(observations(), np.random.default_rng(3))
    assert first.equal(augmenting(observations(), np.random.default_rng(3)))
    plain = encoder(OFF)(observations(), np.random.default_rng(3))
    assert not first.equal(plain)


def test_augmentation_takes_nothing_from_the_generator_of_the_update() -> None:
    plain, augmenting = np.random.default_rng(3), np.random.default_rng(3)
    encoder(OFF)(observations(), plain)
    encoder(JITTER)(observations(), augmenting)
    assert plain.random() == augmenting.random()
