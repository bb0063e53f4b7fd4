from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from policies.card import Shapes
from policies.checkpoint import read_card, read_weights
from policies.families.act import ActPolicy, gaussian_divergence, masked_absolute_error
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_module, load_policy, new_module
from policies.networks.act import DecoderLayer, EncoderLayer, plane_positions
from policies.networks.config import PointEncoderConfig
from policies.policy import Batch, ObservationTensors
from policies.policy_config import ActConfig
from policies.training.config import TrainingConfig
from policies.training.loop import rng
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from tests.policies.seeing import SIZE, write_seeing_demonstrations

TINY = ActConfig(
    observation_fields=("goal", "agent"),
    horizon=4,
    n_action_steps=2,
    width=16,
    heads=2,
    feedforward=32,
    latent_layers=1,
    encoder_layers=1,
    latent=4,
    dropout=0.2,
)
SEEING = replace(
    TINY,
    observation_fields=("agent",),
    image_fields=("camera",),
    point_fields=("cloud",),
    point_encoder=PointEncoderConfig(widths=(8,), features=4),
)
SHAPES = Shapes.of_vector(4, 2, anchor=2)
SEEN = Shapes({"agent": (0, 2)}, 2, 0, {"camera": (*SIZE, 3), "cloud": (5, 3)})
TRAINING = TrainingConfig(
    steps=60,
    learning_rate=3e-3,
    batch_size=16,
    warmup_steps=5,
    log_every=10,
    checkpoint_seconds=0.0,
    precision="fp32",
)


def new_act(config: ActConfig = TINY, shapes: Shapes = SHAPES) -> ActPolicy:
    torch.manual_seed(0)
    module = new_module(config, shapes)
    assert isinstance(module, ActPolicy)
    return module


def a_batch(rows: int = 3, padded: int = 1) -> Batch:
    draw = torch.Generator().manual_seed(0)
    padded_BH = torch.arange(4).expand(rows, 4) >= 4 - padded
    return Batch(
        ObservationTensors(torch.randn(rows, 1, 4, generator=draw)),
        torch.randn(rows, 4, 2, generator=draw),
        padded_BH,
    )


def sensor_data(rows: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    camera = torch.randint(0, 256, (rows, 1, *SIZE, 3), dtype=torch.uint8, generator=draw)
    return {"camera": camera, "cloud": torch.randn(rows, 1, 5, 3, generator=draw)}


def test_the_divergence_is_that_of_normal_distributions():
    draw = torch.Generator().manual_seed(0)
    mean, log_variance = torch.randn(5, 3, generator=draw), torch.randn(5, 3, generator=draw)
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0.0, 1.0)).sum(-1)
    assert torch.allclose(gaussian_divergence(mean, log_variance), expected, atol=1e-6)


def test_padded_actions_count_as_no_error():
    padded = torch.tensor([[False, False, False, True]])
    # Errors of 1, 2, 3 and, padded, 100 in both entries: 6 over 4 actions.
    chunk = torch.tensor([[1.0, -2.0, 3.0, 100.0]])[..., None].expand(1, 4, 2)
    assert masked_absolute_error(torch.zeros(1, 4, 2), chunk, padded).item() == pytest.approx(1.5)


def test_the_loss_does_not_see_padded_actions():
    module, batch = new_act().eval(), a_batch()
    other = batch.chunk_BHA.clone()
    other[:, 3] = 7.0
    loss = module.loss(batch, rng(0, 0))
    assert torch.equal(module.loss(batch._replace(chunk_BHA=other), rng(0, 0)), loss)
    other[:, 2] = 7.0
    assert not torch.equal(module.loss(batch._replace(chunk_BHA=other), rng(0, 0)), loss)


@torch.no_grad()
def test_the_loss_is_twice_the_error_plus_ten_times_the_divergence():
    module, batch = new_act().eval(), a_batch(padded=0)
    for linear in (module.latent_encoder.output, module.transformer.output):
        linear.weight.zero_()
        linear.bias.zero_()
    module.latent_encoder.output.bias[:4] = 1.0
    # Mean 1 and variance 1 in four entries diverge by 4 * 1/2; the chunk answered is 0.
    loss = module.loss(batch._replace(chunk_BHA=torch.full((3, 4, 2), -0.25)), rng(0, 0))
    assert loss.item() == pytest.approx(2 * 0.25 + 10 * 2.0)


