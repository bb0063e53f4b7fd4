import threading
from dataclasses import replace

import numpy as np
import pytest

from real.arm import ArmFaultError
from real.deploy.episode_recorder import LoopRecord, num_rows
from real.deploy.loop import LoopConfig, run_episode
from real.motion.planar_space import Plane, PlaneConfig
from robots.control.actions import AgentDynamics
from robots.control.agent_reference import AgentReference
from robots.control.noise import chunk_noise
from robots.errors import HandoffError, SafetyError
from tests.real.fakes import FakeArm, FakeClock, contract

START = np.array([0.25, 0.25])


class Setup:
    def __init__(self, **changes):
        self.plane = Plane(PlaneConfig())
        self.clock = FakeClock()
        self.arm = FakeArm(self.clock, self.plane.pose(START))
        self.contract = contract(**changes)
        self.calls = []

    def observe(self, state):
        return {
            "keypoints": np.zeros((9, 2), np.float32),
            "agent": self.plane.position(state.base_T_ee).astype(np.float32),
            "block_pose": np.zeros(3),
        }

    def still(self, observation, noise):
        self.calls.append((observation.copy(), noise.copy()))
        return np.broadcast_to(np.float32(START), (1, 16, 2)).copy()

    def run(self, policy, steps=10, observe=None, **options):
        settings = options.pop("config", LoopConfig())
        return run_episode(
            self.arm,
            self.clock,
            policy,
            self.contract,
            observe or self.observe,
            replace(settings, max_steps=steps),
            space=self.plane,
            seed=5,
            **options,
        )


def to(target):
    return lambda observation, noise: np.broadcast_to(np.float32(target), (1, 16, 2)).copy()


def test_streams_25_targets_per_policy_step_and_stops_the_arm():
    setup = Setup()
    record = setup.run(setup.still, steps=4)
    assert len(setup.arm.targets) == 100
    assert setup.clock.now() == pytest.approx(0.4)
    assert record.end - record.begin == pytest.approx(0.4)
    assert (setup.arm.started, setup.arm.stopped) == (1, 1)


def test_policy_is_asked_every_eight_steps_with_its_own_noise():
    setup = Setup()
    setup.run(setup.still, steps=17)
    assert len(setup.calls) == 3
    for index, (observation, noise) in enumerate(setup.calls):
        assert observation.shape == (1, 2, 20)
        np.testing.assert_array_equal(noise[0], chunk_noise(5, index, 16, 2))


def test_streamed_motion_is_that_of_the_agent():
    setup = Setup()
    target = START + np.array([0.02, -0.01])
    record = setup.run(to(target), steps=6)
    reference = AgentReference(START, AgentDynamics())
    reference.push(target.astype(np.float32))
    expected = np.array([reference.sample(0.004 * (i + 1)).position for i in range(150)])
    np.testing.assert_allclose(np.array(record.reference["position"]), expected, atol=2e-5)


def test_action_outside_the_box_is_recorded_as_proposed_and_executed_as_clamped():
    setup = Setup()
    record = setup.run(to([0.9, 0.25]), steps=3)
    np.testing.assert_allclose(record.policy["action_proposed"][0], [0.9, 0.25], atol=1e-6)
    np.testing.assert_allclose(record.policy["action"][0], [0.48, 0.25], atol=1e-6)


def test_stop_condition_ends_the_episode_before_the_next_action():
    setup = Setup()
    record = setup.run(setup.still, steps=10, stop=lambda: setup.clock.now() > 0.25)
    assert record.stopped
    assert len(record.policy["action"]) == 3
    assert setup.arm.stopped == 1


def test_record_holds_what_observe_gave_beyond_the_contract():
    record = Setup().run(to(START), steps=2)
    assert np.shape(record.policy["block_pose"]) == (2, 3)
    assert np.shape(record.policy["keypoints"]) == (2, 9, 2)


@pytest.mark.parametrize("kind", [ArmFaultError, SafetyError, HandoffError, KeyboardInterrupt])
def test_arm_is_stopped_whatever_ends_the_episode(kind):
    setup = Setup()

    def fail(observation, noise):
        raise ArmFaultError((), "Reflex", 0.0) if kind is ArmFaultError else kind("stop")

    with pytest.raises(kind):
        setup.run(fail)
    assert setup.arm.stopped == 1


def test_fault_of_the_arm_keeps_what_was_recorded_before():
    setup, record = Setup(), LoopRecord()
    setup.arm.fault_at = 0.2
    with pytest.raises(ArmFaultError, match="joint_reflex"):
        setup.run(setup.still, record=record)
    assert len(record.policy["action"]) == 2
    assert len(record.reference["position"]) == 49
    assert setup.arm.stopped == 1


def test_the_record_is_written_once_per_policy_period_between_a_target_and_the_end_of_its_tick():
    setup, written = Setup(), []
    record = LoopRecord(
        write=lambda: written.append((len(setup.arm.targets), setup.clock.now(), num_rows(rows)))
    )
    rows = record.policy
    setup.run(setup.still, steps=3, record=record)
    assert written == [(1, 0.0, 1), (26, 0.1, 2), (51, 0.2, 3)]


