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

if TYPE_CHECKING:
    import numpy as np

    from flows.session.arm_supervisor import ArmSupervisor
    from real.deploy.supervision import Supervision
    from real.franka.arm import FrankaArm
    from real.franka.config import FrankaConfig
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
            "deploy: a simulated arm needs mujoco, which is not installed: pip install -e '.[laptop]'. "
            "For a real arm, add --arm ADDRESS."
        )


def recovered(
    fault: HandoffError,
    supervisor: ArmSupervisor,
    arm: FrankaConfig,
    say: Callable[[str], None],
) -> bool:
    """Shows a fault at the console until the person there recovers the arm; returns False if they
    end the session.

    The person gives the cause of a fault that is kept of the arm.

    Args:
        fault: what ended the episode.
        supervisor: the person at the console.
        arm: address and connection of the arm.
        say: called with the fault, and with who recovered the arm.
    """
    from real.franka.kept_faults import kept_fault
    from real.franka.recovery import recover_arm

    while True:
        why = error_text(fault)
        say(f"fault  {why}")
        asks = arm.latch == "kept" and kept_fault(arm.host) is not None
        recovery = supervisor.await_recovery(why, asks_cause=asks)
        if recovery is None:
            return False
        try:
            recover_arm(arm, recovery.person, recovery.cause)
        except HandoffError as persisting:
            fault = persisting
            continue
        say(f"recovered by {recovery.person}")
        return True


def move_supervised(
    arm: FrankaArm, way: Sequence[np.ndarray], supervision: Supervision, fence: FenceConfig
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
    from real.motion.fence import ENTERED
    from real.motion.fenced_path import check_outside, check_path, rooms

    def where() -> dict[tuple[str, str], float]:
        return rooms(fence, arm.robot, arm.flange_T_ee, arm.state().q)

    def halted() -> bool:
        supervision.poll()
        if not fence.empty and min(where().values()) < -ENTERED:
            return True
        # Labels are ignored: no episode is running.
        return supervision.paused or supervision.stopped

    ahead = list(way)
    while ahead:
        for begin, end in pairwise([arm.state().q, *ahead]):
            check_path(fence, arm.robot, arm.flange_T_ee, begin, end)
        if arm.move_to_joints(ahead[0], halted):
            ahead.pop(0)
            continue
        if not fence.empty:
            check_outside(where(), "has come")
        if not wait_for_resume(supervision):
            return False
    return True


def wait_for_resume(supervision: Supervision) -> bool:
    """Waits until the person resumes; returns False if they end the session."""
    supervision.poll()
    while supervision.paused and not supervision.stopped:
        time.sleep(WAIT_SECONDS)
        supervision.poll()
    return not supervision.stopped
