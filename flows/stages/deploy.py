"""Stage `deploy`: the gated bundle drives the FR3 twin through the real client, and the runs become
episodes.

Here the two sides meet that never import one another: `sim` (the twin behind the robot's network
protocol) and `real` (franky, governor, loop). Only the address and the clock tell that the robot is
simulated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from real.deploy.loop import LoopConfig
from real.deploy.planar_space import PlaneConfig
from real.franka.arm import FrankaConfig
from robots.config import config
from robots.errors import SafetyError
from robots.interfaces import Observation, Progress
from robots.spec import FieldSpec
from sim.twin.twin import TwinConfig

if TYPE_CHECKING:
    from real.arm import ArmState
    from real.deploy.onnx_policy import OnnxPolicy
    from robots.episodes.store import EpisodeStore
    from sim.twin.twin import Twin

EXTRA = {
    "block_pose": FieldSpec(
        shape=(3,), dtype="float64", unit="m, m, rad", frame="board", about="T x, y, angle"
    )
}
"""Recorded beside what the policy sees."""


@config
class DeployConfig:
    """Starts, robot and limits."""

    starts: int = 20
    """Episodes, each from the start that gym-pusht draws for its seed."""
    first_seed: int = 100_000
    """Seed of the first start, and of the policy's noise there."""
    videos: int = 2
    """First episodes that are rendered, at twice the speed."""
    twin: TwinConfig = field(default_factory=TwinConfig)
    arm: FrankaConfig = field(default_factory=lambda: FrankaConfig(realtime="ignore"))
    """`ignore` because the twin needs no real-time kernel; its address is the twin's."""
    plane: PlaneConfig = field(default_factory=PlaneConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)


@dataclass(frozen=True)
class Start:
    """One episode's outcome."""

    seed: int
    coverage: float
    """Largest coverage of the goal at any policy step, 0..1."""
    seconds: float
    """Robot time [s]."""
    figures: dict[str, float]
    """Of `real.deploy.episode_recorder.tracking_figures`; none where it ended before its first
    step."""
    fault: str | None = None
    """What ended it before its time."""


