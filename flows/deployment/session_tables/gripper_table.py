"""The table of any task but push-T in a session: an arm with a gripper moves by steps of its
pose."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flows.deployment.config import DeployTaskSession
from flows.deployment.session_tables.hosts import GripperHost, HostOptions
from flows.deployment.session_tables.session_table import (
    SessionPictures,
    SessionTable,
    slowed_loop,
)
from flows.deployment.task_table import SCENE, has_gripper
from robots.contract import Contract
from robots.control.actions import CartesianDelta, with_gripper
from robots.control.proprioception import DERIVED, proprioception_fields
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.robot import Robot
from robots.interfaces import Clock, Observation
from robots.language.text import INSTRUCTION, encode, text_field
from robots.spec import ActionSpec, FieldSpec
from robots.wire.policy import pack

if TYPE_CHECKING:
    import numpy as np

    from real.arm import ArmState
    from real.deploy.loop import LoopConfig
    from real.deploy.supervision import Supervision
    from real.franka.arm import FrankaArm
    from real.franka.gripper import FrankaGripper
    from real.motion.action_space import CartesianSteps
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
    """

    def __init__(self, session: DeployTaskSession, contract: Contract, host: GripperHost) -> None:
        from real.deploy.person_motion import StepMotion

        self.robot = host.robot
        self.kind = host.kind
        self.manual_reset = host.manual_reset
        self._session = session
        self._contract = contract
        self._host = host
        self._robot = find_robot(session.arm.robot)
        self.spec = action_spec(contract, self._robot)
        self.width_max = self._robot.gripper.width_max if has_gripper(contract) else None
        self.person_motion = StepMotion(contract.action.shape[0], self.width_max)
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

        contract, loop = self._contract, self._session.loop
        extra = {**self._scene_fields(), **pictures}
        if contract.instruction and (self._sentence or INSTRUCTION in self._host.objects()):
            extra[INSTRUCTION] = SENTENCE
        axes = len(steps_of(contract).axes)
        return deploy_schema(
            contract, extra, loop, self._robot, "base", supervised=True, coordinates=axes
        )

    def place(self, seed: int) -> None:
        """See `SessionTable`."""
        self._host.place(seed)

    def arm(self) -> FrankaArm:
        """See `SessionTable`."""
        return self._host.arm()

    def gripper(self) -> AbstractContextManager[FrankaGripper | None]:
        """See `SessionTable`."""
        return self._host.gripper()

    def ready(
        self, arm: FrankaArm, gripper: FrankaGripper | None, supervision: Supervision
    ) -> bool:
        """See `SessionTable`."""
        return self._host.ready(arm, gripper, supervision)

    def clock(self, arm: FrankaArm) -> Clock:
        """See `SessionTable`."""
        return self._host.clock(arm)

    def motion(self, arm: FrankaArm) -> tuple[CartesianSteps, LoopConfig]:
        """See `SessionTable`: steps of the end effector's pose, within the workspace of these
        steps."""
        from real.motion.action_space import CartesianSteps

        self._solved = False
        loop = slowed_loop(self._session.loop, self._session.speed)
        space = CartesianSteps(self._contract, arm.state().base_T_ee, self._robot)
        return space, replace(loop, governor=space.governed(loop.governor))

    def observe(self, state: ArmState) -> Observation:
        """See `SessionTable`: the objects of a simulated scene, and the instruction."""
        observed = self._host.objects()
        fields = {name: value for name, value in observed.items() if name in self._fields}
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


def steps_of(contract: Contract) -> CartesianDelta:
    """The steps of the contract's actions.

    Raises:
        HandoffError: the contract does not define them.
    """
    if not isinstance(contract.steps, CartesianDelta):
        raise HandoffError(
            f"deploy: the contract of {contract.task} does not say what a step is. Export the policy again; a task's "
            "own steps are then part of it."
        )
    return contract.steps


def action_spec(contract: Contract, robot: Robot) -> ActionSpec:
    """The actions of the person's device: those of the policy."""
    arm = steps_of(contract).spec(robot)
    return with_gripper(arm) if has_gripper(contract) else arm


def object_fields(contract: Contract, robot: Robot) -> list[str]:
    """Fields of the contract that neither the arm nor its gripper measures."""
    own = {*proprioception_fields(robot, has_gripper(contract)), *DERIVED}
    return [name for name in contract.observation if name not in own]


def host_options(session: DeployTaskSession, contract: Contract) -> HostOptions:
    """The options of the session's arm."""
    return HostOptions(
        host=session.host,
        arm=session.arm,
        twin=session.twin,
        gripper=session.gripper if has_gripper(contract) else None,
        start=session.start,
        lift=session.lift,
        ceiling=steps_of(contract).high[2],
        fence=session.loop.fence,
    )


def _padded(text: np.ndarray, size: int) -> np.ndarray:
    """A sentence of a task in the recorded field, whose rest is zeros."""
    import numpy as np

    return np.concatenate([text, np.zeros(size - len(text), text.dtype)])
