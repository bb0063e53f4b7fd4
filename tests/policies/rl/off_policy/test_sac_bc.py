"""SAC whose actor is held near what people did."""

from dataclasses import replace

import pytest
import torch

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import GripperConfig, GuidanceConfig, GuidedSacConfig
from policies.rl.off_policy.sac import Sac
from policies.rl.off_policy.sac_bc import GuidedSac, human_rows, margin_loss, sac_learner
from policies.rl.replay.transitions import Observations, Sizes, Transitions

SMALL = MlpSizes(hidden=(16,))
GUIDED = GuidedSacConfig(
    critic=SMALL,
    actor=SMALL,
    actor_learning_rate=1e-2,
    guidance=GuidanceConfig(first=100.0, last=1.0, updates=10),
)
SIZES = Sizes(observation=4, action=2)


def batch(persons_rows: int, rows: int = 8, gripper: bool = False, seed: int = 0) -> Transitions:
    generator = torch.Generator().manual_seed(seed)
    action = torch.rand(rows, 2, generator=generator) - 0.5
    if gripper:
        action[:, -1] = -1.0
    return Transitions(
        obs=Observations(torch.randn(rows, 4, generator=generator)),
        action_BA=action,
        reward_B=torch.zeros(rows),
        discount_B=torch.full((rows,), 0.9),
        next_obs=Observations(torch.randn(rows, 4, generator=generator)),
        demo_B=torch.arange(rows) < persons_rows // 2,
        intervention_B=torch.arange(rows) >= rows - (persons_rows - persons_rows // 2),
        toggles_B=torch.zeros(rows),
    )


def test_the_weight_falls_geometrically_and_then_stays() -> None:
    learner = GuidedSac(GUIDED, SIZES)
    weights = []
    for updates in (0, 5, 10, 50):
        learner.updates = updates
        weights.append(learner.guidance())
    assert weights == pytest.approx([100.0, 10.0, 1.0, 1.0])


def test_human_rows_are_those_of_demonstrations_and_corrections() -> None:
    assert human_rows(batch(4)).tolist() == [True, True, False, False, False, False, True, True]


def test_without_human_rows_the_loss_is_that_of_sac() -> None:
    guided, plain = GuidedSac(GUIDED, SIZES), Sac(replace(GUIDED, guidance=None), SIZES)
    for learner in (guided, plain):
        learner._generator.manual_seed(3)
    assert guided.actor_loss(batch(0))[0].item() == plain.actor_loss(batch(0))[0].item()


def test_the_term_is_the_weighted_squared_distance_of_the_mode_over_all_rows() -> None:
    guided, plain = GuidedSac(GUIDED, SIZES), Sac(replace(GUIDED, guidance=None), SIZES)
    rows = batch(4)
    for learner in (guided, plain):
        learner._generator.manual_seed(3)
    mode = torch.from_numpy(plain.act(rows.obs.vector_BO.numpy()))
    apart = (mode - rows.action_BA)[human_rows(rows)].square().sum()
    expected = plain.actor_loss(rows)[0] + 100.0 * apart / 8
    assert guided.actor_loss(rows)[0].item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_actor_learns_what_people_do_where_the_critics_know_nothing() -> None:
    rows = batch(8)
    steady = replace(GUIDED, guidance=GuidanceConfig(first=100.0, last=100.0))
    guided, plain = GuidedSac(steady, SIZES), Sac(replace(GUIDED, guidance=None), SIZES)
    for _ in range(150):
        guided.update([rows])
        plain.update([rows])
    obs, action = rows.obs.vector_BO.numpy(), rows.action_BA.numpy()
    near, far = (float(abs(learner.act(obs) - action).max()) for learner in (guided, plain))
    assert near < 0.1 < far


def test_the_margin_loss_is_the_shortfall_from_leading_the_other_commands_by_the_margin() -> None:
    value = torch.tensor([[0.5, 0.2, 0.1], [0.3, 0.25, 0.0]])
    # The first leads by more than the margin of 0.1; the second by 0.05 only.
    assert margin_loss(value, torch.tensor([[0], [0]]), 0.1).item() == pytest.approx(0.025)


def test_the_gripper_critic_prefers_human_commands() -> None:
    config = replace(GUIDED, gripper=GripperConfig(network=SMALL, learning_rate=1e-2))
    rows = batch(8, gripper=True)
    learner = GuidedSac(config, SIZES)
    for _ in range(100):
        learner.update([rows])
    assert (learner.act(rows.obs.vector_BO.numpy())[:, -1] == -1.0).all()


def test_the_configuration_chooses_the_learner() -> None:
    assert type(sac_learner(GUIDED, SIZES)) is GuidedSac
    assert type(sac_learner(replace(GUIDED, guidance=None), SIZES)) is Sac