def run(
    config: DeployConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Runs `inputs["bundle"]` from every start; writes `store.zarr`, a picture and videos to `out`.

    A start that a limit or the robot ends counts with what it had covered until then, and is
    recorded with its fault.
    """
    from real.deploy.onnx_policy import OnnxPolicy
    from robots.episodes.store import EpisodeStore
    from sim.twin.push_t_world import PushTWorld
    from sim.twin.twin import start_twin

    policy = OnnxPolicy(inputs["bundle"] / "policy.onnx")
    store = _new_store(out / "store.zarr", config, policy)
    began = time.perf_counter()
    starts: list[Start] = []
    with processor_for_twin() as cpu, start_twin(replace(config.twin, cpu=cpu), PushTWorld) as twin:
        for i in range(config.starts):
            tell = partial(_tell, progress, starts, config.starts)
            starts.append(run_start(config, twin, policy, config.first_seed + i, store, tell))
        stats = twin.stats()
    store.close()
    metrics = _metrics(starts, stats, time.perf_counter() - began)
    recorded = EpisodeStore.open(out / "store.zarr", "r")
    metrics["renderer"] = _render(config, recorded, out)
    _draw(recorded, out / "pushes.png")
    return metrics


def run_start(
    config: DeployConfig,
    twin: Twin,
    policy: OnnxPolicy,
    seed: int,
    store: EpisodeStore,
    progress: Progress,
) -> Start:
    """Places arm and T, connects, runs one episode and records it; the arm is at rest when this
    returns or raises.

    Raises:
        HandoffError: what ended the episode was no limit of the arm and no stop of its own, or it
            cannot be stored.
    """
    from real.deploy.loop import run_episode
    from real.deploy.planar_space import Plane
    from real.deploy.recording import Recording
    from real.franka.arm import FrankaArm
    from sim.tasks.push_t.geometry import SUCCESS_COVERAGE, initial_state

    twin.call("reset", *initial_state(seed))
    scene = Scene(partial(twin.call, "tee_pose"), Plane(config.plane))

    def outcome() -> dict[str, Any]:
        success = scene.best > SUCCESS_COVERAGE
        return {"seed": seed, "coverage": scene.best, "success": success, "robot": "twin"}

    settings = replace(config.arm, host=config.twin.host)
    recording = Recording(store, outcome)
    with recording, FrankaArm(settings, twin, twin.wait_for_motion) as arm:
        arm.preflight()
        try:
            with recording.of(arm):
                run_episode(
                    arm,
                    twin,
                    policy,
                    policy.contract,
                    scene.observe,
                    config.loop,
                    space=scene.plane,
                    flange_T_ee=arm.flange_T_ee,
                    seed=seed,
                    stop=lambda: scene.coverage > SUCCESS_COVERAGE,
                    record=recording.record,
                    progress=progress,
                )
        except SafetyError:
            # For the person who has seen what happened, and lays the table anew.
            arm.recover()
        scene.look()
    seconds = recording.record.end - recording.record.begin
    return Start(seed, scene.best, seconds, recording.figures, recording.fault)


@contextmanager
def processor_for_twin() -> Iterator[int | None]:
    """Keeps this process off one processor, the twin's: in lockstep each must find the other
    awake."""
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        yield None
        return
    cpu = max(every)
    os.sched_setaffinity(0, every - {cpu})
    try:
        yield cpu
    finally:
        os.sched_setaffinity(0, every)


def _tell(
    progress: Progress, starts: list[Start], episodes: int, done: int, total: int, note: str = ""
) -> None:
    """Progress of one episode as progress of all of them."""
    if starts:
        note = (
            f"mean coverage {np.mean([start.coverage for start in starts]):.2f} after {len(starts)}"
        )
    progress(len(starts) * total + done, episodes * total, note)


class Scene:
    """What the policy is shown of the table: the pusher from the arm's own state, the T from who
    tracks it."""

    def __init__(self, track: Callable[[], np.ndarray], plane: Any) -> None:
        """`track` tells the T's pose (3,) [m, m, rad], board."""
        self.track, self.plane = track, plane
        self.coverage = self.best = 0.0
        """Of the goal: at the last look, and the largest so far."""

    def look(self) -> np.ndarray:
        """The T's pose (3,) now, and its coverage taken down."""
        from sim.tasks.push_t.geometry import coverage

        pose = self.track()
        self.coverage = coverage(pose)
        self.best = max(self.best, self.coverage)
        return pose

    def observe(self, state: ArmState) -> Observation:
        """The contract's fields and the block's pose, board frame."""
        from sim.tasks.push_t.geometry import keypoints

        pose = self.look()
        return {
            "keypoints": keypoints(pose).astype(np.float32),
            "agent": self.plane.position(state.base_T_ee).astype(np.float32),
            "block_pose": pose,
        }


def _new_store(path: Path, config: DeployConfig, policy: OnnxPolicy) -> EpisodeStore:
    """An empty store: an interrupted deployment starts over, so that its figures belong to one
    run."""
    import shutil

    from real.deploy.episode_recorder import deploy_schema
    from robots.episodes.store import EpisodeStore

    shutil.rmtree(path, ignore_errors=True)
    return EpisodeStore.create(path, deploy_schema(policy.contract, EXTRA, config.loop.stream_hz))


def _metrics(starts: list[Start], stats: dict[str, float], wall_seconds: float) -> dict[str, Any]:
    from sim.evaluation.intervals import bootstrap_mean, success_rate
    from sim.tasks.push_t.geometry import SUCCESS_COVERAGE

    coverages = [start.coverage for start in starts]
    low, high = bootstrap_mean(coverages, seed=0)

    def of(name: str, pick: Callable[[list[float]], float]) -> float | None:
        found = [start.figures[name] for start in starts if start.figures]
        return pick(found) if found else None

    return {
        "starts": len(starts),
        "coverage": float(np.mean(coverages)),
        "coverage_low": low,
        "coverage_high": high,
        "score": float(np.mean(np.minimum(np.array(coverages) / SUCCESS_COVERAGE, 1.0))),
        "success": success_rate([value > SUCCESS_COVERAGE for value in coverages]),
        "faults": sum(start.fault is not None for start in starts),
        "realtime_factor": stats["realtime_factor"],
        "lost_packets": int(stats["lost_packets"]),
        "command_success_rate": of("min_success_rate", min),
        "robot_seconds": sum(start.seconds for start in starts),
        "wall_seconds": wall_seconds,
        "tracking_rms_m": of(
            "tracking_rms_m", lambda values: float(np.sqrt(np.mean(np.square(values))))
        ),
        "peak_speed_m_s": of("peak_speed_m_s", max),
        "peak_tau_ext_nm": of("peak_tau_ext_nm", max),
        "per_start": [
            {
                "seed": start.seed,
                "coverage": start.coverage,
                "fault": start.fault,
                "seconds": start.seconds,
            }
            for start in starts
        ],
    }


def _render(config: DeployConfig, store: EpisodeStore, out: Path) -> str | None:
    """Videos of the first episodes, from what was recorded; returns which renderer drew them."""
    from sim.rendering.push_t import render_episode

    renderer = None
    for episode in range(min(config.videos, store.num_episodes)):
        policy = store.read(episode, "policy", ["block_pose"])
        robot = store.read(episode, "robot", ["q"])
        every = round(1000.0 / store.schema.streams["policy"].rate_hz)
        q = robot["q"][::every]
        frames = min(len(q), len(policy["block_pose"]))
        path = out / f"twin_start_{store.metadata(episode)['seed']}.mp4"
        renderer = render_episode(
            path, q[:frames], policy["block_pose"][:frames], 20.0, renderer=renderer
        )
    return renderer


def _draw(store: EpisodeStore, path: Path) -> None:
    """Every start from above: where the T began and ended, the pusher's way, the goal."""
    from matplotlib.figure import Figure

    from sim.tasks.push_t.geometry import BOARD_SIZE, GOAL_POSE, tee_polygons

    columns = max(1, min(5, store.num_episodes))
    rows = max(1, -(-store.num_episodes // columns))
    figure = Figure(figsize=(2.3 * columns, 2.5 * rows), layout="constrained")
    for i in range(store.num_episodes):
        axes = figure.add_subplot(rows, columns, i + 1)
        seen = store.read(i, "policy", ["agent", "block_pose"])
        first, last = seen["block_pose"][0], seen["block_pose"][-1]
        for pose, colour, alpha in (
            (GOAL_POSE, "#8fde8f", 1.0),
            (first, "#b8c0cc", 0.5),
            (last, "#5c6b80", 0.8),
        ):
            for polygon in tee_polygons(pose):
                axes.fill(*polygon.T, color=colour, alpha=alpha, linewidth=0)
        axes.plot(*seen["agent"].T, color="#4169e1", linewidth=0.7)
        axes.set(xlim=(0, BOARD_SIZE), ylim=(BOARD_SIZE, 0), aspect="equal", xticks=[], yticks=[])
        told = store.metadata(i)
        stopped = ", fault" if told["fault"] else ""
        axes.set_title(f"{told['seed']}: {told['coverage']:.2f}{stopped}", fontsize=8)
    figure.savefig(path, dpi=110)
