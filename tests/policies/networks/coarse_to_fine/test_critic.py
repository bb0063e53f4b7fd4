"""The critic over sequences of actions, and the search in it."""

from __future__ import annotations

import torch

from policies.networks.coarse_to_fine.bins import decode, encode
from policies.networks.coarse_to_fine.config import CoarseToFineConfig
from policies.networks.coarse_to_fine.critic import CoarseToFineCritic, highest

CONFIG = CoarseToFineConfig(levels=2, bins=3, atoms=5, low=0.0, high=1.0, features=6, units=8)


def critic() -> CoarseToFineCritic:
    """With heads that are not 0."""
    torch.manual_seed(0)
    made = CoarseToFineCritic(CONFIG, inputs=4, horizon=3, actions=2)
    for stream in (made.value, made.advantage):
        torch.nn.init.normal_(stream.head.weight)
    return made


def test_an_untrained_critic_values_every_bin_as_the_middle_of_its_atoms() -> None:
    untrained = CoarseToFineCritic(CONFIG, inputs=4, horizon=3, actions=2)
    logits = untrained(torch.randn(2, 4), torch.zeros(2, 3, 2, 2))
    assert logits.shape == (2, 3, 2, 2, 3, 5)
    torch.testing.assert_close(untrained.values(logits), torch.full((2, 3, 2, 2, 3), 0.5))


def test_the_search_takes_the_best_bin_of_every_level_around_the_one_before() -> None:
    made, observed = critic(), torch.randn(7, 4)
    index = made.best(observed, highest)
    assert index.shape == (7, 3, 2, 2)
    # What it chose, given as an action, has the values that it saw.
    _, centre = encode(decode(index, CONFIG.bins), CONFIG.levels, CONFIG.bins)
    values = made.values(made(observed, centre))
    assert torch.equal(values.argmax(-1), index)
    assert len({tuple(row.flatten().tolist()) for row in index}) > 1


def test_later_actions_depend_on_earlier_ones_and_not_the_other_way_round() -> None:
    made, observed = critic(), torch.randn(1, 4)
    centre = torch.zeros(1, 3, 2, 2)
    moved = centre.clone()
    moved[0, 1] = 0.5
    difference = (made(observed, moved) - made(observed, centre)).abs().amax((0, 2, 3, 4, 5))
    assert float(difference[0].detach()) == 0.0
    assert (difference[1:] > 1e-6).all()
