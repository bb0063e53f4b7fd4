import copy
from typing import Any

import pytest
import torch
from torch import nn

from policies.families.lora import adapters, add_adapters, merge_adapters
from policies.networks.config import LoraConfig
from robots.errors import HandoffError

CONFIG = LoraConfig(rank=2, alpha=4.0, targets=("q_proj", "v_proj"))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.q_proj(x) @ self.k_proj(x).mT, dim=-1) @ self.v_proj(x)


@pytest.fixture
def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Attention(), Attention())


def adapted(
    plain: nn.Sequential, config: LoraConfig = CONFIG, trained: bool = True
) -> nn.Sequential:
    module = copy.deepcopy(plain)
    add_adapters(module, config)
    if trained:
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter)
    return module


def test_an_adapted_module_starts_as_it_was(plain: nn.Sequential):
    x = torch.randn(2, 5, 6)
    assert torch.equal(adapted(plain, trained=False)(x), plain(x))


def test_the_targets_of_every_layer_are_adapted(plain: nn.Sequential):
    assert set(adapters(adapted(plain))) == {"0.q_proj", "0.v_proj", "1.q_proj", "1.v_proj"}


def test_only_adapters_are_trained(plain: nn.Sequential):
    module = adapted(plain)
    module(torch.randn(2, 5, 6)).sum().backward()
    # Two matrices of 2 x 6 at four places.
    trained = {
        name: parameter
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    assert all("lora_" in name for name in trained)
    assert sum(parameter.numel() for parameter in trained.values()) == 4 * 2 * 2 * 6


def test_an_adapter_adds_its_product_times_alpha_over_rank(plain: nn.Sequential):
    module: Any = adapted(plain)
    first: Any = plain[0]
    weights, x = module.state_dict(), torch.randn(5, 6)
    product = weights["0.q_proj.lora_B.default.weight"] @ weights["0.q_proj.lora_A.default.weight"]
    expected = first.q_proj(x) + 4.0 / 2.0 * x @ product.T
    assert torch.allclose(module[0].q_proj(x), expected, atol=1e-5)
    assert (expected - first.q_proj(x)).abs().max() > 0.1


def test_a_merged_module_answers_as_before(plain: nn.Sequential):
    module, x = adapted(plain), torch.randn(2, 5, 6)
    before = module(x)
    assert merge_adapters(module) == 4
    assert torch.allclose(module(x), before, atol=1e-5)
    assert (before - plain(x)).abs().max() > 1e-2


def test_a_merged_module_has_the_layers_of_the_plain_one(plain: nn.Sequential):
    module = adapted(plain)
    merge_adapters(module)
    assert module.state_dict().keys() == plain.state_dict().keys()
    assert not adapters(module)


def test_a_module_without_adapters_is_left_alone(plain: nn.Sequential):
    before = copy.deepcopy(plain.state_dict())
    assert merge_adapters(plain) == 0
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())


def test_an_unknown_target_is_named(plain: nn.Sequential):
    with pytest.raises(
        HandoffError,
        match=r"\['query'\] are not linear layers; available are k_proj, q_proj, v_proj",
    ):
        adapted(plain, LoraConfig(targets=("q_proj", "query")))


def test_a_rank_below_one_is_refused(plain: nn.Sequential):
    with pytest.raises(HandoffError, match="rank is 0, expected at least 1"):
        adapted(plain, LoraConfig(rank=0))
