"""A person at the console as an operator, with a fake connection."""

import numpy as np
import pytest

from real.console.console_operator import ConsoleOperator
from real.console.control.commands import Instruction, Mode
from real.teleop.takeover import HandInput, TakeoverConfig
from robots.interfaces import Label
from robots.spec import ActionSpec
from tests.real.console.fake_connection import FakeConnection, set_command

SPEC = ActionSpec(
    interface="cartesian_delta",
    unit="1",
    names=("x", "y", "z", "roll", "pitch", "yaw", "gripper"),
    low=(-1.0,) * 7,
    high=(1.0,) * 7,
)
POLICY = np.full((1, 7), 0.5)
SEEN = {"q": np.zeros((1, 7)), "width": np.array([[0.04]]), "width_target": np.array([[0.04]])}
FORWARD = HandInput(True, np.array([1.0, 0, 0, 0, 0, 0]), 0)


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def operator(connection, clock) -> ConsoleOperator:
    operator = ConsoleOperator(
        SPEC, TakeoverConfig(), connection, "login", 20.0, lambda: b"scene", clock, 0.08
    )
    operator.reset([0])
    return operator


def test_hold_pauses_the_session_and_policy_lets_it_run(operator, connection):
    assert operator.requests().paused
    set_command(connection, Mode.POLICY)
    assert not operator.requests().paused
    intervention = operator.intervene(POLICY, SEEN)
    assert not intervention.intervening[0]
    np.testing.assert_array_equal(intervention.executed, POLICY)


