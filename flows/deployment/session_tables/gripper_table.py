"""The table of any task but push-T in a session: an arm with a gripper moves by steps of its pose,
or of its joints."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from flows.deployment.config import DeployTaskSession
from flows.deployment.session_tables.hosts import GripperHost, HostOptions
from flows.deployment.session_tables.session_table import (
    SessionPictures,
    SessionTable,
    slowed_loop,
)
from flows.deployment.task_table import SCENE
from robots.contract import Contract
from robots.control.actions import CartesianDelta, with_gripper
from robots.control.proprioception import DERIVED, proprioception_fields
from robots.franka import find_robot
from robots.franka.robot import Robot
from robots.interfaces import Clock, Observation
from robots.language.text import INSTRUCTION, encode, text_field
from robots.spec import FieldSpec
from robots.wire.policy import pack

if TYPE_CHECKING:
    import numpy as np

    from real.arm import ArmState
    from real.deploy.field_trackers import FieldTrackers
    from real.deploy.loop import LoopConfig
    from real.deploy.supervision import Supervision
    from real.driver.driven_arm import DrivenArm
    from real.franka.gripper import FrankaGripper
    from real.motion.action_space import Space
    from robots.episodes.schema import EpisodeSchema
    from sim.rendering.camera_clock import CameraClockConfig

SCENE_FIELDS = {"qpos": "qpos", "goal": "goal_state"}
"""Recorded fields of the parts of a simulated scene."""
SENTENCE = text_field(128)
"""Recorded field of the instruction that a policy was told."""


class GripperTable(SessionTable):
    """The table of a task, at which a policy with a gripper is supervised.

    Args:
        session: options of arm, limits and rates.
        contract: contract of the policy, checked by `check_contract`.
        host: the arm and what is on its table.
        trackers: what observes the objects in the host's place, where the session has trackers.
    """

    def __init__(
        self,
        session: DeployTaskSession,
        contract: Contract,
        host: GripperHost,
        trackers: FieldTrackers,
    ) -> None:
        from real.deploy.person_motion import JointMotion, StepMotion
        from real.motion.step_spaces import has_gripper, moves_joints

        self.robot = host.robot
        self.kind = host.kind
        self.manual_reset = host.manual_reset
        self._session = session
        self._contract = contract
        self._host = host
        self._trackers = trackers
        self._robot = find_robot(session.arm.robot)
        grips = has_gripper(contract, self._robot)
        self.width_max = self._robot.gripper.width_max if grips else None
        # A person leads the gripper's pose, whatever the policy's actions move.
        person = person_steps(contract)
        spec = person.spec(self._robot)
        self.spec = with_gripper(spec) if grips else spec
        self.person_motion = (
            JointMotion(contract, person, self._robot, self.width_max)
            if moves_joints(contract)
            else StepMotion(contract.action.shape[0], self.width_max)
        )
        self._fields = {*object_fields(contract, self._robot)}
        self._sentence = session.instruction if contract.instruction else None
        self._solved = False

    def cameras(
        self, sensors: Mapping[str, FieldSpec], clocks: CameraClockConfig
    ) -> AbstractContextManager[SessionPictures]:
        """See `SessionTable`: cameras of the simulated scene."""
        return self._host.cameras(sensors, clocks)

    def schema(self, pictures: Mapping[str, FieldSpec]) -> EpisodeSchema:
        """See `SessionTable`."""
        from real.deploy.episode_recorder import deploy_schema
        from real.motion.step_spaces import num_coordinates

        contract, loop = self._contract, self._session.loop
        extra = {**self._scene_fields(), **pictures}
        if contract.instruction:
            extra[INSTRUCTION] = SENTENCE
        return deploy_schema(
            contract,
            extra,
            loop,
            self._robot,
            "base",
            supervised=True,
            coordinates=num_coordinates(contract, self._robot),
        )

    def instruct(self, sentence: str) -> None:
        """See `SessionTable`.

        Raises:
            HandoffError: the policy takes no instruction, or the sentence has too many bytes.
        """
        if not self._contract.instruction:
            super().instruct(sentence)
        encode([sentence], SENTENCE.shape[0])
        self._sentence = sentence

    def place(self, seed: int) -> None:
        """See `SessionTable`."""
        self._host.place(seed)

    def arm(self) -> DrivenArm:
        """See `SessionTable`."""
        return self._host.arm()

    def gripper(self) -> AbstractContextManager[FrankaGripper | None]:
        """See `SessionTable`."""
        return self._host.gripper()

    def ready(
        self, arm: DrivenArm, gripper: FrankaGripper | None, supervision: Supervision
    ) -> bool:
        """See `SessionTable`."""
        return self._host.ready(arm, gripper, supervision)

    def way_home(self, arm: DrivenArm) -> list[np.ndarray]:
        """See `SessionTable`: up, and to the joint positions of the start."""
        return self._host.way_home(arm)

    def follow(self, state: ArmState) -> None:
        """See `SessionTable`."""
        self._host.follow(state)

    def clock(self, arm: DrivenArm) -> Clock:
        """See `SessionTable`."""
        return self._host.clock(arm)

    def motion(self, arm: DrivenArm) -> tuple[Space, LoopConfig]:
        """See `SessionTable`: steps of the end effector's pose or of the joints, within their
        workspace."""
        from real.motion.step_spaces import step_space

        self._solved = False
        loop = slowed_loop(self._session.loop, self._session.speed)
        return step_space(self._contract, arm.state(), self._robot, arm.flange_T_ee, loop)

    def observe(self, state: ArmState) -> Observation:
        """See `SessionTable`: the objects of a simulated scene, or as trackers observe them, and
        the instruction."""
        from real.motion.action_space import grasp_pose

        observed = self._host.objects()
        fields = {name: value for name, value in observed.items() if name in self._fields}
        pose = grasp_pose(state.base_T_ee, self._robot.gripper.flange_R_grasp)
        fields |= self._trackers.observe(pose)
        if self._sentence is not None:
            fields[INSTRUCTION] = encode([self._sentence], SENTENCE.shape[0])[0]
        elif self._contract.instruction and INSTRUCTION in observed:
            given = observed[INSTRUCTION]
            fields[INSTRUCTION] = _padded(given, SENTENCE.shape[0])
        return {**fields, **self._recorded_scene()}

    def is_over(self) -> bool:
        """See `SessionTable`: a simulated task is solved or has failed."""
        solved, failed = self._host.outcome()
        self._solved |= solved
        return solved or failed

    @property
    def success(self) -> bool:
        """See `SessionTable`."""
        return self._solved

    def describe(self) -> dict[str, Any]:
        """See `SessionTable`."""
        return {} if self._sentence is None else {INSTRUCTION: self._sentence}

    def note(self) -> str:
        """See `SessionTable`."""
        return ""

    def scene(self) -> bytes | None:
        """See `SessionTable`."""
        scene = self._host.scene()
        return None if scene is None else pack(scene)

    def _recorded_scene(self) -> dict[str, np.ndarray]:
        """The simulated scene as it is recorded, beside the task's own field `goal`."""
        return {SCENE_FIELDS[name]: value for name, value in (self._host.scene() or {}).items()}

    def _scene_fields(self) -> dict[str, FieldSpec]:
        """Recorded fields of the simulated scene."""
        return {
            name: FieldSpec(shape=value.shape, dtype="float64", about=SCENE[name], role="other")
            for name, value in self._recorded_scene().items()
        }