def test_dropout_is_drawn_from_the_update_alone():
    module, batch = new_act(), a_batch()
    first = module.loss(batch, rng(0, 0))
    torch.randn(5)
    assert torch.equal(module.loss(batch, rng(0, 0)), first)
    # The same latent, but other units dropped, or none.
    assert not torch.equal(module.eval().loss(batch, rng(0, 0)), first)


def test_the_chunk_is_the_same_whatever_the_noise():
    module, observation = new_act().eval(), a_batch().obs.vector_BTO
    assert torch.equal(
        module(observation, torch.zeros(3, 4, 2)), module(observation, torch.ones(3, 4, 2))
    )
    assert not torch.allclose(
        module(observation, torch.zeros(3, 4, 2)), module(observation + 1, torch.zeros(3, 4, 2))
    )


@torch.no_grad()
def test_without_positions_a_layer_is_that_of_torch():
    torch.manual_seed(0)
    own, other = (
        EncoderLayer(TINY).eval(),
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(),
    )
    pairs = [
        (other.self_attn, own.attention),
        (other.linear1, own.feedforward[0]),
        (other.linear2, own.feedforward[3]),
    ]
    for one, same in [*pairs, (other.norm1, own.norms[0]), (other.norm2, own.norms[1])]:
        one.load_state_dict(same.state_dict())
    hidden, ignored = torch.randn(2, 5, 16), torch.arange(5).expand(2, 5) >= 4
    expected = other(hidden, src_key_padding_mask=ignored)
    assert torch.allclose(
        own(hidden, torch.zeros(5, 16), ignored)[:, :4], expected[:, :4], atol=1e-6
    )


@torch.no_grad()
def test_without_positions_a_decoder_layer_is_that_of_torch():
    torch.manual_seed(0)
    own, other = (
        DecoderLayer(TINY).eval(),
        nn.TransformerDecoderLayer(16, 2, 32, batch_first=True).eval(),
    )
    pairs = [(other.self_attn, own.own), (other.multihead_attn, own.cross)]
    pairs += [(other.linear1, own.feedforward[0]), (other.linear2, own.feedforward[3])]
    for one, same in [
        *pairs,
        *zip((other.norm1, other.norm2, other.norm3), own.norms, strict=True),
    ]:
        one.load_state_dict(same.state_dict())
    hidden, memory = torch.randn(2, 4, 16), torch.randn(2, 5, 16)
    answer = own(hidden, torch.zeros(4, 16), memory, torch.zeros(5, 16))
    assert torch.allclose(answer, other(hidden, memory), atol=1e-6)


def test_positions_are_sines_of_row_and_column():
    # Two rows are half and whole turns, the one column a whole turn.
    assert plane_positions(2, 1, 4).numpy() == pytest.approx(
        np.array([[0, -1, 0, 1], [0, 1, 0, 1]]), abs=1e-6
    )
    quarters = [[1, 0], [0, -1], [-1, 0], [0, 1]]
    assert plane_positions(1, 4, 4)[:, 2:].numpy() == pytest.approx(np.array(quarters), abs=1e-6)


def test_places_have_the_order_of_the_flattened_map():
    positions = plane_positions(2, 3, 8).unflatten(0, (2, 3))
    assert torch.equal(positions[0, :, :4], positions[0, :1, :4].expand(3, 4))
    assert torch.equal(positions[:, 0, 4:], positions[:1, 0, 4:].expand(2, 4))
    assert len(positions.flatten(0, 1).unique(dim=0)) == 6


def test_pictures_and_points_reach_the_chunk():
    module, vector, sensors = new_act(SEEING, SEEN).eval(), torch.zeros(2, 1, 2), sensor_data(2)
    noise = torch.zeros(2, 4, 2)
    chunk = module(vector, noise, sensors)
    for name, changed in {"camera": 255 - sensors["camera"], "cloud": sensors["cloud"] + 1}.items():
        assert (module(vector, noise, sensors | {name: changed}) - chunk).abs().max() > 1e-4


def test_every_parameter_learns_but_the_one_that_does_not_matter():
    module = new_act(SEEING, SEEN)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    batch = Batch(
        ObservationTensors(torch.randn(2, 1, 2), sensor_data(2)),
        torch.randn(2, 4, 2),
        torch.zeros(2, 4, dtype=torch.bool),
    )
    module.loss(batch, rng(0, 0)).backward()
    dead = {name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()}
    assert dead == {"transformer.decoder.0.own.in_proj_weight"}


