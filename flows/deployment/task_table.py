"""The table of a simulated task at the twin, with the robot's hand; its starts are those of the
task's evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.deployment.config import robot_of_bundle
from flows.deployment.twin import DeployTable, StartResult
from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.language.text import INSTRUCTION
from robots.spec import FieldSpec

if TYPE_CHECKING:
    from flows.deployment.config import DeployTaskConfig
    from real.arm import ArmState
    from real.deploy.action_space import CartesianSteps
    from real.deploy.loop import LoopConfig
    from real.franka.gripper import FrankaGripper
    from robots.contract import Contract
    from robots.episodes.schema import EpisodeSchema
    from robots.episodes.store import EpisodeStore
    from sim.tasks.task import Task
    from sim.twin.twin import Twin

FILM_SIZE = (360, 480)
"""Height and width of the videos [px]."""
FILM_SPEED = 2.0
"""Speed of the videos in units of real time."""
SCENE = {
    "qpos": "generalised positions of the simulated scene",
    "goal_state": "the task's own variables",
}
"""Fields recorded beside what the policy sees."""


class TaskTable(DeployTable):
    """The table of the task that the contract names, at the twin.

    Args:
        config: starts, robot and limits.
        contract: of the policy.

    Raises:
        HandoffError: there is no such task, or the robot is another than the policy's.
    """

    def __init__(self, config: DeployTaskConfig, contract: Contract) -> None:
        from sim.make import find_task

        self._config = config
        self._contract = contract
        self.robot = robot_of_bundle(contract, config.arm)
        self._task = find_task(contract.task, robot=self.robot.name)
        self._fields = {*contract.observation, *([INSTRUCTION] if contract.instruction else [])}
        self._twin: Twin | None = None
        self._solved = False

    @property
    def success(self) -> bool:
        """See `DeployTable`."""
        return self._solved

    @property
    def make_world(self) -> Callable[[], Any]:
        """See `DeployTable`."""
        from sim.twin.task_world import TaskWorld

        return partial(TaskWorld, self._task.name, self.robot.name)

    def schema(self, twin: Twin) -> EpisodeSchema:
        """See `DeployTable`.

        Raises:
            HandoffError: the contract does not say what a step is.
        """
        from real.deploy.episode_recorder import deploy_schema

        contract = self._contract
        if contract.steps is None:
            raise HandoffError(
                f"deploy: the contract of {contract.task} does not say what a step is. Export it again."
            )
        extra = {
            name: FieldSpec(shape=value.shape, dtype="float64", about=SCENE[name])
            for name, value in _drawn_from(*twin.call("scene")).items()
        }
        if contract.instruction and INSTRUCTION in self._task.observations:
            extra[INSTRUCTION] = self._task.observations[INSTRUCTION].spec
        rate = self._config.loop.stream_hz
        axes = len(contract.steps.axes)
        return deploy_schema(contract, extra, rate, self.robot, "base", coordinates=axes)

    def place(self, twin: Twin, seed: int) -> None:
        """See `DeployTable`: as the simulated worlds draw it for the seed."""
        twin.call("reset", seed)
        self._twin = twin
        self._solved = False

    @contextmanager
    def gripper(self, twin: Twin) -> Iterator[FrankaGripper | None]:
        """See `DeployTable`."""
        from real.franka.gripper import FrankaGripper

        if not has_gripper(self._contract):
            yield None
            return
        before = twin.hand_actions()

        def await_actions(actions: int) -> None:
            twin.wait_for_hand(before + actions)

        host, options, limits = self._config.twin.host, self._config.hand, self.robot.gripper
        with FrankaGripper(host, options, limits, await_actions) as hand:
            yield hand

    def motion(self, base_T_ee: np.ndarray) -> tuple[CartesianSteps, LoopConfig]:
        """See `DeployTable`: steps of the hand's pose, in the box that they lead in."""
        from real.deploy.action_space import CartesianSteps

        config = self._config
        space = CartesianSteps(self._contract, base_T_ee, self.robot)
        most = self._task.max_steps if config.max_steps is None else config.max_steps
        governor = space.governed(config.loop.governor)
        return space, replace(config.loop, governor=governor, max_steps=most)

    def observe(self, state: ArmState) -> Observation:
        """The contract's fields of things, what the task asks for in words if the policy reads, and
        what to draw the things from."""
        things = {
            name: value for name, value in self._ask("things").items() if name in self._fields
        }
        return {**things, **_drawn_from(*self._ask("scene"))}

    def look(self) -> None:
        """See `DeployTable`."""
        self.over()

    def over(self) -> bool:
        """See `DeployTable`: it is solved, or beyond repair."""
        solved, failed = self._ask("outcome")
        self._solved |= solved
        return solved or failed

    def describe(self) -> dict[str, Any]:
        """See `DeployTable`."""
        return {"success": self._solved}

    def score(self, starts: Sequence[StartResult]) -> dict[str, Any]:
        """See `DeployTable`: the success rate says it all."""
        return {}

    def note(self, starts: Sequence[StartResult]) -> str:
        """See `DeployTable`."""
        return f"{sum(start.success for start in starts)} of {len(starts)} solved"

    def draw(self, store: EpisodeStore, out: Path) -> dict[str, Any]:
        """See `DeployTable`: `paths.png` shows the fingertips' ways."""
        from flows.reports.plots import draw_paths

        draw_paths(store, self._config.starts, out / "paths.png")
        return _film(self._task, store, self._config.videos, out)

    def _ask(self, question: str) -> Any:
        assert self._twin is not None
        return self._twin.call(question)


def has_gripper(contract: Contract) -> bool:
    """Whether an action has an entry for the hand beside the arm's."""
    return contract.steps is not None and contract.action.shape[0] > len(contract.steps.axes)


def _drawn_from(qpos: np.ndarray, goal: np.ndarray) -> dict[str, np.ndarray]:
    """What is recorded of the simulated scene; a task may have no goal."""
    return {"qpos": qpos, "goal_state": goal} if goal.size else {"qpos": qpos}


def _film(task: Task, store: EpisodeStore, videos: int, out: Path) -> dict[str, Any]:
    """Videos of the first episodes; a machine that cannot draw says so in the metrics."""
    from sim.rendering.replay import draw
    from sim.rendering.video import write_video
    from sim.scene.cameras import CamerasConfig

    camera = CamerasConfig(names=("overview",), height=FILM_SIZE[0], width=FILM_SIZE[1])
    rate, films = store.schema.streams["policy"].rate_hz, []
    for episode in range(min(videos, store.num_episodes)):
        seen = store.read(episode, "policy")
        qpos, told = seen["qpos"], seen.get("goal_state", np.zeros((len(seen["qpos"]), 0)))
        goal = np.zeros((len(qpos), 3))
        goal[:, : told.shape[1]] = told[:, :3]
        try:
            frames = draw(task, qpos, goal, camera)
        except HandoffError as error:
            return {"no_pictures": str(error)}
        films.append(f"twin_start_{store.metadata(episode)['seed']}.mp4")
        write_video(out / films[-1], frames, FILM_SPEED * rate)
    return {"pictures": films}
