"""The arbiter alone: who controls the arm, and what makes it hold still."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from real.console.control.arbiter import ArbiterConfig, ControlArbiter
from real.console.control.bindings import DEFAULTS, Bindings, Inputs, RefusedBindingError
from real.console.control.commands import STILL, Mode
from real.console.control.people import FloodedError
from real.teleop.spacemouse import SpaceMouseReport
from real.teleop.takeover import HandInput
from robots.errors import HandoffError
from robots.interfaces import Label


class Setup:
    """An arbiter with its log and its time."""

    def __init__(self, config: ArbiterConfig | None = None) -> None:
        self.time, self.log, self.sequence = 100.0, [], 0
        config = config or ArbiterConfig()
        self.arbiter = ControlArbiter(config, Bindings(), self.write, lambda: self.time)
        self.arbiter.robot_connected(True, "reach")
        self.arbiter.begin_episode(0)
        self.ada = self.arbiter.join("ada", "here")

    def write(self, who: str, what: str, details: Mapping[str, Any]) -> None:
        self.log.append((who, what, dict(details)))

    def keys(self, *codes: str, who: int | None = None, visible: bool = True) -> None:
        self.sequence += 1
        number = self.ada if who is None else who
        self.arbiter.inputs(number, Inputs(keys=frozenset(codes)), self.sequence, visible)

    def go(self) -> None:
        self.keys("Enter")
        self.keys()

    def wait(self, seconds: float, *codes: str) -> None:
        """Ada's page continues to send its inputs."""
        for _ in range(round(seconds / 0.03)):
            self.time += 0.03
            self.keys(*codes)
            self.arbiter.tick()

    def happened(self, what: str) -> bool:
        return any(entry[1] == what for entry in self.log)


@pytest.fixture
def setup() -> Setup:
    return Setup()


@pytest.fixture
def running(setup: Setup) -> Setup:
    setup.go()
    assert setup.arbiter.mode is Mode.POLICY
    return setup


def test_nothing_moves_before_somebody_says_go_on(setup):
    setup.keys("ArrowUp")
    assert setup.arbiter.command().mode is Mode.HOLD
    assert not setup.arbiter.command().hand.engaged


def test_a_held_key_takes_the_arm_and_letting_go_gives_it_back(running):
    running.keys("ArrowUp")
    command = running.arbiter.command()
    assert (command.mode, command.person) == (Mode.PERSON, "ada")
    assert command.hand.twist[0] == 1.0
    running.keys()
    assert running.arbiter.command().mode is Mode.POLICY
    assert running.happened("took the arm over")
    assert running.happened("gave the arm back")


@pytest.mark.parametrize("codes", [(), ("ArrowUp",)])
def test_silence_longer_than_the_watchdog_holds_the_arm(running, codes):
    running.keys(*codes)
    running.time += 0.149
    running.arbiter.tick()
    assert running.arbiter.mode is not Mode.HOLD
    running.time += 0.002
    running.arbiter.tick()
    assert running.arbiter.mode is Mode.HOLD
    assert "silent for 151 ms" in running.arbiter.why
    assert running.happened("hold")


def test_a_page_that_talks_keeps_the_arm_going(running):
    running.wait(2.0, "ArrowUp")
    assert running.arbiter.mode is Mode.PERSON


def test_a_hidden_page_holds_the_arm_at_once_and_cannot_go_on(running):
    running.keys("ArrowUp", visible=False)
    assert running.arbiter.mode is Mode.HOLD
    running.keys("Enter", visible=False)
    assert running.arbiter.mode is Mode.HOLD
    running.keys(visible=True)
    assert running.arbiter.mode is Mode.HOLD
    running.go()
    assert running.arbiter.mode is Mode.POLICY


def test_a_page_that_is_gone_holds_the_arm(running):
    running.arbiter.leave(running.ada, "closed")
    assert running.arbiter.mode is Mode.HOLD
    assert running.arbiter.people.controller is None


def test_keys_that_are_down_when_it_goes_on_must_be_let_go_first(running):
    running.keys("Escape")
    assert running.arbiter.mode is Mode.HOLD
    running.keys("ArrowUp", "Enter")
    assert running.arbiter.mode is Mode.POLICY
    running.keys("ArrowUp")
    assert running.arbiter.command().mode is Mode.POLICY
    running.keys()
    running.keys("ArrowUp")
    assert running.arbiter.command().mode is Mode.PERSON


