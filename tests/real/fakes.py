"""An arm and a clock without a robot: the arm reaches its target one tick later."""

import threading
from dataclasses import replace

import numpy as np

from real.arm import ArmFaultError, ArmState, JointPositionTarget, PoseTarget, TorqueResponse
from real.franka.slot import robot_slot
from real.motion.action_space import Space
from real.motion.stream import ActionAge, ReferenceStream, Stream, StreamConfig
from robots.contract import Contract
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import Clock
from robots.spec import FieldSpec

FR3 = find_robot("fr3")


class FakeClock:
    def __init__(self):
        self.ticks = 0
        self.on_tick = []

    def now(self):
        return self.ticks * 0.001

    def advance(self, seconds):
        self.ticks += round(seconds * 1000)
        for call in self.on_tick:
            call()
        return self.now()


class FakeArm:
    robot = FR3

    def __init__(self, clock, pose):
        self.clock, self.pose, self.targets = clock, pose.copy(), []
        self.started = self.stopped = 0
        self.stuck = False
        self.flange_T_ee = np.eye(4)
        self.fault_at: float | None = None
        clock.on_tick.append(self.follow)

    def follow(self):
        if self.targets and not self.stuck:
            self.pose = self.targets[-1].base_T_ee.copy()

    def state(self):
        if self.fault_at is not None and self.clock.now() >= self.fault_at:
            raise ArmFaultError(("joint_reflex",), "Reflex", self.clock.now())
        zero = np.zeros(7)
        return ArmState(
            self.clock.now(),
            FR3.q_home.copy(),
            zero,
            self.pose.copy(),
            zero,
            zero,
            np.zeros(6),
            1.0,
            "Move",
            (),
        )

    def torque_response(self, q: np.ndarray, axes: np.ndarray, along: np.ndarray) -> TorqueResponse:
        none = np.zeros((7, axes.shape[1]))
        return TorqueResponse(none, none, none, np.zeros((7, 7)), np.zeros((7, 7)))

    def start(self):
        self.started += 1

    def stream(self, clock: Clock, space: Space, config: StreamConfig, age: ActionAge) -> Stream:
        return ReferenceStream(self, clock, space, config, self.flange_T_ee, age)

    def set_target(self, target: PoseTarget | JointPositionTarget):
        assert isinstance(target, PoseTarget)
        self.targets.append(target)

    def stop(self):
        self.stopped += 1


def contract(**changes):
    base = Contract(
        task="push_t",
        observation={
            "keypoints": FieldSpec(shape=(9, 2), unit="m"),
            "agent": FieldSpec(shape=(2,), unit="m"),
        },
        action=FieldSpec(shape=(2,), unit="m", frame="board"),
        rate_hz=10.0,
        n_obs_steps=2,
        horizon=16,
        n_action_steps=8,
        action_interface="pd_target",
        sampler="one-step",
        training_data="d" * 8,
        policy="p" * 8,
    )
    return replace(base, **changes)


def others_can_take(host: str) -> bool:
    """Whether another thread, as another process, can take the arm at `host`."""
    refused: list[HandoffError] = []

    def attempt() -> None:
        try:
            with robot_slot(host, "fr3"):
                pass
        except HandoffError as error:
            refused.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return not refused
