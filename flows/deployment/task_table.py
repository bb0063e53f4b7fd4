"""Implements the table of a simulated task at the twin, with the gripper; its starts are those of
the task's evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.deployment.config import robot_of_bundle
from flows.deployment.starts import StartResult
from flows.deployment.twin import DeployTable
from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.language.text import INSTRUCTION
from robots.spec import FieldSpec

if TYPE_CHECKING:
    from flows.deployment.cameras.twin_cameras import TwinCameras
    from flows.deployment.config import DeployTaskConfig
    from real.arm import ArmState
    from real.deploy.loop import LoopConfig
    from real.franka.gripper import FrankaGripper, GripperDriverConfig
    from real.motion.action_space import Space
    from robots.contract import Contract
    from robots.episodes.metadata.camera_calibration import CameraCalibration
    from robots.episodes.schema import EpisodeSchema
    from robots.episodes.store import EpisodeStore
    from robots.franka.robot import Robot
    from sim.tasks.task import Task
    from sim.twin.twin import Twin

VIDEO_SIZE = (360, 480)
"""Height and width of the videos [px]."""
VIDEO_SPEED = 2.0
"""Speed of the videos in units of real time."""
SCENE = {
    "qpos": "generalised positions of the simulated scene",
    "goal_state": "the task's own variables",
}
"""Fields recorded in addition to the policy's observation."""


class TaskTable(DeployTable):
    """The table of the task that the contract names, at the twin.

    Args:
        config: starts, robot and limits.
        contract: contract of the policy.

    Raises:
        HandoffError: unknown task, or the configured robot is not the policy's.
    """

    def __init__(self, config: DeployTaskConfig, contract: Contract) -> None:
        from sim.make import find_task

        self._config = config
        self._contract = contract
        self.robot = robot_of_bundle(contract, config.arm)
        self._task = find_task(contract.task, robot=self.robot.config_name)
        self._fields = {*contract.observation, *([INSTRUCTION] if contract.instruction else [])}
        self._twin: Twin | None = None
        self._cameras: TwinCameras | None = None
        self._solved = False

    @property
    def success(self) -> bool:
        """See `DeployTable`."""
        return self._solved

    @property
    def make_world(self) -> Callable[[], Any]:
        """See `DeployTable`."""
        from sim.twin.task_world import TaskWorld

        return partial(TaskWorld, self._task.name, self.robot.config_name)

    def schema(self, twin: Twin) -> EpisodeSchema:
        """See `DeployTable`.

        Raises:
            HandoffError: the contract does not define the action steps.
        """
        from real.deploy.episode_recorder import deploy_schema
        from real.motion.step_spaces import num_coordinates

        contract = self._contract
        extra = {
            name: FieldSpec(shape=value.shape, dtype="float64", about=SCENE[name])
            for name, value in _scene_fields(*twin.call("scene")).items()
        }
        if self._cameras is not None:
            extra |= self._cameras.pictures.fields()
        if contract.instruction and INSTRUCTION in self._task.observations:
            extra[INSTRUCTION] = self._task.observations[INSTRUCTION].spec
        return deploy_schema(
            contract,
            extra,
            self._config.loop,
            self.robot,
            "base",
            coordinates=num_coordinates(contract, self.robot),
        )

    def place(self, twin: Twin, seed: int) -> None:
        """See `DeployTable`: places the objects as the simulated environment does for the seed."""
        twin.reset(seed)
        self._twin = twin
        self._solved = False
        if self._cameras is not None:
            self._cameras.begin(seed)

    @contextmanager
    def cameras(self, twin: Twin) -> Iterator[None]:
        """See `DeployTable`: cameras of the scene, each with a clock of its own."""
        if not self._contract.sensors:
            yield
            return
        from flows.deployment.cameras.twin_cameras import open_twin_cameras

        config, robot = self._config.cameras, self.robot.config_name
        with open_twin_cameras(
            self._contract.sensors, self._task.name, robot, twin, config
        ) as self._cameras:
            yield

    def gripper(self, twin: Twin) -> AbstractContextManager[FrankaGripper | None]:
        """See `DeployTable`."""
        from real.motion.step_spaces import has_gripper

        if not has_gripper(self._contract, self.robot):
            return nullcontext()
        config = self._config
        return gripper_of_twin(twin, config.twin.host, config.gripper, self.robot)

    def motion(self, state: ArmState, flange_T_ee: np.ndarray) -> tuple[Space, LoopConfig]:
        """See `DeployTable`: steps of the end effector's pose or of the joints, within their
        workspace."""
        from real.motion.step_spaces import step_space

        config = self._config
        max_steps = self._task.max_steps if config.max_steps is None else config.max_steps
        loop = replace(config.loop, max_steps=max_steps)
        return step_space(self._contract, state, self.robot, flange_T_ee, loop)

    def observe(self, state: ArmState) -> Observation:
        """Returns the contract's object fields and pictures, the instruction for a
        language-conditioned policy, and the scene for rendering.

        Raises:
            SafetyError: a camera has sent no picture for too long.
        """
        objects = {
            name: value
            for name, value in self._ask("object_observations").items()
            if name in self._fields
        }
        pictures = {} if self._cameras is None else self._cameras.observe(state)
        return {**objects, **pictures, **_scene_fields(*self._ask("scene"))}

    def update(self) -> None:
        """See `DeployTable`."""
        self.is_over()

    def is_over(self) -> bool:
        """See `DeployTable`: the task is solved or has failed."""
        solved, failed = self._ask("outcome")
        self._solved |= solved
        return solved or failed

    def describe(self) -> dict[str, Any]:
        """See `DeployTable`: with cameras also the 95th percentile of the pictures' ages [s]."""
        age = {} if self._cameras is None else self._cameras.describe()
        return {"success": self._solved, **age}

    @property
    def calibration(self) -> Mapping[str, CameraCalibration]:
        """See `DeployTable`."""
        return {} if self._cameras is None else self._cameras.calibrations

    def score(self, starts: Sequence[StartResult]) -> dict[str, Any]:
        """See `DeployTable`: with cameras the largest of the starts' ages of the pictures [s]."""
        from flows.deployment.cameras.twin_cameras import oldest_pictures

        return oldest_pictures(starts)

    def note(self, starts: Sequence[StartResult]) -> str:
        """See `DeployTable`."""
        return f"{sum(start.success for start in starts)} of {len(starts)} solved"

    def render(self, store: EpisodeStore, out: Path) -> dict[str, Any]:
        """See `DeployTable`: `paths.png` shows the paths of the fingertips."""
        from flows.reports.plots import draw_paths

        draw_paths(store, self._config.starts, out / "paths.png")
        return _render_videos(self._task, store, self._config.videos, out)

    def _ask(self, question: str) -> Any:
        assert self._twin is not None
        return self._twin.call(question)


