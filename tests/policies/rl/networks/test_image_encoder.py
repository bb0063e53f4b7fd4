import numpy as np
import pytest
import torch
from torch import nn

from policies.networks.images.image_encoder import SpatialEmbeddings
from policies.rl.networks.config import EncoderConfig, MlpSizes
from policies.rl.networks.image_encoder import (
    Encoder,
    augmented,
    encode_observations,
    shifted_observations,
)
from policies.rl.off_policy.config import GripperConfig, SacConfig
from policies.rl.off_policy.sac import Sac
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError

SMALL = EncoderConfig(channels=(8, 8), picture_width=16, vector_width=8, shift=1)
SIZES = Sizes(observation=3, action=2, pictures=(("wrist", 9, 11), ("front", 8, 8)))


def obs(rows: int, seed: int = 0, sizes: Sizes = SIZES) -> Observations:
    generator = torch.Generator().manual_seed(seed)
    pictures = {
        name: torch.randint(256, (rows, height, width, 3), generator=generator, dtype=torch.uint8)
        for name, height, width in sizes.pictures
    }
    return Observations(torch.randn(rows, sizes.observation, generator=generator), pictures)


def minibatch(rows: int, seed: int = 0, sizes: Sizes = SIZES) -> Transitions:
    generator = torch.Generator().manual_seed(seed)
    none = torch.zeros(rows, dtype=torch.bool)
    action = 2 * torch.rand(rows, sizes.action, generator=generator) - 1
    action[:, -1] = action[:, -1].round()
    reward = torch.randn(rows, generator=generator)
    return Transitions(
        obs(rows, seed, sizes),
        action,
        reward,
        torch.full((rows,), 0.9),
        obs(rows, seed + 1, sizes),
        none,
        none,
        reward,
    )


def learner(gripper: bool = False, seed: int = 0, **options) -> Sac:
    sizes = MlpSizes(hidden=(16,))
    gripper_config = GripperConfig(network=sizes) if gripper else None
    return Sac(
        SacConfig(critic=sizes, actor=sizes, encoder=SMALL, gripper=gripper_config, **options),
        SIZES,
        seed,
    )


def parameters(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in module.parameters()])


def test_features_are_concatenated_in_the_order_of_the_cameras():
    encoder = Encoder(SMALL, SIZES)
    features = encode_observations(encoder, obs(5))
    assert features.shape == (5, 16 + 16 + 8)
    assert encoder.size == 40
    changed = obs(5)
    changed.pictures["front"][2] = 255 - changed.pictures["front"][2]
    different = (encode_observations(encoder, changed) != features).any(dim=0)
    assert different[16:32].any()
    assert not different[:16].any()
    assert not different[32:].any()


def test_spatial_embeddings_by_hand():
    embeddings = SpatialEmbeddings(2, 1, 1, 2)
    embeddings.place_ECHW.data = torch.tensor([[[[1.0, 0.0]]], [[[2.0, -1.0]]]])
    assert embeddings(torch.tensor([[[[3.0, 5.0]]]])).tolist() == [[3.0, 1.0]]
    embeddings, maps = SpatialEmbeddings(3, 4, 2, 5), torch.randn(6, 4, 2, 5)
    expected = torch.einsum("bchw,echw->bec", maps, embeddings.place_ECHW).flatten(1)
    assert torch.allclose(embeddings(maps), expected, atol=1e-5)


def test_serls_small_encoder_has_its_published_shapes():
    encoder = Encoder(
        EncoderConfig(), Sizes(observation=3, action=2, pictures=(("wrist", 128, 128),))
    )
    weights = {
        name: tuple(weight.shape) for name, weight in encoder.pictures["wrist"].named_parameters()
    }
    assert weights["backbone.6.weight"] == (256, 128, 3, 3)
    assert weights["embeddings.place_ECHW"] == (8, 256, 7, 7)
    assert weights["reduce.0.weight"] == (256, 2048)
    assert encoder.size == 256 + 64


def test_every_offset_is_drawn_alike_and_rows_differ():
    # One bright pixel in the middle of 5 x 5 tells where each row was moved.
    picture = torch.zeros(9000, 5, 5, 3, dtype=torch.uint8)
    picture[:, 2, 2] = 255
    found = shifted_observations(
        Observations(torch.zeros(9000, 1), {"a": picture, "b": picture}),
        1,
        torch.Generator().manual_seed(0),
    )
    counts = (found.pictures["a"][..., 0] == 255).sum(dim=0)[1:4, 1:4]
    assert counts.sum() == 9000
    assert float((counts - 1000).abs().max()) < 5 * np.sqrt(1000)
    assert found.pictures["a"].equal(found.pictures["b"])


