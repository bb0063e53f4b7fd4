from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from policies.card import PolicyCard, Shapes
from policies.checkpoint import read_weights, save_policy
from policies.export.graph import to_onnx
from policies.families.beso import BesoPolicy
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_policy, new_module
from policies.networks.goal_transformer import GoalTransformer
from policies.normalize import MomentStatistics
from policies.policy import Batch, ObservationTensors
from policies.policy_config import BesoConfig
from policies.samplers.chain import ChainConfig, sample_chain
from policies.training.config import TrainingConfig
from robots.config import to_plain, validate
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from tests.policies.test_checkpoint import POINT

FIELD = BesoConfig(
    observation_fields=("goal", "agent"),
    goal="field",
    goal_fields=("goal",),
    n_obs_steps=2,
    horizon=4,
    n_action_steps=2,
    layers=2,
    heads=2,
    width=16,
    attention_dropout=0.2,
)
FUTURE = replace(FIELD, goal="future", goal_fields=("agent",))
SHAPES = Shapes({"goal": (0, 2), "agent": (2, 4)}, action=2, anchor=2, sensors={})
CARD = PolicyCard(
    task="point",
    rate_hz=10.0,
    observation={"goal": POINT, "agent": POINT},
    action=POINT,
    model=FIELD,
)


def policy(config: BesoConfig = FIELD) -> BesoPolicy:
    """Untrained, with weights large enough that every input matters."""
    torch.manual_seed(0)
    made = BesoPolicy(config, SHAPES)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.4)
    return made.eval().requires_grad_(False)