@contextmanager
def gripper_of_twin(
    twin: Twin, host: str, options: GripperDriverConfig, robot: Robot
) -> Iterator[FrankaGripper]:
    """Connects the gripper of a simulated arm in lockstep."""
    from real.franka.gripper import FrankaGripper

    actions_before = twin.gripper_actions()

    def await_actions(actions: int) -> None:
        twin.wait_for_gripper(actions_before + actions)

    with FrankaGripper(host, options, robot.gripper, await_actions) as gripper:
        yield gripper


def _scene_fields(qpos: np.ndarray, goal: np.ndarray) -> dict[str, np.ndarray]:
    """Recorded fields of the simulated scene; a task may have no goal."""
    return {"qpos": qpos, "goal_state": goal} if goal.size else {"qpos": qpos}


def _render_videos(task: Task, store: EpisodeStore, videos: int, out: Path) -> dict[str, Any]:
    """Renders videos of the first episodes; without a renderer the metrics state the reason."""
    from sim.rendering.replay import render_states
    from sim.rendering.video import write_video
    from sim.scene.cameras import CamerasConfig

    camera = CamerasConfig(names=("overview",), height=VIDEO_SIZE[0], width=VIDEO_SIZE[1])
    rate = store.schema.streams["policy"].rate_hz
    names: list[str] = []
    for episode in range(min(videos, store.num_episodes)):
        steps = store.read(episode, "policy")
        qpos = steps["qpos"]
        goal_state = steps.get("goal_state", np.zeros((len(qpos), 0)))
        goal = np.zeros((len(qpos), 3))
        goal[:, : goal_state.shape[1]] = goal_state[:, :3]
        try:
            frames = render_states(task, qpos, goal, camera)
        except HandoffError as error:
            return {"no_pictures": str(error)}
        names.append(f"twin_start_{store.metadata(episode)['seed']}.mp4")
        write_video(out / names[-1], frames, VIDEO_SPEED * rate)
    return {"pictures": names}
