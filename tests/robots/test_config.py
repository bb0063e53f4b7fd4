"""Configurations refuse what they do not know, by its path."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, field
from typing import Annotated, Literal

import pytest
from pydantic import Discriminator

from robots.config import (
    ByKind,
    Repetitions,
    classes_of,
    config,
    key_paths,
    repetitions,
    to_plain,
    validate,
)
from robots.errors import HandoffError


@config
class Inner:
    steps: int = 3
    rate: float = 0.5


@config
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)


def test_defaults_live_in_the_class() -> None:
    assert validate(Outer, {"name": "a"}) == Outer(name="a", inner=Inner(steps=3, rate=0.5))


def test_plain_values_round_trip() -> None:
    outer = Outer(name="a", inner=Inner(steps=7))
    assert to_plain(outer) == {"name": "a", "inner": {"steps": 7, "rate": 0.5}}
    assert validate(Outer, to_plain(outer)) == outer


def test_configuration_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Inner().steps = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"name": "a", "inner": {"stepz": 1}},
            "unknown key 'demo.inner.stepz', did you mean 'steps'?",
        ),
        ({"name": "a", "colour": 1}, "unknown key 'demo.colour', known keys: inner, name"),
        ({}, "missing key 'demo.name'"),
        ({"name": "a", "inner": {"steps": "many"}}, "'demo.inner.steps' is 'many'"),
        ({"name": "a", "inner": {"steps": 1, "rate": "x", "z": 0}}, "'demo.inner.rate' is 'x'"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(values: dict, message: str) -> None:
    with pytest.raises(HandoffError) as caught:
        validate(Outer, values, "demo")
    assert message in str(caught.value)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(HandoffError) as caught:
        validate(Outer, {"inner": {"stepz": 1}}, "demo")
    assert "demo.name" in str(caught.value)
    assert "demo.inner.stepz" in str(caught.value)


@config
class Near:
    kind: Literal["near"] = "near"
    reach: float = 0.1


@config
class Far:
    kind: Literal["far"] = "far"
    inner: Inner | None = None


Choice = Annotated[Near | Far, Discriminator("kind")]


@config
class Choosing:
    choice: Choice = field(default_factory=Near)
    several: tuple[Near, ...] = ()


def test_classes_of_a_choice_are_all_its_options() -> None:
    assert classes_of(Choice) == (Near, Far)
    assert classes_of(Inner | None) == (Inner,)
    assert classes_of(tuple[Near, ...]) == classes_of(int) == ()


@config
class Named:
    entries: dict[str, Choice] = field(default_factory=dict)


def test_a_problem_in_a_mapping_of_choices_is_named_without_the_choice() -> None:
    good = validate(Named, {"entries": {"near": {"kind": "near", "reach": 0.2}}})
    assert good.entries["near"] == Near(reach=0.2)
    with pytest.raises(HandoffError, match=r"unknown key 'entries\.near\.inner', known keys: kind"):
        validate(Named, {"entries": {"near": {"kind": "near", "inner": 1}}})
    with pytest.raises(HandoffError, match=r"'entries\.one\.inner\.rate' is 'fast'"):
        validate(Named, {"entries": {"one": {"kind": "far", "inner": {"rate": "fast"}}}})


def test_key_paths_are_those_of_every_option() -> None:
    assert key_paths(Choosing) == [
        "choice",
        "choice.kind",
        "choice.reach",
        "choice.inner",
        "choice.inner.steps",
        "choice.inner.rate",
        "several",
    ]


@config
class Training:
    steps: Repetitions = 100
    threads: int = 2


@config
class Learning:
    training: Training = field(default_factory=Training)


@config
class Finetuning:
    rollouts: Repetitions = 40
    decisions: Repetitions = 30
    imitation: Training = field(default_factory=Training)


def test_repetitions_are_those_of_the_outermost_block_that_states_any() -> None:
    assert repetitions(Learning(training=Training(steps=7))) == {"training.steps": 7}
    assert repetitions(Finetuning()) == {"rollouts": 40, "decisions": 30}
    assert repetitions(Outer(name="a")) == {}
    assert repetitions(None) == {}


@config
class Range:
    kind: Literal["range"] = "range"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise HandoffError(f"range: low is {self.low} and high {self.high}.")


@config
class Other:
    kind: Literal["other"] = "other"


@config
class Ranges:
    first: Range = field(default_factory=Range)
    named: dict[str, Range] = field(default_factory=dict)
    chosen: Annotated[Range | Other, ByKind()] = field(default_factory=Range)


@pytest.mark.parametrize(
    ("values", "path", "message"),
    [
        ({"first": {"low": 2.0}}, "", "configuration: 'first': range: low is 2.0 and high 1.0."),
        (
            {"chosen": {"kind": "range", "low": 2.0}, "first": {"low": 3.0}},
            "demo",
            "configuration: 'demo.first': range: low is 3.0 and high 1.0.; "
            "'demo.chosen': range: low is 2.0 and high 1.0.",
        ),
        (
            {"named": {"mass": {"low": 2.0}}},
            "demo",
            "configuration: 'demo.named.mass': range: low is 2.0 and high 1.0.",
        ),
        (
            {"first": {"low": 2.0}},
            "a.yaml",
            "configuration: 'a.yaml: first': range: low is 2.0 and high 1.0.",
        ),
    ],
)
def test_what_a_class_refuses_itself_is_named_by_its_path(
    values: dict, path: str, message: str
) -> None:
    with pytest.raises(HandoffError, match=f"^{re.escape(message)}$"):
        validate(Ranges, values, path)


def test_the_outermost_class_has_no_place_unless_one_is_given() -> None:
    with pytest.raises(HandoffError, match=r"^range: low is 2\.0"):
        validate(Range, {"low": 2.0})
    with pytest.raises(HandoffError, match=r"^configuration: 'demo': range: low is 2\.0"):
        validate(Range, {"low": 2.0}, "demo")
    with pytest.raises(HandoffError, match=r"^range: low is 2\.0"):
        Range(low=2.0)
