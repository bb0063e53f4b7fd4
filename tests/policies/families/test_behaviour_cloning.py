import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from policies.card import Shapes
from policies.checkpoint import read_card, read_weights
from policies.families.behaviour_cloning import BehaviourCloningPolicy, GaussianMixture, sample_mode
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_module, load_policy, new_module
from policies.networks.config import PointEncoderConfig, ResnetEncoderConfig
from policies.policy import Batch, ObservationTensors
from policies.policy_config import BehaviourCloningConfig
from policies.training.config import TrainingConfig
from policies.training.loop import rng
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from tests.policies.seeing import SIZE, write_seeing_demonstrations

TINY = BehaviourCloningConfig(
    observation_fields=("goal", "agent"),
    n_obs_steps=2,
    horizon=4,
    n_action_steps=2,
    hidden=(16, 16),
    modes=3,
)
SEEING = replace(
    TINY,
    observation_fields=("agent",),
    image_fields=("camera",),
    point_fields=("cloud",),
    image_encoder=ResnetEncoderConfig(crop=(32, 48), keypoints=4, features=4),
    point_encoder=PointEncoderConfig(widths=(8,), features=4),
)
SHAPES = Shapes.of_vector(4, 2, anchor=2)
SEEN = Shapes({"agent": (0, 2)}, 2, 0, {"camera": (*SIZE, 3), "cloud": (5, 3)})
TRAINING = TrainingConfig(
    steps=60,
    learning_rate=1e-2,
    batch_size=16,
    warmup_steps=5,
    log_every=10,
    checkpoint_seconds=0.0,
    precision="fp32",
)
HEADS = pytest.mark.parametrize("head", ["gmm", "mse"])


def new_bc(
    config: BehaviourCloningConfig = TINY, shapes: Shapes = SHAPES
) -> BehaviourCloningPolicy:
    torch.manual_seed(0)
    module = new_module(config, shapes)
    assert isinstance(module, BehaviourCloningPolicy)
    return module


def last_layer(module: BehaviourCloningPolicy) -> nn.Linear:
    layer = module.network[-1]
    assert isinstance(layer, nn.Linear)
    return layer


def a_batch(rows: int = 3) -> Batch:
    draw = torch.Generator().manual_seed(0)
    obs = ObservationTensors(torch.randn(rows, 2, 4, generator=draw))
    return Batch(
        obs, torch.randn(rows, 4, 2, generator=draw), torch.zeros(rows, 4, dtype=torch.bool)
    )


def sensor_data(rows: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    camera = torch.randint(0, 256, (rows, 2, *SIZE, 3), dtype=torch.uint8, generator=draw)
    return {"camera": camera, "cloud": torch.randn(rows, 2, 5, 3, generator=draw)}


def test_the_likelihood_is_that_of_a_mixture_of_independent_gaussians():
    draw = torch.Generator().manual_seed(0)
    mean, deviation = (
        torch.randn(6, 3, 8, generator=draw),
        torch.rand(6, 3, 8, generator=draw) + 0.01,
    )
    log_weight = torch.randn(6, 3, generator=draw).log_softmax(-1)
    chunk = torch.randn(6, 8, generator=draw)
    expected = MixtureSameFamily(
        Categorical(logits=log_weight), Independent(Normal(mean, deviation), 1)
    )
    own = GaussianMixture(mean, deviation, log_weight).log_likelihood(chunk)
    assert torch.allclose(own, expected.log_prob(chunk), rtol=1e-5)


@torch.no_grad()
def test_the_loss_of_a_standard_normal_is_known():
    module = new_bc()
    last = last_layer(module)
    last.weight.zero_()
    last.bias.zero_()
    # Every mean 0, softplus(x) + 1e-4 = 1; a chunk of ones is 8 * (1/2 + log(2 pi) / 2) away,
    # whatever the mode.
    last.bias[24:48] = math.log(math.expm1(1 - 1e-4))
    loss = module.loss(a_batch()._replace(chunk_BHA=torch.ones(3, 4, 2)), rng(0, 0))
    assert loss.item() == pytest.approx(4 * (1 + math.log(2 * math.pi)), rel=1e-6)


@torch.no_grad()
def test_the_likelihood_is_worked_out_in_float32_under_bf16():
    module, batch = new_bc(), a_batch()
    last = last_layer(module)
    last.weight.zero_()
    last.bias.copy_(torch.linspace(-2, 2, len(last.bias)).bfloat16())
    loss = module.loss(batch, rng(0, 0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module.loss(batch, rng(0, 0)).item() == pytest.approx(loss.item(), rel=1e-6)


def test_far_away_actions_leave_loss_and_gradients_finite():
    module = new_bc()
    with torch.no_grad():
        last_layer(module).bias[24:48] = -100.0
    batch = a_batch()
    loss = module.loss(batch._replace(chunk_BHA=batch.chunk_BHA + 1000), rng(0, 0))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())


def test_every_mode_is_as_frequent_as_its_weight():
    weight = torch.tensor([0.2, 0.5, 0.3])
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal(10_000, dtype=np.float32))
    share = sample_mode(weight.log().expand(10_000, 3), noise).bincount(minlength=3) / 10_000
    # Five standard deviations of the rarest mode's share are 0.02.
    assert (share - weight).abs().max() <= 0.02


@pytest.mark.parametrize(
    ("noise", "mode"), [(-0.85, 0), (-0.83, 1), (0.52, 1), (0.53, 2), (-40.0, 0), (40.0, 2)]
)
def test_the_mode_is_the_one_whose_share_the_noise_falls_into(noise: float, mode: int):
    # The standard normal distribution function is 0.2 at -0.842 and 0.7 at 0.524.
    weight = torch.tensor([[0.2, 0.5, 0.3]])
    assert sample_mode(weight.log(), torch.tensor([noise])).item() == mode


@pytest.mark.parametrize("noise", [-40.0, 40.0])
def test_a_mode_without_weight_is_never_chosen(noise: float):
    weight = torch.tensor([[0.0, 1.0, 0.0]])
    assert sample_mode(weight.log(), torch.tensor([noise])).item() == 1


@torch.no_grad()
def test_the_answer_is_the_mean_of_the_mode_that_the_first_number_chooses():
    module, obs = new_bc().eval(), a_batch().obs
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 4, 2), dtype=np.float32))
    mixture = module.mixture(obs)
    mode = sample_mode(mixture.log_weight_BM, noise[:, 0, 0])
    expected = torch.stack(
        [mixture.mean_BMD[row, mode[row]].unflatten(0, (4, 2)) for row in range(3)]
    )
    assert torch.equal(module.sample(obs, noise), expected)
    other = torch.randn(3, 4, 2)
    other[:, 0, 0] = noise[:, 0, 0]
    assert torch.equal(module.sample(obs, other), expected)


