"""Stage `deploy` of a simulated task: the gated bundle drives the FR3 twin and its hand at the
task's table.

As in `flows.stages.deploy` two sides meet here that never import one another: `sim` (arm, hand and
things behind the robot's two network protocols) and `real` (franky, governor, loop). The starts are
those of the task's evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from real.deploy.governor import GovernorConfig
from real.deploy.loop import LoopConfig
from real.franka.arm import FrankaConfig
from real.franka.gripper import HandConfig
from real.franka.impedance import GAINS, ImpedanceConfig
from robots.config import config
from robots.errors import HandoffError, SafetyError
from robots.franka import gripper as hand
from robots.interfaces import Observation, Progress
from robots.language.text import INSTRUCTION
from robots.spec import FieldSpec
from sim.twin.twin import TwinConfig

if TYPE_CHECKING:
    from real.arm import ArmState
    from real.deploy.onnx_policy import OnnxPolicy
    from robots.contract import Contract
    from robots.episodes.store import EpisodeStore
    from sim.tasks.task import Task
    from sim.twin.twin import Twin

IMPEDANCE = ImpedanceConfig(
    error_clip=GAINS.force_limit / GAINS.stiffness[0],
    rotation_clip=GAINS.torque_limit / GAINS.stiffness[3],
)
"""Springs that give way where those of the simulated worlds do."""
COLLISION_FORCE = (100.0, 100.0, 100.0, 30.0, 30.0, 30.0)
"""External force [N] and moment [Nm] that make the robot stop. A hand at work presses: at the end
of the steps' leash of 30 mm the springs do with 60 N, so the 50 N that suit a pusher would end what
is meant. libfranka's example of Cartesian impedance control sets 100 N."""
FILM_SIZE = (360, 480)
"""Height and width of the videos [px]."""
FILM_SPEED = 2.0
"""Times real time."""
SCENE = {
    "qpos": "generalised positions of the simulated scene",
    "goal_state": "the task's own variables",
}
"""Fields recorded beside what the policy sees."""


@config
class DeployTaskConfig:
    """Starts, robot and limits."""

    starts: int = 20
    """Episodes, each from the start that the simulated worlds draw for its seed."""
    first_seed: int = 100_000
    """Seed of the first start, and of the policy's noise there."""
    max_steps: int | None = None
    """Policy steps after which an episode ends; None: the task's."""
    videos: int = 2
    """First episodes that are rendered, at twice the speed."""
    twin: TwinConfig = field(default_factory=TwinConfig)
    arm: FrankaConfig = field(
        default_factory=lambda: FrankaConfig(
            realtime="ignore",
            tool_length=hand.TCP_OFFSET,
            impedance=IMPEDANCE,
            collision_force=COLLISION_FORCE,
        )
    )
    """`ignore` because the twin needs no real-time kernel; its address is the twin's."""
    hand: HandConfig = field(default_factory=HandConfig)
    loop: LoopConfig = field(
        default_factory=lambda: LoopConfig(
            stream_hz=200.0, governor=GovernorConfig(max_speed=0.8, max_acceleration=9.0)
        )
    )
    """The governor's box is that of the policy's steps; a step of 20 mm at 20 Hz along two axes is
    0.57 m/s."""


@dataclass(frozen=True)
class Start:
    """One episode's outcome."""

    seed: int
    success: bool
    fault: str | None
    """What ended it before its time."""
    seconds: float
    """Robot time [s]."""
    figures: dict[str, float]
    """Of `real.deploy.episode_recorder.tracking_figures`; none where it ended before its first
    step."""


