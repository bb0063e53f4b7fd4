"""The contract survives its JSON, and refuses what is not one."""

from __future__ import annotations

import json

import pytest

from robots.contract import Contract
from robots.errors import HandoffError
from tests.real.fakes import contract

CONTRACT = contract()


def test_json_round_trip_is_exact() -> None:
    assert Contract.from_json(CONTRACT.to_json()) == CONTRACT


def test_fields_keep_the_order_of_the_observation_vector() -> None:
    assert list(Contract.from_json(CONTRACT.to_json()).observation) == ["keypoints", "agent"]


def test_observation_size_counts_every_entry() -> None:
    assert CONTRACT.observation_size == 20


def test_a_contract_of_the_first_version_asks_for_another_export() -> None:
    old = json.loads(CONTRACT.to_json())
    for added in ("conventions", "training_range", "precision", "dynamics", "frames"):
        del old[added]
    for version in ({"version": 1}, {}):
        del old["version"]
        old |= version
        with pytest.raises(HandoffError, match="version 1, this build reads 2"):
            Contract.from_json(json.dumps(old))
        old["version"] = 0


def test_the_rules_explain_every_choice_that_a_foreign_runtime_must_make() -> None:
    told = json.loads(CONTRACT.to_json())["conventions"]
    assert "wxyz" in told["quaternion"].replace(", ", "").replace(" ", "")
    for rule, word in {
        "observation": "row-major",
        "noise": "standard normal",
        "history": "repeated",
        "execution": "n_obs_steps - 1",
        "sensors": "uint8 RGB",
        "ensemble": "oldest",
        "training_range": "refused",
    }.items():
        assert word in told[rule]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        (
            CONTRACT.to_json().replace('"version": 2', '"version": 3'),
            "version 3, this build reads 2",
        ),
        (CONTRACT.to_json().replace('"horizon"', '"horizont"'), "did you mean 'horizon'"),
    ],
)
def test_foreign_contract_is_refused(text: str, message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        Contract.from_json(text)
