"""Arms at their tables: a simulated one behind the robot's network protocol, and the real one;
sessions cannot tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from real.deploy.loop import LoopConfig
from real.deploy.object_tracker import TrackerConfig
from real.deploy.planar_space import PlaneConfig
from real.deploy.supervision import OversightConfig
from real.franka.arm import FrankaConfig
from robots.config import config
from robots.errors import HandoffError
from robots.franka.kinematics import inverse_kinematics
from robots.interfaces import Clock
from sim.twin.twin import TwinConfig

if TYPE_CHECKING:
    from real.deploy.supervision import Oversight
    from real.franka.arm import FrankaArm

WAIT_SECONDS = 0.05
"""Between two looks at a person who has not yet said go on [s]."""
CLEAR = 0.10
"""Height above the board at which an arm goes to its start [m]; the T is 0.03 high."""


@config
class DeploySession:
    """What a session at an arm can be told."""

    host: str = ""
    """Of the arm's control; empty: a simulated arm is started here."""
    first_seed: int = 0
    """Of the first start and of the policy's noise there; the simulated table is laid by it."""
    start: tuple[float, float] = (0.256, 0.400)
    """Where an arm's pusher begins an episode [m], board; the simulated one begins where gym-pusht
    draws it."""
    loop: LoopConfig = field(default_factory=lambda: LoopConfig(wait_for_policy=False))
    plane: PlaneConfig = field(default_factory=PlaneConfig)
    arm: FrankaConfig = field(default_factory=FrankaConfig)
    oversight: OversightConfig = field(default_factory=OversightConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    """Who sees the T; an arm needs one, the simulated world knows."""
    twin: TwinConfig = field(default_factory=TwinConfig)


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

    def ready(self, arm: FrankaArm, oversight: Oversight) -> bool:
        """Brings the connected arm to where an episode begins; False when the person ends the
        session meanwhile."""
        ...

    def clock(self, arm: FrankaArm) -> Clock:
        """The robot's, at the pace of the wall."""
        ...

    def pose(self) -> np.ndarray:
        """(3,) of the T now [m, m, rad], board."""
        ...


class _Simulated:
    """The twin: in lockstep, so that a busy computer makes it slow and not faulty, at the pace of
    the wall."""

    robot = "fr3 twin"
    laid_by_hand = False

    def __init__(self, session: DeploySession, twin: Any) -> None:
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

    def ready(self, arm: FrankaArm, oversight: Oversight) -> bool:
        """See `Bench`: it was placed there."""
        return True

    def clock(self, arm: FrankaArm) -> Clock:
        """See `Bench`."""
        from real.clock import PacedClock

        return PacedClock(self._twin)

    def pose(self) -> np.ndarray:
        """See `Bench`."""
        return self._twin.call("tee_pose")


@contextmanager
def simulated_bench(session: DeploySession) -> Iterator[Bench]:
    """A simulated arm in a process of its own, as long as the block runs."""
    from flows.stages.deploy import processor_for_twin
    from sim.twin.push_t_world import PushTWorld
    from sim.twin.twin import start_twin

    with (
        processor_for_twin() as cpu,
        start_twin(replace(session.twin, cpu=cpu), PushTWorld) as twin,
    ):
        yield _Simulated(session, twin)


class _AtArm:
    """A real arm, and a tracker that sees the T."""

    laid_by_hand = True

    def __init__(self, session: DeploySession, pose: Callable[[], np.ndarray]) -> None:
        from real.deploy.planar_space import Plane
        from sim.tasks.push_t.geometry import Q_BOARD_CENTRE

        self.robot = f"fr3 at {session.host}"
        self._settings, self.pose = replace(session.arm, host=session.host), pose
        self._plane, self._start = Plane(session.plane), np.array(session.start)
        self._q_centre = Q_BOARD_CENTRE

    def place(self, seed: int) -> None:
        """See `Bench`: a person has laid the table before they said go on."""

    def arm(self) -> FrankaArm:
        """See `Bench`."""
        from real.franka.arm import FrankaArm

        return FrankaArm(self._settings)

    def ready(self, arm: FrankaArm, oversight: Oversight) -> bool:
        """See `Bench`: up, over whatever lies on the board, and down; it stands still on the way
        when it is to."""

        def halted() -> bool:
            oversight.look()
            # A label would be one of no episode.
            return oversight.paused or oversight.stopped

        here, q = self._plane.position(arm.state().base_T_ee), self._q_centre
        for xy, lift in (
            (here, 0.03),
            (here, CLEAR),
            (self._start, CLEAR),
            (self._start, 0.03),
            (self._start, 0.0),
        ):
            q = inverse_kinematics(self._plane.pose(xy, lift) @ np.linalg.inv(arm.flange_T_ee), q)
            while not arm.move_to_joints(q, halted):
                if not await_go(oversight):
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
            "deploy: an arm needs somebody who sees the T: --tracker ws://host:port, see docs/deploying.md."
        )
    with RemoteTracker(session.tracker) as tracker:
        yield _AtArm(session, tracker.pose)


def await_go(oversight: Oversight) -> bool:
    """Waits until the person lets the arm move; False when they end the session."""
    oversight.look()
    while oversight.paused and not oversight.stopped:
        time.sleep(WAIT_SECONDS)
        oversight.look()
    return not oversight.stopped