def test_nan_action_is_a_safety_error_and_nothing_of_it_is_streamed():
    setup = Setup()
    with pytest.raises(SafetyError, match="action is"):
        setup.run(to([np.nan, 0.2]))
    assert setup.arm.targets == []


def test_blocked_arm_ends_the_episode():
    setup = Setup()
    setup.arm.stuck = True
    with pytest.raises(SafetyError, match=r"behind its reference for 0\.5\d s.*Is it blocked"):
        setup.run(to([0.4, 0.4]), steps=30)


def test_arm_is_stopped_while_the_policy_still_hangs_once_its_chunk_has_run_dry():
    setup, release, asked = Setup(), threading.Event(), threading.Event()

    def policy(observation, noise):
        if setup.calls:
            release.wait(60.0)
        asked.set()
        return setup.still(observation, noise)

    settings = LoopConfig(wait_for_policy=False)
    setup.clock.on_tick.append(lambda: asked.wait(60.0))
    record = LoopRecord()
    # The first chunk arrives during the first step; its 15 actions from the newest step on last
    # until step 14 (1.4 s).
    with pytest.raises(SafetyError, match=r"no valid action for 0\.50"):
        setup.run(policy, steps=40, config=settings, record=record)
    assert setup.arm.stopped == 1
    assert not release.is_set()
    release.set()
    assert setup.clock.now() == pytest.approx(1.904, abs=0.005)
    assert np.linalg.norm(record.reference["velocity"][-1]) < 1e-6


def test_a_policy_that_never_gives_a_chunk_ends_the_episode():
    setup, release = Setup(), threading.Event()

    def policy(observation, noise):
        release.wait(60.0)
        return setup.still(observation, noise)

    with pytest.raises(SafetyError, match=r"no valid action for 0\.50"):
        setup.run(policy, steps=40, config=LoopConfig(wait_for_policy=False))
    release.set()
    assert setup.arm.stopped == 1
    assert setup.clock.now() == pytest.approx(0.504, abs=0.005)


def test_observation_without_a_field_of_the_contract_is_refused():
    setup = Setup()
    with pytest.raises(HandoffError, match=r"lacks \['keypoints'\]"):
        setup.run(setup.still, observe=lambda state: {"agent": np.zeros(2, np.float32)})


def test_non_finite_observation_is_refused():
    setup = Setup()
    bad = {"keypoints": np.full((9, 2), np.nan, np.float32), "agent": np.zeros(2, np.float32)}
    with pytest.raises(HandoffError, match="keypoints: value at index"):
        setup.run(setup.still, observe=lambda state: bad)


def test_stream_rate_that_does_not_fit_the_policy_rate_is_refused():
    with pytest.raises(HandoffError, match="expected a whole multiple"):
        Setup().run(to(START), config=LoopConfig(stream_hz=333.0))


MOVES_RIGHT = START + np.array([0.05, 0.0])


def test_a_specification_is_measured_beside_the_loop():
    setup = Setup()
    config = LoopConfig(
        specifications={"right": "always agent[0] < 0.2", "still": "keypoints.max < 1"}
    )
    record = setup.run(setup.still, steps=4, config=config)
    assert num_rows(record.policy) == 4
    assert record.specifications == pytest.approx({"right": -0.05, "still": 1.0}, abs=1e-6)


def test_a_specification_that_can_no_longer_be_satisfied_stops_the_arm_if_it_should():
    formula = f"always agent[0] < {START[0] + 0.01}"
    free = Setup()
    config = LoopConfig(specifications={"left": formula})
    assert free.run(to(MOVES_RIGHT), steps=10, config=config).specifications["left"] < -0.02

    setup = Setup()
    record = LoopRecord()
    stopping = replace(config, stop_on=("left",))
    with pytest.raises(SafetyError, match=r"'left': can no longer be satisfied 0.[1-9]0 s after"):
        setup.run(to(MOVES_RIGHT), steps=10, config=stopping, record=record)
    assert setup.arm.stopped == 1
    assert -0.02 < record.specifications["left"] < 0.0
    # The step that observed the violation has executed nothing.
    positions = [float(row[0]) for row in record.policy["agent"]]
    assert max(positions) < START[0] + 0.01


def test_a_specification_that_can_still_be_satisfied_stops_nothing():
    setup = Setup()
    formulas = {"right": f"eventually agent[0] > {START[0] + 0.03}"}
    config = LoopConfig(specifications=formulas, stop_on=("right",))
    assert setup.run(to(MOVES_RIGHT), steps=15, config=config).specifications["right"] > 0.0


def test_a_specification_of_another_field_is_refused_before_the_arm_starts():
    setup = Setup()
    config = LoopConfig(specifications={"near": "always goal_offset.norm < 1"})
    with pytest.raises(HandoffError, match="unknown field 'goal_offset', fields: "):
        setup.run(setup.still, config=config)
    assert setup.arm.started == 0


def test_a_stop_on_no_specification_is_refused():
    with pytest.raises(
        HandoffError, match=r"stop_on: no specification 'nera', did you mean 'near'"
    ):
        LoopConfig(specifications={"near": "agent.norm < 1"}, stop_on=("nera",))
    with pytest.raises(HandoffError, match=r"stop_on: no specification 'near', there are none."):
        LoopConfig(stop_on=("near",))