def test_s_and_its_successor_are_shifted_independently_and_repeatably():
    batch = minibatch(64)
    batch = batch._replace(next_obs=batch.obs)
    first = augmented(batch, 4, torch.Generator().manual_seed(3))
    again = augmented(batch, 4, torch.Generator().manual_seed(3))
    assert first.obs.pictures["wrist"].equal(again.obs.pictures["wrist"])
    assert not first.obs.pictures["wrist"].equal(first.next_obs.pictures["wrist"])
    assert first.obs.vector_BO.equal(batch.obs.vector_BO)


def test_a_given_backbone_is_frozen_and_stays_in_evaluation_mode():
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    encoder = Encoder(SMALL, SIZES, {"wrist": backbone}).train()
    before = [value.clone() for value in backbone.state_dict().values()]
    encode_observations(encoder, obs(6)).sum().backward()
    assert not backbone[1].training
    assert all(parameter.grad is None for parameter in backbone.parameters())
    assert all(
        value.equal(now) for value, now in zip(before, backbone.state_dict().values(), strict=True)
    )
    places = encoder.get_parameter("pictures.wrist.embeddings.place_ECHW")
    assert places.grad is not None


def test_small_pictures_missing_cameras_and_unknown_backbones_are_named():
    with pytest.raises(HandoffError, match="need at least 31 x 31"):
        Encoder(EncoderConfig(), SIZES)
    with pytest.raises(HandoffError, match=r"no images of \['front'\]"):
        Encoder(SMALL, SIZES)(torch.zeros(1, 3), {"wrist": obs(1).pictures["wrist"]})
    with pytest.raises(HandoffError, match=r"backbones for \['side'\]"):
        Encoder(SMALL, SIZES, {"side": nn.Identity()})


# A2 (c): what the actor climbs must not shape what the critics see by.
@pytest.mark.parametrize("gripper", [False, True])
def test_the_actors_loss_gives_the_encoder_exactly_no_gradient(gripper):
    sac = learner(gripper)
    loss, _ = sac.actor_loss(minibatch(8))
    loss.backward()
    assert all(parameter.grad is None for parameter in sac.networks.features.parameters())
    assert any(parameter.grad is not None for parameter in sac.networks.actor.parameters())


def test_the_critics_loss_reaches_every_parameter_of_the_encoder():
    sac = learner()
    loss, _ = sac.critic_loss(minibatch(8))
    loss.backward()
    for name, parameter in sac.networks.features.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name


def test_an_update_moves_the_encoder_and_its_target_a_little_behind_it():
    sac = learner(tau=0.25)
    net = sac.networks
    assert net.features_target is not None
    before = parameters(net.features)
    assert parameters(net.features_target).equal(before)
    sac.update([minibatch(8)])
    after = parameters(net.features)
    assert not after.equal(before)
    torch.testing.assert_close(parameters(net.features_target), before + 0.25 * (after - before))


def test_updates_are_reproducible_after_loading():
    sac, other = learner(gripper=True), learner(gripper=True, seed=0)
    sac.update([minibatch(8, 0)])
    other.load_state_dict(sac.state_dict())
    for one in (sac, other):
        one.update([minibatch(8, 5), minibatch(8, 6)])
    assert parameters(sac.networks).equal(parameters(other.networks))


def test_actions_depend_on_the_images():
    sac = learner()
    one, two = obs(4, 0), obs(4, 1)
    actions = [
        sac.act_on(Observations(one.vector_BO, pictures))
        for pictures in (one.pictures, two.pictures)
    ]
    assert actions[0].shape == (4, 2)
    assert not np.array_equal(actions[0], actions[1])


def bandit(rows: int, rng: np.random.Generator) -> Transitions:
    """Reward 1 - (a - x)^2, where x in {-0.5, 0.5} is shown only by which half of the picture is
    bright."""
    side = rng.integers(2, size=rows)
    picture = rng.integers(0, 60, size=(rows, 12, 12, 3)).astype(np.uint8)
    picture[side == 0, :, :6] += 150
    picture[side == 1, :, 6:] += 150
    action = rng.uniform(-1, 1, size=(rows, 1)).astype(np.float32)
    reward = 1 - (action[:, 0] - (side - 0.5)) ** 2
    eye = Observations(torch.zeros(rows, 1), {"eye": torch.from_numpy(picture)})
    none = torch.zeros(rows, dtype=torch.bool)
    zero = torch.zeros(rows)
    return Transitions(
        eye, torch.from_numpy(action), torch.from_numpy(reward), zero, eye, none, none, zero
    )


