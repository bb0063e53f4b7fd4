"""Implements the push-T table: a T on a board, a pusher held by the arm, a tracker of the T, and a
camera above the board for policies that see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.deployment.config import robot_of_bundle
from flows.deployment.starts import StartResult
from flows.deployment.twin import DeployTable
from robots.franka.robot import Robot
from robots.interfaces import Observation
from robots.spec import FieldSpec

if TYPE_CHECKING:
    from flows.deployment.cameras.twin_cameras import TwinCameras
    from flows.deployment.config import DeployConfig
    from real.arm import ArmState
    from real.deploy.loop import LoopConfig
    from real.motion.planar_space import Plane
    from robots.contract import Contract
    from robots.episodes.schema import EpisodeSchema
    from robots.episodes.store import EpisodeStore
    from sim.twin.twin import Twin

EXTRA = {
    "block_pose": FieldSpec(
        shape=(3,), dtype="float64", unit="m, m, rad", frame="board", about="T x, y, angle"
    )
}
"""Fields recorded in addition to the policy's observation."""


class PushTTable(DeployTable):
    """The push-T table at the twin.

    Args:
        config: starts, robot and limits.
        contract: contract of the policy.

    Raises:
        HandoffError: the configured robot is not the policy's.
    """

    def __init__(self, config: DeployConfig, contract: Contract) -> None:
        from real.motion.planar_space import Plane

        self.robot = robot_of_bundle(contract, config.arm)
        self._config = config
        self._contract = contract
        self._plane = Plane(config.plane)
        self._plane.check_reach(config.loop.governor, self.robot)
        self._scene: PushTScene | None = None
        self._cameras: TwinCameras | None = None

    @property
    def make_world(self) -> Callable[[], Any]:
        """See `DeployTable`."""
        from sim.twin.push_t_world import PushTWorld

        return partial(PushTWorld, self.robot.config_name)

    def schema(self, twin: Twin) -> EpisodeSchema:
        """See `DeployTable`."""
        from real.deploy.episode_recorder import deploy_schema

        pictures = {} if self._cameras is None else self._cameras.pictures.fields()
        extra = {**EXTRA, **pictures}
        return deploy_schema(self._contract, extra, self._config.loop, self.robot)

    @contextmanager
    def cameras(self, twin: Twin) -> Iterator[None]:
        """See `DeployTable`: the camera above the board."""
        if not self._contract.sensors:
            yield
            return
        from flows.deployment.cameras.twin_cameras import open_board_camera

        with open_board_camera(self._contract.sensors, twin, self._config.cameras) as self._cameras:
            yield

    def place(self, twin: Twin, seed: int) -> None:
        """See `DeployTable`: places the T as gym-pusht does for the seed."""
        from sim.tasks.push_t.geometry import initial_state

        twin.reset(*initial_state(seed))
        self._scene = PushTScene(partial(twin.call, "tee_pose"), self._plane)
        if self._cameras is not None:
            self._cameras.begin(seed)

    def motion(self, state: ArmState, flange_T_ee: np.ndarray) -> tuple[Plane, LoopConfig]:
        """See `DeployTable`: positions on the board."""
        return self._plane, self._config.loop

    def observe(self, state: ArmState) -> Observation:
        """The contract's fields, the newest picture for a policy that observes it, and the pose of
        the T, which is recorded beside them.

        Raises:
            SafetyError: the camera has sent no picture for too long.
        """
        observed = self.scene.observe(state)
        fields = {
            name: value
            for name, value in observed.items()
            if name in self._contract.observation or name in EXTRA
        }
        return fields if self._cameras is None else fields | self._cameras.observe(state)

    def update(self) -> None:
        """See `DeployTable`."""
        self.scene.update()

    def is_over(self) -> bool:
        """See `DeployTable`: the T is at the goal, by the last update."""
        return self.scene.solved

    @property
    def scene(self) -> PushTScene:
        """The scene of the current episode."""
        assert self._scene is not None
        return self._scene

    @property
    def success(self) -> bool:
        """See `DeployTable`: at any policy step."""
        return self.scene.was_solved

    def describe(self) -> dict[str, Any]:
        """See `DeployTable`: the largest coverage of the goal, 0..1, and with a camera the 95th
        percentile of the pictures' ages [s]."""
        age = {} if self._cameras is None else self._cameras.describe()
        return {"coverage": self.scene.best, **age}

    def score(self, starts: Sequence[StartResult]) -> dict[str, Any]:
        """See `DeployTable`: the mean coverage with its interval, gym-pusht's score, and with a
        camera the largest of the starts' ages of the pictures [s]."""
        from flows.deployment.cameras.twin_cameras import oldest_pictures
        from sim.evaluation.intervals import bootstrap_mean
        from sim.tasks.push_t.geometry import SUCCESS_COVERAGE

        coverages = [start.about["coverage"] for start in starts]
        low, high = bootstrap_mean(coverages, seed=0)
        return {
            "coverage": float(np.mean(coverages)),
            "coverage_low": low,
            "coverage_high": high,
            "score": float(np.mean(np.minimum(np.array(coverages) / SUCCESS_COVERAGE, 1.0))),
            **oldest_pictures(starts),
        }

    def note(self, starts: Sequence[StartResult]) -> str:
        """See `DeployTable`."""
        mean = np.mean([start.about["coverage"] for start in starts])
        return f"mean coverage {mean:.2f} after {len(starts)}"

    def render(self, store: EpisodeStore, out: Path) -> dict[str, Any]:
        """See `DeployTable`: `pushes.png` shows every episode from above."""
        from flows.reports.plots import draw_pushes

        renderer = _render_videos(store, self.robot, self._config.videos, out)
        draw_pushes(store, out / "pushes.png")
        return {"renderer": renderer}