def test_the_first_page_has_control_and_a_second_one_only_looks(running):
    bob = running.arbiter.join("bob", "there")
    running.keys("ArrowUp", "KeyS", who=bob)
    assert running.arbiter.mode is Mode.POLICY
    assert running.arbiter.command().person == "ada"
    assert running.arbiter.page_state()["pending"] is None


def test_a_second_page_may_stop_but_not_go_on(running):
    bob = running.arbiter.join("bob", "there")
    running.keys("Escape", who=bob)
    assert running.arbiter.mode is Mode.HOLD
    assert "bob" in running.arbiter.why
    running.arbiter.press(bob, "go on")
    assert running.arbiter.mode is Mode.HOLD
    assert running.happened("not in control")


def test_control_that_is_asked_for_changes_nothing_until_it_is_given(running):
    bob = running.arbiter.join("bob", "there")
    running.arbiter.claim(bob, force=False)
    assert running.arbiter.mode is Mode.POLICY
    assert running.arbiter.page_state()["asking"] == bob
    running.arbiter.give(running.ada)
    assert running.arbiter.people.controller == bob
    assert running.arbiter.mode is Mode.HOLD


def test_control_that_is_taken_holds_the_arm(running):
    running.keys("ArrowUp")
    bob = running.arbiter.join("bob", "there")
    running.arbiter.claim(bob, force=True)
    assert running.arbiter.people.controller == bob
    assert running.arbiter.mode is Mode.HOLD
    running.keys("ArrowUp")
    assert not running.arbiter.command().hand.engaged


def test_giving_control_up_holds_the_arm(running):
    running.arbiter.give(running.ada)
    assert (running.arbiter.people.controller, running.arbiter.mode) == (None, Mode.HOLD)


def test_a_stranger_holds_the_arm_and_is_written_down(running):
    running.arbiter.refuse("10.0.0.9:1", "wrong token")
    assert running.arbiter.mode is Mode.HOLD
    assert ("10.0.0.9:1", "refused", {"why": "wrong token"}) in running.log


def test_a_flood_is_shut_out_and_holds_the_arm(running):
    for _ in range(300):
        running.arbiter.count(running.ada)
    with pytest.raises(FloodedError):
        running.arbiter.count(running.ada)
    assert running.arbiter.mode is Mode.HOLD
    assert running.happened("flooded")


def test_a_page_at_its_usual_rate_is_no_flood(running):
    for _ in range(1000):
        running.time += 0.01
        running.arbiter.count(running.ada)


def test_a_label_waits_for_undo_and_then_counts(running):
    running.keys("KeyS")
    assert running.arbiter.mode is Mode.HOLD
    assert running.arbiter.command().label_number == 0
    running.wait(1.2)
    assert running.arbiter.command().label_number == 0
    running.wait(0.4)
    command = running.arbiter.command()
    assert (command.label, command.label_number, command.mode) == (Label.SUCCESS, 1, Mode.POLICY)


def test_the_same_label_again_does_not_wait(running):
    running.keys("KeyQ")
    running.keys()
    running.keys("KeyQ")
    assert running.arbiter.command()[4:7] == (Label.FAILURE, 1, 0)


def test_a_label_that_is_taken_back_never_counts(running):
    running.keys("KeyS")
    running.keys("KeyZ")
    running.wait(3.0)
    assert running.arbiter.command().label_number == 0
    assert running.arbiter.mode is Mode.HOLD


def test_another_label_takes_the_place_of_the_first(running):
    running.keys("KeyS")
    running.keys("KeyQ")
    running.wait(1.6)
    assert running.arbiter.command()[4:7] == (Label.FAILURE, 1, 0)


def test_a_label_counts_although_the_page_went_but_the_arm_stays_still(running):
    running.keys("KeyS")
    running.arbiter.leave(running.ada, "closed")
    running.time += 2.0
    running.arbiter.tick()
    assert running.arbiter.command()[4:7] == (Label.SUCCESS, 1, 0)
    assert running.arbiter.mode is Mode.HOLD


def test_what_goes_wrong_while_a_label_waits_keeps_the_arm_still(running):
    running.keys("KeyS")
    running.arbiter.refuse("10.0.0.9:1", "wrong token")
    running.wait(2.0)
    assert running.arbiter.command().label_number == 1
    assert running.arbiter.mode is Mode.HOLD


def test_a_key_held_down_says_a_label_once(running):
    running.wait(1.0, "KeyS")
    assert sum(entry[1] == "said" for entry in running.log) == 1


