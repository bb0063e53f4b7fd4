"""Every number of every configuration class has a range, and `plan` refuses what lies outside."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from flows.commands.app import main
from robots.config import Finite, Positive, Unbounded, config, validate
from robots.errors import HandoffError

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("robots", "policies", "sim", "real", "flows")


def configuration_classes() -> list[type]:
    """All classes made with `@config`."""
    found: dict[str, type] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "templates" in path.parts or "@config\n" not in path.read_text():
                continue
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            module = importlib.import_module(name)
            found |= {
                f"{name}.{cls.__qualname__}": cls
                for cls in vars(module).values()
                if isinstance(cls, type) and is_dataclass(cls) and cls.__module__ == name
                if "__pydantic_config__" in vars(cls)
            }
    return list(found.values())


def numbers_without_range(hint: Any) -> Iterator[Any]:
    if hint in (int, float):
        yield hint
    elif get_origin(hint) is not Annotated or not is_number(get_args(hint)[0]):
        for part in get_args(hint):
            yield from numbers_without_range(part)


def is_number(hint: Any) -> bool:
    return hint in (int, float)


def test_every_number_has_a_range() -> None:
    classes = configuration_classes()
    assert len(classes) > 200
    without = [
        f"{cls.__module__}.{cls.__qualname__}.{field.name}"
        for cls in classes
        for field in fields(cls)
        for _ in numbers_without_range(get_type_hints(cls, include_extras=True)[field.name])
    ]
    assert without == [], "use a type such as Count, Positive, Share or Finite of robots.config"


def test_a_number_without_a_range_is_found() -> None:
    assert list(numbers_without_range(int)) == [int]
    assert list(numbers_without_range(tuple[float, ...] | None)) == [float]
    assert list(numbers_without_range(tuple[tuple[str, float], ...])) == [float]
    assert list(numbers_without_range(tuple[Positive, ...] | None)) == []


@config
class Numbers:
    anything: Finite = 0.0
    bare: float = 0.0
    bound: Unbounded = 0.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["anything", "bare"])
def test_a_number_that_is_not_finite_is_refused_by_path_and_value(name: str, value: float) -> None:
    with pytest.raises(HandoffError, match=rf"'demo\.{name}' is {value}"):
        validate(Numbers, {name: value}, "demo")


def test_a_bound_may_be_infinite() -> None:
    assert validate(Numbers, {"bound": float("inf")}).bound == float("inf")


PLANS = {
    "pretrained.training.steps=-5": "'pretrained.training.steps' is -5: input should be greater than",
    "pretrained.training.steps=0": "'pretrained.training.steps' is 0",
    "pretrained.training.steps=1e400": "'pretrained.training.steps' is inf",
    "pretrained.training.learning_rate=nan": "'pretrained.training.learning_rate' is nan",
    "pretrained.training.learning_rate=-1": "'pretrained.training.learning_rate' is -1",
    "pretrained.training.learning_rate=50": "less than or equal to 1",
    "pretrained.training.batch_size=0": "'pretrained.training.batch_size' is 0",
    "pretrained.training.batch_size=-4": "'pretrained.training.batch_size' is -4",
    "pretrained.training.weight_decay=inf": "'pretrained.training.weight_decay' is inf",
    "pretrained.training.seed=100000000000000000000000": "less than 9223372036854775808",
    "pretrained.policy.network.width=0": "'pretrained.policy.network.width' is 0",
    "pretrained.policy.horizon=0": "'pretrained.policy.horizon' is 0",
    "demos.max_episodes=0": "'demos.max_episodes' is 0",
    "demos.max_episodes=-1": "'demos.max_episodes' is -1",
    "twin.table.starts=-1": "'twin.table.starts' is -1",
    "twin.table.loop.governor.max_speed=nan": "'twin.table.loop.governor.max_speed' is nan",
    "twin.table.loop.governor.max_lag=0.2": "max_lag 0.2 m is not below fault_lag 0.12 m",
    "twin.table.loop.watchdog.fault_seconds=1e9": "'twin.table.loop.watchdog.fault_seconds' is",
    "twin.table.twin.host=0.0.0.0": "twin: host is '0.0.0.0', expected an address of this computer",
}


@pytest.mark.parametrize("override", PLANS)
def test_plan_refuses_a_number_out_of_range_in_one_line(
    override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "smoke", override]) == 1
    said = capsys.readouterr()
    assert PLANS[override] in said.err
    assert said.err.count("\n") == 1
    assert "unexpected" not in said.err
