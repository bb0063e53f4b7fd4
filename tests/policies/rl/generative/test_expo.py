"""EXPO: edits and their density, the choice among candidates, and who learns from what."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from policies.rl.generative.config import BehaviourConfig, ExpoConfig
from policies.rl.generative.expo import Expo, apply_edit, edit_target_entropy, scaled_edit
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import GripperConfig, SacConfig
from policies.rl.off_policy.tanh_gaussian import ActionSample, tanh_normal_log_prob
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError

SMALL = MlpSizes(hidden=(16, 16), activation="relu")
CONFIG = ExpoConfig(
    sac=SacConfig(critic=SMALL, actor=SMALL, critics=4, subset=2, init_temperature=1.0),
    base=BehaviourConfig(kind="diffusion", network=SMALL),
    samples=3,
    beta=0.2,
)
SIZES = Sizes(observation=3, action=2)


def learner(config: ExpoConfig = CONFIG, seed: int = 0) -> Expo:
    return Expo(config, SIZES, seed)


def batch(seed: int = 0, rows: int = 6, reward: float = 1.0) -> Transitions:
    generator = torch.Generator().manual_seed(seed)
    first, after, action = (torch.randn(rows, size, generator=generator) for size in (3, 3, 2))
    none = torch.zeros(rows, dtype=torch.bool)
    return Transitions(
        Observations(first),
        action.tanh(),
        torch.full((rows,), reward),
        torch.full((rows,), 0.9),
        Observations(after),
        none,
        none,
        none,
    )


def weights(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    return (parameter.detach().clone() for parameter in module.parameters())


def test_the_density_of_an_edit_integrates_to_one() -> None:
    beta, mean, log_std = 0.3, 0.2, math.log(0.6)
    raw = torch.linspace(-6.0, 6.0, 20001)[:, None]
    sample = ActionSample(
        torch.tanh(raw),
        tanh_normal_log_prob((raw - mean) / 0.6, torch.full_like(raw, log_std), raw),
    )
    edit = scaled_edit(sample, beta)
    assert float(torch.trapezoid(edit.log_prob_B.exp(), edit.action_BA[:, 0])) == pytest.approx(
        1.0, abs=1e-3
    )


def test_scaling_by_beta_subtracts_the_log_of_beta_per_entry() -> None:
    edit = scaled_edit(ActionSample(torch.tensor([[0.5, -1.0, 0.0]]), torch.tensor([1.0])), 0.1)
    torch.testing.assert_close(edit.action_BA, torch.tensor([[0.05, -0.1, 0.0]]))
    assert float(edit.log_prob_B) == pytest.approx(1.0 + 3 * 2.302585)


@pytest.mark.parametrize(("beta", "offset"), [(0.05, -2.3026), (0.3, -0.5108), (0.5, 0.0)])
def test_the_target_entropy_moves_with_beta(beta: float, offset: float) -> None:
    assert edit_target_entropy(2, beta) == pytest.approx(2 * (offset - 0.5), abs=1e-3)
    assert learner(replace(CONFIG, beta=beta)).target_entropy == pytest.approx(
        2 * (offset - 0.5), abs=1e-3
    )


def test_edits_stay_within_beta_and_actions_within_one() -> None:
    expo = learner()
    candidate_BNA = expo.candidates(torch.randn(50, 3), 3, torch.Generator().manual_seed(0))
    base_BNA, edited_BNA = candidate_BNA[:, :3], candidate_BNA[:, 3:]
    assert candidate_BNA.shape == (50, 6, 2)
    distance = (edited_BNA - base_BNA).abs()
    assert 0.0 < float(distance.max()) <= 0.2 + 1e-6
    assert float(candidate_BNA.abs().max()) <= 1.0
    torch.testing.assert_close(
        apply_edit(torch.tensor([0.9, -0.5]), torch.tensor([0.2, 0.2])), torch.tensor([1.0, -0.3])
    )


def test_without_edits_only_base_samples_are_candidates() -> None:
    assert learner(replace(CONFIG, edits=False)).candidates(torch.randn(5, 3), 3, None).shape == (
        5,
        3,
        2,
    )


def test_acting_selects_the_candidate_with_the_greatest_mean_value() -> None:
    expo, vector_NO = learner(), np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    action_NA = expo.act(vector_NO)
    features = torch.from_numpy(vector_NO)
    candidate_BNA = expo.candidates(features, 3, None)
    for row in range(7):
        values = [
            expo.networks.critic(torch.cat([features[row], candidate])[None]).mean().item()
            for candidate in candidate_BNA[row]
        ]
        np.testing.assert_allclose(
            action_NA[row], candidate_BNA[row, int(np.argmax(values))].numpy(), atol=1e-6
        )


def test_acting_is_deterministic_only_without_an_rng() -> None:
    expo, vector_NO = learner(), np.zeros((4, 3), np.float32)
    np.testing.assert_array_equal(expo.act(vector_NO), expo.act(vector_NO))
    np.testing.assert_allclose(expo.act(vector_NO)[0], expo.act(vector_NO)[3], atol=1e-6)
    drawn = expo.act(vector_NO, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn, expo.act(vector_NO, np.random.default_rng(0)))
    assert len(np.unique(drawn[:, 0])) == 4


def test_the_target_is_the_maximum_over_candidates_of_the_minimum_of_two_values() -> None:
    expo, features, candidate_BNA = learner(), torch.randn(5, 3), torch.randn(5, 6, 2).tanh()
    torch.nn.init.normal_(
        expo.networks.critic_target.biases[-1], generator=torch.Generator().manual_seed(1)
    )
    expo._generator.manual_seed(3)
    value_B, best_B = expo.target_value(features, candidate_BNA)
    pair = torch.randperm(4, generator=torch.Generator().manual_seed(3))[:2]
    for row in range(5):
        inputs = torch.cat([features[row].expand(6, 3), candidate_BNA[row]], dim=1)
        least_N = expo.networks.critic_target(inputs)[pair, :, 0].amin(dim=0)
        assert float(value_B[row]) == pytest.approx(least_N.max().item(), abs=1e-5)
        assert int(best_B[row]) == int(least_N.argmax())


def test_the_policy_backup_values_one_edited_sample() -> None:
    expo = learner(replace(CONFIG, backup="policy", sac=replace(CONFIG.sac, subset=None)))
    features, candidate_BNA = torch.randn(5, 3), torch.randn(5, 2, 2).tanh()
    value_B, _ = expo.target_value(features, candidate_BNA)
    with torch.no_grad():
        value_EB = expo.networks.critic_target(torch.cat([features, candidate_BNA[:, 1]], dim=1))[
            ..., 0
        ]
    torch.testing.assert_close(value_B, value_EB.amin(dim=0))


def test_an_update_of_one_minibatch_uses_the_next_value_as_target() -> None:
    expo, data = learner(), batch()
    target = expo.update([data])["target"]
    again = learner()
    again._reseed()
    value_B = again.next_value(data.next_obs.vector_BO)
    assert float(target) == pytest.approx(float((1.0 + 0.9 * value_B).mean()), rel=1e-5)


def test_the_critic_target_is_reward_plus_discounted_target_value() -> None:
    expo = learner(replace(CONFIG, sac=replace(CONFIG.sac, subset=None)))
    data = batch()
    candidate_BNA = torch.randn(6, 6, 2).tanh()
    value_B, _ = expo.target_value(data.next_obs.vector_BO, candidate_BNA)
    metrics = expo._critic_step(data, data.next_obs.vector_BO, candidate_BNA)
    assert float(metrics["target"]) == pytest.approx(float((1.0 + 0.9 * value_B).mean()), rel=1e-5)


def test_rewards_do_not_change_the_base_policy() -> None:
    poor, rich = learner(), learner()
    for number in range(3):
        poor.update([batch(number, reward=0.0)])
        rich.update([batch(number, reward=5.0)])
    for one, other in zip(weights(poor.base), weights(rich.base), strict=True):
        assert torch.equal(one, other)
    first, second = next(weights(poor.networks.critic)), next(weights(rich.networks.critic))
    assert not torch.equal(first, second)


def test_the_edit_increases_the_critics_value() -> None:
    expo = learner(
        replace(CONFIG, sac=replace(CONFIG.sac, init_temperature=1e-6, actor_learning_rate=3e-3))
    )
    data = batch(rows=64)

    def gain() -> float:
        generator = torch.Generator().manual_seed(0)
        base_BA = expo.base.sample(data.obs.vector_BO, expo.base.noise(64, generator))
        with torch.no_grad():
            edit = expo.edit(data.obs.vector_BO, base_BA, None).action_BA
            after, before = (
                expo.networks.critic(torch.cat([data.obs.vector_BO, action], dim=1)).mean()
                for action in (apply_edit(base_BA, edit), base_BA)
            )
        return float(after - before)

    before = gain()
    for _ in range(60):
        expo._update_actor(data)
    assert gain() > max(before, 0.0) + 0.01


def test_a_resumed_run_continues_bit_for_bit() -> None:
    straight, first = learner(), learner()
    for number in range(4):
        straight.update([batch(number), batch(number + 10)])
    for number in range(2):
        first.update([batch(number), batch(number + 10)])
    resumed = learner(seed=0)
    resumed.load_state_dict(first.state_dict())
    for number in range(2, 4):
        resumed.update([batch(number), batch(number + 10)])
    for one, other in zip(weights(straight.networks), weights(resumed.networks), strict=True):
        assert torch.equal(one, other)


def test_imitation_updates_only_the_base_policy() -> None:
    expo = learner()
    before = {
        name: parameter.detach().clone() for name, parameter in expo.networks.named_parameters()
    }
    expo.imitate(batch())
    moved = {
        name
        for name, parameter in expo.networks.named_parameters()
        if not torch.equal(parameter, before[name])
    }
    assert moved
    assert all(name.startswith("base.") for name in moved)


def test_unsupported_options_are_refused() -> None:
    for sac, name in (
        (replace(CONFIG.sac, gripper=GripperConfig()), "gripper"),
        (replace(CONFIG.sac, backup_entropy=True), "backup_entropy"),
        (replace(CONFIG.sac, actor_ema=0.9), "actor_ema"),
    ):
        with pytest.raises(HandoffError, match=name):
            learner(replace(CONFIG, sac=sac))
    with pytest.raises(HandoffError, match="beta"):
        learner(replace(CONFIG, beta=0.0))


def test_given_samples_and_their_edits_are_the_candidates_of_the_target() -> None:
    expo = learner(replace(CONFIG, base=None, samples=2, limit=3.0))
    given_BNA = torch.tensor([[[2.9, 0.0], [-2.9, 1.0]]]).expand(6, 2, 2)
    features = torch.randn(6, 3)
    candidate_BNA = expo.with_edits(features, given_BNA, torch.Generator().manual_seed(0))
    torch.testing.assert_close(candidate_BNA[:, :2], given_BNA)
    distance = (candidate_BNA[:, 2:] - given_BNA).abs()
    assert 0.0 < float(distance.max()) <= 0.2 + 1e-6
    assert float(candidate_BNA.abs().max()) <= 3.0
    # The critic's target of an update is that of these candidates: a constant critic of 7.
    with torch.no_grad():
        for weight in expo.networks.critic_target.parameters():
            weight.zero_()
        expo.networks.critic_target.biases[-1].fill_(7.0)
    given = batch()._replace(extra={"base_BND": given_BNA, "next_base_BND": given_BNA})
    metrics = expo.update([given])
    assert float(metrics["target"]) == pytest.approx(1.0 + 0.9 * 7.0, rel=1e-6)
    assert "base_loss" not in metrics, "the base policy is trained elsewhere"


def test_without_a_base_policy_samples_must_be_given() -> None:
    expo = learner(replace(CONFIG, base=None))
    with pytest.raises(HandoffError, match="the minibatch has no extra"):
        expo.update([batch()])
    with pytest.raises(HandoffError, match="its samples must be given"):
        expo.act(np.zeros((1, 3), np.float32))


def test_the_bound_of_an_edit_grows_with_the_limit() -> None:
    learner(replace(CONFIG, beta=5.0, limit=3.0))
    with pytest.raises(HandoffError, match="0 < beta <= 6"):
        learner(replace(CONFIG, beta=6.5, limit=3.0))