def test_without_a_robot_nothing_goes_on_and_no_label_is_taken(setup):
    setup.arbiter.robot_connected(False, "reach")
    setup.keys("Enter")
    assert (setup.arbiter.mode, setup.arbiter.why) == (Mode.HOLD, "Wait for the robot to connect.")
    setup.keys("KeyS")
    assert setup.happened("label not taken")


def test_a_robot_that_comes_back_holds_still_and_knows_no_old_label(running):
    running.keys("KeyS")
    running.keys()
    running.keys("KeyS")
    running.arbiter.robot_connected(False, "reach")
    running.arbiter.robot_connected(True, "reach")
    assert running.arbiter.mode is Mode.HOLD
    assert running.arbiter.command().label_number == 0


def test_the_key_that_ends_the_session_is_held_to_confirm(running):
    running.keys("End")
    assert running.arbiter.command().mode is Mode.HOLD
    assert running.arbiter.why == "Keep End pressed to end the session."
    running.wait(0.9, "End")
    assert running.arbiter.command().mode is Mode.HOLD
    assert running.arbiter.page_state()["ending"] == pytest.approx(0.9, abs=0.04)
    running.wait(0.2, "End")
    assert running.arbiter.command().mode is Mode.STOP
    assert running.arbiter.why == "ada ended the session."
    running.keys("Enter")
    running.arbiter.hold("anything")
    assert running.arbiter.command().mode is Mode.STOP


def test_a_tap_on_the_key_that_ends_the_session_only_holds(running):
    running.keys("End")
    running.wait(0.5, "End")
    running.keys()
    running.wait(3.0)
    assert running.arbiter.mode is Mode.HOLD
    assert running.arbiter.why == "ada released End; the session goes on."
    assert running.arbiter.page_state()["ending"] is None


def test_a_page_that_falls_silent_with_the_end_pressed_does_not_end_the_session(running):
    running.keys("End")
    running.time += 5.0
    running.arbiter.tick()
    assert running.arbiter.mode is Mode.HOLD


def test_the_end_of_an_episode_is_a_hold_with_its_result(running):
    running.keys("ArrowUp")
    running.arbiter.end_episode("Episode 1: success after 3.2 s.")
    assert running.arbiter.command().mode is Mode.HOLD
    assert running.arbiter.why == "Episode 1: success after 3.2 s."
    running.arbiter.begin_episode(1)
    # A key held over the end moves nothing until it is released.
    running.wait(1.4, "ArrowUp")
    assert running.arbiter.mode is Mode.HOLD
    running.wait(0.3, "ArrowUp")
    assert running.arbiter.command().mode is Mode.POLICY
    running.keys()
    running.keys("ArrowUp")
    assert running.arbiter.command().mode is Mode.PERSON


def test_a_hold_after_the_end_of_an_episode_waits_for_the_person(running):
    running.arbiter.end_episode("Episode 1: no success after 5.0 s.")
    running.keys("Escape")
    running.wait(5.0)
    assert running.arbiter.mode is Mode.HOLD
    running.go()
    assert running.arbiter.mode is Mode.POLICY


def test_who_left_during_the_pause_finds_the_arm_held(running):
    running.arbiter.end_episode("Episode 1: no success after 5.0 s.")
    running.time += 2.0
    running.arbiter.tick()
    assert running.arbiter.mode is Mode.HOLD
    assert running.arbiter.why == "Ready. Press Enter to start."


def test_the_person_need_not_wait_for_the_pause(running):
    running.arbiter.end_episode("Episode 1: no success after 5.0 s.")
    running.go()
    assert running.arbiter.mode is Mode.POLICY


def test_an_arm_that_held_still_stays_so_after_the_episode(running):
    running.keys("Escape")
    running.keys()
    running.arbiter.end_episode("Episode 1: no success after 5.0 s.")
    running.wait(5.0)
    assert running.arbiter.mode is Mode.HOLD


def test_a_label_between_episodes_is_refused_in_words(running):
    running.arbiter.end_episode("Episode 1: success after 3.2 s.")
    running.keys("KeyQ")
    assert running.arbiter.why == "No episode is running, so the label failure does not count."
    assert running.happened("label not taken")
    running.wait(2.0)
    assert running.arbiter.command().label_number == 0
    # The arm resumes as it would have.
    assert running.arbiter.mode is Mode.POLICY