def run(
    config: DeployTaskConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Runs `inputs["bundle"]` from every start; writes `store.zarr`, a picture and videos to `out`.

    A start that a limit or the robot ends counts as not solved, and is recorded with its fault.
    """
    from flows.stages.deploy import processor_for_twin
    from real.deploy.onnx_policy import OnnxPolicy
    from robots.episodes.store import EpisodeStore
    from sim.make import find_task
    from sim.twin.task_world import TaskWorld
    from sim.twin.twin import start_twin

    policy = OnnxPolicy(inputs["bundle"] / "policy.onnx")
    task = find_task(policy.contract.task)
    most = task.max_steps if config.max_steps is None else config.max_steps
    config = replace(config, loop=replace(config.loop, max_steps=most))
    world = partial(TaskWorld, task.name)
    began = time.perf_counter()
    starts: list[Start] = []
    with processor_for_twin() as cpu, start_twin(replace(config.twin, cpu=cpu), world) as twin:
        store = _new_store(out / "store.zarr", config, policy.contract, task, twin)
        for i in range(config.starts):
            starts.append(run_start(config, twin, policy, config.first_seed + i, store))
            solved = sum(start.success for start in starts)
            progress(len(starts), config.starts, f"{solved} of {len(starts)} solved")
        stats = twin.stats()
    store.close()
    recorded = EpisodeStore.open(out / "store.zarr", "r")
    _draw(recorded, starts, out / "paths.png")
    metrics = _metrics(starts, stats, time.perf_counter() - began)
    return metrics | _film(task, recorded, config.videos, out)


def run_start(
    config: DeployTaskConfig, twin: Twin, policy: OnnxPolicy, seed: int, store: EpisodeStore
) -> Start:
    """Lays the table, connects, runs one episode and records it; the arm is at rest when this
    returns or raises.

    Raises:
        HandoffError: see `flows.stages.deploy.run_start`.
    """
    from real.deploy.action_space import CartesianSteps
    from real.deploy.loop import run_episode
    from real.deploy.recording import Recording
    from real.franka.arm import FrankaArm
    from real.franka.gripper import FrankaHand

    twin.call("reset", seed)
    table, contract = Table(twin, policy.contract), policy.contract

    def outcome() -> dict[str, Any]:
        return {"seed": seed, "success": table.solved, "robot": "twin"}

    recording = Recording(store, outcome)
    with recording, ExitStack() as stack:
        told = twin.hand_actions()
        fingers = None
        if has_gripper(contract):
            heard = partial(_await_hand, twin, told)
            fingers = stack.enter_context(FrankaHand(config.twin.host, config.hand, heard))
        settings = replace(config.arm, host=config.twin.host)
        arm = stack.enter_context(FrankaArm(settings, twin, twin.wait_for_motion))
        space = CartesianSteps(contract, arm.preflight().base_T_ee)
        loop = replace(config.loop, governor=space.governed(config.loop.governor))
        try:
            with recording.of(arm):
                run_episode(
                    arm,
                    twin,
                    policy,
                    contract,
                    table.observe,
                    loop,
                    space=space,
                    flange_T_ee=arm.flange_T_ee,
                    seed=seed,
                    hand=fingers,
                    stop=table.over,
                    record=recording.record,
                )
        except SafetyError:
            # For the person who has seen what happened, and lays the table anew.
            arm.recover()
        table.over()
    seconds = recording.record.end - recording.record.begin
    return Start(seed, table.solved, recording.fault, seconds, recording.figures)


def has_gripper(contract: Contract) -> bool:
    """Whether an action has an entry for the hand beside the arm's."""
    return contract.steps is not None and contract.action.shape[0] > len(contract.steps.axes)


def _await_hand(twin: Twin, before: int, actions: int) -> None:
    twin.wait_for_hand(before + actions)


class Table:
    """What the policy is shown of the things on the table, as by a tracker that sees them, and how
    it goes."""

    def __init__(self, twin: Twin, contract: Contract) -> None:
        self._call = twin.call
        self._fields = {*contract.observation, *([INSTRUCTION] if contract.instruction else [])}
        self.solved = False
        """Now or before."""

    def observe(self, state: ArmState) -> Observation:
        """The contract's fields of things, what the task asks for in words if the policy reads, and
        what to draw the things from."""
        things = {
            name: value for name, value in self._call("things").items() if name in self._fields
        }
        return {**things, **_drawn_from(*self._call("scene"))}

    def over(self) -> bool:
        """Whether it is solved, or beyond repair."""
        solved, failed = self._call("outcome")
        self.solved |= solved
        return solved or failed


def _drawn_from(qpos: np.ndarray, goal: np.ndarray) -> dict[str, np.ndarray]:
    """What is recorded of the simulated scene; a task may have no goal."""
    return {"qpos": qpos, "goal_state": goal} if goal.size else {"qpos": qpos}


def _new_store(
    path: Path, config: DeployTaskConfig, contract: Contract, task: Task, twin: Twin
) -> EpisodeStore:
    """An empty store: an interrupted deployment starts over, so that its figures belong to one
    run."""
    import shutil

    from real.deploy.episode_recorder import deploy_schema
    from robots.episodes.store import EpisodeStore

    extra = {
        name: FieldSpec(shape=value.shape, dtype="float64", about=SCENE[name])
        for name, value in _drawn_from(*twin.call("scene")).items()
    }
    if contract.steps is None:
        raise HandoffError(
            f"deploy: the contract of {contract.task} does not say what a step is. Export it again."
        )
    if contract.instruction and INSTRUCTION in task.observations:
        extra[INSTRUCTION] = task.observations[INSTRUCTION].spec
    coordinates = len(contract.steps.axes)
    shutil.rmtree(path, ignore_errors=True)
    schema = deploy_schema(contract, extra, config.loop.stream_hz, "base", coordinates=coordinates)
    return EpisodeStore.create(path, schema)


def _metrics(starts: list[Start], stats: dict[str, float], wall_seconds: float) -> dict[str, Any]:
    from sim.evaluation.intervals import success_rate

    def gather(name: str) -> list[float]:
        return [start.figures[name] for start in starts if start.figures]

    def of(name: str, pick: Callable[[list[float]], float]) -> float | None:
        return pick(gather(name)) if gather(name) else None

    return {
        "starts": len(starts),
        "success": success_rate([start.success for start in starts]),
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
                "success": start.success,
                "fault": start.fault,
                "seconds": start.seconds,
            }
            for start in starts
        ],
    }


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


def _draw(store: EpisodeStore, starts: list[Start], path: Path) -> None:
    """The fingertips' ways, from above and from the side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    views = [figure.add_subplot(1, 2, i + 1) for i in range(2)]
    colours = {True: "#2e8b57", False: "#c0392b"}
    for episode in range(store.num_episodes):
        solved = bool(store.metadata(episode)["success"])
        way = store.read(episode, "robot", ["base_T_ee"])["base_T_ee"][::20, :3, 3]
        for axes, across in zip(views, (1, 2), strict=True):
            axes.plot(way[:, 0], way[:, across], color=colours[solved], linewidth=0.8, alpha=0.7)
            axes.plot(*way[-1, [0, across]], "o", color=colours[solved], markersize=3)
    for axes, label in zip(views, ("y [m]", "z [m]"), strict=True):
        axes.set(xlabel="x [m]", ylabel=label, aspect="equal")
        axes.grid(alpha=0.3)
    solved = sum(start.success for start in starts)
    figure.suptitle(
        f"Ways of the fingertips; green: solved ({solved} of {len(starts)}), dots: where they ended"
    )
    figure.savefig(path, dpi=110)
