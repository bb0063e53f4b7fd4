import sys
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


def served(engine: str, *packages: str) -> Protocol:
    options = {"server": {"python": sys.executable, "engine": engine}}
    return Protocol(
        name="served",
        engine="server",
        task="reach",
        packages=packages,
        max_steps=60,
        options=options,
    )


def test_result_of_a_server_states_the_versions_on_its_side(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "sim.servers.packages._asked_versions", lambda python: (("gym-hil", "0.1.14"),)
    )
    statement = protocol_statement(served("gym", "handoff", "gym-hil"))
    assert statement["packages"] == {"gym-hil": "0.1.14", "handoff": version("handoff")}
    assert "code" not in statement
    with pytest.raises(HandoffError, match=r"mujoco, warp-lang not installed on the side of"):
        check_protocol(served("gym", "mujoco", "warp-lang", "gym-hil"))


def test_result_of_a_server_states_the_code_of_the_arms_tasks_and_of_an_own_engine():
    arm = served("mujoco")
    assert (arm.robot, arm.simulator) == ("fr3", "mujoco")
    assert protocol_statement(arm)["code"] == protocol_statement(REACH)["code"]
    assert set(protocol_statement(served("tests.sim.walk"))["code"]) == {
        "tests.sim.walk",
        "sim.vec_env",
    }


def test_a_server_in_a_protocol_is_checked():
    with pytest.raises(HandoffError, match=r"unknown key '.*options\.server\.pyton'"):
        replace(served("gym"), options={"server": {"pyton": "x"}})
    with pytest.raises(HandoffError, match="'reeach' is not known"):
        replace(served("mujoco"), task="reeach")