@torch.no_grad()
def test_what_zeros_attend_to_does_not_matter():
    module, observation = new_act().eval(), a_batch().obs.vector_BTO
    chunk = module(observation, torch.zeros(3, 4, 2))
    nn.init.normal_(module.transformer.get_parameter("decoder.0.own.in_proj_weight"))
    assert torch.allclose(module(observation, torch.zeros(3, 4, 2)), chunk, atol=1e-6)


def test_a_policy_without_an_observation_vector_acts_on_its_camera():
    config = replace(SEEING, observation_fields=(), point_fields=(), anchor_field=None)
    module = new_act(config, Shapes({}, 2, None, {"camera": (*SIZE, 3)})).eval()
    chunk = module(torch.zeros(2, 1, 0), torch.zeros(2, 4, 2), {"camera": sensor_data(2)["camera"]})
    assert chunk.shape == (2, 4, 2)
    batch = Batch(
        ObservationTensors(torch.zeros(2, 1, 0), sensor_data(2)),
        torch.zeros(2, 4, 2),
        torch.zeros(2, 4, dtype=torch.bool),
    )
    assert torch.isfinite(module.loss(batch, rng(0, 0)))


@pytest.mark.parametrize(
    ("changes", "shapes", "message"),
    [
        ({"n_obs_steps": 2}, SHAPES, "n_obs_steps is 2, expected 1"),
        ({"decoder_layers": 0}, SHAPES, "0 decoder_layers, expected 1 or more"),
        ({"heads": 3}, SHAPES, "width 16 with 3 heads"),
        ({"width": 18}, SHAPES, "width 18 with 2 heads"),
        ({}, Shapes({}, 2, None, {}), "it has no inputs"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, int], shapes: Shapes, message: str):
    with pytest.raises(HandoffError, match=message):
        new_module(replace(TINY, **changes), shapes)


def test_pictures_that_were_scaled_are_refused():
    module, sensors = new_act(SEEING, SEEN), sensor_data(1)
    with pytest.raises(HandoffError, match=r"images of 'camera' are torch\.float32"):
        module(
            torch.zeros(1, 1, 2),
            torch.zeros(1, 4, 2),
            sensors | {"camera": sensors["camera"].float()},
        )


def test_an_interrupted_training_ends_with_the_very_weights_it_would_have_had(
    demos: Path, tmp_path: Path
):
    class StopError(Exception):
        pass

    def stop(done: int, total: int, note: str = "") -> None:
        if done == 37:
            raise StopError

    config = PretrainConfig(policy=TINY, training=TRAINING, validation_fraction=0.1)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out in (whole, parts):
        out.mkdir()
    with pytest.raises(StopError):
        pretrain(config, demos, parts, stop)
    torch.randn(5)
    metrics = [pretrain(config, demos, out, no_progress) for out in (whole, parts)]
    weights, others = read_weights(whole), read_weights(parts)
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert metrics[0]["validation_loss"] == metrics[1]["validation_loss"] > 0


def test_a_policy_that_sees_comes_back_as_it_was_trained(tmp_path: Path):
    demos = write_seeing_demonstrations(tmp_path / "demos")
    training = replace(TRAINING, steps=3, batch_size=4)
    config = PretrainConfig(policy=SEEING, training=training, validation_fraction=0.0)
    pretrain(config, demos, tmp_path, no_progress)
    assert read_card(tmp_path).model == SEEING
    module, _ = load_module(tmp_path)
    assert read_weights(tmp_path)["transformer.points.cloud.normalize_points.cloud.centre"].all()
    sensors, vector, noise = sensor_data(2), torch.full((2, 1, 2), 0.1), torch.zeros(2, 4, 2)
    expected = module(vector, noise, sensors).numpy()
    given = PolicyInput(vector.numpy(), {name: value.numpy() for name, value in sensors.items()})
    assert np.array_equal(load_policy(tmp_path)(given, noise.numpy()), expected)
    assert np.isfinite(expected).all()


def test_it_learns_more_than_the_mean_chunk(demos: Path, tmp_path: Path):
    training = replace(TRAINING, steps=120)
    config = PretrainConfig(
        policy=replace(TINY, dropout=0.0), training=training, validation_fraction=0.0
    )
    # The mean is off by 0.8 deviations, were the actions normal.
    assert pretrain(config, demos, tmp_path, no_progress)["loss"] < 0.6
