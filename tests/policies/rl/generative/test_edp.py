"""Efficient diffusion policies: schedules, the one-step guess, the forms of the loss, and what
acting chooses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.rl.generative.config import EdpConfig
from policies.rl.generative.edp import DiffusionActor, Edp, noise_schedule, sampler_grid
from policies.rl.networks.config import MlpSizes
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError
from tests.policies.ddpm import ddpm_grid

TINY = MlpSizes(hidden=(32,), activation="relu", layer_norm=False)
SIZES = Sizes(observation=1, action=1)


def small(**options: Any) -> EdpConfig:
    plain: dict[str, Any] = {
        "levels": 10,
        "hidden": (32, 32),
        "candidates": 4,
        "learning_rate": 3e-3,
    }
    return EdpConfig(critic=TINY, value_network=TINY, **(plain | options))


def bandit(rows: int, number: int = 0) -> Transitions:
    """One state; half of the actions are -.6 and half .6, and what is paid is the action; then it
    is over."""
    rng = np.random.default_rng(number)
    action = torch.from_numpy(rng.choice(np.array([-0.6, 0.6], np.float32), size=rows))
    none, zero = torch.zeros(rows, dtype=torch.bool), torch.zeros(rows)
    obs = Observations(torch.zeros(rows, 1))
    return Transitions(obs, action[:, None], action, zero, obs, none, none, zero)


def drawn(learner: Edp, rows: int = 200) -> np.ndarray:
    return learner.act(np.zeros((rows, 1), np.float32), np.random.default_rng(0))[:, 0]


def test_the_vp_schedule_has_the_values_worked_by_hand():
    # -log abar_k = .1 k / K + .5 * 9.9 k^2 / K^2: at k = K 5.05, at the middle of 100 .05 + 1.2375.
    alpha, sigma = noise_schedule(EdpConfig())
    assert alpha[-1].square().item() == pytest.approx(np.exp(-5.05), rel=1e-5)
    assert alpha[49].square().item() == pytest.approx(np.exp(-1.2875), rel=1e-5)
    assert torch.allclose(alpha.square() + sigma.square(), torch.ones(100))


def test_the_linear_schedule_is_ddpms_at_1000_levels():
    # 1 - abar_0 = 1e-4 and log abar_999 = sum of log(1 - beta).
    alpha, _ = noise_schedule(EdpConfig(schedule="linear", levels=1000))
    assert alpha[0].square().item() == pytest.approx(0.9999, abs=1e-7)
    assert alpha[-1].square().item() == pytest.approx(4.0358e-5, rel=1e-3)


def test_the_grid_over_the_cosine_schedule_is_that_of_ddpm():
    ours, theirs = (
        sampler_grid(noise_schedule(EdpConfig(schedule="cosine", levels=20))),
        ddpm_grid(20, 1.0, "epsilon"),
    )
    for name in ("timestep_K", "alpha_K", "next_sigma_K", "std_K"):
        assert torch.allclose(getattr(ours, name).float(), getattr(theirs, name).float(), atol=1e-5)


def test_few_steps_go_from_pure_noise_to_a_clean_action_deterministically():
    grid = sampler_grid(noise_schedule(EdpConfig(levels=100)), 4)
    assert grid.timestep_K.tolist() == [99, 74, 49, 24]
    assert grid.next_sigma_K[-1] == 0.0
    assert not grid.std_K.any()


def test_more_steps_than_levels_are_refused():
    with pytest.raises(HandoffError, match="11 sampler steps, expected 1 to 10"):
        Edp(small(steps=11), SIZES)


class Oracle(DiffusionActor):
    """Knows that the only clean action is .3, so what is more than that in a noisy one is noise."""

    def __init__(self, config: EdpConfig) -> None:
        super().__init__(1, 1, config)
        self.schedule = noise_schedule(config)

    def forward(self, noisy_BA: Tensor, level_B: Tensor, features_BF: Tensor) -> Tensor:
        alpha, sigma = self.schedule.alpha_K[level_B, None], self.schedule.sigma_K[level_B, None]
        return (noisy_BA - alpha * 0.3) / sigma


@pytest.mark.parametrize("schedule", ["vp", "linear", "cosine"])
@pytest.mark.parametrize("steps", [None, 3])
def test_perfect_predictions_lead_to_the_clean_action(schedule: Any, steps: int | None):
    config = small(schedule=schedule, steps=steps)
    learner = Edp(config, SIZES)
    noise = torch.randn(len(learner.grid) + 1, 50, 1, generator=torch.Generator().manual_seed(0))
    action = learner.sample(Oracle(config), torch.zeros(50, 1), noise)
    assert torch.allclose(action, torch.full((50, 1), 0.3), atol=1e-4)


def test_a_perfect_prediction_gives_the_clean_action_in_one_step_from_any_level():
    config = small()
    learner = Edp(config, SIZES)
    learner.networks.actor = Oracle(config)
    prediction = learner.predict_clean(torch.zeros(64, 1), torch.full((64, 1), 0.3))
    assert torch.allclose(prediction.clean_BA, torch.full((64, 1), 0.3), atol=1e-4)
    assert prediction.loss.item() == pytest.approx(0.0, abs=1e-8)


def test_one_step_predictions_stay_within_the_action_bounds():
    learner = Edp(small(), SIZES)
    assert (
        learner.predict_clean(torch.zeros(256, 1), torch.ones(256, 1)).clean_BA.abs().max() <= 1.0
    )


def test_the_q_loss_does_not_depend_on_the_scale_of_the_rewards():
    one = Edp(small(), SIZES)
    many = Edp(small(), SIZES)
    with torch.no_grad():
        many.networks.critic.weights[-1].mul_(50.0)
        many.networks.critic.biases[-1].mul_(50.0)
    features, slopes = torch.zeros(8, 1), []
    for learner in (one, many):
        learner._generator.manual_seed(0)
        action = torch.linspace(-0.9, 0.9, 8)[:, None].requires_grad_()
        slopes.append(torch.autograd.grad(learner.q_loss(features, action), action)[0])
    assert torch.allclose(slopes[0], slopes[1], rtol=1e-4)
    assert slopes[0].abs().max() > 0.0


def test_the_actors_loss_leaves_no_gradient_in_the_critics():
    learner = Edp(small(), SIZES)
    learner.actor_loss(bandit(16))[0].backward()
    assert all(weight.grad is None for weight in learner.networks.critic.parameters())
    assert all(weight.requires_grad for weight in learner.networks.critic.parameters())
    assert any(weight.grad is not None for weight in learner.networks.actor.parameters())


@pytest.mark.parametrize("objective", ["td3", "crr", "iql"])
def test_q_moves_the_actor_to_actions_with_high_rewards(objective: Any):
    learner = Edp(
        small(objective=objective, inverse_temperature=5.0, candidates=1, steps=5, tau=0.05), SIZES
    )
    for number in range(200):
        learner.update([bandit(32, number)])
    assert drawn(learner).mean() > 0.15


def test_without_q_both_kinds_of_action_are_cloned():
    learner = Edp(small(q_weight=0.0, candidates=1, steps=5), SIZES)
    for number in range(200):
        learner.update([bandit(32, number)])
    actions = drawn(learner)
    assert abs(actions.mean()) < 0.15
    assert 0.3 < (actions > 0.0).mean() < 0.7


def test_acting_selects_the_candidate_with_the_greatest_q():
    learner = Edp(small(candidates=1), SIZES)
    observation = np.zeros((100, 1), np.float32)
    with torch.no_grad():
        critic = learner.networks.critic_target
        for weight in critic.parameters():
            weight.zero_()
        # Q = relu(a + 2) = a + 2.
        critic.weights[0][:, 1, 0] = 1.0
        critic.biases[0][:, 0, 0] = 2.0
        critic.weights[-1][:, 0, 0] = 1.0
    one = learner.act(observation, np.random.default_rng(0)).mean()
    learner.config = replace(learner.config, candidates=16, choose="softmax")
    some = learner.act(observation, np.random.default_rng(0)).mean()
    learner.config = replace(learner.config, choose="argmax")
    best = learner.act(observation, np.random.default_rng(0)).mean()
    assert one + 0.05 < some < best - 0.05


def test_without_an_rng_equal_observations_get_equal_actions():
    learner = Edp(small(), SIZES)
    first = learner.act(np.array([[0.0], [1.0], [0.0]], np.float32))
    assert first[0] == pytest.approx(first[2], abs=1e-6)
    assert first[0] == pytest.approx(learner.act(np.zeros((1, 1), np.float32))[0], abs=1e-6)


def test_the_target_policy_is_a_copy_of_the_policy_before_polyak_averaging():
    learner = Edp(small(target_policy_after=2, target_policy_every=2, tau=0.5), SIZES)
    gaps = []
    for number in range(4):
        learner.update([bandit(16, number)])
        net = learner.networks
        pairs = zip(net.actor.parameters(), net.actor_target.parameters(), strict=True)
        gaps.append(max(float((one - other).detach().abs().max()) for one, other in pairs))
    assert gaps[:2] == [0.0, 0.0]
    assert 0.0 < gaps[2] < gaps[3]


@pytest.mark.parametrize("objective", ["td3", "crr", "iql"])
def test_a_restored_learner_continues_bit_for_bit(objective: Any):
    config = small(objective=objective)
    whole, first, second = (Edp(config, SIZES, 3) for _ in range(3))
    for number in range(4):
        whole.update([bandit(16, number)])
    for number in range(2):
        first.update([bandit(16, number)])
    second.load_state_dict(first.state_dict())
    for number in range(2, 4):
        second.update([bandit(16, number)])
    for one, other in zip(whole.networks.parameters(), second.networks.parameters(), strict=True):
        assert torch.equal(one, other)
