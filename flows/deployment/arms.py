"""Provides the arm set-ups of a session: a simulated arm behind the robot's network protocol, and a
real arm, with one interface."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from flows.deployment.config import ArmSession, DeploySession
from flows.deployment.robot_limit import held_arm, spoken
from flows.deployment.twin import processor_for_twin
from flows.session.arm_supervisor import WAIT_SECONDS
from robots.errors import HandoffError
from robots.franka.kinematics import inverse_kinematics
from robots.interfaces import Clock

if TYPE_CHECKING:
    from real.deploy.supervision import Supervision
    from real.franka.arm import FrankaArm

CLEARANCE = 0.10
"""Height above the board at which the arm moves to its start [m]; the T is 0.03 m high."""


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


class ArmSetup(Protocol):
    """An arm and its table."""

    robot: str
    """Name of the arm, recorded with every episode."""
    manual_reset: bool
    """Whether a person places the objects before every episode."""

    def place(self, seed: int) -> None:
        """Places the objects for the start with that seed; called before the arm is connected."""
        ...

    def arm(self) -> FrankaArm:
        """Returns the arm, not yet connected."""
        ...

    def ready(self, arm: FrankaArm, supervision: Supervision) -> bool:
        """Moves the connected arm to the start of the episode; returns False if the person ends the
        session meanwhile."""
        ...

    def clock(self, arm: FrankaArm) -> Clock:
        """Returns the robot's clock, which runs in real time."""
        ...

    def pose(self) -> np.ndarray:
        """Returns the current pose (3,) of the T [m, m, rad], board frame."""
        ...


class SimulatedSetup:
    """The twin, in lockstep and at most in real time: a busy computer slows it down but causes no
    faults."""

    manual_reset = False

    def __init__(self, session: DeploySession, twin: Any) -> None:
        self.robot = f"{session.arm.robot} twin"
        self._session = session
        self._twin = twin

    def place(self, seed: int) -> None:
        """See `ArmSetup`."""
        from sim.tasks.push_t.geometry import initial_state

        self._twin.call("reset", *initial_state(seed))

    def arm(self) -> FrankaArm:
        """See `ArmSetup`."""
        from real.franka.arm import FrankaArm

        # A twin starts anew with every session, without the faults of the last one.
        settings = replace(
            self._session.arm,
            host=self._session.twin.host,
            realtime="ignore",
            latch="connection",
        )
        return FrankaArm(settings, self._twin, self._twin.wait_for_motion)

    def ready(self, arm: FrankaArm, supervision: Supervision) -> bool:
        """See `ArmSetup`: the simulated arm already is at the start."""
        return True

    def clock(self, arm: FrankaArm) -> Clock:
        """See `ArmSetup`."""
        from real.clock import PacedClock

        return PacedClock(self._twin)

    def pose(self) -> np.ndarray:
        """See `ArmSetup`."""
        return self._twin.call("tee_pose")


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


@contextmanager
def simulated_setup(session: DeploySession) -> Iterator[ArmSetup]:
    """Runs a simulated arm in a separate process while the context lasts."""
    from sim.twin.push_t_world import PushTWorld
    from sim.twin.twin import start_twin

    world = partial(PushTWorld, session.arm.robot)
    with (
        processor_for_twin() as cpu,
        start_twin(replace(session.twin, cpu=cpu), world) as twin,
    ):
        yield SimulatedSetup(session, twin)


class RealSetup:
    """A real arm, and a tracker of the T."""

    manual_reset = True

    def __init__(self, session: DeploySession, pose: Callable[[], np.ndarray]) -> None:
        from real.deploy.planar_space import Plane
        from sim.tasks.push_t.geometry import Q_BOARD_CENTRE

        self.robot = f"{session.arm.robot} at {session.host}"
        self._settings = replace(session.arm, host=session.host)
        self.pose = pose
        self._plane = Plane(session.plane)
        self._start = np.array(session.start)
        self._q_centre = Q_BOARD_CENTRE

    def place(self, seed: int) -> None:
        """See `ArmSetup`: does nothing, a person has placed the objects."""

    def arm(self) -> FrankaArm:
        """See `ArmSetup`."""
        from real.franka.arm import FrankaArm

        return FrankaArm(self._settings)

    def ready(self, arm: FrankaArm, supervision: Supervision) -> bool:
        """See `ArmSetup`: moves up, across above the objects, and down; pauses when the person
        pauses."""

        def halted() -> bool:
            supervision.poll()
            # Labels are ignored: no episode is running.
            return supervision.paused or supervision.stopped

        current = self._plane.position(arm.state().base_T_ee)
        q = self._q_centre
        for xy, lift in (
            (current, 0.03),
            (current, CLEARANCE),
            (self._start, CLEARANCE),
            (self._start, 0.03),
            (self._start, 0.0),
        ):
            flange = self._plane.pose(xy, lift) @ np.linalg.inv(arm.flange_T_ee)
            q = inverse_kinematics(arm.robot, flange, q)
            while not arm.move_to_joints(q, halted):
                if not wait_for_resume(supervision):
                    return False
        return True

    def clock(self, arm: FrankaArm) -> Clock:
        """See `ArmSetup`."""
        return arm.clock


@contextmanager
def real_setup(session: DeploySession) -> Iterator[ArmSetup]:
    """Provides the arm at `session.host` while the context lasts.

    Raises:
        HandoffError: no tracker is configured.
    """
    from real.deploy.object_tracker import RemoteTracker

    if not session.tracker.uri:
        raise HandoffError(
            "deploy: a real arm needs a tracker of the T: add --tracker ws://host:port, see docs/guides/deploying.md."
        )
    with RemoteTracker(session.tracker) as tracker:
        yield RealSetup(session, tracker.pose)


def wait_for_resume(supervision: Supervision) -> bool:
    """Waits until the person resumes; returns False if they end the session."""
    supervision.poll()
    while supervision.paused and not supervision.stopped:
        time.sleep(WAIT_SECONDS)
        supervision.poll()
    return not supervision.stopped
