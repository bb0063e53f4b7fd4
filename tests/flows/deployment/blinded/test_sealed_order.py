"""The sealed order: hidden, reproducible, and not to be changed."""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from flows.deployment.blinded.config import BlindedConfig
from flows.deployment.blinded.sealed_order import FILE, ComparedPolicy, open_order, read_order
from robots.errors import HandoffError

POLICIES = (ComparedPolicy("runs/a/gate", "a" * 64), ComparedPolicy("runs/b/gate", "b" * 64))
ORDERS = range(64)


def test_a_session_that_goes_on_has_the_order_of_the_first(tmp_path: Path) -> None:
    first = open_order(tmp_path, POLICIES, BlindedConfig())
    again = open_order(tmp_path, POLICIES, BlindedConfig())
    assert again == first == read_order(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    drawn = open_order(other, POLICIES, BlindedConfig())
    assert [drawn.order(pair) for pair in ORDERS] != [first.order(pair) for pair in ORDERS]


def test_a_seed_gives_the_same_order_anywhere(tmp_path: Path) -> None:
    orders = []
    for name, seed in (("one", 7), ("two", 7), ("three", 8)):
        (tmp_path / name).mkdir()
        order = open_order(tmp_path / name, POLICIES, BlindedConfig(seed=seed))
        orders.append([order.order(pair) for pair in ORDERS])
    assert orders[0] == orders[1] != orders[2]


def test_the_file_is_the_users_and_states_the_digest_of_the_secret(tmp_path: Path) -> None:
    order = open_order(tmp_path, POLICIES, BlindedConfig())
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    content = json.loads((tmp_path / FILE).read_text())
    assert content["commitment"] == hashlib.sha256(content["secret"].encode()).hexdigest()
    assert order.commitment == content["commitment"]


def test_a_changed_secret_is_refused(tmp_path: Path) -> None:
    open_order(tmp_path, POLICIES, BlindedConfig())
    content = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**content, "secret": "another"}))
    with pytest.raises(HandoffError, match="Was it edited"):
        open_order(tmp_path, POLICIES, BlindedConfig())
    (tmp_path / FILE).write_text("{")
    with pytest.raises(HandoffError, match="cannot read"):
        read_order(tmp_path)


@pytest.mark.parametrize(
    ("policies", "config", "named"),
    [
        (POLICIES[::-1], BlindedConfig(), "with {0} --against {1}. Give the same, in the same"),
        (
            (POLICIES[0], POLICIES[1]._replace(digest="c")),
            BlindedConfig(),
            "with {0} --against {1}, and the policy of {1} is another one since",
        ),
        (POLICIES, BlindedConfig(pairs=40), "with --pairs 30. Give"),
        (POLICIES, replace(BlindedConfig(), alpha=0.1), "with --alpha 0.05. Give"),
        (
            POLICIES,
            BlindedConfig(preference=True, seed=3),
            "without --seed, without --preference. Give",
        ),
    ],
)
def test_another_comparison_in_the_same_folder_is_refused(
    tmp_path: Path, policies: tuple[ComparedPolicy, ...], config: BlindedConfig, named: str
) -> None:
    open_order(tmp_path, POLICIES, BlindedConfig())
    with pytest.raises(HandoffError) as refused:
        open_order(tmp_path, policies, config)
    stated = named.format(*(policy.name for policy in POLICIES))
    assert f"in {tmp_path} was begun {stated}" in str(refused.value)


def test_a_plain_option_of_the_comparison_is_named_as_it_is_given(tmp_path: Path) -> None:
    open_order(tmp_path, POLICIES, BlindedConfig(preference=True))
    with pytest.raises(HandoffError, match=r"begun with --preference\. Give"):
        open_order(tmp_path, POLICIES, BlindedConfig())


def test_a_folder_without_a_comparison_has_nothing_to_reveal(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="no comparison was begun"):
        read_order(tmp_path)
