"""Composition: defaults from the classes, values from YAML and overrides, and clear words for what does not fit."""

from __future__ import annotations

import pytest

from flows.compose import available, compose
from flows.pipeline import PipelineConfig
from policies.networks.config import TransformerConfig, UnetConfig
from robots.errors import HandoffError


@pytest.mark.parametrize("name", available())
def test_every_shipped_configuration_composes(name: str) -> None:
    assert compose(name).name == name


def test_demo_is_the_defaults_of_the_classes() -> None:
    assert compose("demo") == PipelineConfig(name="demo")


def test_override_reaches_its_field() -> None:
    assert compose("demo", ["pretrain.training.steps=7"]).pretrain.training.steps == 7


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["pretrain.training.stepz=7"],
            "unknown key 'pretrain.training.stepz', did you mean 'pretrain.training.steps'",
        ),
        (["pretrian.seed=7"], "unknown key 'pretrian.seed'"),
        (["pretrain.training.steps=many"], "'pretrain.training.steps' is 'many'"),
        (["pretrain.training.steps"], "has no '='"),
        (["gate.tolerance=[1,2"], "configs/demo.yaml"),
    ],
)
def test_bad_override_is_named_by_its_path(overrides: list[str], message: str) -> None:
    with pytest.raises(HandoffError) as caught:
        compose("demo", overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_pipeline_gets_a_suggestion() -> None:
    with pytest.raises(HandoffError, match="did you mean 'demo'"):
        compose("dem")


def test_a_policy_of_the_group_brings_its_network_and_its_rates() -> None:
    unet = compose("demo", ["+policy=unet"])
    assert unet.pretrain.policy.network == UnetConfig()
    assert unet.pretrain.policy.n_obs_steps == 2
    assert (unet.pretrain.training.learning_rate, unet.pretrain.training.warmup_steps) == (1e-4, 500)
    transformer = compose("demo", ["+policy=transformer"])
    assert transformer.pretrain.policy.network == TransformerConfig()
    assert transformer.pretrain.training.weight_decay == 0.1
    assert compose("demo", ["+policy=mlp"]) == compose("demo")


def test_an_override_reaches_the_chosen_network() -> None:
    composed = compose("demo", ["+policy=unet", "pretrain.policy.network.widths=[64,128]"])
    assert composed.pretrain.policy.network == UnetConfig(widths=(64, 128))


def test_a_key_of_another_network_is_named_by_its_path() -> None:
    with pytest.raises(HandoffError, match=r"'pretrain\.policy\.network\.width', did you mean 'widths'"):
        compose("demo", ["pretrain.policy.network.kind=unet"])
