"""Provides the arm of a session in which a person demonstrates: a simulated one at the table of a
task, or a real one, with one interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from flows.deployment.arms import wait_for_resume
from flows.deployment.demonstrations.config import DemonstrationSession
from flows.deployment.task_table import gripper_of_twin
from flows.deployment.twin import processor_for_twin
from robots.episodes.metadata.episode_metadata import Host
from robots.franka import find_robot
from robots.franka.kinematics import inverse_kinematics
from robots.interfaces import Clock

if TYPE_CHECKING:
    from real.deploy.supervision import Supervision
    from real.franka.arm import FrankaArm
    from real.franka.gripper import FrankaGripper
    from sim.twin.twin import Twin


class DemonstrationHost(Protocol):
    """An arm with a gripper, and what is on its table."""

    robot: str
    """Name of the arm, recorded with every episode."""
    kind: Host
    """Kind of the arm, recorded too."""
    manual_reset: bool
    """Whether a person places the objects before every episode."""

    def place(self, seed: int) -> None:
        """Places the objects for the episode with that seed, before the arm is connected."""
        ...

    def arm(self) -> FrankaArm:
        """Returns the arm, not yet connected."""
        ...

    def gripper(self) -> AbstractContextManager[FrankaGripper | None]:
        """Connects the gripper, if the session uses it."""
        ...

    def ready(
        self, arm: FrankaArm, gripper: FrankaGripper | None, supervision: Supervision
    ) -> bool:
        """Moves the connected arm to the start; returns False if the person ends the session
        meanwhile."""
        ...

    def clock(self, arm: FrankaArm) -> Clock:
        """Returns the robot's clock, which runs in real time."""
        ...

    def scene(self) -> dict[str, np.ndarray] | None:
        """Returns `qpos` and `goal` of the simulated scene, for those who draw it; None at a real
        arm."""
        ...


class SimulatedHost:
    """The twin at the table of a task, in lockstep and at most in real time.

    Args:
        session: options of the session.
        twin: the running twin, whose world is a `sim.twin.task_world.TaskWorld`.
    """

    kind: Host = "twin"
    manual_reset = False

    def __init__(self, session: DemonstrationSession, twin: Twin) -> None:
        self.robot = f"{session.arm.robot} twin"
        self._session = session
        self._twin = twin

    def place(self, seed: int) -> None:
        """See `DemonstrationHost`: as the simulated environment of the task does."""
        self._twin.reset(seed)

    def arm(self) -> FrankaArm:
        """See `DemonstrationHost`."""
        from real.franka.arm import FrankaArm

        # A twin starts anew with every session, without the faults of the last one.
        host = self._session.twin.host
        settings = replace(self._session.arm, host=host, realtime="ignore", latch="connection")
        return FrankaArm(settings, self._twin, self._twin.wait_for_motion)

    def gripper(self) -> AbstractContextManager[FrankaGripper | None]:
        """See `DemonstrationHost`."""
        session = self._session
        if not session.use_gripper:
            return nullcontext()
        robot = find_robot(session.arm.robot)
        return gripper_of_twin(self._twin, session.twin.host, session.gripper, robot)

    def ready(
        self, arm: FrankaArm, gripper: FrankaGripper | None, supervision: Supervision
    ) -> bool:
        """See `DemonstrationHost`: the simulated arm already is at the start."""
        return True

    def clock(self, arm: FrankaArm) -> Clock:
        """See `DemonstrationHost`."""
        from real.clock import PacedClock

        return PacedClock(self._twin)

    def scene(self) -> dict[str, np.ndarray] | None:
        """See `DemonstrationHost`."""
        qpos, goal = self._twin.call("scene")
        return {"qpos": qpos, "goal": np.concatenate([goal, np.zeros(3)])[:3]}


class RealHost:
    """A real arm, whose table a person lays.

    Args:
        session: options of the session, with the address of the arm.
    """

    kind: Host = "real"
    manual_reset = True

    def __init__(self, session: DemonstrationSession) -> None:
        self.robot = f"{session.arm.robot} at {session.host}"
        self._session = session

    def place(self, seed: int) -> None:
        """See `DemonstrationHost`: does nothing, a person has placed the objects."""

    def arm(self) -> FrankaArm:
        """See `DemonstrationHost`."""
        from real.franka.arm import FrankaArm

        return FrankaArm(replace(self._session.arm, host=self._session.host))

    @contextmanager
    def gripper(self) -> Iterator[FrankaGripper | None]:
        """See `DemonstrationHost`."""
        from real.franka.gripper import FrankaGripper

        session = self._session
        if not session.use_gripper:
            yield None
            return
        limits = find_robot(session.arm.robot).gripper
        with FrankaGripper(session.host, session.gripper, limits) as gripper:
            yield gripper

    def ready(
        self, arm: FrankaArm, gripper: FrankaGripper | None, supervision: Supervision
    ) -> bool:
        """See `DemonstrationHost`: opens the gripper, rises, and moves to the joint positions of
        the start; pauses when the person pauses."""

        def halted() -> bool:
            supervision.poll()
            # Labels are ignored: no episode is running.
            return supervision.paused or supervision.stopped

        if gripper is not None:
            gripper.set_width(arm.robot.gripper.width_max)
        session, state = self._session, arm.state()
        start = arm.robot.q_home if session.start is None else np.array(session.start)
        risen = state.base_T_ee.copy()
        risen[2, 3] = max(risen[2, 3], min(risen[2, 3] + session.lift, session.steps.high[2]))
        over = inverse_kinematics(arm.robot, risen @ np.linalg.inv(arm.flange_T_ee), state.q)
        for q in (over, start):
            while not arm.move_to_joints(q, halted):
                if not wait_for_resume(supervision):
                    return False
        return True

    def clock(self, arm: FrankaArm) -> Clock:
        """See `DemonstrationHost`."""
        return arm.clock

    def scene(self) -> dict[str, np.ndarray] | None:
        """See `DemonstrationHost`."""
        return None


@contextmanager
def simulated_host(session: DemonstrationSession, task: str) -> Iterator[DemonstrationHost]:
    """Runs a simulated arm at the table of a task in a separate process while the context lasts.

    Raises:
        HandoffError: there is no such task, or its arm carries no gripper.
    """
    from sim.twin.task_world import TaskWorld
    from sim.twin.twin import start_twin

    world = partial(TaskWorld, task, session.arm.robot)
    with (
        processor_for_twin() as cpu,
        start_twin(replace(session.twin, cpu=cpu), world) as twin,
    ):
        yield SimulatedHost(session, twin)
