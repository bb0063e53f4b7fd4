import pytest
import torch

from policies.networks.mlp import MlpDenoiser, sinusoidal_embedding


def denoiser() -> MlpDenoiser:
    torch.manual_seed(0)
    network = MlpDenoiser((4, 2), (2, 3), timesteps=20, width=16, blocks=2, embedding=8)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network


def test_the_embedding_of_level_zero_is_zeros_then_ones():
    assert sinusoidal_embedding(5, 6)[0].tolist() == [0, 0, 0, 1, 1, 1]


def test_the_embedding_has_the_fastest_and_slowest_frequency_at_its_ends():
    row = sinusoidal_embedding(5, 6)[3]
    assert row[0].item() == pytest.approx(0.14112, abs=1e-5)
    assert row[2].item() == pytest.approx(3e-4, rel=1e-3)


@pytest.mark.parametrize("changed", ["noisy", "timestep", "observation"])
def test_the_velocity_depends_on_every_input(changed: str):
    network = denoiser()
    inputs = {
        "noisy": torch.randn(1, 4, 2),
        "timestep": torch.tensor([3]),
        "observation": torch.randn(1, 2, 3),
    }
    other = inputs | {changed: inputs[changed] + 1}
    assert not torch.allclose(network(*inputs.values()), network(*other.values()))


def test_rows_do_not_see_one_another():
    network = denoiser()
    noisy, level, observation = torch.randn(8, 4, 2), torch.arange(8), torch.randn(8, 2, 3)
    together = network(noisy, level, observation)
    alone = torch.cat(
        [network(noisy[i : i + 1], level[i : i + 1], observation[i : i + 1]) for i in range(8)]
    )
    assert torch.allclose(together, alone, atol=1e-5)
