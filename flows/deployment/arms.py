"""Arms at their tables: a simulated one behind the robot's network protocol, and the real one;
sessions cannot tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from flows.deployment.config import DeploySession
from flows.deployment.twin import processor_for_twin
from robots.errors import HandoffError
from robots.franka.kinematics import inverse_kinematics
from robots.interfaces import Clock

if TYPE_CHECKING:
    from real.deploy.supervision import Supervision
    from real.franka.arm import FrankaArm

WAIT_SECONDS = 0.05
"""Between two looks at a person who has not yet said go on [s]."""
CLEAR = 0.10
"""Height above the board at which an arm goes to its start [m]; the T is 0.03 high."""


class Bench(Protocol):
    """An arm at its table."""

    robot: str
    """Recorded with every episode."""
    laid_by_hand: bool
    """A person lays the table before every episode."""

    def place(self, seed: int) -> None:
        """Lays the table, before the arm is connected."""
        ...

    def arm(self) -> FrankaArm:
        """Not yet connected."""
        ...

    def ready(self, arm: FrankaArm, supervision: Supervision) -> bool:
        """Brings the connected arm to where an episode begins; False when the person ends the
        session meanwhile."""
        ...

    def clock(self, arm: FrankaArm) -> Clock:
        """The robot's, at the pace of the wall."""
        ...

    def pose(self) -> np.ndarray:
        """(3,) of the T now [m, m, rad], board."""
        ...


class SimulatedBench:
    """The twin: in lockstep, so that a busy computer makes it slow and not faulty, at the pace of
    the wall."""

    laid_by_hand = False

    def __init__(self, session: DeploySession, twin: Any) -> None:
        self.robot = f"{session.arm.robot} twin"
        self._session, self._twin = session, twin

    def place(self, seed: int) -> None:
        """See `Bench`."""
        from sim.tasks.push_t.geometry import initial_state

        self._twin.call("reset", *initial_state(seed))

    def arm(self) -> FrankaArm:
        """See `Bench`."""
        from real.franka.arm import FrankaArm

        settings = replace(self._session.arm, host=self._session.twin.host, realtime="ignore")
        return FrankaArm(settings, self._twin, self._twin.wait_for_motion)

    def ready(self, arm: FrankaArm, supervision: Supervision) -> bool:
        """See `Bench`: it was placed there."""
        return True

    def clock(self, arm: FrankaArm) -> Clock:
        """See `Bench`."""
        from real.clock import PacedClock

        return PacedClock(self._twin)

    def pose(self) -> np.ndarray:
        """See `Bench`."""
        return self._twin.call("tee_pose")


def require_simulator() -> None:
    """Makes sure that an arm can be simulated here.

    Raises:
        HandoffError: the simulator is not installed, as on a computer beside an arm.
    """
    if find_spec("mujoco") is None:
        raise HandoffError(
            "deploy: a simulated arm needs mujoco, which is not installed: pip install 'handoff[laptop]'. "
            "For a real arm, say --arm ADDRESS."
        )


@contextmanager
def simulated_bench(session: DeploySession) -> Iterator[Bench]:
    """A simulated arm in a process of its own, as long as the block runs."""
    from sim.twin.push_t_world import PushTWorld
    from sim.twin.twin import start_twin

    world = partial(PushTWorld, session.arm.robot)
    with (
        processor_for_twin() as cpu,
        start_twin(replace(session.twin, cpu=cpu), world) as twin,
    ):
        yield SimulatedBench(session, twin)


class ArmBench:
    """A real arm, and a tracker that sees the T."""

    laid_by_hand = True

    def __init__(self, session: DeploySession, pose: Callable[[], np.ndarray]) -> None:
        from real.deploy.planar_space import Plane
        from sim.tasks.push_t.geometry import Q_BOARD_CENTRE

        self.robot = f"{session.arm.robot} at {session.host}"
        self._settings, self.pose = replace(session.arm, host=session.host), pose
        self._plane, self._start = Plane(session.plane), np.array(session.start)
        self._q_centre = Q_BOARD_CENTRE

    def place(self, seed: int) -> None:
        """See `Bench`: a person has laid the table before they said go on."""

    def arm(self) -> FrankaArm:
        """See `Bench`."""
        from real.franka.arm import FrankaArm

        return FrankaArm(self._settings)

    def ready(self, arm: FrankaArm, supervision: Supervision) -> bool:
        """See `Bench`: up, over whatever lies on the board, and down; it stands still on the way
        when it is to."""

        def halted() -> bool:
            supervision.poll()
            # A label would be one of no episode.
            return supervision.paused or supervision.stopped

        here, q = self._plane.position(arm.state().base_T_ee), self._q_centre
        for xy, lift in (
            (here, 0.03),
            (here, CLEAR),
            (self._start, CLEAR),
            (self._start, 0.03),
            (self._start, 0.0),
        ):
            flange = self._plane.pose(xy, lift) @ np.linalg.inv(arm.flange_T_ee)
            q = inverse_kinematics(arm.robot, flange, q)
            while not arm.move_to_joints(q, halted):
                if not await_go(supervision):
                    return False
        return True

    def clock(self, arm: FrankaArm) -> Clock:
        """See `Bench`."""
        return arm.clock


@contextmanager
def arm_bench(session: DeploySession) -> Iterator[Bench]:
    """The arm at `session.host`.

    Raises:
        HandoffError: nobody sees the T.
    """
    from real.deploy.object_tracker import RemoteTracker

    if not session.tracker.uri:
        raise HandoffError(
            "deploy: an arm needs somebody who sees the T: --tracker ws://host:port, see docs/guides/deploying.md."
        )
    with RemoteTracker(session.tracker) as tracker:
        yield ArmBench(session, tracker.pose)


def await_go(supervision: Supervision) -> bool:
    """Waits until the person lets the arm move; False when they end the session."""
    supervision.poll()
    while supervision.paused and not supervision.stopped:
        time.sleep(WAIT_SECONDS)
        supervision.poll()
    return not supervision.stopped
