"""Defines the interface of a table in a session at an arm, and the pictures beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from flows.deployment.cameras.pictures import ArmPictures, PictureSource
from robots.episodes.metadata.episode_metadata import Host
from robots.errors import HandoffError
from robots.interfaces import Clock, Observation

if TYPE_CHECKING:
    import numpy as np

    from real.arm import ArmState
    from real.deploy.loop import LoopConfig
    from real.deploy.person_motion import PersonMotion
    from real.deploy.supervision import Supervision
    from real.driver.driven_arm import DrivenArm
    from real.franka.gripper import FrankaGripper
    from real.motion.action_space import Space
    from robots.episodes.metadata.camera_calibration import CameraCalibration
    from robots.episodes.schema import EpisodeSchema
    from robots.spec import ActionSpec, FieldSpec
    from sim.rendering.camera_clock import CameraClockConfig


def slowed_loop(loop: LoopConfig, speed: float) -> LoopConfig:
    """The loop's options at a share of the policy's speed: all that is measured per policy step,
    and the fastest reference, in proportion.

    Args:
        loop: options at full speed.
        speed: the share, at most 1.
    """
    if speed == 1.0:
        return loop
    governor = replace(loop.governor, max_speed=loop.governor.max_speed * speed)
    watchdog = replace(loop.watchdog, fault_seconds=loop.watchdog.fault_seconds / speed)
    return replace(loop, governor=governor, watchdog=watchdog)


def no_simulated_cameras(sensors: Mapping[str, FieldSpec]) -> HandoffError:
    """The error that a real arm has no simulated cameras."""
    names = ", ".join(sensors)
    return HandoffError(f"deploy: the policy observes {names}, and a real arm simulates no camera.")


class SessionPictures(NamedTuple):
    """The cameras that the policy of a session observes."""

    pictures: ArmPictures
    """Their newest pictures."""
    calibrations: Mapping[str, CameraCalibration]
    """Their calibration by the name of the field with the pictures."""
    begin: Callable[[int], None]
    """Begins an episode with a seed, once its objects are placed."""
    shown: Mapping[str, PictureSource] = MappingProxyType({})
    """Newest picture of every camera of the session by name, also of those that the policy does not
    observe; empty for drawn ones."""


class TableArm(Protocol):
    """A simulated or a real arm at a table, whatever it holds."""

    robot: str
    """Name of the arm, recorded with every episode."""
    kind: Host
    """Kind of the arm, recorded too."""
    manual_reset: bool
    """Whether a person places the objects before every episode."""

    def place(self, seed: int) -> None:
        """Places the objects for the start with that seed, before the arm is connected."""
        ...

    def arm(self) -> DrivenArm:
        """Returns the arm, not yet connected."""
        ...

    def clock(self, arm: DrivenArm) -> Clock:
        """Returns the robot's clock, which runs in real time."""
        ...

    def cameras(
        self, sensors: Mapping[str, FieldSpec], clocks: CameraClockConfig
    ) -> AbstractContextManager[SessionPictures]:
        """Opens the simulated cameras of the table; see `SessionTable.cameras`."""
        ...


class SessionTable(ABC):
    """An arm and what is on its table, for a policy that a person supervises."""

    robot: str
    """Name of the arm, recorded with every episode."""
    kind: Host
    """Kind of the arm, recorded too."""
    manual_reset: bool
    """Whether a person places the objects before every episode."""
    spec: ActionSpec
    """Actions of the person's device."""
    person_motion: PersonMotion
    """The way in which the device moves the arm."""
    width_max: float | None
    """Largest opening of the gripper [m]; None without a gripper."""

    @abstractmethod
    def cameras(
        self, sensors: Mapping[str, FieldSpec], clocks: CameraClockConfig
    ) -> AbstractContextManager[SessionPictures]:
        """Opens the simulated cameras that a policy observes.

        Raises:
            HandoffError: the arm is a real one, or a sensor is no camera of the table.
        """

    @abstractmethod
    def schema(self, pictures: Mapping[str, FieldSpec]) -> EpisodeSchema:
        """Returns the streams and fields of the recorded episodes, with those of the pictures."""

    def instruct(self, sentence: str) -> None:
        """Tells the policy what to do, from the next episode on.

        Raises:
            HandoffError: the policies of this table take no instruction.
        """
        raise HandoffError(f"deploy: '{sentence}' is told to a policy that takes no instruction.")

    @abstractmethod
    def place(self, seed: int) -> None:
        """Places the objects for the start with that seed, before the arm is connected; at a real
        arm a person has placed them."""

    @abstractmethod
    def arm(self) -> DrivenArm:
        """Returns the arm, not yet connected."""

    @abstractmethod
    def gripper(self) -> AbstractContextManager[FrankaGripper | None]:
        """Connects the gripper, if the policy commands one."""

    @abstractmethod
    def ready(
        self, arm: DrivenArm, gripper: FrankaGripper | None, supervision: Supervision
    ) -> bool:
        """Moves the connected arm to the start of the episode; returns False if the person ends the
        session meanwhile."""

    @abstractmethod
    def way_home(self, arm: DrivenArm) -> list[np.ndarray]:
        """Returns the joint positions (J,) [rad] over which the connected arm comes to the start of
        an episode."""

    @abstractmethod
    def follow(self, state: ArmState) -> None:
        """Takes the state of the arm between two episodes, for those who draw it."""

    @abstractmethod
    def clock(self, arm: DrivenArm) -> Clock:
        """Returns the robot's clock, which runs in real time."""

    @abstractmethod
    def motion(self, arm: DrivenArm) -> tuple[Space, LoopConfig]:
        """Returns the coordinates of the policy's actions from where the arm is, with rates and
        limits of the loop; begins an episode."""

    @abstractmethod
    def observe(self, state: ArmState) -> Observation:
        """Returns the contract's fields that arm, gripper and cameras do not provide, and further
        recorded fields.

        Raises:
            SafetyError: what is observed is too old.
        """

    @abstractmethod
    def is_over(self) -> bool:
        """Whether the table itself ends the episode; called at every step of the policy."""

    @property
    @abstractmethod
    def success(self) -> bool:
        """Whether the episode has been solved at any time, as far as the table can tell."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Returns the outcome of the episode for its metadata, beside its success."""

    @abstractmethod
    def note(self) -> str:
        """The same in a phrase; empty if there is nothing to say."""

    @abstractmethod
    def scene(self) -> bytes | None:
        """Returns the packed scene, for those who draw it; None if it is not known."""
