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


def test_a_contract_from_before_there_were_sensors_still_loads() -> None:
    old = json.loads(CONTRACT.to_json())
    assert (old.pop("sensors"), old.pop("instruction")) == ({}, False)
    assert Contract.from_json(json.dumps(old)) == CONTRACT


def test_a_contract_from_before_robots_were_stated_has_none() -> None:
    old = json.loads(contract(robot="panda").to_json())
    assert old.pop("robot") == "panda"
    assert Contract.from_json(json.dumps(old)) == CONTRACT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        (
            CONTRACT.to_json().replace('"version": 1', '"version": 2'),
            "version 2, this build reads 1",
        ),
        (CONTRACT.to_json().replace('"horizon"', '"horizont"'), "did you mean 'horizon'"),
    ],
)
def test_foreign_contract_is_refused(text: str, message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        Contract.from_json(text)