@torch.no_grad()
def test_regression_answers_the_same_whatever_the_noise():
    module, obs = new_bc(replace(TINY, head="mse")).eval(), a_batch().obs
    assert torch.equal(
        module.sample(obs, torch.zeros(3, 4, 2)), module.sample(obs, torch.ones(3, 4, 2))
    )


@torch.no_grad()
def test_regression_learns_by_the_squared_error():
    module, batch = new_bc(replace(TINY, head="mse")), a_batch()
    predicted = module.sample(batch.obs, torch.zeros(3, 4, 2))
    assert module.loss(
        batch._replace(chunk_BHA=predicted + 3.0), rng(0, 0)
    ).item() == pytest.approx(9.0, rel=1e-5)


def test_crops_are_drawn_from_the_update_alone():
    module = new_bc(SEEING, SEEN)
    batch = Batch(
        ObservationTensors(torch.zeros(2, 2, 2), sensor_data(2)),
        torch.randn(2, 4, 2),
        torch.zeros(2, 4, dtype=torch.bool),
    )
    first = module.loss(batch, rng(0, 0))
    torch.randn(5)
    assert torch.equal(module.loss(batch, rng(0, 0)), first)
    assert not torch.equal(module.loss(batch, rng(0, 1)), first)
    first.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())


@pytest.mark.parametrize(
    ("config", "shapes", "message"),
    [
        (replace(TINY, modes=0), SHAPES, "0 modes and min_deviation 0.0001"),
        (replace(TINY, min_deviation=0.0), SHAPES, "3 modes and min_deviation 0"),
        (TINY, Shapes({}, 2, None, {}), "it has no inputs"),
    ],
)
def test_what_does_not_fit_is_refused(config: BehaviourCloningConfig, shapes: Shapes, message: str):
    with pytest.raises(HandoffError, match=message):
        new_module(config, shapes)


def test_regression_has_no_mixture():
    with pytest.raises(HandoffError, match="the head is 'mse'"):
        new_bc(replace(TINY, head="mse")).mixture(a_batch().obs)


@HEADS
def test_an_interrupted_training_ends_with_the_very_weights_it_would_have_had(
    head, demos: Path, tmp_path: Path
):
    class StopError(Exception):
        pass

    def stop(done: int, total: int, note: str = "") -> None:
        if done == 37:
            raise StopError

    config = PretrainConfig(
        policy=replace(TINY, head=head), training=TRAINING, validation_fraction=0.1
    )
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
    assert metrics[0]["validation_loss"] == metrics[1]["validation_loss"]


def test_a_policy_that_sees_comes_back_as_it_was_trained(tmp_path: Path):
    demos = write_seeing_demonstrations(tmp_path / "demos")
    training = replace(TRAINING, steps=3, batch_size=4)
    pretrain(
        PretrainConfig(policy=SEEING, training=training, validation_fraction=0.0),
        demos,
        tmp_path,
        no_progress,
    )
    assert read_card(tmp_path).model == SEEING
    module, _ = load_module(tmp_path)
    sensors, vector, noise = sensor_data(2), torch.full((2, 2, 2), 0.1), torch.zeros(2, 4, 2)
    expected = module(vector, noise, sensors).numpy()
    given = PolicyInput(vector.numpy(), {name: value.numpy() for name, value in sensors.items()})
    assert np.array_equal(load_policy(tmp_path)(given, noise.numpy()), expected)
    assert np.isfinite(expected).all()
