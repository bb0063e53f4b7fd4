"""Provides an arm with a gripper for a session: a simulated one at the table of a task, or a real
one, with one interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from flows.deployment.arms import move_supervised
from flows.deployment.session_tables.session_table import (
    SessionPictures,
    TableArm,
    no_simulated_cameras,
)
from flows.deployment.task_table import gripper_of_twin
from flows.deployment.twin import processor_for_twin
from robots.control.actions import CartesianDelta
from robots.episodes.metadata.episode_metadata import Host
from robots.franka import find_robot
from robots.franka.kinematics import inverse_kinematics
from robots.interfaces import Clock, Observation

if TYPE_CHECKING:
    from real.arm import ArmState
    from real.deploy.supervision import Supervision
    from real.driver.driven_arm import DrivenArm
    from real.driver.driver import Driver
    from real.franka.config import FrankaConfig
    from real.franka.gripper import FrankaGripper, GripperDriverConfig
    from real.motion.fence import FenceConfig
    from robots.spec import FieldSpec
    from sim.rendering.camera_clock import CameraClockConfig
    from sim.twin.twin import Twin, TwinConfig


@dataclass(frozen=True)
class HostOptions:
    """What an arm with a gripper needs of a session's options."""

    host: str
    """Address of the arm's control unit; empty for a simulated arm."""
    arm: FrankaConfig
    """Impedance, collision limits and recording of the arm."""
    twin: TwinConfig
    """The simulated robot."""
    gripper: GripperDriverConfig | None
    """Speed and force of the gripper; None if it is not used."""
    start: tuple[float, ...] | None
    """(J,) joint positions at which a real arm begins every episode [rad]; None takes the robot's
    home."""
    lift: float
    """Height by which a real arm rises first on its way to the start [m]."""
    ceiling: float
    """Height above which it does not rise [m], base frame."""
    fence: FenceConfig
    """Places that the arm keeps out of on its way to the start."""
    workspace: CartesianDelta | None = None
    """Steps inside whose workspace a real arm begins where `start` is None, because it stands
    still until a person moves it; None begins at the home of the policy's training."""


class GripperHost(TableArm, Protocol):
    """An arm with a gripper, and what is on its table."""

    def gripper(self) -> AbstractContextManager[FrankaGripper | None]:
        """Connects the gripper, if the session uses it."""
        ...

    def ready(
        self, arm: DrivenArm, gripper: FrankaGripper | None, supervision: Supervision
    ) -> bool:
        """Moves the connected arm to the start; returns False if the person ends the session
        meanwhile."""
        ...

    def way_home(self, arm: DrivenArm) -> list[np.ndarray]:
        """Returns the joint positions (J,) [rad] over which the connected arm comes to the
        start."""
        ...

    def follow(self, state: ArmState) -> None:
        """Takes the state of the arm between two episodes, for those who draw it."""
        ...

    def scene(self) -> dict[str, np.ndarray] | None:
        """Returns `qpos` and `goal` of the simulated scene, for those who draw it; None at a real
        arm."""
        ...

    def objects(self) -> Observation:
        """Returns what is observed of the objects, per field without a leading dimension, and the
        instruction of a language task; nothing at a real arm."""
        ...

    def outcome(self) -> tuple[bool, bool]:
        """Returns whether the task is solved, and whether it has failed; neither at a real arm, at
        which a person judges."""
        ...


class SimulatedHost:
    """The twin at the table of a task, in lockstep and at most in real time.

    Args:
        options: options of the arm.
        twin: the running twin, whose world is a `sim.twin.task_world.TaskWorld`.
        task: name of the task.
        driver: the process that drives the arm.
    """

    kind: Host = "twin"
    manual_reset = False

    def __init__(self, options: HostOptions, twin: Twin, task: str, driver: Driver) -> None:
        self.robot = f"{options.arm.robot} twin"
        self._driver = driver
        self._options = options
        self._twin = twin
        self._task = task
        self._start = find_robot(options.arm.robot).q_home

    def place(self, seed: int) -> None:
        """See `GripperHost`: as the simulated environment of the task does."""
        self._twin.reset(seed)
        qpos, _ = self._twin.call("scene")
        self._start = qpos[: len(self._start)].copy()

    def arm(self) -> DrivenArm:
        """See `GripperHost`."""
        from flows.session.simulated_arm import arm_of_twin

        # A twin starts anew with every session, without the faults of the last one.
        host = self._options.twin.host
        settings = replace(self._options.arm, host=host, realtime="ignore", latch="connection")
        return arm_of_twin(self._driver, settings, self._options.twin, self._twin)

    def gripper(self) -> AbstractContextManager[FrankaGripper | None]:
        """See `GripperHost`."""
        options = self._options
        if options.gripper is None:
            return nullcontext()
        robot = find_robot(options.arm.robot)
        return gripper_of_twin(self._twin, options.twin.host, options.gripper, robot)

    def ready(
        self, arm: DrivenArm, gripper: FrankaGripper | None, supervision: Supervision
    ) -> bool:
        """See `GripperHost`: the simulated arm already is at the start."""
        return True

    def way_home(self, arm: DrivenArm) -> list[np.ndarray]:
        """See `GripperHost`: to where the reset has put the arm."""
        return _way(self._options, arm, self._start)

    def follow(self, state: ArmState) -> None:
        """See `GripperHost`: the scene is read from the simulation."""

    def clock(self, arm: DrivenArm) -> Clock:
        """See `GripperHost`."""
        from real.clock import PacedClock

        return PacedClock(self._twin)

    def scene(self) -> dict[str, np.ndarray] | None:
        """See `GripperHost`."""
        qpos, goal = self._twin.call("scene")
        return {"qpos": qpos, "goal": np.concatenate([goal, np.zeros(3)])[:3]}

    def objects(self) -> Observation:
        """See `GripperHost`: like a perfect object tracker."""
        return self._twin.call("object_observations")

    def outcome(self) -> tuple[bool, bool]:
        """See `GripperHost`."""
        return self._twin.call("outcome")

    @contextmanager
    def cameras(
        self, sensors: Mapping[str, FieldSpec], clocks: CameraClockConfig
    ) -> Iterator[SessionPictures]:
        """See `GripperHost`."""
        from flows.deployment.cameras.twin_cameras import open_twin_cameras

        robot = self._options.arm.robot
        with open_twin_cameras(sensors, self._task, robot, self._twin, clocks) as cameras:
            yield SessionPictures(cameras.pictures, cameras.calibrations, cameras.begin)


