import pytest
import torch

from policies.rl.networks.distributional import (
    cross_entropy,
    even_atoms,
    mean_value,
    project,
    symexp_atoms,
    two_hot,
)
from robots.errors import HandoffError


def random_distributions(rows: int, atoms: int, seed: int) -> torch.Tensor:
    return torch.softmax(
        3 * torch.randn(rows, atoms, generator=torch.Generator().manual_seed(seed)), dim=1
    )


# Invariant (g) 3.
def test_projection_keeps_the_mass_also_outside_the_support():
    generator = torch.Generator().manual_seed(0)
    probability = random_distributions(1000, 51, 1)
    reward, discount = (
        30 * torch.randn(1000, generator=generator),
        torch.rand(1000, generator=generator),
    )
    projected = project(probability, reward, discount, even_atoms(-10, 10, 51))
    assert float((projected.sum(dim=1) - 1).abs().max()) < 1e-5
    assert float(projected.min()) >= 0


def test_projection_keeps_the_mean_inside_the_support():
    generator = torch.Generator().manual_seed(0)
    atoms = even_atoms(-10, 10, 51)
    probability = random_distributions(1000, 51, 1)
    # |r| + g 10 <= 10
    discount = torch.rand(1000, generator=generator)
    reward = (1 - discount) * 10 * (2 * torch.rand(1000, generator=generator) - 1)
    projected = mean_value(project(probability, reward, discount, atoms), atoms)
    torch.testing.assert_close(
        projected, reward + discount * mean_value(probability, atoms), atol=1e-4, rtol=0
    )


def test_a_delta_that_lands_on_an_atom_stays_whole():
    probability = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]])  # of -1 among -2, -1, 0, 1, 2
    projected = project(probability, torch.tensor([2.0]), torch.tensor([1.0]), even_atoms(-2, 2, 5))
    assert projected.tolist() == [[0, 0, 0, 1, 0]]


def test_a_delta_between_atoms_is_shared_by_distance():
    probability = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])  # of 2: 0.25 + 0.5 * 2 = 1.25
    projected = project(
        probability, torch.tensor([0.25]), torch.tensor([0.5]), even_atoms(-2, 2, 5)
    )
    assert projected.tolist() == [[0, 0, 0, 0.75, 0.25]]


def test_a_terminal_is_its_reward():
    probability = random_distributions(1, 5, 0)
    projected = project(
        probability, torch.tensor([-1.0]), torch.tensor([0.0]), even_atoms(-2, 2, 5)
    )
    torch.testing.assert_close(projected, torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]]))


def test_values_outside_the_support_go_to_the_outermost_atom():
    probability = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])
    projected = project(probability, torch.tensor([9.0]), torch.tensor([1.0]), even_atoms(-2, 2, 5))
    assert projected.tolist() == [[0, 0, 0, 0, 1]]


def test_cross_entropy_of_a_uniform_guess_is_log_k():
    loss = cross_entropy(torch.zeros(3, 8), random_distributions(3, 8, 0))
    torch.testing.assert_close(loss, torch.full((3,), float(torch.log(torch.tensor(8.0)))))


def test_invalid_atoms_are_refused():
    with pytest.raises(HandoffError, match="1 atoms from 0 to 1"):
        even_atoms(0, 1, 1)


def test_symexp_atoms_are_symmetric_and_dense_at_zero():
    atoms = symexp_atoms(-10.0, 10.0, 65)
    assert float(atoms[32]) == 0.0
    torch.testing.assert_close(atoms, -atoms.flip(0))
    # symexp(10) and symexp(10 / 32).
    assert float(atoms[-1]) == pytest.approx(22025.465, rel=1e-5)
    assert float(atoms[33]) == pytest.approx(0.366838, rel=1e-5)
    with pytest.raises(HandoffError, match="1 atoms"):
        symexp_atoms(-1.0, 1.0, 1)


def test_a_two_hot_encoding_is_decoded_to_its_value():
    atoms = symexp_atoms(-10.0, 10.0, 65)
    value = torch.cat([atoms, torch.tensor([-0.3, 1e-4, 2.0, 777.0, -20000.0])]).reshape(2, 35)
    encoded = two_hot(value, atoms)
    assert encoded.shape == (2, 35, 65)
    assert float(encoded.min()) >= 0.0
    assert int((encoded > 0).sum(dim=-1).max()) == 2
    torch.testing.assert_close(encoded.sum(dim=-1), torch.ones(2, 35))
    torch.testing.assert_close(mean_value(encoded, atoms), value, rtol=1e-4, atol=1e-3)


def test_a_value_between_atoms_is_shared_by_distance_and_one_outside_is_bounded():
    atoms = torch.tensor([-1.0, 0.0, 4.0])
    encoded = two_hot(torch.tensor([1.0, -7.0, 9.0, 0.0]), atoms)
    assert encoded.tolist() == [[0, 0.75, 0.25], [1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_a_network_that_fits_two_hot_targets_predicts_the_mean_of_rewards():
    """The cross-entropy is least where the mean is that of the rewards, in between the atoms."""
    atoms = symexp_atoms(-3.0, 3.0, 9)
    target = two_hot(torch.tensor([0.4, 1.0]), atoms)
    logit = torch.zeros(9, requires_grad=True)
    optimizer = torch.optim.Adam([logit], 0.1)
    for _ in range(500):
        optimizer.zero_grad()
        cross_entropy(logit, target).mean().backward()
        optimizer.step()
    probability = torch.softmax(logit.detach(), dim=0)
    assert float(mean_value(probability, atoms)) == pytest.approx(0.7, abs=0.02)
