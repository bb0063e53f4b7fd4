from dataclasses import replace
from importlib.metadata import version

import pytest

from robots.errors import HandoffError
from sim.evaluation.protocol import (
    Protocol,
    check_protocol,
    check_trained_with,
    differences,
    digest,
    protocol_statement,
)

REACH = Protocol(name="reach", engine="mujoco", task="reach", packages=("mujoco",), max_steps=60)


def test_result_states_the_installed_versions():
    assert protocol_statement(REACH)["packages"] == {"mujoco": version("mujoco")}


def test_digest_is_that_of_the_canonical_json():
    # printf '{"a":{"c":2},"b":1}' | sha256sum
    expected = "5bd51451a14f74f6"
    assert digest({"b": 1, "a": {"c": 2}}) == digest({"a": {"c": 2}, "b": 1})
    assert digest({"b": 1, "a": {"c": 2}})[:16] == expected


@pytest.mark.parametrize(
    "change",
    [
        {"first_seed": 1},
        {"episodes": 199},
        {"max_steps": 61},
        {"engine": "warp"},
        {"success": "at_end"},
        {"options": {"randomized": True}},
        {"packages": ()},
    ],
)
def test_digest_changes_with_what_is_asked(change):
    assert digest(protocol_statement(replace(REACH, **change))) != digest(protocol_statement(REACH))


def test_result_states_the_code_of_its_own_robot():
    panda = replace(REACH, options={"robot": "panda"})
    assert "robots.franka.fr3" in protocol_statement(REACH)["code"]
    assert "robots.franka.panda" in protocol_statement(panda)["code"]
    assert "options.robot" in differences(protocol_statement(REACH), protocol_statement(panda))
    with pytest.raises(HandoffError, match="robot: 'ur5e' is not known"):
        protocol_statement(replace(REACH, options={"robot": "ur5e"}))


def test_policy_of_another_robot_than_the_environments_is_refused():
    with pytest.raises(HandoffError, match="have the robot 'fr3', the policy was trained with 'pa"):
        check_trained_with(REACH, "panda")
    check_trained_with(replace(REACH, options={"robot": "panda"}), "panda")
    check_trained_with(REACH, "")
    # Environments of another engine have a robot of their own, or none.
    check_trained_with(replace(REACH, engine="gym"), "panda")


def test_differences_are_named_by_their_path():
    one = {"task": "reach", "score": {"of": "reward", "over": "max"}, "packages": {"mujoco": "4.0"}}
    two = {
        "task": "reach",
        "score": {"of": "success", "over": "max"},
        "packages": {"mujoco": "4.1"},
        "seeds": None,
    }
    assert differences(one, two) == ["packages.mujoco", "score.of", "seeds"]
    assert differences(one, dict(one)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "schema version 2, this version of Handoff reads 1"),
        ({"episodes": 0}, "0 episodes of 60 steps"),
        ({"first_seed": -1}, "from seed -1"),
        ({"packages": ("no-such-physics",)}, "no-such-physics is not installed"),
    ],
)
def test_protocol_that_cannot_be_run_is_refused(change, message):
    with pytest.raises(HandoffError, match=message):
        check_protocol(replace(REACH, **change))
