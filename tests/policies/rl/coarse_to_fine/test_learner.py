"""Losses and updates of CQN-AS, against values worked by hand and by loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from policies.networks.coarse_to_fine.bins import decode, encode
from policies.networks.coarse_to_fine.config import CoarseToFineConfig
from policies.rl.coarse_to_fine.config import CqnAsConfig
from policies.rl.coarse_to_fine.learner import CqnAs
from policies.rl.coarse_to_fine.sequences import SequenceBatch
from policies.rl.replay.transitions import Observations, Sizes, without_person
from robots.errors import HandoffError

CRITIC = CoarseToFineConfig(levels=2, bins=3, atoms=5, low=0.0, high=1.0, features=6, units=8)
CONFIG = CqnAsConfig(critic=CRITIC, horizon=2, learning_rate=3e-3, normalise=False)
SIZES = Sizes(observation=4, action=2)


def learner(config: CqnAsConfig = CONFIG) -> CqnAs:
    """With heads that are not 0."""
    made = CqnAs(config, SIZES, seed=0)
    torch.manual_seed(1)
    for critic in (made.networks.critic, made.networks.target):
        for stream in (critic.value, critic.advantage):
            torch.nn.init.normal_(stream.head.weight)
    return made


def batch(rows: int = 6, **changed: Any) -> SequenceBatch:
    draw = torch.Generator().manual_seed(3)
    demo = torch.arange(rows) % 2 == 0
    transitions = without_person(
        obs=Observations(torch.randn(rows, 4, generator=draw)),
        action_BA=torch.zeros(rows, 2),
        reward_B=torch.rand(rows, generator=draw),
        discount_B=torch.full((rows,), 0.5),
        next_obs=Observations(torch.randn(rows, 4, generator=draw)),
        demo_B=demo,
    )
    action = 2.0 * torch.rand(rows, 2, 2, generator=draw) - 1.0
    return SequenceBatch(transitions, action, torch.ones(rows, 2))._replace(**changed)


def metrics(made: CqnAs, given: SequenceBatch) -> dict[str, float]:
    return {name: float(value) for name, value in made.update(given).items()}


def test_the_target_moves_the_distribution_of_the_preferred_sequence() -> None:
    made, given = learner(), batch().transitions
    target = made.target(given)
    assert target.shape == (6, 2, 2, 2, 5)
    torch.testing.assert_close(target.sum(-1), torch.ones(6, 2, 2, 2))
    net = made.networks
    atoms = net.target.atoms_Z
    best = decode(net.critic.best(given.next_obs.vector_BO, lambda value: value.argmax(-1)), 3)
    index, centre = encode(best, 2, 3)
    value = net.target.values(net.target(given.next_obs.vector_BO, centre))
    preferred = value.gather(-1, index[..., None])[..., 0]
    expected = given.reward_B[:, None, None, None] + 0.5 * preferred
    # Rewards of up to 0.5 keep the shifted distribution within the atoms, so its mean is exact.
    low = given.reward_B <= 0.5
    assert int(low.sum()) >= 2
    torch.testing.assert_close((target @ atoms)[low], expected[low], atol=1e-5, rtol=1e-5)


def test_the_losses_are_those_of_loops() -> None:
    given, made = batch(), learner(replace(CONFIG, learning_rate=1e-12))
    net = made.networks
    index, centre = encode(given.action_BKA, 2, 3)
    with torch.no_grad():
        probability = torch.softmax(net.critic(given.transitions.obs.vector_BO, centre), -1)
    target = made.target(given.transitions)
    atoms = net.critic.atoms_Z
    entropies, dominances, margins = [], [], []
    for place in np.ndindex(6, 2, 2, 2):
        executed = int(index[place])
        own = probability[place][executed]
        entropies.append(float(-(target[place] * own.log()).sum()))
        if place[0] % 2:
            continue
        for other in probability[place]:
            excess = own.cumsum(0) - other.cumsum(0)
            dominances.append(float(excess[excess > 0].sum()))
            margins.append(max(0.0, 0.01 - float((own - other) @ atoms)))
    found = metrics(made, given)
    assert found["critic_loss"] == pytest.approx(np.mean(entropies), rel=1e-4)
    assert found["dominance_loss"] == pytest.approx(np.mean(dominances), rel=1e-4)
    assert found["margin_loss"] == pytest.approx(np.mean(margins), rel=1e-4)
    assert found["imitated"] == 0.5


def test_actions_behind_the_end_of_an_episode_have_no_loss() -> None:
    valid = torch.ones(6, 2)
    valid[:, 1] = 0.0
    given = batch(valid_BK=valid)
    other = given.action_BKA.clone()
    other[:, 1] = -other[:, 1]
    first, second = learner(), learner()
    assert metrics(first, given) == metrics(second, given._replace(action_BKA=other))


def test_without_demonstrations_only_the_values_learn() -> None:
    given = batch()
    none = given.transitions._replace(demo_B=torch.zeros(6, dtype=torch.bool))
    found = metrics(learner(), given._replace(transitions=none))
    assert (found["dominance_loss"], found["margin_loss"], found["imitated"]) == (0.0, 0.0, 0.0)
    assert found["critic_loss"] > 0.0


def test_it_learns_to_prefer_what_was_shown() -> None:
    wide = replace(CONFIG, critic=replace(CRITIC, features=16, units=32))
    made, given = learner(wide), batch()
    shown = given._replace(
        transitions=given.transitions._replace(demo_B=torch.ones(6, dtype=torch.bool))
    )
    for _ in range(300):
        made.update(shown)
    preferred = made.act(given.transitions.obs.vector_BO.numpy())
    # Half of the finest bin, 2 / 3^2 / 2.
    assert np.abs(preferred - given.action_BKA.numpy()).max() <= 1.0 / 9.0 + 1e-6


def test_the_target_follows_by_its_share() -> None:
    made = learner(replace(CONFIG, tau=0.25))
    before = [weight.clone() for weight in made.networks.target.parameters()]
    made.update(batch())
    for old, new, source in zip(
        before, made.networks.target.parameters(), made.networks.critic.parameters(), strict=True
    ):
        torch.testing.assert_close(new, old + 0.25 * (source - old))


def test_equal_bins_are_drawn_in_training_only() -> None:
    untrained = CqnAs(CONFIG, SIZES, seed=0)
    observed = np.zeros((200, 4), np.float32)
    drawn = untrained.act(observed, np.random.default_rng(0))
    assert len(np.unique(drawn)) == 9
    assert np.array_equal(drawn, untrained.act(observed, np.random.default_rng(0)))
    assert len(np.unique(untrained.act(observed))) == 1


def test_a_restored_learner_goes_on_bit_for_bit() -> None:
    config = replace(CONFIG, normalise=True)
    whole, first = learner(config), learner(config)
    for made in (whole, first):
        made.observe(np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
        made.update(batch())
    second = CqnAs(config, SIZES, seed=0)
    second.load_state_dict(first.state_dict())
    assert metrics(whole, batch()) == metrics(second, batch())
    weights = zip(whole.networks.parameters(), second.networks.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)


def test_atoms_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(HandoffError, match=r"from 1.0 to 0.0 \(low, high\), expected low < high"):
        CoarseToFineConfig(low=1.0, high=0.0)