def test_a_pixel_learner_learns_a_bandit_of_pictures():
    sizes = MlpSizes(hidden=(32,))
    config = SacConfig(
        critic=sizes, actor=sizes, encoder=SMALL, learning_rate=1e-3, actor_learning_rate=1e-3
    )
    sac = Sac(config, Sizes(observation=1, action=1, pictures=(("eye", 12, 12),)))
    rng = np.random.default_rng(0)
    losses = [float(sac.update([bandit(64, rng)])["critic_loss"]) for _ in range(400)]
    assert np.mean(losses[-20:]) < 0.2 * np.mean(losses[:20])
    test = bandit(200, np.random.default_rng(1))
    actions = sac.act_on(test.obs)[:, 0]
    side = test.obs.pictures["eye"][:, :, :6].float().mean(dim=(1, 2, 3)).numpy() < 75
    assert np.abs(actions - (side - 0.5)).mean() < 0.15


MAPPED = Sizes(observation=3, action=2, maps=(("wrist", 5, 2, 3), ("front", 4, 2, 2)))


def mapped(batch: Transitions) -> Transitions:
    """The minibatch with random feature maps in place of its images."""

    def encoded(obs: Observations, seed: int) -> Observations:
        generator = torch.Generator().manual_seed(seed)
        rows = len(obs.vector_BO)
        maps = {
            name: torch.randn(rows, *shape, generator=generator).half()
            for name, *shape in MAPPED.maps
        }
        return obs._replace(pictures=maps)

    return batch._replace(obs=encoded(batch.obs, 1), next_obs=encoded(batch.next_obs, 2))


def map_learner(dropout: float = 0.0, gripper: bool = True) -> Sac:
    sizes = MlpSizes(hidden=(16,))
    encoder = EncoderConfig(picture_width=16, vector_width=8, dropout=dropout)
    hand = GripperConfig(network=sizes) if gripper else None
    return Sac(SacConfig(critic=sizes, actor=sizes, encoder=encoder, gripper=hand), MAPPED)


def test_a_backbone_in_the_encoder_and_one_before_it_give_the_same_features() -> None:
    backbone = nn.Conv2d(3, 5, 3, stride=4, padding=1)
    pictured = Sizes(observation=3, action=2, pictures=(("wrist", 8, 12),))
    before = Sizes(observation=3, action=2, maps=(("wrist", 5, 2, 3),))
    inside, behind = Encoder(SMALL, pictured, {"wrist": backbone}), Encoder(SMALL, before)
    weights = {name: value for name, value in inside.state_dict().items() if "backbone" not in name}
    behind.load_state_dict(weights)
    seen = obs(4, 0, pictured)
    with torch.no_grad():
        maps = backbone(seen.pictures["wrist"].permute(0, 3, 1, 2) / 255.0)
    torch.testing.assert_close(
        encode_observations(behind, seen._replace(pictures={"wrist": maps})),
        encode_observations(inside, seen),
    )


def test_feature_maps_are_not_shifted() -> None:
    batch = mapped(minibatch(4))
    assert augmented(batch, 4, torch.Generator()) == batch


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_an_update_from_maps_depends_on_the_weights_and_its_number_only(dropout: float) -> None:
    one, other = map_learner(dropout), map_learner(dropout)
    batch = mapped(minibatch(8))
    one.update([batch])
    torch.manual_seed(7)
    other.load_state_dict(one.state_dict())
    metrics = [sac.update([batch, batch]) for sac in (one, other)]
    assert parameters(one.networks).equal(parameters(other.networks))
    assert metrics[0] == metrics[1]


def test_dropout_changes_the_losses_of_the_critics_and_not_the_actions() -> None:
    plain, dropping = map_learner(), map_learner(0.5)
    batch = mapped(minibatch(8))
    assert np.array_equal(plain.act_on(batch.obs), dropping.act_on(batch.obs))
    losses = [sac.update([batch])["critic_loss"] for sac in (plain, dropping)]
    assert losses[0] != losses[1]


def test_both_critics_train_the_encoder_in_one_step() -> None:
    sac, batch = map_learner(), mapped(minibatch(8))
    rewarded = batch._replace(toggles_B=batch.toggles_B + 1.0)
    other = map_learner()
    sac.update([batch])
    # The penalty of toggles is in the loss of the gripper's critic alone.
    other.update([rewarded])
    assert not parameters(sac.networks.features).equal(parameters(other.networks.features))
    trained = {id(weight) for weight in sac.networks.features.parameters()}
    assert sac.networks.gripper is not None
    assert trained.isdisjoint(id(weight) for weight in sac.networks.gripper.parameters())