class RealHost:
    """A real arm, whose table a person lays.

    Args:
        options: options of the arm, with its address.
        driver: the process that drives the arm.
    """

    kind: Host = "real"
    manual_reset = True

    def __init__(self, options: HostOptions, driver: Driver) -> None:
        self._driver = driver
        self.robot = f"{options.arm.robot} at {options.host}"
        self._options = options

    def place(self, seed: int) -> None:
        """See `GripperHost`: does nothing, a person has placed the objects."""

    def arm(self) -> DrivenArm:
        """See `GripperHost`."""
        from real.driver.driven_arm import DrivenArm

        return DrivenArm(self._driver, replace(self._options.arm, host=self._options.host))

    @contextmanager
    def gripper(self) -> Iterator[FrankaGripper | None]:
        """See `GripperHost`."""
        from real.franka.gripper import FrankaGripper

        options = self._options
        if options.gripper is None:
            yield None
            return
        limits = find_robot(options.arm.robot).gripper
        with FrankaGripper(options.host, options.gripper, limits) as gripper:
            yield gripper

    def ready(
        self, arm: DrivenArm, gripper: FrankaGripper | None, supervision: Supervision
    ) -> bool:
        """See `GripperHost`: opens the gripper, rises, and moves to the joint positions of
        the start; pauses when the person pauses."""
        if gripper is not None:
            gripper.set_width(arm.robot.gripper.width_max)
        return move_supervised(arm, self.way_home(arm), supervision, self._options.fence)

    def way_home(self, arm: DrivenArm) -> list[np.ndarray]:
        """See `GripperHost`: up, and to the joint positions of the start."""
        options = self._options
        if options.start is not None:
            return _way(options, arm, np.array(options.start))
        q = arm.robot.q_home
        if options.workspace is not None:
            from real.motion.step_spaces import start_within

            q = start_within(options.workspace, arm.robot, arm.flange_T_ee, q)
        return _way(options, arm, q)

    def follow(self, state: ArmState) -> None:
        """See `GripperHost`: nobody draws a real arm."""

    def clock(self, arm: DrivenArm) -> Clock:
        """See `GripperHost`."""
        return arm.clock

    def scene(self) -> dict[str, np.ndarray] | None:
        """See `GripperHost`."""
        return None

    def objects(self) -> Observation:
        """See `GripperHost`."""
        return {}

    def outcome(self) -> tuple[bool, bool]:
        """See `GripperHost`."""
        return False, False

    def cameras(
        self, sensors: Mapping[str, FieldSpec], clocks: CameraClockConfig
    ) -> AbstractContextManager[SessionPictures]:
        """See `GripperHost`: a real arm has none.

        Raises:
            HandoffError: always.
        """
        raise no_simulated_cameras(sensors)


def _way(options: HostOptions, arm: DrivenArm, start: np.ndarray) -> list[np.ndarray]:
    """The way of a connected arm to the joint positions `start` (J,) [rad]: it rises first, so that
    it touches nothing on the table."""
    state = arm.state()
    risen = state.base_T_ee.copy()
    risen[2, 3] = max(risen[2, 3], min(risen[2, 3] + options.lift, options.ceiling))
    over = inverse_kinematics(arm.robot, risen @ np.linalg.inv(arm.flange_T_ee), state.q)
    return [over, start]


@contextmanager
def simulated_host(options: HostOptions, task: str) -> Iterator[SimulatedHost]:
    """Runs a simulated arm at the table of a task in a separate process while the context lasts.

    Raises:
        HandoffError: there is no such task, or its arm carries no gripper.
    """
    from real.driver.driver import Driver
    from sim.twin.task_world import TaskWorld
    from sim.twin.twin import start_twin

    world = partial(TaskWorld, task, options.arm.robot)
    with (
        processor_for_twin() as cpu,
        start_twin(replace(options.twin, cpu=cpu), world) as twin,
        Driver() as driver,
    ):
        yield SimulatedHost(options, twin, task, driver)


@contextmanager
def real_host(options: HostOptions) -> Iterator[RealHost]:
    """Provides the arm at the address of the options while the context lasts."""
    from real.driver.driver import Driver

    with Driver() as driver:
        yield RealHost(options, driver)
