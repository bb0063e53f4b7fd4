"""Random actions of the joints, through coordinates, governor, joint limits and impedance law: does
a limit of the robot break?

    python -m tests.benchmarks.fuzz_joints --ticks 200000 --json

Every episode has a random start within the joint limits, steps (`joint_delta`) or targets
(`joint_target`), and actions of one kind: small, plausible, from one end of the range to the other,
far beyond it, none for a while, and braking ticks between them. A simulated arm of seven joints
follows the joint law at 1 kHz. Checked in every tick are, of the reference, position, velocity,
acceleration and jerk; of the law, torque and rate of torque; of the arm, position and velocity. A
`SafetyError` ends the episode, as at an arm.

largest: of each quantity, as a share of its limit.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from flows.session.simulated_arm import STEP_LIMITS
from real.arm import ArmState, JointPositionTarget, PoseTarget, TorqueResponse
from real.franka.impedance import ImpedanceConfig, torque_response
from real.motion.joint_space import LEVER, JointSpace
from real.motion.stream import ReferenceStream, StreamConfig, Tick
from robots.control.actions import JointDelta, JointTarget
from robots.errors import SafetyError
from robots.franka import find_robot
from robots.spec import FieldSpec
from tests.benchmarks.fuzz import NUMBERS, ROUNDING, ViolationError
from tests.real.fakes import contract

FR3 = find_robot("fr3")
LIMITS = FR3.limits
STREAM = StreamConfig(stream_hz=200.0, governor=STEP_LIMITS)
RATE_HZ = 20.0
STEPS = 40
"""Policy steps of an episode."""
INERTIA = np.array([2.0, 2.0, 1.5, 1.2, 0.1, 0.1, 0.05])
"""Plausible inertia about each joint [kg m^2]."""
FINE = 5
"""Control cycles per tick."""
FLANGE_T_EE = np.eye(4)
FLANGE_T_EE[2, 3] = FR3.gripper.tcp_offset


class JointArm:
    """An arm that follows the joint law, whose reference moves evenly within a tick; also its
    clock.

    Args:
        q: (J,) joint positions at first [rad].
    """

    robot = FR3

    def __init__(self, q: np.ndarray) -> None:
        self.impedance = ImpedanceConfig(controller="joint")
        self.q = q.copy()
        self.dq = np.zeros_like(q)
        self.aimed = q.copy()
        """(J,) reference of the law [rad]."""
        self._next = q.copy()
        self.time = 0.0

    def state(self) -> ArmState:
        zero = np.zeros(7)
        pose = FR3.chain.forward_kinematics(self.q) @ FLANGE_T_EE
        return ArmState(
            self.time, self.q.copy(), self.dq.copy(), pose, zero, zero, np.zeros(6), 1.0, "Move", ()
        )

    def torque_response(self, q: np.ndarray, axes: np.ndarray, along: np.ndarray) -> TorqueResponse:
        return torque_response(self.impedance, FR3, q, axes, along, FLANGE_T_EE)

    def set_target(self, target: PoseTarget | JointPositionTarget) -> None:
        assert isinstance(target, JointPositionTarget)
        self._next = target.q

    def torque(self) -> np.ndarray:
        """(J,) torque of the law [Nm]."""
        springs = np.array(self.impedance.joint_stiffness) * (self.aimed - self.q)
        return springs - np.array(self.impedance.joint_damping) * self.dq

    def start(self) -> None:
        """Is under control already."""

    def stop(self) -> None:
        """Stands by itself."""

    def now(self) -> float:
        return self.time

    def advance(self, seconds: float) -> float:
        begin = self.aimed
        for cycle in range(FINE):
            self.aimed = begin + (cycle + 1) / FINE * (self._next - begin)
            self.dq = self.dq + self.torque() / INERTIA * seconds / FINE
            self.q = self.q + self.dq * seconds / FINE
        self.time += seconds
        return self.time


def fuzz_joints(ticks: int, seed: int, limits: StreamConfig = STREAM) -> dict[str, Any]:
    """Plays episodes until so many ticks have passed.

    Args:
        ticks: number of ticks.
        seed: seed of starts and actions.
        limits: rate and limits of the stream.

    Returns:
        How many ticks and refusals there were, and the `largest` share of every limit.

    Raises:
        ViolationError: a limit broke.
    """
    rng, outcomes = np.random.default_rng(seed), Counter[str]()
    largest: dict[str, float] = {}
    while outcomes.total() < ticks:
        _play(rng, limits, outcomes, largest)
    return {"outcomes": dict(sorted(outcomes.items())), "largest": largest}


def _play(
    rng: np.random.Generator,
    limits: StreamConfig,
    outcomes: Counter[str],
    largest: dict[str, float],
) -> None:
    """One episode."""
    steps = JointDelta() if rng.random() < 0.5 else JointTarget()
    stated = contract(
        task="reach",
        action=FieldSpec(shape=(7,)),
        action_interface=steps.kind,
        rate_hz=RATE_HZ,
        steps=steps,
        robot="fr3",
    )
    margin = 0.12
    arm = JointArm(rng.uniform(LIMITS.q_min + margin, LIMITS.q_max - margin))
    space = JointSpace(stated, FR3, FLANGE_T_EE)
    config = replace(limits, governor=space.governed(limits.governor, limits.joints, arm.q))
    kind = rng.integers(5)
    try:
        stream = ReferenceStream(arm, arm, space, config, FLANGE_T_EE)
        for _ in range(STEPS):
            action = _action(rng, int(kind), steps)
            if action is not None:
                stream.set_target(space.next_target(action, stream.target, stream.last.measured))
            brake = rng.random() < 0.05
            for _ in range(round(limits.stream_hz / RATE_HZ)):
                before, torque = stream.last, arm.torque()
                stream.send(brake=brake)
                stream.pass_tick()
                _check(config, before, stream.last, torque, arm, largest)
                outcomes["ticks"] += 1
    except SafetyError as error:
        outcomes[f"refused: {str(error).split(' is ')[0].split(' has ')[0][:40]}"] += 1


def _action(
    rng: np.random.Generator, kind: int, steps: JointDelta | JointTarget
) -> np.ndarray | None:
    """An action (7,), or None where none has come."""
    if rng.random() < 0.01:
        return rng.choice(NUMBERS, 7)
    if rng.random() < 0.1:
        return None
    low, high = (np.array(bound) for bound in (steps.spec(FR3).low, steps.spec(FR3).high))
    match kind:
        case 0:
            return rng.normal(size=7) * 0.1 * (high - low) / 2.0 + (high + low) / 2.0
        case 1:
            return rng.uniform(low, high)
        case 2:
            return np.where(rng.random(7) < 0.5, low, high)
        case 3:
            return (low if rng.random() < 0.5 else high).copy()
    return rng.normal(size=7) * 50.0


def _check(
    config: StreamConfig,
    before: Tick,
    after: Tick,
    torque: np.ndarray,
    arm: JointArm,
    largest: dict[str, float],
) -> None:
    """Checks one tick against the limits, worked out here once more.

    Args:
        config: limits of the stream.
        before: the tick before.
        after: the tick.
        torque: (J,) torque of the law at the beginning of the tick [Nm].
        arm: the arm at the end of the tick.
        largest: largest shares so far, which are raised.

    Raises:
        ViolationError: a limit is broken.
    """
    dt, demanded = 1.0 / config.stream_hz, arm.torque()
    governor = config.governor
    q, dq = after.streamed.position / LEVER, after.streamed.velocity / LEVER
    ddq = (after.streamed.velocity - before.streamed.velocity) / LEVER / dt
    jerk = (after.streamed.acceleration - before.streamed.acceleration) / LEVER / dt
    slowest, fastest = LIMITS.velocity_limits(before.state.q)
    middle, half = (LIMITS.q_max + LIMITS.q_min) / 2.0, (LIMITS.q_max - LIMITS.q_min) / 2.0
    acceleration = governor.max_acceleration / math.sqrt(7.0) / LEVER
    shares = {
        "position": np.abs(q - middle) / half,
        "velocity": np.where(
            dq > 0.0, dq / np.maximum(fastest, 1e-3), dq / np.minimum(slowest, -1e-3)
        ),
        "speed": np.array([np.linalg.norm(dq) * LEVER / governor.max_speed]),
        "acceleration": np.abs(ddq) / acceleration,
        "jerk": np.abs(jerk) / (governor.max_jerk / LEVER),
        "torque": np.abs(demanded) / LIMITS.tau_max,
        "torque rate": np.abs(demanded - torque) / dt / LIMITS.dtau_max,
        "arm's position": np.abs(arm.q - middle) / half,
        "arm's velocity": np.abs(arm.dq) / LIMITS.dq_max,
    }
    for name, values in shares.items():
        share = float(np.max(values))
        largest[name] = max(largest.get(name, 0.0), share)
        if not share <= 1.0 + ROUNDING:
            raise ViolationError(f"joints: {name} is {share:.3f} of its limit in tick {after}")


def main() -> None:
    """Runs it, and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ticks", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0, help="of starts and actions")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    figures = {
        "ticks": arguments.ticks,
        "seed": arguments.seed,
        **fuzz_joints(arguments.ticks, arguments.seed, STREAM),
    }
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
