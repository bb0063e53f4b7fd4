"""The reference is slowed down so that the impedance law demands no faster change of a torque."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest

from real.arm import Arm, ArmState, TorqueResponse
from real.franka.impedance import ImpedanceConfig, torque_response
from real.franka.joint_limits import JointGuardConfig, joint_velocity, tool_jacobian
from real.motion.governor import GovernorConfig, ReferenceGovernor
from real.motion.reference_bounds import ReferenceBounds
from robots.control.actions import Motion
from robots.franka import find_robot

FR3 = find_robot("fr3")
PERIOD = 0.005
AXES = np.eye(6)[:, :3]
"""Coordinates x, y, z of the base frame."""
INERTIA = np.array([2.0, 2.0, 1.5, 1.2, 0.1, 0.1, 0.05])
"""Plausible inertia about each joint [kg m^2]."""
STEPS = GovernorConfig(
    low=(-0.3,) * 3,
    high=(0.3,) * 3,
    max_speed=0.8,
    max_acceleration=30.0,
    max_jerk=12_000.0,
    max_lag=0.06,
)


@dataclass
class LinearArm:
    """An arm in one pose that answers its impedance law: joint displacements `x` (J,) [rad] from
    home and velocities `dq`."""

    impedance: ImpedanceConfig
    robot = FR3

    def __post_init__(self) -> None:
        self.x, self.dq = np.zeros(7), np.zeros(7)
        along = joint_velocity(FR3.chain, FR3.q_home, AXES, np.eye(4))
        self.law = torque_response(self.impedance, FR3, FR3.q_home, AXES, along, np.eye(4))
        self.per_joint = tool_jacobian(FR3.chain, FR3.q_home, np.eye(4))[:3]

    def torque_response(self, q: np.ndarray, axes: np.ndarray, along: np.ndarray) -> TorqueResponse:
        return self.law

    def state(self) -> ArmState:
        zero = np.zeros(7)
        return ArmState(
            0.0, FR3.q_home, self.dq, np.eye(4), zero, zero, np.zeros(6), 1.0, "Move", ()
        )

    @property
    def measured(self) -> np.ndarray:
        return self.per_joint @ self.x

    def torque(self, reference: Motion, *, feeds_velocity: bool) -> np.ndarray:
        law = self.law
        feed = law.damping @ reference.velocity if feeds_velocity else 0.0
        along = law.stiffness @ reference.position - law.joint_stiffness @ self.x
        return along + feed - law.joint_damping @ self.dq

    def follow(self, before: Motion, after: Motion, *, feeds_velocity: bool) -> np.ndarray:
        """Lets a tick pass while the reference moves; returns the torque at its end."""
        for share in (0.2, 0.4, 0.6, 0.8, 1.0):
            between = Motion(
                before.position + share * (after.position - before.position),
                before.velocity + share * (after.velocity - before.velocity),
                after.acceleration,
            )
            torque = self.torque(between, feeds_velocity=feeds_velocity)
            self.dq = self.dq + torque / INERTIA * PERIOD / 5
            self.x = self.x + self.dq * PERIOD / 5
        return self.torque(after, feeds_velocity=feeds_velocity)


def bounds_of(arm: LinearArm, config: JointGuardConfig, *, feeds_velocity: bool) -> ReferenceBounds:
    answering = cast(Arm, arm)
    return ReferenceBounds(config, answering, np.eye(4), PERIOD, feeds_velocity=feeds_velocity)


def torque_rates(
    share: float | None, *, feeds_velocity: bool, controller: str = "cartesian", seed: int = 0
) -> tuple[float, float]:
    """Largest torque rate that jumping targets demand in 3,000 ticks, as a share of the robot's
    limit, and the distance that the reference covers [m]. Without `share` nothing bounds them."""
    rng = np.random.default_rng(seed)
    arm = LinearArm(ImpedanceConfig(controller=controller))  # pyright: ignore[reportArgumentType]
    config = JointGuardConfig(torque_rate_share=share or 1.0)
    limits = STEPS if not feeds_velocity else GovernorConfig(low=STEPS.low, high=STEPS.high)
    begin = np.zeros(3)
    governor = ReferenceGovernor(limits, PERIOD, begin, FR3, feeds_velocity=feeds_velocity)
    bounds = bounds_of(arm, config, feeds_velocity=feeds_velocity)
    last, torque, worst, path = Motion(begin, begin, begin), np.zeros(7), 0.0, 0.0
    target = begin
    for tick in range(3000):
        if tick % 10 == 0:
            target = np.clip(target + rng.uniform(-0.03, 0.03, 3), -0.1, 0.1)
        near = arm.measured + np.clip(target - arm.measured, -0.03, 0.03)
        limit = bounds.next(arm.state(), AXES, last, arm.measured)
        asked = Motion(near, np.zeros(3), np.zeros(3))
        moved = governor.step(asked, arm.measured, None if share is None else limit)
        after = arm.follow(last, moved, feeds_velocity=feeds_velocity)
        worst = max(worst, float((np.abs(after - torque) / PERIOD / FR3.limits.dtau_max).max()))
        path += float(np.linalg.norm(moved.position - last.position))
        last, torque = moved, after
    return worst, path


@pytest.mark.parametrize(
    ("controller", "feeds_velocity", "most"),
    [("cartesian", False, 0.3), ("joint", False, 0.5), ("cartesian", True, 0.42)],
)
def test_a_reference_that_jumps_demands_less_than_an_unbounded_one(
    controller: str, feeds_velocity: bool, most: float
) -> None:
    """Not exactly the share of 0.15, because the arm's own damping acts on its acceleration, and
    because braking always goes first."""
    free, far = torque_rates(None, feeds_velocity=feeds_velocity, controller=controller)
    bounded, path = torque_rates(0.15, feeds_velocity=feeds_velocity, controller=controller)
    assert bounded < most < free
    assert path > 0.3 * far, "it is slowed down, not stopped"


def test_a_slow_reference_passes_unchanged() -> None:
    arm = LinearArm(ImpedanceConfig())
    bounds = bounds_of(arm, JointGuardConfig(), feeds_velocity=False)
    still = Motion(np.zeros(3), np.zeros(3), np.zeros(3))
    limit = bounds.next(arm.state(), AXES, still, np.zeros(3))
    for velocity in 0.2 * np.concatenate([np.eye(3), -np.eye(3)]):
        assert (np.abs(limit.rows @ velocity + limit.offset) <= 1.0).all()


def test_a_torque_beyond_its_share_is_never_raised() -> None:
    """A lag of 50 mm pulls with 100 N, 43 Nm at joint 1: beyond half of 87 Nm the reference may not
    move away from the arm any more, and below it may."""
    arm = LinearArm(ImpedanceConfig())
    away = Motion(np.array([0.0, 0.25, 0.0]), np.zeros(3), np.zeros(3))
    asked = Motion(np.array([0.0, 0.3, 0.0]), np.zeros(3), np.zeros(3))
    measured = np.array([0.0, 0.2, 0.0])
    speeds = []
    for share in (0.9, 0.3):
        config = JointGuardConfig(torque_share=share)
        bounds = bounds_of(arm, config, feeds_velocity=False)
        limit = bounds.next(arm.state(), AXES, away, measured)
        governor = ReferenceGovernor(STEPS, PERIOD, away.position, FR3, feeds_velocity=False)
        speeds.append(governor.step(asked, measured, limit).velocity[1])
    assert speeds[0] > 0.05
    assert speeds[1] == pytest.approx(0.0, abs=1e-9)
