"""Checks the options of a session against the robot, the policy and one another, before anything
moves."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, ge, le
from typing import Any

from flows.deployment.config import ArmSession, DeploySession, DeployTaskSession
from real.deploy.loop import make_guard
from real.franka.config import check_data_sheet
from real.franka.slot import is_on_this_computer
from real.motion.force_guard import check_reflex
from real.motion.governor import check_robot
from real.motion.planar_space import Plane
from real.motion.step_spaces import moves_joints, with_law
from robots.config import to_plain, validate
from robots.contract import Contract
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.robot import Robot

ONLY_FOR_TWINS = {
    "loop.wait_for_policy": (True, "the loop would stand while the policy hangs, unwatched"),
    "arm.realtime": ("ignore", "the control needs a PREEMPT_RT kernel"),
    "arm.latch": ("connection", "a fault must be kept until a person clears it"),
}
"""Options that a real arm does not take: the value, and the reason."""
AT_MOST = (
    "loop.watchdog.hold_periods",
    "loop.watchdog.stop_periods",
    "loop.watchdog.fault_seconds",
    "loop.governor.max_speed",
    "loop.governor.max_acceleration",
    "loop.governor.max_jerk",
    "loop.governor.max_lag",
    "loop.governor.fault_lag",
    "loop.governor.blocked_seconds",
    "loop.joints.velocity_share",
    "loop.joints.fault_share",
    "loop.joints.torque_share",
    "loop.joints.torque_rate_share",
    "arm.collision_torque",
    "arm.collision_force",
    "arm.impedance.stiffness",
    "arm.impedance.error_clip",
    "arm.impedance.rotation_clip",
    "arm.impedance.joint_stiffness",
    "arm.move_dynamics",
    "arm.rest_torque",
    "reset.guiding.max_speed",
    "reset.guiding.max_joint_speed",
)
"""Options that a session at a real arm can lower from their defaults, not raise."""
ALSO_WITH_A_POLICY = ("supervision.speed", "max_age")
"""Further ones of a session with a policy."""
ALSO_AT_A_BOARD = (*ALSO_WITH_A_POLICY, "tracker.max_age")
"""Further ones of a session at the push-T table."""
AT_LEAST = ("loop.joints.position_margin", "reset.guiding.damping")
"""Options that a session at a real arm can raise, not lower."""
LONGEST = 3600.0
"""Longest episode for which memory for the robot's states is reserved [s]: 1.8 GB."""


def is_real(session: ArmSession) -> bool:
    """Whether the session is at a real arm: not simulated, and not at this computer."""
    return bool(session.host) and not is_on_this_computer(session.host)


def check_session(session: DeploySession | DeployTaskSession, contract: Contract) -> None:
    """Checks the options of a session.

    Args:
        session: options of arm, limits and rates.
        contract: contract of the policy.

    Raises:
        HandoffError: an option is out of its range, exceeds the robot's data sheet or contradicts
            another one; or it is for a simulated arm, or looser than its default, at a real one.
    """
    # Options that were not read from text or a command line have not been validated.
    validate(type(session), to_plain(session), "")
    robot = find_robot(session.arm.robot)
    check_robot(
        session.loop.governor,
        1.0 / session.loop.stream_hz,
        robot,
        feeds_velocity=isinstance(session, DeploySession),
    )
    session.loop.watchdog.check_period(1.0 / contract.rate_hz)
    check_data_sheet(session.arm, robot)
    check_reflex(session.loop.force, session.arm)
    make_guard(session.loop, contract)
    robot.check_per_joint("reset.guiding.damping", session.reset.guiding.damping)
    if isinstance(session, DeploySession):
        _check_board(session, robot)
    elif session.start is not None:
        robot.check_per_joint("start", session.start)
    seconds = longest_episode(session, contract)
    if seconds > LONGEST:
        raise HandoffError(
            f"session: an episode of {session.loop.max_steps} steps at {contract.rate_hz:g} Hz takes up to "
            f"{seconds:.0f} s, limit {LONGEST:g} s. Lower loop.max_steps."
        )
    if is_real(session):
        usual = type(session)()
        board = isinstance(session, DeploySession)
        check_real(session, usual, (*AT_MOST, *(ALSO_AT_A_BOARD if board else ALSO_WITH_A_POLICY)))
        for name, camera in session.cameras.items():
            if camera.max_age is not None and camera.max_age > usual.max_age:
                raise HandoffError(
                    f"cameras.{name}.max_age is {camera.max_age}, at most {usual.max_age} at a real arm: its limits "
                    "can be tightened, not loosened."
                )


def check_law(session: DeployTaskSession, contract: Contract) -> None:
    """Checks that the arm can follow a policy's actions, and that something bounds them.

    Args:
        session: options of arm, limits and rates.
        contract: contract of the policy.

    Raises:
        HandoffError: the impedance law is another one, or a policy moves the joints of a real arm
            without a fence: no workspace of the gripper bounds such actions.
    """
    with_law(session.arm, contract)
    if moves_joints(contract) and is_real(session) and session.loop.fence.empty:
        raise HandoffError(
            f"deploy: actions of the policy of {contract.task} are '{contract.action_interface}', which no workspace "
            "of the gripper bounds; a real arm needs a fence at least around its table: loop.fence=bench.yaml, see "
            "docs/concepts/safety.md."
        )


def _check_board(session: DeploySession, robot: Robot) -> None:
    """Checks that the arm reaches the board, and the speed and the start on it."""
    governor = session.loop.governor
    Plane(session.plane).check_reach(governor, robot)
    if session.supervision.speed > governor.max_speed:
        raise HandoffError(
            f"supervision: speed {session.supervision.speed} m/s exceeds the governor's max_speed "
            f"{governor.max_speed} m/s."
        )
    bounds = zip(governor.low, session.start, governor.high, strict=True)
    if not all(low <= start <= high for low, start, high in bounds):
        raise HandoffError(
            f"session: start {list(session.start)} m lies outside the keep-in box {list(governor.low)} to "
            f"{list(governor.high)} m."
        )


def longest_episode(session: DeploySession | DeployTaskSession, contract: Contract) -> float:
    """Longest time for which the arm can be under control in one episode [s]."""
    running = session.loop.max_steps / (contract.rate_hz * session.speed)
    return running + session.supervision.hold_seconds


def check_real(
    session: ArmSession,
    usual: ArmSession,
    at_most: Sequence[str] = AT_MOST,
) -> None:
    """Checks that a session at a real arm has no option of a simulated one, and no limit that is
    looser than its default.

    Args:
        session: options of the session.
        usual: their defaults.
        at_most: paths of options that can be lowered from their defaults, not raised.

    Raises:
        HandoffError: it has one; the message names the option, its value and the limit.
    """
    for path, (value, reason) in ONLY_FOR_TWINS.items():
        if attrgetter(path)(session) == value:
            raise HandoffError(
                f"{path}={str(value).lower()} is for a simulated arm, not for {session.host}: {reason}."
            )
    for paths, compare, word in ((at_most, le, "at most"), (AT_LEAST, ge, "at least")):
        for path in paths:
            value, limit = attrgetter(path)(session), attrgetter(path)(usual)
            if not all(map(compare, _entries(value), _entries(limit))):
                raise HandoffError(
                    f"{path} is {value}, {word} {limit} at a real arm: its limits can be tightened, not loosened."
                )


def _entries(value: Any) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)