def test_a_label_that_the_end_of_the_episode_overtook_does_not_count_and_says_so(running):
    running.keys("KeyQ")
    running.arbiter.end_episode("Episode 1: success after 3.2 s.")
    assert running.arbiter.why == (
        "Episode 1: success after 3.2 s. The label failure came too late and does not count."
    )
    assert running.happened("label too late")
    running.arbiter.begin_episode(1)
    running.wait(3.0)
    assert running.arbiter.command().label_number == 0
    assert running.arbiter.mode is Mode.POLICY


def test_a_label_names_its_episode(running):
    running.arbiter.end_episode("Episode 1: success after 3.2 s.")
    running.arbiter.begin_episode(1)
    running.keys("KeyS")
    running.wait(1.6)
    assert running.arbiter.command()[4:7] == (Label.SUCCESS, 1, 1)


def test_a_session_that_is_over_shows_who_ended_it(running):
    running.arbiter.finish("20 demonstrations recorded.")
    assert (running.arbiter.mode, running.arbiter.why) == (
        Mode.STOP,
        "20 demonstrations recorded.",
    )
    running.arbiter.finish("The session is over.")
    assert running.arbiter.why == "20 demonstrations recorded."


def test_bindings_change_while_it_holds_still_by_who_has_control(running):
    with pytest.raises(RefusedBindingError, match="Hold the arm still and take control"):
        running.arbiter.bind(running.ada, "forward", "key KeyW")
    running.keys("Escape")
    bob = running.arbiter.join("bob", "there")
    with pytest.raises(RefusedBindingError, match="take control to change bindings"):
        running.arbiter.bind(bob, "forward", "key KeyW")
    assert running.arbiter.bindings.inputs["forward"][0] == "key ArrowUp"
    assert running.happened("not bound")
    running.arbiter.bind(running.ada, "forward", "key KeyW")
    running.go()
    running.keys("KeyW")
    assert running.arbiter.command().hand.twist[0] == 1.0


def test_a_binding_that_is_refused_is_written_down_and_changes_nothing(running):
    running.keys("Escape")
    with pytest.raises(RefusedBindingError):
        running.arbiter.bind(running.ada, "left", "key Escape", swap=True)
    assert running.log[-1][1] == "not bound"
    assert "Hold" in running.log[-1][2]["why"]
    assert running.arbiter.bindings.inputs == DEFAULTS
    running.go()
    running.keys("Escape")
    assert running.arbiter.mode is Mode.HOLD


def test_the_default_bindings_come_back_while_it_holds_still_by_who_has_control(running):
    running.keys("Escape")
    running.arbiter.bind(running.ada, "forward", "key KeyS", swap=True)
    bob = running.arbiter.join("bob", "there")
    with pytest.raises(RefusedBindingError):
        running.arbiter.restore(bob)
    running.arbiter.restore(running.ada)
    assert running.arbiter.bindings.inputs == DEFAULTS


def test_unknown_presses_are_refused(running):
    with pytest.raises(HandoffError, match="fly"):
        running.arbiter.press(running.ada, "fly")


MOUSE = HandInput(True, np.array([0.0, 0.5, 0.0, 0.0, 0.0, 0.0]), 0)


def test_a_device_at_the_server_moves_the_arm_for_who_has_control(running):
    running.arbiter.device(MOUSE)
    command = running.arbiter.command()
    assert (command.mode, command.person) == (Mode.PERSON, "ada")
    assert command.hand.twist[1] == 0.5
    running.keys()
    assert running.arbiter.command().mode is Mode.PERSON
    running.arbiter.device(STILL)
    assert running.arbiter.command().mode is Mode.POLICY


def test_a_device_alone_moves_nothing(running):
    running.arbiter.leave(running.ada, "closed")
    running.arbiter.device(MOUSE)
    assert running.arbiter.command().mode is Mode.HOLD


def test_a_device_that_is_pushed_when_it_goes_on_must_come_to_rest_first(setup):
    setup.arbiter.device(MOUSE)
    setup.go()
    setup.arbiter.device(MOUSE)
    assert setup.arbiter.command().mode is Mode.POLICY
    setup.arbiter.device(STILL)
    setup.arbiter.device(MOUSE)
    assert setup.arbiter.command().mode is Mode.PERSON


def test_a_page_that_falls_silent_takes_its_device_along(running):
    running.arbiter.device(MOUSE)
    running.time += 0.2
    running.arbiter.tick()
    running.arbiter.device(MOUSE)
    assert running.arbiter.command().mode is Mode.HOLD


