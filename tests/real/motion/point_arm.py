"""An arm whose tip is a mass under the impedance law, in front of a rigid wall, and a stream of
references to it."""

from __future__ import annotations

from typing import cast

import numpy as np

from real.arm import Arm, ArmState, PoseTarget, TorqueResponse
from real.franka.impedance import ImpedanceConfig, torque_response
from real.franka.joint_limits import joint_velocity
from real.motion.action_space import CartesianSteps
from real.motion.energy_tank import EnergyTankConfig
from real.motion.force_guard import ForceGuardConfig
from real.motion.governor import GovernorConfig
from real.motion.stream import ReferenceStream, StreamConfig
from robots.control.actions import CartesianDelta
from robots.franka import find_robot
from robots.interfaces import Clock
from robots.spec import FieldSpec
from tests.real.fakes import contract

FR3 = find_robot("fr3")
FLANGE_T_EE = np.eye(4)
FLANGE_T_EE[2, 3] = 0.1034
AXES = np.eye(6)[:, :3]
LIMITS = GovernorConfig(max_speed=0.8, max_acceleration=30.0, max_jerk=12_000.0)
STEPS = CartesianDelta(axes=("x", "y", "z"), low=(0.2, -0.5, 0.0), high=(0.75, 0.5, 0.7))
MASS = 5.0
"""Mass of the tip [kg]."""
FINE = 10
"""Steps of the mass per tick of the stream."""


class PointArm:
    """The joints stay in the home pose as far as gains are concerned; the tip moves.

    Args:
        wall: coordinate x that the tip cannot pass [m].
        sign: sign of the reported wrench: 1 counts what acts on the arm, -1 what it exerts.
        bias: (3,) force that is reported besides [N].
    """

    robot = FR3

    def __init__(
        self, wall: float = np.inf, sign: float = 1.0, bias: tuple[float, ...] = (0.0,) * 3
    ) -> None:
        self.start = FR3.chain.forward_kinematics(FR3.q_home) @ FLANGE_T_EE
        self.position = self.start[:3, 3].copy()
        self.velocity = np.zeros(3)
        self.target = self.position.copy()
        self.wall = wall
        self.contact = np.zeros(3)
        """Force of the wall on the tip [N]."""
        self.push = np.zeros(3)
        """Another force on the tip that does not move it [N]."""
        self._sign = sign
        self._bias = np.array(bias)
        along = joint_velocity(FR3.chain, FR3.q_home, AXES, FLANGE_T_EE)
        self._law = torque_response(ImpedanceConfig(), FR3, FR3.q_home, AXES, along, FLANGE_T_EE)
        self._per_speed = along
        self.stiffness = self._per_speed.T @ self._law.stiffness
        self.damping = self._per_speed.T @ self._law.damping

    def state(self) -> ArmState:
        pose = self.start.copy()
        pose[:3, 3] = self.position
        felt = self._sign * (self.contact + self.push) + self._bias
        wrench = np.concatenate([felt, np.zeros(3)])
        zero = np.zeros(7)
        dq = self._per_speed @ self.velocity
        return ArmState(0.0, FR3.q_home, dq, pose, zero, zero, wrench, 1.0, "Move", ())

    def torque_response(self, q: np.ndarray, axes: np.ndarray, along: np.ndarray) -> TorqueResponse:
        return self._law

    def set_target(self, target: PoseTarget) -> None:
        self.target = target.base_T_ee[:3, 3]

    def now(self) -> float:
        return 0.0

    def advance(self, seconds: float) -> float:
        step = seconds / FINE
        for _ in range(FINE):
            force = self.stiffness @ (self.target - self.position) - self.damping @ self.velocity
            self.velocity = self.velocity + force / MASS * step
            self.position = self.position + self.velocity * step
            self.contact = np.zeros(3)
            if self.position[0] >= self.wall:
                self.contact[0] = -max(force[0], 0.0)
                self.position[0] = self.wall
                self.velocity[0] = min(self.velocity[0], 0.0)
        return 0.0


def stream_to(
    arm: PointArm, force: ForceGuardConfig | None = None, tank: EnergyTankConfig | None = None
) -> ReferenceStream:
    """A stream of positions of the tip at 200 Hz, by steps at 20 Hz."""
    stated = contract(
        task="reach",
        action=FieldSpec(shape=(3,), frame="base"),
        action_interface="cartesian_delta",
        rate_hz=20.0,
        steps=STEPS,
        robot="fr3",
    )
    space = CartesianSteps(stated, arm.start, FR3)
    config = StreamConfig(
        stream_hz=200.0,
        governor=space.governed(LIMITS),
        force=force or ForceGuardConfig(),
        energy_tank=tank or EnergyTankConfig(),
    )
    return ReferenceStream(cast(Arm, arm), cast(Clock, arm), space, config, FLANGE_T_EE)


def play(arm: PointArm, stream: ReferenceStream, targets: np.ndarray) -> np.ndarray:
    """Streams targets (N, 3) [m], each for a policy step; returns the references (T, 3) [m]."""
    path = []
    for target in targets:
        stream.set_target(target)
        for _ in range(10):
            stream.send()
            stream.pass_tick()
            path.append(stream.last.streamed.position)
    return np.array(path)
