"""Composition: defaults from the classes, values from YAML and overrides, and clear words for what does not fit."""

from __future__ import annotations

import pytest

from flows.compose import available, compose
from flows.pipeline import PipelineConfig
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