class PushTScene:
    """Observes the pusher, from the arm's state, and the T, from a tracker.

    Args:
        track: returns the pose (3,) of the T [m, m, rad], board frame.
        plane: plane of the board.
    """

    def __init__(self, track: Callable[[], np.ndarray], plane: Plane) -> None:
        self.track = track
        self.plane = plane
        self.coverage = 0.0
        """Coverage of the goal at the last update, 0..1."""
        self.best = 0.0
        """Largest coverage of the goal so far, 0..1."""

    @property
    def solved(self) -> bool:
        """Whether the T was at the goal at the last update."""
        from sim.tasks.push_t.geometry import SUCCESS_COVERAGE

        return self.coverage > SUCCESS_COVERAGE

    @property
    def was_solved(self) -> bool:
        """Whether the T was at the goal at any update."""
        from sim.tasks.push_t.geometry import SUCCESS_COVERAGE

        return self.best > SUCCESS_COVERAGE

    def update(self) -> np.ndarray:
        """Tracks the T and updates the coverage; returns the pose (3,) of the T."""
        from sim.tasks.push_t.geometry import coverage

        pose = self.track()
        self.coverage = coverage(pose)
        self.best = max(self.best, self.coverage)
        return pose

    def observe(self, state: ArmState) -> Observation:
        """Returns the contract's fields and the pose of the T, board frame."""
        from sim.tasks.push_t.geometry import keypoints

        pose = self.update()
        return {
            "keypoints": keypoints(pose).astype(np.float32),
            "agent": self.plane.position(state.base_T_ee).astype(np.float32),
            "block_pose": pose,
        }


def _render_videos(store: EpisodeStore, robot: Robot, videos: int, out: Path) -> str | None:
    """Renders videos of the first recorded episodes; returns the name of the renderer."""
    from sim.rendering.push_t import render_episode

    rate = store.schema.streams["policy"].rate_hz
    renderer = None
    for episode in range(min(videos, store.num_episodes)):
        policy = store.read(episode, "policy", ["block_pose"])
        q = store.read(episode, "robot", ["q"])["q"][:: round(1000.0 / rate)]
        frames = min(len(q), len(policy["block_pose"]))
        path = out / f"twin_start_{store.metadata(episode)['seed']}.mp4"
        renderer = render_episode(
            path, q[:frames], policy["block_pose"][:frames], 20.0, robot, renderer=renderer
        )
    return renderer
