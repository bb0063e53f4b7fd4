"""No configuration of a session passes the limits of the data sheet; at a real arm limits can be
tightened only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.config.options import build_session
from flows.deployment.config import DeployConfig, DeploySession, DeployTaskSession
from flows.deployment.push_t_table import PushTTable
from flows.deployment.safety import check_session
from real.franka.arm import FrankaArm
from real.franka.config import FrankaConfig
from real.franka.impedance import ImpedanceConfig
from real.franka.joint_limits import JointGuardConfig
from real.motion.governor import GovernorConfig
from real.motion.planar_space import PlaneConfig
from real.motion.watchdog import WatchdogConfig
from robots.errors import HandoffError
from tests.real.fakes import contract

REAL = "host='172.16.0.2'"
"""An arm at another computer; nothing connects to it."""

REFUSED = {
    # Watchdog.
    "loop.watchdog.fault_seconds=nan": "loop.watchdog.fault_seconds",
    "loop.watchdog.fault_seconds=inf": "loop.watchdog.fault_seconds",
    "loop.watchdog.fault_seconds=1e9": "loop.watchdog.fault_seconds",
    "loop.watchdog.stop_periods=nan": "loop.watchdog.stop_periods",
    "loop.watchdog.hold_periods=nan": "loop.watchdog.hold_periods",
    "loop.watchdog.hold_periods=-1": "loop.watchdog.hold_periods",
    "loop.watchdog.hold_periods=4": "hold_periods 4.0 is not below stop_periods 3.0",
    "loop.watchdog.stop_periods=6": "0.6 s, not below fault_seconds 0.5 s",
    # Governor.
    "loop.governor.max_speed=50": "loop.governor.max_speed",
    "loop.governor.max_speed=inf": "loop.governor.max_speed",
    "loop.governor.max_speed=2.5": "brakes for 0.59 s",
    "loop.governor.max_acceleration=1e4": "loop.governor.max_acceleration",
    "loop.governor.max_acceleration=10": r"fr3 allows 9\.0 m/s\^2",
    "loop.governor.max_acceleration=0.01": "brakes for",
    "loop.governor.max_jerk=1e9": "loop.governor.max_jerk",
    "loop.governor.max_jerk=nan": "loop.governor.max_jerk",
    "loop.governor.fault_lag=inf": "loop.governor.fault_lag",
    "loop.governor.max_lag=inf": "loop.governor.max_lag",
    "loop.governor.max_lag=0.12": "max_lag 0.12 m is not below fault_lag 0.12 m",
    "loop.governor.blocked_seconds=inf": "loop.governor.blocked_seconds",
    "loop.governor.catch_up_rate=400": "overshoots at a period of 0.004 s, limit 250",
    "loop.governor.low=[-10,-10]": "loop.governor.low.0",
    "loop.governor.high=[10,10]": "loop.governor.high.0",
    "loop.governor.high=[-1,-1]": "is empty or ill-shaped",
    "loop.governor.low=[-0.2,-0.2]": r"m from the base, fr3 reaches 0\.855 m",
    # Plane, start, joints.
    "plane.height=-0.5": "plane.height",
    "plane.origin=[5,0,0]": "plane.origin.0",
    "start=[0.5,0.1]": "lies outside the keep-in box",
    "loop.joints.velocity_share=1e12": "loop.joints.velocity_share",
    "loop.joints.velocity_share=0.96": "expected 0 < velocity_share < fault_share <= 1",
    "loop.joints.fault_share=1e12": "loop.joints.fault_share",
    "loop.joints.position_margin=-9": "loop.joints.position_margin",
    # Arm.
    "arm.collision_force=[1e9,1e9,1e9,1e9,1e9,1e9]": "arm.collision_force.0",
    "arm.collision_torque=[1e9,1e9,1e9,1e9,1e9,1e9,1e9]": "arm.collision_torque.0",
    "arm.collision_torque=[40,40,40,40,40,12,12]": "joint5 is 40.0 Nm, limit 12 Nm by the data sheet",
    "arm.impedance.stiffness=[1e6,1e6,1e6,1,1,1]": "arm.impedance.stiffness.0",
    "arm.impedance.stiffness=[3000,3000,3000,300,300,300]": "the springs pull with up to 60 N and 45",
    "arm.impedance.error_clip=10": "arm.impedance.error_clip",
    "arm.impedance.error_clip=0.1": "the springs pull with up to 200 N",
    "arm.impedance.damping=[-100,-100,-100,-1,-1,-1]": "arm.impedance.damping.0",
    "arm.impedance.max_delta_tau=2": "arm.impedance.max_delta_tau",
    "arm.load_mass=4": "arm.load_mass",
    "arm.record_seconds=-1": "arm.record_seconds",
    "arm.record_seconds=1e6": "arm.record_seconds",
    # Person, tracker, loop.
    "supervision.speed=100": "supervision.speed",
    "supervision.speed=-1": "supervision.speed",
    "supervision.speed=0.6": "exceeds the governor's max_speed 0.5 m/s",
    "supervision.hold_seconds=nan": "supervision.hold_seconds",
    "tracker.max_age=inf": "tracker.max_age",
    "tracker.max_age=nan": "tracker.max_age",
    "loop.max_steps=-3": "loop.max_steps",
    "loop.max_steps=100000": "takes up to 10060 s, limit 3600 s",
    "loop.stream_hz=-250": "loop.stream_hz",
}
"""Options that no session takes, simulated or real, and the message."""

ONLY_SIMULATED = {
    "loop.wait_for_policy=true": "loop.wait_for_policy=true is for a simulated arm",
    "arm.realtime=ignore": "arm.realtime=ignore is for a simulated arm",
    "arm.latch=connection": "arm.latch=connection is for a simulated arm",
    "loop.watchdog.fault_seconds=2": "fault_seconds is 2.0, at most 0.5 at a real arm",
    "loop.watchdog.hold_periods=2": "hold_periods is 2.0, at most 1.5 at a real arm",
    "loop.watchdog.stop_periods=4": "stop_periods is 4.0, at most 3.0 at a real arm",
    "loop.governor.max_speed=0.8": "max_speed is 0.8, at most 0.5 at a real arm",
    "loop.governor.fault_lag=0.2": "fault_lag is 0.2, at most 0.12 at a real arm",
    "loop.governor.blocked_seconds=1": "blocked_seconds is 1.0, at most 0.5 at a real arm",
    "loop.joints.position_margin=0": "position_margin is 0.0, at least 0.05 at a real arm",
    "loop.joints.fault_share=1": "fault_share is 1.0, at most 0.95 at a real arm",
    "tracker.max_age=1": "max_age is 1.0, at most 0.25 at a real arm",
    "arm.collision_force=[60,50,50,15,15,15]": "collision_force is",
    "arm.collision_torque=[50,40,36,36,12,12,12]": "collision_torque is",
    "arm.impedance.error_clip=0.05": "error_clip is 0.05, at most 0.02 at a real arm",
}
"""Options that a simulated arm takes and a real one does not, and the message."""


def composed(*overrides: str) -> DeploySession:
    session = build_session(DeploySession, "push_t", overrides)
    check_session(session, contract())
    return session


@pytest.mark.parametrize("host", ["", REAL])
@pytest.mark.parametrize("override", REFUSED)
def test_no_session_takes_it(override: str, host: str) -> None:
    with pytest.raises(HandoffError, match=REFUSED[override]):
        composed(override, *filter(None, [host]))


@pytest.mark.parametrize("override", ONLY_SIMULATED)
def test_a_simulated_arm_takes_it_and_a_real_one_does_not(override: str) -> None:
    composed(override)
    with pytest.raises(HandoffError, match=ONLY_SIMULATED[override]) as caught:
        composed(override, REAL)
    assert "\n" not in str(caught.value)


def test_the_defaults_and_tighter_limits_are_taken_at_a_real_arm() -> None:
    composed(REAL)
    composed(
        REAL,
        "loop.governor.max_speed=0.2",
        "supervision.speed=0.05",
        "loop.watchdog.fault_seconds=0.4",
        "loop.joints.position_margin=0.1",
        "tracker.max_age=0.1",
        "arm.collision_force=[20,20,20,5,5,5]",
    )


def test_what_was_not_read_from_a_command_line_is_checked_as_well() -> None:
    session = DeploySession(plane=PlaneConfig(height=-0.5))
    with pytest.raises(HandoffError, match=r"plane\.height"):
        check_session(session, contract())


@pytest.mark.parametrize(
    "make",
    [
        lambda: WatchdogConfig(fault_seconds=float("nan")),
        lambda: WatchdogConfig(hold_periods=3.0),
        lambda: GovernorConfig(max_speed=float("inf")),
        lambda: GovernorConfig(max_jerk=float("nan")),
        lambda: JointGuardConfig(fault_share=1.5),
        lambda: JointGuardConfig(position_margin=-9.0),
        lambda: ImpedanceConfig(error_clip=float("nan")),
        lambda: ImpedanceConfig(damping=(-100.0, 1.0, 1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_a_limit_that_limits_nothing_cannot_even_be_made(make: Any) -> None:
    with pytest.raises(HandoffError):
        make()


def test_a_driver_for_another_computer_refuses_to_do_without_realtime() -> None:
    with pytest.raises(HandoffError, match=r"172\.16\.0\.2: realtime is 'ignore'"):
        FrankaArm(FrankaConfig(host="172.16.0.2", realtime="ignore"))


def test_a_table_at_the_twin_keeps_the_box_within_reach_as_well() -> None:
    loop = replace(DeployConfig().loop, governor=GovernorConfig(low=(-0.2, -0.2)))
    with pytest.raises(HandoffError, match=r"reaches 0\.855 m"):
        PushTTable(DeployConfig(loop=loop), contract())


def test_a_fence_is_read_from_a_file(tmp_path: Path) -> None:
    """As docs/concepts/safety.md shows it."""
    bench = tmp_path / "bench.yaml"
    bench.write_text(
        "planes:\n  - {name: wall, normal: [0, -1, 0], offset: -0.45}\n"
        "boxes:\n  - {name: stand, low: [0.55, -0.5, 0.0], high: [0.65, -0.4, 0.6]}\nelbow: 0.1\n"
    )
    session = build_session(DeployTaskSession, "task", [f"loop.fence={bench}"])
    fence = session.loop.fence
    assert [plane.name for plane in fence.planes] == ["wall"]
    assert fence.boxes[0].high == (0.65, -0.4, 0.6)
    assert (fence.elbow, session.loop.stream_hz) == (0.1, 200.0)
