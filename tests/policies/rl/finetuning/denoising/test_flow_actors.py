"""FPO and ReinFlow alike: ratios before an update, its direction, and where it goes on."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from policies.rl.finetuning.denoising.fpo_actor import FpoActor
from policies.rl.on_policy.ppo import OnPolicyLearner
from robots.errors import HandoffError
from tests.policies.rl.finetuning.denoising.flow_actors import (
    FPO,
    FPO_PLUS_PLUS,
    REINFLOW,
    ROWS,
    decided_table,
    learned,
    mean_entry,
    new_actor,
)

CONFIGS = pytest.mark.parametrize(
    "config", [FPO, FPO_PLUS_PLUS, REINFLOW], ids=["fpo", "fpo++", "reinflow"]
)


@CONFIGS
def test_ratios_are_one_before_the_first_step(config) -> None:
    actor = new_actor(config)
    table = decided_table(actor)
    learning = replace(config.learning, epochs=1, batch_size=ROWS)
    before = copy.deepcopy(actor.policy.state_dict())
    statistics = OnPolicyLearner(learning, actor, None).learn(table)
    assert statistics.clipped == 0.0
    assert statistics.ratio == pytest.approx(1.0, abs=1e-4)
    assert statistics.kl == pytest.approx(0.0, abs=1e-6)
    after = actor.policy.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(name.startswith("denoiser.") for name in moved)


@CONFIGS
def test_ratios_leave_one_after_it(config) -> None:
    actor = new_actor(config)
    assert learned(actor, decided_table(actor)).ratio > 1.01


@CONFIGS
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_chunks_follow_the_sign_of_the_advantage(config, sign: float) -> None:
    """With the sign flipped, the same chunks become rarer."""
    actor = new_actor(config)
    before = mean_entry(actor)
    for _ in range(5):
        learned(actor, decided_table(actor, sign))
    assert sign * (mean_entry(actor) - before) > 0.05


@CONFIGS
def test_an_actor_with_loaded_state_makes_the_same_update(config) -> None:
    actor, other = new_actor(config), new_actor(config)
    learner, resumed = (OnPolicyLearner(config.learning, one, None) for one in (actor, other))
    learner.learn(decided_table(actor))
    other.policy.load_state_dict(actor.policy.state_dict())
    for name, module in other.extra_modules().items():
        module.load_state_dict(actor.extra_modules()[name].state_dict())
    # As from a file: optimisers share tensors with a state that they are given.
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    table = decided_table(actor)
    torch.testing.assert_close(decided_table(other).log_prob_RKU, table.log_prob_RKU)
    for one in (learner, resumed):
        one.learn(table)
    for mine, theirs in zip(actor.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@CONFIGS
def test_the_initial_policy_is_kept_and_cloning_pulls_back_to_it(config) -> None:
    actor = new_actor(config)
    frozen = copy.deepcopy(actor.reference.state_dict())

    def loss() -> float:
        with torch.no_grad():
            return float(actor.bc_loss(decided_table(actor).obs, torch.Generator().manual_seed(0)))

    unmoved = loss()
    assert unmoved == loss()
    with torch.no_grad():
        for parameter in actor.policy.denoiser.parameters():  # type: ignore[union-attr]
            parameter.add_(0.3)
    assert loss() > unmoved + 0.05
    assert all(
        torch.equal(frozen[name], kept) for name, kept in actor.reference.state_dict().items()
    )


@CONFIGS
@pytest.mark.parametrize("option", [{"clip_min": 0.001}, {"denoising_discount": 0.9}])
def test_options_of_single_denoising_steps_are_refused(config, option: dict[str, float]) -> None:
    with pytest.raises(HandoffError, match="a decision has one ratio for all sampler steps"):
        replace(config, learning=replace(config.learning, **option))


def test_an_entropy_bonus_of_losses_without_entropy_is_refused() -> None:
    with pytest.raises(HandoffError, match=r"entropy_coef is 0\.01, expected 0"):
        replace(FPO, learning=replace(FPO.learning, entropy_coef=0.01))


def test_only_fpo_has_no_entropy() -> None:
    fpo, reinflow = new_actor(FPO), new_actor(REINFLOW)
    assert isinstance(fpo, FpoActor)
    assert learned(fpo, decided_table(fpo)).entropy == 0.0
    # Between the entropies of the bounds .1 and .24 of the standard deviation.
    assert -0.89 < learned(reinflow, decided_table(reinflow)).entropy < -0.008
