"""Actions as bins of several levels."""

from __future__ import annotations

import pytest
import torch

from policies.networks.coarse_to_fine.bins import decode, encode, width_of


@pytest.mark.parametrize(("levels", "bins"), [(1, 5), (3, 5), (4, 2), (2, 11)])
def test_an_action_comes_back_to_half_of_the_finest_bin(levels: int, bins: int) -> None:
    action = torch.linspace(-1.0, 1.0, 2001)
    index, _ = encode(action, levels, bins)
    assert index.shape == (2001, levels)
    assert int(index.min()) == 0
    assert int(index.max()) == bins - 1
    error = (decode(index, bins) - action).abs().max()
    assert float(error) <= 1.0 / bins**levels + 1e-6
    assert width_of(levels - 1, bins) == 2.0 / bins**levels


def test_a_level_divides_what_the_level_before_chose() -> None:
    # By hand: 0.3 lies in bin 3 of [-1, 1] by fifths, [0.2, 0.6]; of that in bin 1, [0.28, 0.36].
    index, centre = encode(torch.tensor([0.3]), 2, 5)
    assert index.tolist() == [[3, 1]]
    torch.testing.assert_close(centre, torch.tensor([[0.0, 0.4]]))
    torch.testing.assert_close(decode(index, 5), torch.tensor([0.32]))


def test_centres_of_bins_have_the_bins_indices() -> None:
    draw = torch.Generator().manual_seed(0)
    index = torch.randint(5, (500, 3), generator=draw)
    again, _ = encode(decode(index, 5), 3, 5)
    assert torch.equal(index, again)


def test_actions_outside_lie_in_the_outermost_bins() -> None:
    index, _ = encode(torch.tensor([-3.0, 1.0, 3.0]), 3, 5)
    assert index.tolist() == [[0, 0, 0], [4, 4, 4], [4, 4, 4]]
