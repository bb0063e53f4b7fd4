"""Push-T's board in a session: a T, a pusher that a simulated or a real arm holds, and a tracker of
the T."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from flows.deployment.arms import move_supervised
from flows.deployment.config import DeploySession
from flows.deployment.push_t_table import EXTRA, PushTScene
from flows.deployment.session_tables.session_table import (
    SessionPictures,
    SessionTable,
    TableArm,
    no_simulated_cameras,
    slowed_loop,
)
from flows.deployment.twin import processor_for_twin
from robots.contract import Contract
from robots.episodes.metadata.episode_metadata import Host
from robots.franka import find_robot
from robots.franka.kinematics import inverse_kinematics
from robots.interfaces import Clock, Observation
from robots.wire.policy import pack

if TYPE_CHECKING:
    from real.arm import ArmState
    from real.deploy.loop import LoopConfig
    from real.deploy.supervision import Supervision
    from real.driver.driven_arm import DrivenArm
    from real.driver.driver import Driver
    from real.franka.gripper import FrankaGripper
    from real.motion.planar_space import Plane
    from robots.episodes.schema import EpisodeSchema
    from robots.spec import FieldSpec
    from sim.rendering.camera_clock import CameraClockConfig

CLEARANCE = 0.10
"""Height above the board at which the arm moves to its start [m]; the T is 0.03 m high."""


class ArmSetup(TableArm, Protocol):
    """An arm with a pusher, and the board."""

    def ready(self, arm: DrivenArm, supervision: Supervision) -> bool:
        """Moves the connected arm to the start of the episode; returns False if the person ends the
        session meanwhile."""
        ...

    def way_home(self, arm: DrivenArm) -> list[np.ndarray]:
        """Returns the joint positions (J,) [rad] over which the connected arm comes to the
        start."""
        ...

    def pose(self) -> np.ndarray:
        """Returns the current pose (3,) of the T [m, m, rad], board frame."""
        ...


class SimulatedSetup:
    """The twin, in lockstep and at most in real time: a busy computer slows it down but causes no
    faults."""

    kind: Host = "twin"
    manual_reset = False

    def __init__(self, session: DeploySession, twin: Any, driver: Driver) -> None:
        self.robot = f"{session.arm.robot} twin"
        self._session = session
        self._driver = driver
        self._twin = twin
        self._start = np.array(session.start)

    def place(self, seed: int) -> None:
        """See `ArmSetup`."""
        from sim.tasks.push_t.geometry import initial_state

        self._start = self._twin.call("reset", *initial_state(seed))

    def arm(self) -> DrivenArm:
        """See `ArmSetup`."""
        from flows.session.simulated_arm import arm_of_twin

        # A twin starts anew with every session, without the faults of the last one.
        settings = replace(
            self._session.arm,
            host=self._session.twin.host,
            realtime="ignore",
            latch="connection",
        )
        return arm_of_twin(self._driver, settings, self._session.twin, self._twin)

    def ready(self, arm: DrivenArm, supervision: Supervision) -> bool:
        """See `ArmSetup`: the simulated arm already is at the start."""
        return True

    def way_home(self, arm: DrivenArm) -> list[np.ndarray]:
        """See `ArmSetup`: to where the reset has put the pusher."""
        from real.motion.planar_space import Plane

        return _way(Plane(self._session.plane), arm, self._start)

    def clock(self, arm: DrivenArm) -> Clock:
        """See `ArmSetup`."""
        from real.clock import PacedClock

        return PacedClock(self._twin)

    def pose(self) -> np.ndarray:
        """See `ArmSetup`."""
        return self._twin.call("tee_pose")

    @contextmanager
    def cameras(
        self, sensors: Mapping[str, FieldSpec], clocks: CameraClockConfig
    ) -> Iterator[SessionPictures]:
        """See `ArmSetup`."""
        from flows.deployment.cameras.twin_cameras import open_board_camera

        with open_board_camera(sensors, self._twin, clocks) as cameras:
            yield SessionPictures(cameras.pictures, cameras.calibrations, cameras.begin)


class BoardTable(SessionTable):
    """The board, at which a policy of push-T is supervised.

    Args:
        session: options of arm, limits and rates.
        contract: contract of the policy.
        setup: the arm and its board.
    """

    width_max = None

    def __init__(self, session: DeploySession, contract: Contract, setup: ArmSetup) -> None:
        from real.deploy.person_motion import STEPS, BoardMotion
        from real.motion.planar_space import Plane

        self.robot = setup.robot
        self.kind = setup.kind
        self.manual_reset = setup.manual_reset
        self.spec = STEPS
        self._session = session
        self._contract = contract
        self._setup = setup
        self._plane = Plane(session.plane)
        self.person_motion = BoardMotion(self._plane, session.supervision.speed, contract.rate_hz)
        self._scene = PushTScene(setup.pose, self._plane)
        # For drawing, before the first observation of an episode.
        self._q = find_robot(session.arm.robot).q_home
        self._pose = np.zeros(3)

    def cameras(
        self, sensors: Mapping[str, FieldSpec], clocks: CameraClockConfig
    ) -> AbstractContextManager[SessionPictures]:
        """See `SessionTable`: the camera above the board."""
        return self._setup.cameras(sensors, clocks)

    def schema(self, pictures: Mapping[str, FieldSpec]) -> EpisodeSchema:
        """See `SessionTable`."""
        from real.deploy.episode_recorder import deploy_schema

        session = self._session
        robot = find_robot(session.arm.robot)
        extra = {**EXTRA, **pictures}
        return deploy_schema(self._contract, extra, session.loop, robot, supervised=True)

    def place(self, seed: int) -> None:
        """See `SessionTable`."""
        self._setup.place(seed)
        if not self.manual_reset:
            self._pose = self._setup.pose()

    def arm(self) -> DrivenArm:
        """See `SessionTable`."""
        return self._setup.arm()

    def gripper(self) -> AbstractContextManager[FrankaGripper | None]:
        """See `SessionTable`: the arm holds a pusher."""
        return nullcontext()

    def ready(
        self, arm: DrivenArm, gripper: FrankaGripper | None, supervision: Supervision
    ) -> bool:
        """See `SessionTable`."""
        return self._setup.ready(arm, supervision)

    def way_home(self, arm: DrivenArm) -> list[np.ndarray]:
        """See `SessionTable`: up, across above the objects, and down."""
        return self._setup.way_home(arm)

    def follow(self, state: ArmState) -> None:
        """See `SessionTable`."""
        self._q = state.q

    def clock(self, arm: DrivenArm) -> Clock:
        """See `SessionTable`."""
        return self._setup.clock(arm)

    def motion(self, arm: DrivenArm) -> tuple[Plane, LoopConfig]:
        """See `SessionTable`: positions on the board."""
        self._scene = PushTScene(self._setup.pose, self._plane)
        return self._plane, slowed_loop(self._session.loop, self._session.speed)

    def observe(self, state: ArmState) -> Observation:
        """See `SessionTable`: the keypoints of the T, the pusher, and the pose of the T."""
        observation = self._scene.observe(state)
        self._q = state.q
        self._pose = observation["block_pose"]
        return observation

    def is_over(self) -> bool:
        """See `SessionTable`: the T is at the goal."""
        return self._scene.solved

    @property
    def success(self) -> bool:
        """See `SessionTable`."""
        return self._scene.was_solved

    def describe(self) -> dict[str, Any]:
        """See `SessionTable`: the largest coverage of the goal, 0..1."""
        return {"coverage": self._scene.best}

    def note(self) -> str:
        """See `SessionTable`."""
        return f"coverage {self._scene.best:.2f}"

    def scene(self) -> bytes:
        """See `SessionTable`."""
        from sim.tasks.push_t.geometry import base_pose_of_tee

        qpos = np.concatenate([self._q, base_pose_of_tee(self._pose)])
        return pack({"qpos": qpos, "goal": np.zeros(3)})


@contextmanager
def simulated_setup(session: DeploySession) -> Iterator[ArmSetup]:
    """Runs a simulated arm in a separate process while the context lasts."""
    from real.driver.driver import Driver
    from sim.twin.push_t_world import PushTWorld
    from sim.twin.twin import start_twin

    world = partial(PushTWorld, session.arm.robot)
    with (
        processor_for_twin() as cpu,
        start_twin(replace(session.twin, cpu=cpu), world) as twin,
        Driver() as driver,
    ):
        yield SimulatedSetup(session, twin, driver)


class RealSetup:
    """A real arm, and a tracker of the T."""

    kind: Host = "real"
    manual_reset = True

    def __init__(
        self, session: DeploySession, pose: Callable[[], np.ndarray], driver: Driver
    ) -> None:
        from real.motion.planar_space import Plane

        self.robot = f"{session.arm.robot} at {session.host}"
        self._settings = replace(session.arm, host=session.host)
        self._driver = driver
        self.pose = pose
        self._plane = Plane(session.plane)
        self._start = np.array(session.start)
        self._fence = session.loop.fence

    def place(self, seed: int) -> None:
        """See `ArmSetup`: does nothing, a person has placed the objects."""

    def arm(self) -> DrivenArm:
        """See `ArmSetup`."""
        from real.driver.driven_arm import DrivenArm

        return DrivenArm(self._driver, self._settings)

    def ready(self, arm: DrivenArm, supervision: Supervision) -> bool:
        """See `ArmSetup`: pauses when the person pauses."""
        return move_supervised(arm, self.way_home(arm), supervision, self._fence)

    def way_home(self, arm: DrivenArm) -> list[np.ndarray]:
        """See `ArmSetup`."""
        return _way(self._plane, arm, self._start)

    def clock(self, arm: DrivenArm) -> Clock:
        """See `ArmSetup`."""
        return arm.clock

    def cameras(
        self, sensors: Mapping[str, FieldSpec], clocks: CameraClockConfig
    ) -> AbstractContextManager[SessionPictures]:
        """See `ArmSetup`: a real arm has none.

        Raises:
            HandoffError: always.
        """
        raise no_simulated_cameras(sensors)


def _way(plane: Plane, arm: DrivenArm, start: np.ndarray) -> list[np.ndarray]:
    """The way of a connected arm to a position `start` (2,) of its pusher [m], board frame: up,
    across above the objects, and down."""
    from sim.tasks.push_t.geometry import Q_BOARD_CENTRE

    current = plane.position(arm.state().base_T_ee)
    q, way = Q_BOARD_CENTRE, []
    for xy, lift in (
        (current, 0.03),
        (current, CLEARANCE),
        (start, CLEARANCE),
        (start, 0.03),
        (start, 0.0),
    ):
        flange = plane.pose(xy, lift) @ np.linalg.inv(arm.flange_T_ee)
        q = inverse_kinematics(arm.robot, flange, q)
        way.append(q)
    return way


@contextmanager
def real_setup(session: DeploySession) -> Iterator[ArmSetup]:
    """Provides the arm at `session.host`, whose tracker is configured, while the context lasts."""
    from real.deploy.object_tracker import RemoteTracker
    from real.deploy.tracked_field import board_field
    from real.driver.driver import Driver

    fields = [board_field(session.tracker)]
    with RemoteTracker(session.tracker, fields) as tracker, Driver() as driver:
        yield RealSetup(session, partial(tracker.read, "pose"), driver)