@pytest.fixture
def holding() -> Setup:
    return Setup(ArbiterConfig(hold_to_run=True))


def test_the_policy_acts_while_its_key_is_held_and_no_longer(holding):
    assert holding.arbiter.why == "Ready. Hold Enter to run."
    holding.wait(0.5, "Enter")
    assert holding.arbiter.mode is Mode.POLICY
    holding.keys()
    assert holding.arbiter.mode is Mode.HOLD
    assert holding.arbiter.why == "ada released Enter. Hold Enter to run."
    holding.wait(0.5, "Enter")
    assert holding.arbiter.mode is Mode.POLICY


def test_a_button_that_is_only_pressed_does_not_let_the_policy_act(holding):
    holding.arbiter.press(holding.ada, "go on")
    assert holding.arbiter.mode is Mode.HOLD
    assert holding.arbiter.why == "Hold Enter to run."


def test_a_person_who_leads_the_arm_may_release_the_key_of_the_policy(holding):
    holding.keys("Enter")
    holding.keys("Enter", "ArrowUp")
    holding.keys("ArrowUp")
    assert holding.arbiter.mode is Mode.PERSON
    holding.keys()
    assert holding.arbiter.mode is Mode.HOLD, "the policy would act without the key"


def test_a_key_that_was_held_over_a_hold_must_be_pressed_anew(holding):
    holding.keys("Enter")
    holding.arbiter.hold("The camera front is silent.")
    holding.wait(0.3, "Enter")
    assert holding.arbiter.mode is Mode.HOLD
    holding.keys()
    holding.keys("Enter")
    assert holding.arbiter.mode is Mode.POLICY


def test_nothing_resumes_by_itself_without_the_key(holding):
    holding.keys("Enter")
    holding.arbiter.end_episode("Solved.")
    holding.wait(2.0)
    assert holding.arbiter.mode is Mode.HOLD
    assert holding.arbiter.why == "Hold Enter to run."
    holding.keys("Enter")
    holding.arbiter.end_episode("Solved.")
    holding.wait(2.0, "Enter")
    assert holding.arbiter.mode is Mode.POLICY, "who holds the key meanwhile lets it go on"


def test_ending_the_session_needs_no_other_key(holding):
    holding.wait(1.2, "End")
    assert holding.arbiter.mode is Mode.STOP


def test_a_device_that_is_released_gives_the_arm_to_nobody(holding):
    holding.keys("Enter")
    holding.arbiter.device(HandInput(True, np.ones(6), 0))
    holding.keys()
    assert holding.arbiter.mode is Mode.PERSON
    holding.arbiter.device(STILL)
    assert holding.arbiter.mode is Mode.HOLD


def faulted(setup: Setup, *, asks: bool = False) -> None:
    setup.arbiter.fault(3, "arm: stopped, user stop.", asks_cause=asks)


def test_a_fault_shows_its_sentence_and_nothing_but_a_recovery_ends_it(running):
    faulted(running)
    assert running.arbiter.command().mode is Mode.FAULT
    assert running.arbiter.page_state()["why"] == "arm: stopped, user stop."
    running.go()
    running.keys("ArrowUp")
    running.arbiter.hold("something else")
    running.wait(3.0)
    assert running.arbiter.command()[:2] == (Mode.FAULT, STILL)
    assert running.arbiter.page_state()["why"] == "arm: stopped, user stop."
    assert running.arbiter.command().recovery.fault == 0
    running.arbiter.recover(running.ada, "")
    assert running.arbiter.command().recovery == (3, "ada", "")
    assert running.arbiter.mode is Mode.HOLD
    assert running.log[-1] == (
        "ada",
        "recovered the arm",
        {"fault": "arm: stopped, user stop.", "cause": ""},
    )
    running.arbiter.await_start("", wait=False)
    running.go()
    assert running.arbiter.mode is Mode.POLICY


def test_a_new_episode_shows_that_the_arm_has_been_recovered(running):
    """In a correction session nobody lays a table between two episodes."""
    faulted(running)
    running.arbiter.recover(running.ada, "")
    running.arbiter.begin_episode(1)
    assert running.arbiter.why == "The arm has been recovered. Press Enter to start."
    running.go()
    assert running.arbiter.mode is Mode.POLICY