def test_a_person_has_the_arm_under_the_name_of_who_has_control(operator, connection, clock):
    set_command(connection, Mode.PERSON, FORWARD)
    operator.intervene(POLICY, SEEN)
    clock.time = 0.3
    intervention = operator.intervene(POLICY, SEEN)
    assert intervention.intervening[0]
    assert (intervention.operator, intervention.device) == ("ada", "console")
    np.testing.assert_allclose(intervention.executed[0, :6], [1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(intervention.proposed, POLICY)


def test_the_speed_rises_over_300_ms_after_a_takeover(operator, connection, clock):
    set_command(connection, Mode.PERSON, FORWARD)
    asked = []
    for step in range(5):
        clock.time = 0.1 * step
        asked.append(operator.intervene(POLICY, SEEN).executed[0, 0])
    np.testing.assert_allclose(asked, [0.0, 1 / 3, 2 / 3, 1.0, 1.0], atol=1e-9)


def test_a_hold_in_the_middle_of_a_takeover_is_stillness_not_the_policy(operator, connection):
    set_command(connection, Mode.PERSON, FORWARD)
    operator.intervene(POLICY, SEEN)
    set_command(connection, Mode.HOLD)
    intervention = operator.intervene(POLICY, SEEN)
    assert intervention.intervening[0]
    assert not intervention.executed[0, :6].any()


def test_a_label_is_reported_once(operator, connection):
    set_command(connection, Mode.POLICY, label=Label.FAILURE, label_number=1)
    assert operator.requests().label is Label.FAILURE
    assert operator.requests().label is Label.NONE
    set_command(connection, Mode.POLICY, label=Label.FAILURE, label_number=2)
    assert operator.requests().label is Label.FAILURE


def test_a_console_that_was_started_again_restarts_the_count_of_labels(operator, connection):
    set_command(connection, Mode.POLICY, label=Label.SUCCESS, label_number=1)
    assert operator.requests().label is Label.SUCCESS
    connection.connection, connection.now = (
        2,
        connection.now._replace(label=Label.NONE, label_number=0),
    )
    assert operator.requests().label is Label.NONE
    set_command(connection, Mode.POLICY, label=Label.SUCCESS, label_number=1)
    assert operator.requests().label is Label.SUCCESS


def test_the_end_is_requested(operator, connection):
    set_command(connection, Mode.STOP)
    assert operator.requests().stop


def test_steps_and_the_end_of_the_episode_are_reported(operator, connection, clock):
    set_command(connection, Mode.PERSON, FORWARD, sequence=7)
    for step in range(3):
        clock.time = 1.0 + step
        if step == 2:
            set_command(connection, Mode.POLICY)
        intervention = operator.intervene(POLICY, SEEN)
        last = step == 2
        label = Label.SUCCESS if last else Label.NONE
        operator.report_step(
            SEEN, intervention, reward=0.0, success=last, probability=0.25, label=label, last=last
        )
    steps = [message["told"] for message in connection.messages if message["kind"] == "step"]
    assert [step["person"] for step in steps] == [True, True, False]
    assert steps[0]["sequence"] == 7
    assert steps[0]["hand"] == pytest.approx(0.04)
    assert connection.scenes[0] == b"scene"
    (end,) = [message["told"] for message in connection.messages if message["kind"] == "end"]
    assert (end["success"], end["label"], end["steps"], end["corrected"], end["takeovers"]) == (
        True,
        "success",
        3,
        2,
        1,
    )
    assert end["seconds"] == pytest.approx(3 / 20)
    assert not end["dropped"]
    assert connection.holds == 1, "keys that are down must not move the next episode"


def test_episodes_are_counted_from_the_first_reset(operator, connection):
    set_command(connection, Mode.POLICY)
    operator.report_step(
        SEEN,
        operator.intervene(POLICY, SEEN),
        reward=0,
        success=False,
        probability=None,
        label=Label.REDO,
        last=True,
    )
    operator.reset([1])
    operator.report_step(
        SEEN,
        operator.intervene(POLICY, SEEN),
        reward=0,
        success=False,
        probability=None,
        label=Label.NONE,
        last=False,
    )
    told = [(message["kind"], message["told"]["episode"]) for message in connection.messages]
    assert told == [("begin", 0), ("step", 0), ("end", 0), ("begin", 1), ("step", 1)]
    assert connection.messages[2]["told"]["dropped"]


def test_a_label_of_an_episode_that_has_ended_counts_for_no_other(operator, connection):
    operator.reset([1])
    set_command(connection, Mode.POLICY, label=Label.FAILURE, label_number=1, episode=0)
    assert operator.requests().label is Label.NONE
    set_command(connection, Mode.POLICY, label=Label.FAILURE, label_number=2, episode=1)
    assert operator.requests().label is Label.FAILURE


def test_an_episode_is_described_with_its_scene_before_it_begins(connection, clock):
    operator = ConsoleOperator(
        SPEC,
        TakeoverConfig(),
        connection,
        "login",
        20.0,
        lambda: b"scene",
        clock,
        0.08,
        lambda: {"instruction": "reach the red marker", "seconds": 60.0},
    )
    operator.reset([0])
    assert connection.messages == [
        {
            "kind": "begin",
            "told": {
                "episode": 0,
                "heard": 0,
                "instruction": "reach the red marker",
                "seconds": 60.0,
            },
        }
    ]
    assert connection.scenes == [b"scene"]


def test_an_instruction_is_taken_once_and_the_next_episode_says_so(operator, connection):
    assert operator.instruction() is None
    connection.now = connection.now._replace(instruction=Instruction(1, "reach it", "ada"))
    assert operator.instruction() == (1, "reach it", "ada")
    assert operator.instruction() is None
    operator.reset([0])
    assert connection.messages[-1]["told"]["heard"] == 1
    # After a lost connection it is taken again, which changes nothing.
    connection.connection += 1
    operator.requests()
    assert operator.instruction() == (1, "reach it", "ada")


def test_a_hint_is_sent_when_it_changes_and_with_every_step(operator, connection):
    for text in ("", "a hint", "a hint", "", ""):
        operator.show_hint(text)
    hints = [message["told"] for message in connection.messages if message["kind"] == "hint"]
    assert hints == ["a hint", ""]
    operator.show_hint("another one")
    set_command(connection, Mode.POLICY)
    operator.report_step(
        SEEN,
        operator.intervene(POLICY, SEEN),
        reward=0.0,
        success=False,
        probability=None,
        label=Label.NONE,
        last=False,
    )
    step = next(message for message in connection.messages if message["kind"] == "step")
    assert step["told"]["hint"] == "another one"
