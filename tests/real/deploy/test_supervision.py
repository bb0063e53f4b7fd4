"""A person beside a policy on an arm: what they ask for reaches the arm at once, and nothing else
does."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from real.console.console_operator import ConsoleOperator
from real.console.control.commands import STILL, Mode
from real.deploy.episode_recorder import LoopRecord
from real.deploy.loop import LoopConfig, run_episode
from real.deploy.person_motion import STEPS, BoardMotion
from real.deploy.supervision import Supervision, SupervisionConfig
from real.motion.planar_space import Plane, PlaneConfig
from real.teleop.takeover import HandInput, TakeoverConfig
from robots.control.noise import chunk_noise
from robots.interfaces import Label
from tests.real.console.fake_connection import FakeConnection, set_command
from tests.real.fakes import FakeArm, FakeClock, contract

START = np.array([0.25, 0.25])
AWAY = START + np.array([0.15, 0.0])
AHEAD = HandInput(True, np.array([1.0, 0, 0, 0, 0, 0]), 0)
"""Forward for a person behind the arm: along the base's x, which is the board's -y."""
FREE = LoopConfig(max_steps=20)


class Session:
    """One episode with a person whose inputs a script sets by robot time."""

    def __init__(self, script: Callable[["Session", float], None], **options):
        self.clock = FakeClock()
        self.plane = Plane(PlaneConfig())
        self.arm = FakeArm(self.clock, self.plane.pose(START))
        self.connection = FakeConnection()
        self.calls = []
        self.reported = []
        set_command(self.connection, Mode.POLICY)
        operator = ConsoleOperator(
            STEPS,
            TakeoverConfig(ramp=0.0),
            self.connection,
            "login",
            10.0,
            lambda: b"",
            self.clock.now,
        )
        settings = SupervisionConfig(speed=0.1, hold_seconds=options.pop("hold_seconds", 60.0))
        self.supervision = Supervision(
            operator, settings, BoardMotion(self.plane, settings.speed, 10.0), self.report
        )
        self.supervision.begin(0)
        self.clock.on_tick.append(lambda: script(self, self.clock.now()))
        self.record = LoopRecord()
        self.steps = options.pop("steps", 20)
        self.solved = options.pop("solved", lambda: False)

    def report(self, observation, intervention, **outcome):
        self.reported.append((observation, intervention, outcome))

    def policy(self, observation, noise):
        self.calls.append((observation.copy(), noise.copy()))
        return np.broadcast_to(np.float32(AWAY), (1, 16, 2)).copy()

    def run(self, alone: bool = False):
        run_episode(
            self.arm,
            self.clock,
            self.policy,
            contract(),
            lambda state: {
                "keypoints": np.zeros((9, 2), np.float32),
                "agent": self.plane.position(state.base_T_ee).astype(np.float32),
            },
            replace(FREE, max_steps=self.steps),
            space=self.plane,
            seed=5,
            stop=self.solved,
            record=self.record,
            supervision=None if alone else self.supervision,
        )
        return self

    def streamed(self, name="position"):
        """(T, 2) with row k for the tick that ends at (k + 1) * 4 ms."""
        return np.array(self.record.reference[name])

    def rows(self, name):
        return np.array(self.record.policy[name])


def between(first, last, mode, hand=STILL):
    """The person does so from `first` to `last` [s], and leaves the arm to the policy else."""

    def script(session, now):
        inside = first <= now < last
        set_command(
            session.connection,
            mode if inside else Mode.POLICY,
            hand if inside else STILL,
            person="ada",
        )

    return script


def test_a_person_who_only_watches_changes_nothing():
    alone = Session(lambda session, now: None)
    watched = Session(lambda session, now: None).run()
    alone.run(alone=True)
    np.testing.assert_array_equal(watched.streamed(), alone.streamed())
    np.testing.assert_array_equal(watched.rows("action"), alone.rows("action"))
    assert not watched.rows("intervention").any()
    assert set(watched.rows("segment")) == {-1}
    assert len(watched.reported) == 20
    assert [outcome["last"] for _, _, outcome in watched.reported] == [False] * 19 + [True]


def test_hold_brakes_from_the_next_tick_on_and_the_arm_stands_until_they_go_on():
    session = Session(between(0.21, 1.65, Mode.HOLD)).run()
    speed = np.linalg.norm(session.streamed("velocity"), axis=1)
    at = round(0.21 / 0.004)
    assert speed[at] > 0.3
    # 6 m/s^2 over both axes, so 4.24 m/s^2 along one.
    np.testing.assert_allclose(np.diff(speed[at : at + 25]), -6.0 / np.sqrt(2.0) * 0.004, rtol=1e-6)
    assert speed[at + 30 : at + 300].max() == 0.0
    way = session.streamed()[at : at + 300, 0] - session.streamed()[at, 0]
    assert (np.diff(way) >= 0.0).all(), "it does not turn back"
    assert way[-1] == pytest.approx(speed[at] ** 2 / (2.0 * 6.0 / np.sqrt(2.0)), rel=0.05)
    assert session.record.held == pytest.approx(1.44, abs=0.01)
    assert speed[at + 360 :].max() > 0.05, "then it goes on"


def test_while_held_no_step_is_made_and_no_time_is_lost():
    session = Session(between(0.35, 1.65, Mode.HOLD)).run()
    times = session.rows("step_time")
    assert len(times) == 20
    np.testing.assert_allclose(np.diff(times[:4]), 0.1, atol=1e-9)
    assert times[4] - times[3] == pytest.approx(1.35, abs=0.01)
    np.testing.assert_allclose(np.diff(times[4:]), 0.1, atol=1e-9)


def test_after_a_hold_the_policy_plans_from_what_it_sees_now():
    session = Session(between(0.35, 1.65, Mode.HOLD)).run()
    observation, noise = session.calls[1]
    assert len(session.calls) == 3
    np.testing.assert_array_equal(noise[0], chunk_noise(5, 1, 16, 2))
    np.testing.assert_array_equal(observation[0, 0], observation[0, 1])
    assert np.linalg.norm(observation[0, 1, 18:] - START) > 0.02


def test_a_person_leads_at_their_speed_from_where_the_reference_is():
    session = Session(between(0.35, 1.35, Mode.PERSON, AHEAD)).run()
    person_acted = session.rows("intervention").astype(bool)
    assert person_acted.tolist() == [False] * 4 + [True] * 10 + [False] * 6
    action = session.rows("action")
    np.testing.assert_allclose(
        np.diff(action[4:14], axis=0), np.tile([0.0, -0.01], (9, 1)), atol=1e-6
    )
    taken = session.streamed()[round(0.352 / 0.004) - 1]
    np.testing.assert_allclose(action[4], taken + np.array([0.0, -0.01]), atol=1e-6)
    assert session.rows("segment")[4:14].tolist() == [0] * 10
    assert session.record.people == {"ada"}
    # The proposal of the policy stays on record beside what was done.
    np.testing.assert_allclose(
        session.rows("action_proposed")[4:14], np.tile(AWAY, (10, 1)), atol=1e-6
    )


def test_nothing_jumps_when_control_of_the_arm_changes():
    session = Session(between(0.35, 1.35, Mode.PERSON, AHEAD)).run()
    velocity = session.streamed("velocity")
    # What the governor allows: 6 m/s^2.
    assert np.linalg.norm(np.diff(velocity, axis=0), axis=1).max() <= 6.0 * 0.004 + 1e-9


def test_nobody_waits_for_the_next_look_of_a_policy():
    session = Session(between(0.31, 1.16, Mode.PERSON, AHEAD)).run()
    times, person_acted = session.rows("step_time"), session.rows("intervention").astype(bool)
    # Ticks end every 4 ms.
    assert times[np.argmax(person_acted)] == pytest.approx(0.312, abs=1e-9)
    assert times[len(person_acted) - np.argmax(person_acted[::-1])] == pytest.approx(
        1.16, abs=0.005
    )
    short = np.diff(times) < 0.099
    assert short.sum() == 2, "the steps in which control of the arm changed, and no other"


def test_a_device_that_tells_nothing_between_steps_waits_for_one():
    session = Session(between(0.31, 1.16, Mode.PERSON, AHEAD))
    asked = session.supervision.operator.requests
    session.supervision.operator.requests = lambda: asked()._replace(engaged=None)
    session.run()
    np.testing.assert_allclose(np.diff(session.rows("step_time")), 0.1, atol=1e-9)
    assert session.rows("intervention").tolist() == [0] * 4 + [1] * 8 + [0] * 8


def test_who_gives_the_arm_back_gives_it_to_a_policy_that_has_looked():
    session = Session(between(0.35, 1.15, Mode.PERSON, AHEAD)).run()
    # Chunks: at the start, due at step 8 while the person leads, and at step 12, when it has the
    # arm again.
    assert len(session.calls) == 3
    observation = session.calls[2][0]
    np.testing.assert_allclose(observation[0, 1, 18:], session.rows("agent")[12], atol=1e-7)


def test_a_person_is_kept_in_the_box_and_comes_out_of_its_corner_at_once():
    def script(session, now):
        forward = 1.0 if now < 3.0 else -1.0
        set_command(
            session.connection, Mode.PERSON, HandInput(True, np.array([forward, 0, 0, 0, 0, 0]), 0)
        )

    session = Session(script, steps=40).run()
    board_y = session.streamed()[:, 1]
    assert board_y.min() >= 0.03
    assert board_y[round(2.9 / 0.004)] == pytest.approx(0.03, abs=0.002)
    assert board_y[-1] > 0.06, "nothing had piled up behind the wall"


@pytest.mark.parametrize("label", [Label.SUCCESS, Label.FAILURE, Label.REDO, Label.DISCARD])
def test_a_label_ends_the_episode_at_the_next_step(label):
    session = Session(
        lambda session, now: set_command(
            session.connection, Mode.POLICY, label_number=int(now > 0.45), label=label
        )
    ).run()
    assert session.record.label is label
    assert len(session.rows("action")) == 5
    assert session.reported[-1][2] == {
        "reward": 0.0,
        "success": label is Label.SUCCESS,
        "probability": None,
        "label": label,
        "last": True,
    }
    assert session.arm.stopped == 1


def test_a_label_while_the_arm_is_held_still_ends_the_episode_there():
    def script(session, now):
        set_command(
            session.connection,
            Mode.HOLD if now > 0.35 else Mode.POLICY,
            label_number=int(now > 1.0),
            label=Label.FAILURE,
        )

    session = Session(script).run()
    assert session.record.label is Label.FAILURE
    assert session.record.end == pytest.approx(1.0, abs=0.01)


def test_the_end_of_the_session_ends_the_episode():
    session = Session(between(0.45, 9.0, Mode.STOP)).run()
    assert session.supervision.stopped
    assert len(session.rows("action")) == 5
    assert session.arm.stopped == 1


def test_an_arm_is_not_held_for_ever():
    session = Session(between(0.35, 99.0, Mode.HOLD), hold_seconds=2.0).run()
    assert session.record.held == pytest.approx(2.0, abs=0.01)
    assert session.record.label is Label.NONE
    assert session.arm.stopped == 1


def test_success_is_told_with_the_step_that_brought_it():
    session = Session(lambda session, now: None)
    session.solved = lambda: session.clock.now() > 0.35
    session.run()
    assert [outcome["reward"] for _, _, outcome in session.reported] == [0.0, 0.0, 0.0, 1.0]
    assert session.reported[-1][2]["last"]
