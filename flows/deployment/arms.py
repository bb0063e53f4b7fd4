"""Holds the arm of a session against others, waits for the person who supervises it, and recovers
it after a fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING

from flows.deployment.config import ArmSession
from flows.deployment.robot_limit import held_arm, spoken
from flows.session.arm_supervisor import WAIT_SECONDS
from robots.errors import HandoffError, error_text
from robots.extras import pip_install

if TYPE_CHECKING:
    import numpy as np

    from flows.session.arm_supervisor import ArmSupervisor
    from real.deploy.supervision import Supervision
    from real.driver.driven_arm import DrivenArm
    from real.motion.fence import FenceConfig


@contextmanager
def held_for_session(session: ArmSession, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the session's arm from its first to its last episode, so that nobody else moves it in
    between.

    Args:
        session: options of the session.
        say: called with what it waits for.

    Raises:
        HandoffError: the arm is in use. SafetyError: a fault of it has not been cleared.
    """
    from real.franka.kept_faults import kept_fault

    host = session.host or session.twin.host
    with held_arm(
        host,
        session.arm.robot,
        name=session.arm_name,
        patience=session.wait_seconds,
        progress=spoken(say),
    ):
        # Before a person has laid the table: the arm itself refuses only when it is to move.
        fault = kept_fault(host) if session.host and session.arm.latch == "kept" else None
        if fault is not None:
            raise fault
        yield


def require_simulator() -> None:
    """Checks that the simulator is installed.

    Raises:
        HandoffError: it is not installed, as on the computer of a real arm.
    """
    if find_spec("mujoco") is None:
        raise HandoffError(
            f"deploy: a simulated arm needs mujoco, which is not installed: {pip_install('laptop')}. "
            "For a real arm, add --arm ADDRESS."
        )


def recovered(
    fault: HandoffError,
    supervisor: ArmSupervisor,
    arm: DrivenArm,
    say: Callable[[str], None],
) -> bool:
    """Shows a fault at the console until the person there recovers the arm; returns False if they
    end the session.

    The person gives the cause of a fault that is kept of the arm.

    Args:
        fault: what ended the episode.
        supervisor: the person at the console.
        arm: the arm, not connected.
        say: called with the fault, and with who recovered the arm.
    """
    from real.franka.kept_faults import kept_fault

    while True:
        why = error_text(fault)
        say(f"fault  {why}")
        asks = arm.config.latch == "kept" and kept_fault(arm.config.host) is not None
        recovery = supervisor.await_recovery(why, asks_cause=asks)
        if recovery is None:
            return False
        try:
            arm.recover_unconnected(recovery.person, recovery.cause)
        except HandoffError as persisting:
            fault = persisting
            continue
        say(f"recovered by {recovery.person}")
        return True


def move_supervised(
    arm: DrivenArm, way: Sequence[np.ndarray], supervision: Supervision, fence: FenceConfig
) -> bool:
    """Moves an arm to one joint position after another, resting for as long as the person holds it;
    returns False if they end the session meanwhile.

    Args:
        arm: the connected arm, at rest.
        way: (J,) joint positions [rad].
        supervision: the person.
        fence: places that the arm keeps out of; the whole way is checked before the arm moves, what
            is left of it after every hold, and the arm while it moves.

    Raises:
        SafetyError: the way leads into the fence, so that nothing moves; or the arm was beside it
            and entered the fence, and rests.
    """

    def halted() -> bool:
        supervision.poll()
        # Labels are ignored: no episode is running.
        return supervision.paused or supervision.stopped

    ahead = list(way)
    while not drive(arm, ahead, halted, fence):
        if not wait_for_resume(supervision):
            return False
    return True


def drive(
    arm: DrivenArm,
    ahead: list[np.ndarray],
    halted: Callable[[], bool],
    fence: FenceConfig,
) -> bool:
    """Moves an arm to one joint position after another, with the robot's limits on acceleration and
    jerk, at reduced dynamics (`FrankaConfig.move_dynamics`); returns whether it has come to the
    last, and otherwise rests where it is.

    Args:
        arm: the connected arm, at rest.
        ahead: (J,) joint positions [rad]; those that were reached are taken out.
        halted: called every 10 ms; once it returns True the arm comes to rest.
        fence: see `move_supervised`.

    Raises:
        SafetyError: see `move_supervised`.
    """
    from real.motion.fence import ENTERED
    from real.motion.fenced_path import check_outside, check_path, rooms

    def where() -> dict[tuple[str, str], float]:
        return rooms(fence, arm.robot, arm.flange_T_ee, arm.state().q)

    def must_rest() -> bool:
        return halted() or (not fence.empty and min(where().values()) < -ENTERED)

    for begin, end in pairwise([arm.state().q, *ahead]):
        check_path(fence, arm.robot, arm.flange_T_ee, begin, end)
    while ahead:
        if not arm.move_to_joints(ahead[0], must_rest):
            if not fence.empty:
                check_outside(where(), "has come")
            return False
        ahead.pop(0)
    return True


def wait_for_resume(supervision: Supervision) -> bool:
    """Waits until the person resumes; returns False if they end the session."""
    supervision.poll()
    while supervision.paused and not supervision.stopped:
        time.sleep(WAIT_SECONDS)
        supervision.poll()
    return not supervision.stopped