def person_steps(contract: Contract) -> CartesianDelta:
    """The steps of the gripper's pose by which a person leads an arm: those of the policy, or where
    its actions move the joints, the usual ones."""
    return contract.steps if isinstance(contract.steps, CartesianDelta) else CartesianDelta()


def object_fields(contract: Contract, robot: Robot) -> list[str]:
    """Fields of the contract that neither the arm nor its gripper measures."""
    from real.motion.step_spaces import has_gripper

    own = {*proprioception_fields(robot, has_gripper(contract, robot)), *DERIVED}
    return [name for name in contract.observation if name not in own]


def host_options(session: DeployTaskSession, contract: Contract) -> HostOptions:
    """The options of the session's arm."""
    from real.motion.step_spaces import has_gripper, moves_joints

    robot = find_robot(session.arm.robot)
    return HostOptions(
        host=session.host,
        arm=session.arm,
        twin=session.twin,
        gripper=session.gripper if has_gripper(contract, robot) else None,
        start=session.start,
        lift=session.lift,
        ceiling=person_steps(contract).high[2],
        fence=session.loop.fence,
        # A policy's steps may lead the arm into their workspace; beside a policy that only thinks,
        # nothing moves but by the person.
        workspace=person_steps(contract) if session.shadow and not moves_joints(contract) else None,
    )


def _padded(text: np.ndarray, size: int) -> np.ndarray:
    """A sentence of a task in the recorded field, whose rest is zeros."""
    import numpy as np

    return np.concatenate([text, np.zeros(size - len(text), text.dtype)])