def test_enter_before_the_arm_has_been_recovered_is_refused_in_words(running):
    faulted(running)
    running.arbiter.recover(running.ada, "")
    assert running.arbiter.page_state()["trouble"], "Start is disabled"
    running.go()
    assert running.arbiter.mode is Mode.HOLD
    assert running.arbiter.why == "The arm is being recovered. Wait until it is ready."
    # The session, whose arm has been recovered, lays the table.
    running.arbiter.await_start("", wait=False)
    state = running.arbiter.page_state()
    assert (state["why"], state["trouble"]) == (
        "The arm has been recovered. Press Enter to start.",
        False,
    )
    running.go()
    assert running.arbiter.mode is Mode.POLICY


def test_a_robot_that_refuses_its_recovery_shows_the_next_fault(running):
    faulted(running)
    running.arbiter.recover(running.ada, "")
    running.arbiter.fault(4, "arm: the user stop is pressed.", asks_cause=False)
    assert running.arbiter.page_state()["why"] == "arm: the user stop is pressed."
    running.arbiter.recover(running.ada, "")
    assert running.arbiter.command().recovery.fault == 4


def test_only_who_has_control_recovers_the_arm_and_with_a_cause_where_one_is_asked(running):
    other = running.arbiter.join("bob", "there")
    faulted(running, asks=True)
    running.arbiter.recover(other, "a cable")
    running.arbiter.recover(running.ada, "")
    assert running.arbiter.mode is Mode.FAULT
    assert running.arbiter.page_state()["asks_cause"]
    running.arbiter.recover(running.ada, "a cable")
    assert running.arbiter.command().recovery == (3, "ada", "a cable")


def test_a_recovery_without_a_fault_changes_nothing(running):
    running.arbiter.recover(running.ada, "")
    assert running.arbiter.mode is Mode.POLICY
    assert running.arbiter.command().recovery.fault == 0


def test_a_fault_ends_the_episode_with_its_pending_label(running):
    running.keys("KeyS")
    faulted(running)
    assert running.happened("label too late")
    running.arbiter.recover(running.ada, "")
    running.wait(3.0)
    assert running.arbiter.command().label_number == 0
    running.keys("KeyS")
    assert running.happened("label not taken")


def test_a_session_can_be_ended_in_a_fault(running):
    faulted(running)
    running.wait(1.5, "End")
    assert running.arbiter.mode is Mode.STOP
    faulted(running)
    assert running.arbiter.mode is Mode.STOP


@pytest.mark.parametrize("connected", [True, False])
def test_a_fault_belongs_to_the_process_that_reported_it(running, connected):
    faulted(running)
    running.arbiter.robot_connected(connected, "reach")
    assert running.arbiter.mode is Mode.HOLD
    assert running.arbiter.command().recovery.fault == 0


def cap(setup: Setup, *counts: float, who: int | None = None) -> None:
    """A page sends its SpaceMouse."""
    setup.sequence += 1
    report = SpaceMouseReport(counts or (0.0,) * 6, (), 0.0)
    number = setup.ada if who is None else who
    setup.arbiter.inputs(number, Inputs(spacemouse=report), setup.sequence, True)


FORWARD = (0.0, -350.0, 0.0, 0.0, 0.0, 0.0)


def test_a_spacemouse_at_the_page_moves_the_arm_while_it_is_deflected(running):
    cap(running)
    cap(running, *FORWARD)
    assert running.arbiter.mode is Mode.PERSON
    assert running.arbiter.command().hand.twist.tolist() == [1, 0, 0, 0, 0, 0]
    cap(running)
    assert running.arbiter.mode is Mode.POLICY


def test_a_spacemouse_that_is_deflected_at_first_moves_nothing_before_it_rests(running):
    cap(running, *FORWARD)
    assert running.arbiter.mode is Mode.POLICY
    cap(running)
    cap(running, *FORWARD)
    assert running.arbiter.mode is Mode.PERSON


def test_a_spacemouse_at_a_page_without_control_moves_nothing_when_it_gets_control(running):
    bob = running.arbiter.join("bob", "there")
    cap(running, who=bob)
    cap(running, *FORWARD, who=bob)
    assert running.arbiter.mode is Mode.POLICY
    running.arbiter.claim(bob, force=True)
    running.keys("Enter", who=bob)
    cap(running, *FORWARD, who=bob)
    assert running.arbiter.mode is Mode.POLICY
    cap(running, who=bob)
    cap(running, *FORWARD, who=bob)
    assert running.arbiter.mode is Mode.PERSON