def inputs(rows: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(rows, 2, 4, generator=draw), torch.randn(rows, 4, 2, generator=draw)


def batch(rows: int) -> Batch:
    observation, chunk = inputs(rows)
    return Batch(
        ObservationTensors(observation, goal_BO=observation[:, 0]),
        chunk,
        torch.zeros(rows, 4, dtype=torch.bool),
    )


def sampled(made: BesoPolicy, guidance: float, goal: Tensor | None = None) -> Tensor:
    """Normalised chunks of five rows, whose newest goal may be replaced."""
    observation, noise = inputs(5)
    if goal is not None:
        observation = torch.cat([goal.expand(5, 2, 2), observation[..., 2:]], dim=-1)
    made.guidance = guidance
    return made.sample(ObservationTensors(observation), noise)


def test_three_steps_start_at_the_greatest_of_besos_noise_levels() -> None:
    grid = policy().grid(0.0)
    assert grid.sigma_K.tolist() == pytest.approx([1.0, 0.0707107, 0.005])
    assert grid.next_sigma_K.tolist() == pytest.approx([0.0707107, 0.005, 0.0])


def test_sampling_scales_the_noise_to_the_first_level() -> None:
    made = policy(replace(FIELD, sigma_max=0.8, clip=1e6))
    observation, noise = inputs(5)
    made.set_sampler_steps(1)
    # One step from the first level goes to 0, where nothing is left but the denoiser's answer.
    answer = made.denoise(ObservationTensors(observation))(0.8 * noise, torch.full((5,), 0.8))
    assert torch.allclose(made.sample(ObservationTensors(observation), noise), answer)


def test_without_guidance_the_goal_does_not_matter() -> None:
    made = policy()
    assert torch.equal(sampled(made, 0.0), sampled(made, 0.0, torch.full((2,), 9.0)))


def test_a_zeroed_goal_is_no_goal() -> None:
    made = policy()
    zeroed = sampled(made, 1.0, torch.zeros(2))
    assert torch.equal(zeroed, sampled(made, 0.0))
    assert not torch.allclose(zeroed, sampled(made, 1.0), atol=1e-2)


def test_guidance_of_one_is_the_conditional_network() -> None:
    made = policy()
    observation, noise = inputs(5)
    made.guidance = 1.0
    sigma = torch.full((5,), 0.5)
    # EDM's table at sigma 0.5: skip 0.5, out 0.5 / sqrt 2, inner sqrt 2, noise log(0.5) / 4.
    raw = made.network(2**0.5 * noise, sigma.log() / 4, observation[:, 1, :2], observation[..., 2:])
    answer = made.denoise(ObservationTensors(observation))(noise, sigma)
    assert torch.allclose(answer, 0.5 * noise + 0.5**1.5 * raw, atol=1e-6)


def test_guidance_goes_beyond_the_conditional_network() -> None:
    made = policy()
    observation, noise = inputs(5)
    answers = []
    for made.guidance in (0.0, 1.0, 1.5):
        answers.append(made.denoise(ObservationTensors(observation))(noise, torch.full((5,), 0.5)))
    without, conditional, guided = answers
    assert torch.allclose(guided, without + 1.5 * (conditional - without), atol=1e-6)


def test_a_commanded_goal_is_the_newest_one() -> None:
    made = policy()
    observation, noise = inputs(5)
    older, newest = observation.clone(), observation.clone()
    older[:, 0, :2] += 1.0
    newest[:, 1, :2] += 1.0
    before = made.sample(ObservationTensors(observation), noise)
    assert torch.equal(made.sample(ObservationTensors(older), noise), before)
    assert not torch.allclose(made.sample(ObservationTensors(newest), noise), before, atol=1e-2)


def test_of_a_future_state_only_the_goal_fields_count() -> None:
    made = policy(FUTURE)
    observation, noise = inputs(5)
    goal = torch.zeros(5, 4)
    before = made.sample(ObservationTensors(observation, goal_BO=goal), noise)
    ignored, heeded = goal.clone(), goal.clone()
    ignored[:, :2] += 1.0
    heeded[:, 2:] += 1.0
    assert torch.equal(made.sample(ObservationTensors(observation, goal_BO=ignored), noise), before)
    assert not torch.allclose(
        made.sample(ObservationTensors(observation, goal_BO=heeded), noise), before, atol=1e-2
    )


def test_with_a_future_goal_all_fields_are_observed() -> None:
    made = policy(FUTURE)
    observation, noise = inputs(5)
    goal = torch.zeros(5, 4)
    before = made.sample(ObservationTensors(observation, goal_BO=goal), noise)
    for entry in range(4):
        changed = observation.clone()
        changed[..., entry] += 1.0
        assert not torch.allclose(
            made.sample(ObservationTensors(changed, goal_BO=goal), noise), before, atol=1e-3
        )


def test_a_goal_in_physical_units_is_normalised_as_observations_are() -> None:
    made = policy(FUTURE)
    made.normalize_observation.centre.fill_(0.3)
    made.normalize_observation.half_range.fill_(2.0)
    observation, noise = inputs(5)
    normal = made.normalize_observation(observation)
    expected = made.normalize_action.inverse(
        made.sample(ObservationTensors(normal, goal_BO=normal[:, 0]), noise)
    )
    found = made(observation, noise, goal_BO=observation[:, 0])
    assert torch.allclose(found, expected + observation[:, -1:, 2:], atol=1e-6)


def network_answer(made: GoalTransformer, scaled: Tensor, observation: Tensor) -> Tensor:
    return made(scaled, torch.zeros(1), torch.zeros(1, 2), observation)


@pytest.mark.parametrize(
    ("changed", "reached"), [(0, {0, 1, 2, 3}), (1, {1, 2, 3}), (2, {1, 2, 3}), (3, {1, 2, 3})]
)
def test_a_past_action_sees_no_later_one_and_those_to_come_see_each_other(
    changed: int, reached: set[int]
) -> None:
    made = policy().network
    observation, scaled = torch.zeros(1, 2, 2), torch.zeros(1, 4, 2)
    before = network_answer(made, scaled, observation)[0]
    scaled[0, changed] = 1.0
    moved = (network_answer(made, scaled, observation)[0] - before).abs().amax(dim=-1) > 1e-6
    assert set(moved.nonzero().flatten().tolist()) == reached


@pytest.mark.parametrize("changed", range(2))
def test_an_action_sees_no_later_observation(changed: int) -> None:
    made = policy().network
    observation, scaled = torch.zeros(1, 2, 2), torch.zeros(1, 4, 2)
    before = network_answer(made, scaled, observation)[0]
    observation[0, changed] = 1.0
    moved = (network_answer(made, scaled, observation)[0] - before).abs().amax(dim=-1) > 1e-6
    assert moved.tolist() == [step >= changed for step in range(4)]


def test_every_action_sees_goal_and_noise_level() -> None:
    made = policy().network
    scaled, level, goal, observation = (
        torch.zeros(1, 4, 2),
        torch.zeros(1),
        torch.zeros(1, 2),
        torch.zeros(1, 2, 2),
    )
    before = made(scaled, level, goal, observation)
    assert ((made(scaled, level + 1, goal, observation) - before).abs().amax(dim=-1) > 1e-4).all()
    assert ((made(scaled, level, goal + 1, observation) - before).abs().amax(dim=-1) > 1e-4).all()


def test_the_network_released_for_kitchen_has_its_size() -> None:
    config = BesoConfig(horizon=4, n_action_steps=1)
    width, state, action = 360, 30, 9
    with torch.device("meta"):
        made = GoalTransformer((4, action), (4, state), state, config)
    attention = 4 * (width * width + width)
    feed_forward = 2 * 4 * width * width + 5 * width
    blocks = 6 * (attention + feed_forward + 2 * 2 * width)
    # Here goal and state have embeddings of their own, and there is one goal with its position.
    embeddings = 2 * width + 2 * (state + 1) * width + (action + 1) * width + (1 + 4) * width
    head = 2 * width + (width + 1) * action
    assert (
        sum(parameter.numel() for parameter in made.parameters())
        == blocks + embeddings + head
        == 9_391_689
    )


def test_the_gradient_reaches_every_parameter() -> None:
    made = policy().requires_grad_(True)
    made.loss(batch(5), np.random.default_rng(0)).backward()
    dead = [name for name, p in made.named_parameters() if p.grad is None or not p.grad.any()]
    assert dead == []


def test_the_loss_is_edms_at_the_drawn_noise_levels() -> None:
    made, given = policy(FUTURE), batch(5)
    draw = np.random.default_rng(3)
    share, noise = draw.random(5), draw.standard_normal((5, 4, 2), dtype=np.float32)
    low, high = (1 / (1 + (0.5 / bound) ** 2) for bound in (0.005, 1.0))
    share = low + (high - low) * share
    # A log-logistic with median 0.5 and shape 2, cut off at both ends: sigma = 0.5 sqrt(share / (1
    # - share)).
    sigma = torch.from_numpy(0.5 * np.sqrt(share / (1 - share))).float()
    noisy = given.chunk_BHA + sigma[:, None, None] * torch.from_numpy(noise)
    made.guidance = 1.0
    error = made.denoise(given.obs)(noisy, sigma) - given.chunk_BHA
    weighted = error * ((sigma**2 + 0.25).sqrt() / (0.5 * sigma))[:, None, None]
    expected = mse_loss(weighted, torch.zeros_like(weighted))
    assert made.loss(given, np.random.default_rng(3)).item() == pytest.approx(
        expected.item(), rel=1e-3
    )


def test_training_zeroes_the_configured_share_of_goals_and_whole_ones() -> None:
    made = policy(replace(FIELD, goal_dropout=0.25, attention_dropout=0.0)).train()
    goals: list[Tensor] = []
    made.network.register_forward_pre_hook(lambda module, given: goals.append(given[2]))
    made.loss(batch(4000), np.random.default_rng(0))
    zeroed = goals[0] == 0.0
    assert torch.equal(zeroed[:, 0], zeroed[:, 1])
    assert zeroed[:, 0].float().mean().item() == pytest.approx(0.25, abs=0.03)


def test_validation_zeroes_no_goal() -> None:
    made = policy(replace(FIELD, goal_dropout=0.25))
    goals: list[Tensor] = []
    made.network.register_forward_pre_hook(lambda module, given: goals.append(given[2]))
    made.loss(batch(400), np.random.default_rng(0))
    assert (goals[0] != 0.0).all()


def test_the_loss_is_a_function_of_its_draw_alone() -> None:
    made = policy().train()
    first = made.loss(batch(8), np.random.default_rng(0))
    torch.randn(7)
    assert torch.equal(made.loss(batch(8), np.random.default_rng(0)), first)
    assert not torch.equal(made.loss(batch(8), np.random.default_rng(1)), first)


def test_ancestral_steps_are_there_for_reinforcement_learning() -> None:
    made = policy()
    observation, noise = inputs(5)
    step_noise = torch.randn(3, 5, 4, 2, generator=torch.Generator().manual_seed(2))
    grid = made.grid(1.0)
    chain = sample_chain(
        made.denoise(ObservationTensors(observation)),
        grid.start * noise,
        step_noise,
        grid,
        ChainConfig(),
    )
    assert (chain.std_KB[:, 0] > 0).tolist() == [True, True, False]
    still = made.grid(0.0)
    walked = sample_chain(
        made.denoise(ObservationTensors(observation)),
        still.start * noise,
        step_noise,
        still,
        ChainConfig(),
    )
    assert torch.allclose(
        walked.clean_BHA.clamp(-3.0, 3.0),
        made.sample(ObservationTensors(observation), noise),
        atol=1e-6,
    )
    assert not torch.allclose(chain.clean_BHA, walked.clean_BHA, atol=1e-2)


def test_the_sampler_names_its_steps() -> None:
    made = policy()
    assert made.sampler == "beso-3"
    made.set_sampler_steps(50)
    assert made.sampler == "beso-50"
    made.set_sampler_steps(1)
    assert made.sampler == "one-step"


@pytest.mark.nightly  # test_families.py exports a smaller one in every run.
def test_onnx_answers_as_torch() -> None:
    # Tracing takes seconds; one layer, passed with and without the goal at two levels, has every
    # kind of node.
    made = policy(replace(FIELD, layers=1, sampling_steps=2))
    made.normalize_observation.half_range.fill_(2.0)
    session = onnxruntime.InferenceSession(
        to_onnx(made, 21).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    observation, noise = inputs(3)
    (action,) = session.run(
        ["action"], {"observation": observation.numpy(), "noise": noise.numpy()}
    )
    assert np.abs(np.asarray(action) - made(observation, noise).numpy()).max() <= 1e-5


def test_a_saved_policy_answers_as_before(tmp_path: Path) -> None:
    made = policy()
    save_policy(tmp_path, CARD, made.state_dict())
    observation, noise = inputs(3)
    found = load_policy(tmp_path)(observation.numpy(), noise.numpy())
    assert np.allclose(found, made(observation, noise).numpy(), atol=1e-6)
    assert not np.allclose(
        found, load_policy(tmp_path, 5)(observation.numpy(), noise.numpy()), atol=1e-3
    )


def test_a_saved_policy_takes_a_goal_of_its_own(tmp_path: Path) -> None:
    made = policy(FUTURE)
    save_policy(tmp_path, replace(CARD, model=FUTURE), made.state_dict())
    observation, noise = inputs(3)
    goal = observation[:, 0] + 0.5
    found = load_policy(tmp_path)(
        PolicyInput(observation.numpy(), goal=goal.numpy()), noise.numpy()
    )
    assert np.allclose(found, made(observation, noise, goal_BO=goal).numpy(), atol=1e-6)


def test_the_family_is_identified_by_its_kind() -> None:
    assert isinstance(new_module(FIELD, SHAPES), BesoPolicy)
    plain = {"policy": {"kind": "beso", "guidance": 2.0}}
    assert validate(PretrainConfig, plain).policy == BesoConfig(guidance=2.0)
    assert validate(PretrainConfig, to_plain(PretrainConfig(policy=FIELD))).policy == FIELD


class StopError(Exception):
    pass


def stop_at_17(done: int, total: int, note: str = "") -> None:
    if done == 17:
        raise StopError


@pytest.mark.parametrize("sizes", [FIELD, FUTURE], ids=["field", "future"])
def test_an_interrupted_training_ends_with_the_very_weights_it_would_have_had(
    sizes: BesoConfig, demos: Path, tmp_path: Path
) -> None:
    training = TrainingConfig(
        steps=30,
        learning_rate=3e-3,
        batch_size=16,
        log_every=10,
        checkpoint_seconds=0.0,
        precision="fp32",
    )
    config = PretrainConfig(policy=sizes, training=training, validation_fraction=0.1)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out in (whole, parts):
        out.mkdir()
    with pytest.raises(StopError):
        pretrain(config, demos, parts, stop_at_17)
    torch.randn(5)
    metrics = [pretrain(config, demos, out, no_progress) for out in (whole, parts)]
    one, other = read_weights(whole), read_weights(parts)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert metrics[0]["validation_loss"] == metrics[1]["validation_loss"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "width 16 with 3 heads, expected a multiple"),
        ({"n_obs_steps": 5, "n_action_steps": 0}, "horizon 4 with 5 observed steps"),
        (
            {"goal_fields": ("gaol",)},
            r"goal_fields \['gaol'\].* among the observed \['goal', 'agent'\]",
        ),
        ({"goal_fields": ()}, r"goal_fields \[\], expected at least one"),
        ({"goal_fields": ("goal", "agent")}, "no state is left"),
        ({"goal_dropout": 1.0}, "goal_dropout 1.0 and guidance 1.5, expected goal_dropout in"),
        ({"guidance": -1.0}, "guidance -1.0, expected"),
        ({"goal_dropout": 0.0}, "guidance 1.5 needs an unconditional network"),
        ({"sampling_steps": 0}, "0 levels from 1.0 down to 0.005"),
        ({"sigma_min": 2.0}, "3 levels from 1.0 down to 2.0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        BesoPolicy(replace(FIELD, **changes), SHAPES)


def test_without_a_goal_it_heads_for_where_the_episodes_end_on_average() -> None:
    made, (observation, noise) = policy(FUTURE), inputs(3)
    last, entries = (
        MomentStatistics((made.observation_shape[1],)),
        np.arange(made.observation_shape[1]) / 10.0,
    )
    last.update(np.stack([entries - 0.1, entries + 0.1]))
    made.fit_usual_goal(last)
    usual_goal = torch.from_numpy(entries).float().expand(3, -1)
    assert torch.allclose(
        made(observation, noise), made(observation, noise, goal_BO=usual_goal), atol=1e-6
    )
    assert not torch.allclose(
        made(observation, noise), made(observation, noise, goal_BO=usual_goal + 0.3), atol=1e-3
    )


def test_without_guidance_no_goal_is_needed() -> None:
    made = policy(replace(FUTURE, guidance=0.0))
    observation, noise = inputs(3)
    assert made(observation, noise).shape == (3, 4, 2)
