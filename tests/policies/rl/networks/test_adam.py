"""Adam against torch's."""

import torch

from policies.rl.networks.adam import Adam


def parameters() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, 4, requires_grad=True), torch.randn(2, requires_grad=True)]


def set_gradients(several: list[torch.Tensor], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in several:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_steps_are_those_of_torchs_adam() -> None:
    own, theirs = parameters(), parameters()
    first, second = Adam(own, 0.01), torch.optim.Adam(theirs, 0.01)
    for step in range(20):
        set_gradients(own, step)
        set_gradients(theirs, step)
        first.step()
        second.step()
    for mine, expected in zip(own, theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)


def test_the_first_step_is_as_long_as_the_learning_rate() -> None:
    weight = torch.tensor([1.0, 1.0], requires_grad=True)
    weight.grad = torch.tensor([0.3, -20.0])
    Adam([weight], 0.1).step()
    torch.testing.assert_close(weight.detach(), torch.tensor([0.9, 1.1]))


def test_parameters_without_a_gradient_do_not_change() -> None:
    own = parameters()
    before, other = own[1].detach().clone(), own[0].detach().clone()
    optimizer = Adam(own, 0.01)
    own[0].grad = torch.ones_like(own[0])
    optimizer.step()
    assert torch.equal(own[1], before)
    assert not torch.equal(own[0], other)


def test_a_saved_optimiser_continues_bit_for_bit() -> None:
    straight, resumed = parameters(), parameters()
    one, other = Adam(straight, 0.01), Adam(resumed, 0.5)
    for step in range(3):
        set_gradients(straight, step)
        one.step()
    other.load_state_dict(one.state_dict())
    with torch.no_grad():
        for into, value in zip(resumed, straight, strict=True):
            into.copy_(value)
    for optimizer, several in ((one, straight), (other, resumed)):
        set_gradients(several, 3)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))
