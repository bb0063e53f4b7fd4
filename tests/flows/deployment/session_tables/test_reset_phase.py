"""Home and hand guiding between two episodes, at the twin."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flows.deployment.config import ResetConfig
from flows.deployment.session_tables import reset_phase
from flows.deployment.session_tables.hosts import HostOptions, SimulatedHost
from flows.deployment.session_tables.reset_phase import AT_START, OBJECTS, ResetPhase
from flows.session.simulated_arm import twin_arm
from real.arm import ArmFaultError, ConnectionLostError
from real.console.control.reset_offer import ResetQuestion
from real.driver.driven_arm import DrivenArm
from real.driver.driver import Driver
from real.franka.arm import FrankaArm
from real.motion.fence import ENTERED, FenceConfig, KeepOutBox, KeepOutPlane
from real.motion.fenced_path import rooms
from real.motion.hand_guiding import HandGuidingConfig, guide
from robots.errors import HandoffError, SafetyError
from robots.franka import find_robot
from robots.interfaces import Clock, ResetMotion
from sim.twin.task_world import TaskWorld
from sim.twin.twin import Twin, TwinConfig, start_twin
from tests.sim.twin.loopback import address

pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")

FR3 = find_robot("fr3")
HOME, LIMP = ResetMotion.HOME, ResetMotion.LIMP
NO_FENCE = FenceConfig()
PUSH = (12.0, 0.0, 0.0)
"""A push at the end effector [N]."""


class Person:
    """A person at the console who asks for motions in turn; each one ends when the session holds,
    or when the person does."""

    def __init__(self, *motions: ResetMotion) -> None:
        self._motions = list(motions)
        self.paused, self.stopped = True, False
        self.reset_motion = ResetMotion.NONE
        self.until: Callable[[], bool] = lambda: False
        """Whether the person ends the motion."""
        self.words: list[str] = []
        self.waits: list[bool] = []
        self.progress: list[float] = []
        self.scenes = 0
        self.supervision: Any = self
        self.operator: Any = SimpleNamespace(
            show_progress=self.progress.append, close_reset=lambda: self.words.append("closed")
        )

    def poll(self) -> None:
        if self.reset_motion and self.until():
            self.hold()
        elif not self.reset_motion and self._motions:
            self.reset_motion = self._motions.pop(0)
        elif not self.reset_motion:
            self.paused = False

    def hold(self) -> None:
        self.reset_motion = ResetMotion.NONE
        self._motions.clear()

    def open_reset(self, why: str, *, wait: bool, question: Any = None) -> None:
        self.words.append(why)
        self.waits.append(wait)
        self.reset_motion = ResetMotion.NONE

    def show(self) -> None:
        self.scenes += 1


class Host(SimulatedHost):
    """The table of reach, in lockstep and as fast as it may."""

    def clock(self, arm: DrivenArm) -> Clock:
        return arm.clock


@pytest.fixture(scope="module")
def twin() -> Iterator[Twin]:
    with start_twin(TwinConfig(host=address(142)), partial(TaskWorld, "pick_cube")) as running:
        yield running


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with Driver() as running:
        yield running


@pytest.fixture
def host(twin: Twin, driver: Driver) -> Host:
    table = Host(_options(twin), twin, "pick_cube", driver)
    table.place(0)
    return table


def _options(twin: Twin, **others: Any) -> HostOptions:
    settings = replace(twin_arm(), move_dynamics=0.3)
    options = HostOptions("", settings, TwinConfig(host=twin.host), None, None, 0.1, 0.5, NO_FENCE)
    return replace(options, **others)


def phase(host: Host, person: Person, fence: FenceConfig = NO_FENCE, **config: Any) -> ResetPhase:
    supervisor: Any = person
    return ResetPhase(host, supervisor, ResetConfig(**config), fence)


def measured(host: Host) -> np.ndarray:
    """(J,) joint positions [rad]."""
    with host.arm() as arm:
        return arm.state().q


def pushed(host: Host, twin: Twin, force: tuple[float, ...] = PUSH, **config: Any) -> list[str]:
    """What the pages say after half a second of pushing an arm that is limp for two seconds."""
    person = Person(LIMP)
    begin = twin.now()
    calls: list[float] = []

    def until() -> bool:
        if not calls:
            calls.append(twin.now())
            twin.call("push", force, 0.5)
        return twin.now() - calls[0] > 2.0

    person.until = until
    assert phase(host, person, **config).await_start()
    assert twin.now() > begin
    return person.words


def test_an_arm_that_was_guided_away_drives_home(host: Host, twin: Twin) -> None:
    start = measured(host)
    assert pushed(host, twin) == ["", "closed"]
    away = np.abs(measured(host) - start).max()
    assert away > 0.15, "the arm has yielded to the push"
    person = Person(HOME)
    assert phase(host, person).await_start()
    assert person.words == ["", AT_START, "closed"]
    assert person.waits == [False, True]
    np.testing.assert_allclose(measured(host), start, atol=0.005)
    assert person.progress[0] < 0.1
    assert person.progress[-1] > 0.95
    assert np.all(np.diff(person.progress) > -0.02)
    assert person.scenes > 0


def test_a_limp_arm_that_nobody_touches_stays_where_it_is(host: Host, twin: Twin) -> None:
    start = measured(host)
    assert pushed(host, twin, (0.0, 0.0, 0.0)) == ["", "closed"]
    np.testing.assert_allclose(measured(host), start, atol=1e-4)


def test_a_stiff_arm_does_not_yield_to_the_push(host: Host, twin: Twin) -> None:
    """The control: the same push, without hand guiding."""
    with host.arm() as arm:
        start = arm.state().q
        arm.start()
        twin.call("push", PUSH, 0.5)
        for _ in range(200):
            twin.advance(0.01)
        assert np.abs(arm.state().q - start).max() < 0.02
        arm.stop()


def test_the_hold_begins_where_the_arm_was_measured(host: Host, twin: Twin) -> None:
    person, last = Person(LIMP), [np.zeros(7)]
    begin: list[float] = []
    table = phase(host, person)

    def follow(state: Any) -> None:
        last[0] = state.q

    def until() -> bool:
        if not begin:
            begin.append(twin.now())
            twin.call("push", PUSH, 0.3)
        return twin.now() - begin[0] > 0.4

    host.follow = follow  # pyright: ignore[reportAttributeAccessIssue]
    person.until = until
    reset_phase_seconds = reset_phase.DRAWN_SECONDS
    try:
        reset_phase.DRAWN_SECONDS = 0.0
        assert table.await_start()
    finally:
        reset_phase.DRAWN_SECONDS = reset_phase_seconds
    with host.arm() as arm:
        state = arm.state()
    # It moved at up to 0.5 m/s when the person held it.
    np.testing.assert_allclose(state.q, last[0], atol=0.06)
    assert np.abs(state.dq).max() < 0.02


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (HandGuidingConfig(max_speed=0.1), r"the end effector moved at 0\.1\d m/s, limit 0.1 m/s"),
        (HandGuidingConfig(max_joint_speed=0.1), r"joint\d moved at 0\.1\d rad/s, limit 0.1 rad/s"),
    ],
)
def test_too_fast_a_hand_holds_the_arm(
    host: Host, twin: Twin, bounds: HandGuidingConfig, said: str
) -> None:
    words = pushed(host, twin, guiding=bounds)
    assert words[0] == ""
    assert re.search(said, words[1]), words
    with host.arm() as arm:
        assert np.abs(arm.state().dq).max() < 0.02


def test_a_payload_that_nobody_stated_does_not_let_the_arm_fall(host: Host, twin: Twin) -> None:
    """What it feels at rest refuses hand guiding in the first place."""
    twin.call("load", 1.0, (0.0, 0.0, 0.1))
    try:
        start = measured(host)
        words = pushed(host, twin, (0.0, 0.0, 0.0))
        assert "Nm at rest, limit 4.0 Nm" in words[1]
        np.testing.assert_allclose(measured(host), start, atol=0.02)
    finally:
        twin.call("load", 0.0, (0.0, 0.0, 0.0))


def test_a_hand_cannot_guide_the_arm_through_the_fence(host: Host, twin: Twin) -> None:
    with host.arm() as arm:
        x = float(arm.state().base_T_ee[0, 3])
    wall = KeepOutPlane(name="wall", normal=(-1.0, 0.0, 0.0), offset=-(x + 0.08))
    fence = FenceConfig(planes=(wall,), elbow=0.0, wrist=0.0, flange=0.0)
    person, began = Person(LIMP), []

    def until() -> bool:
        if not began:
            began.append(twin.now())
            twin.call("push", PUSH, 1.0)
        return twin.now() - began[0] > 3.0

    person.until = until
    assert phase(host, person, fence).await_start()
    assert person.words[1].startswith("fence: the tool has come 0.01")
    with host.arm() as arm:
        depth = -min(rooms(fence, arm.robot, arm.flange_T_ee, arm.state().q).values())
    assert ENTERED < depth < 0.06


def test_a_way_home_into_the_fence_is_refused_with_point_and_depth(host: Host, twin: Twin) -> None:
    start = measured(host)
    pushed(host, twin)
    away = measured(host)
    middle = FR3.chain.forward_kinematics((start + away) / 2.0)
    with host.arm() as arm:
        tool = (middle @ arm.flange_T_ee)[:3, 3]
    host._options = _options(twin, lift=0.0)
    box = KeepOutBox(
        name="stand", low=tuple((tool - 0.03).tolist()), high=tuple((tool + 0.03).tolist())
    )
    fence = FenceConfig(boxes=(box,), elbow=0.0, wrist=0.0, flange=0.0)
    ticks = twin.stats()["motion_ticks"]
    person = Person(HOME)
    assert phase(host, person, fence).await_start()
    refused = r"fence: on its way the tool would come 0\.0\d+ m too near to 'stand'"
    assert re.match(refused, person.words[1]), person.words
    assert twin.stats()["motion_ticks"] == ticks
    np.testing.assert_allclose(measured(host), away, atol=1e-3)


def test_the_person_holds_the_drive_at_any_moment_and_it_goes_on_from_there(
    host: Host, twin: Twin
) -> None:
    start = measured(host)
    pushed(host, twin)
    away = measured(host)
    person = Person(HOME)
    person.until = lambda: bool(person.progress) and person.progress[-1] > 0.3
    assert phase(host, person).await_start()
    assert person.words == ["", "closed"], "the person has said why it holds"
    between = measured(host)
    assert 0.0 < np.abs(between - start).max() < np.abs(away - start).max() + 0.2
    with host.arm() as arm:
        assert np.abs(arm.state().dq).max() < 0.01
    again = Person(HOME)
    assert phase(host, again).await_start()
    np.testing.assert_allclose(measured(host), start, atol=0.005)


def test_the_end_of_the_session_in_the_middle_rests_the_arm(host: Host, twin: Twin) -> None:
    pushed(host, twin)
    person = Person(HOME)

    def until() -> bool:
        person.stopped = bool(person.progress) and person.progress[-1] > 0.3
        return person.stopped

    person.until = until
    assert not phase(host, person).await_start()
    with host.arm() as arm:
        assert np.abs(arm.state().dq).max() < 0.01


@pytest.mark.parametrize("motion", [HOME, LIMP])
def test_the_user_stop_is_a_fault(host: Host, twin: Twin, motion: ResetMotion) -> None:
    pushed(host, twin)
    person, began = Person(motion), []

    def until() -> bool:
        on_the_way = motion is LIMP or (bool(person.progress) and person.progress[-1] > 0.2)
        if on_the_way and not began:
            began.append(True)
            twin.press_user_stop()
        return False

    person.until = until
    try:
        with pytest.raises(ArmFaultError, match="user stop"):
            phase(host, person).await_start()
        assert person.words[-1] == "closed"
    finally:
        twin.press_user_stop(False)


def without_numbers(monkeypatch: pytest.MonkeyPatch, kind: type[Any]) -> None:
    """States of arms of a class have no numbers from the sixth on."""
    state, calls = kind.state, []

    def broken(arm: Any) -> Any:
        calls.append(0)
        found = state(arm)
        return replace(found, q=np.full(7, np.nan)) if len(calls) > 5 else found

    monkeypatch.setattr(kind, "state", broken)


def test_measurements_that_are_no_numbers_hold_the_arm_on_its_way_home(
    host: Host, twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(host, twin)
    without_numbers(monkeypatch, DrivenArm)
    person = Person(HOME)
    far = KeepOutPlane(name="floor", offset=-5.0)
    assert phase(host, person, FenceConfig(planes=(far,))).await_start()
    assert "expected finite numbers" in person.words[1]
    monkeypatch.undo()
    with host.arm() as arm:
        assert np.abs(arm.state().dq).max() < 0.01


def test_measurements_that_are_no_numbers_hold_an_arm_that_yields(
    host: Host, twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = host.arm().config
    with FrankaArm(settings, twin, twin.wait_for_motion) as arm:
        without_numbers(monkeypatch, FrankaArm)
        with pytest.raises(SafetyError, match="expected finite numbers"):
            guide(arm, twin, HandGuidingConfig(), NO_FENCE, lambda: True)
        monkeypatch.undo()
        assert np.abs(arm.state().dq).max() < 0.01


def test_an_arm_that_yields_comes_to_rest_if_nobody_can_answer_any_more(
    host: Host, twin: Twin
) -> None:
    """What the person at the page can no longer answer ends the guiding."""
    with host.arm() as arm:
        twin.call("push", PUSH, 0.5)
        asked: list[float] = []

        def failing() -> bool:
            asked.append(twin.now())
            if len(asked) > 20:
                raise HandoffError("the page's process is gone")
            return True

        with pytest.raises(HandoffError, match="the page's process is gone"):
            arm.guide(HandGuidingConfig(), NO_FENCE, failing)
        assert np.abs(arm.state().dq).max() < 0.02


def test_a_real_table_asks_for_its_objects_and_waits(host: Host) -> None:
    host.manual_reset = True
    person = Person()
    assert phase(host, person).await_start()
    assert (person.words, person.waits) == ([OBJECTS, "closed"], [True])
    person = Person()
    sentence = "Put the cube back on its mark."
    assert phase(host, person, sentence=sentence, by_person=False).await_start()
    assert (person.words, person.waits) == ([sentence, "closed"], [False])


def test_a_question_makes_every_arm_wait_and_words_replace_those_for_the_objects(
    host: Host,
) -> None:
    person, question = Person(), ResetQuestion(1, "Which?", ("a", "b"))
    assert phase(host, person).await_start("As the picture shows.", question)
    assert (person.words, person.waits) == (["As the picture shows.", "closed"], [True])
    host.manual_reset = True
    person = Person()
    assert phase(host, person).await_start("As the picture shows.")
    assert (person.words, person.waits) == (["As the picture shows.", "closed"], [True])


def test_damping_of_another_robot_is_refused(host: Host) -> None:
    person = Person(LIMP)
    with pytest.raises(HandoffError, match=r"reset\.guiding\.damping has 2 entries, expected 7"):
        phase(host, person, guiding=HandGuidingConfig(damping=(1.0, 1.0))).await_start()


class Patient(Person):
    """A person who starts nothing, and ends the session after a second."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def poll(self) -> None:
        self._looks += 1
        self.stopped = self._looks > 1.0 / reset_phase.WAIT_SECONDS


def waited(host: str) -> bool:
    """What comes of waiting for a patient person at an arm of another program."""
    place: Any = SimpleNamespace(manual_reset=True)
    person: Any = Patient()
    return ResetPhase(place, person, ResetConfig(), NO_FENCE, host).await_start()


def test_a_twin_that_is_gone_while_the_session_waits_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reset_phase, "TWIN_SECONDS", 0.05)
    host = address(97)
    with socket.create_server((host, 1337)) as there:
        assert not waited(host), "the person has ended the session"
        leaving = threading.Timer(0.2, there.close)
        leaving.start()
        with pytest.raises(ConnectionLostError, match=f"no robot answers at {re.escape(host)}"):
            waited(host)
        leaving.join()


def test_a_real_arm_is_asked_nothing_while_the_session_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(reset_phase, "TWIN_SECONDS", 0.05)
    monkeypatch.setattr(reset_phase, "check_answers", asked.append)
    assert not waited("192.0.2.7")
    assert not waited("")
    assert asked == []
    assert not waited(address(97))
    assert len(asked) > 2
