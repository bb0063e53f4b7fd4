"""Runs a policy at a table of the twin, start by start, and records it.

Here the two sides meet that never import one another: `sim` (a world behind the robot's network
protocols) and `real` (franky, governor, loop). Only the address and the clock tell that the robot
is simulated. `flows.deployment.push_t_table` and `flows.deployment.task_table` are the tables.
"""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.errors import SafetyError
from robots.franka.robot import Robot
from robots.interfaces import Observation, Progress

if TYPE_CHECKING:
    from flows.deployment.config import DeployConfig, DeployTaskConfig
    from real.arm import ArmState
    from real.deploy.action_space import Space
    from real.deploy.loop import LoopConfig
    from real.deploy.onnx_policy import OnnxPolicy
    from real.franka.gripper import FrankaGripper
    from robots.contract import Contract
    from robots.episodes.schema import EpisodeSchema
    from robots.episodes.store import EpisodeStore
    from sim.twin.twin import Twin


@dataclass(frozen=True)
class StartResult:
    """One episode's outcome."""

    seed: int
    success: bool
    about: Mapping[str, Any]
    """What the table tells of it: `DeployTable.describe`."""
    seconds: float
    """Robot time [s]."""
    figures: Mapping[str, float]
    """Of `real.deploy.episode_recorder.tracking_figures`; none where it ended before its first
    step."""
    fault: str | None = None
    """What ended it before its time."""


class DeployTable(ABC):
    """What lies before the simulated arm, and what a policy is shown of it."""

    robot: Robot
    """The arm."""

    @property
    @abstractmethod
    def success(self) -> bool:
        """Whether the episode is solved, now or before."""

    @property
    @abstractmethod
    def make_world(self) -> Callable[[], Any]:
        """Builds the simulated world in the twin's process; picklable."""

    @abstractmethod
    def schema(self, twin: Twin) -> EpisodeSchema:
        """Streams and fields of the recorded episodes."""

    @abstractmethod
    def place(self, twin: Twin, seed: int) -> None:
        """Lays the table for the start of that seed, before the arm is connected."""

    def gripper(self, twin: Twin) -> AbstractContextManager[FrankaGripper | None]:
        """The connected gripper, where the policy commands one."""
        return nullcontext()

    @abstractmethod
    def motion(self, base_T_ee: np.ndarray) -> tuple[Space, LoopConfig]:
        """The coordinates in which the policy's actions are understood, and rates and limits there.

        Args:
            base_T_ee: (4, 4) the end effector where the episode begins [m].
        """

    @abstractmethod
    def observe(self, state: ArmState) -> Observation:
        """The contract's fields that arm and gripper do not tell, and what else is recorded."""

    @abstractmethod
    def look(self) -> None:
        """Takes down how the episode stands, once the arm is at rest."""

    @abstractmethod
    def over(self) -> bool:
        """Whether there is nothing left to do: asked at every step of the policy."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """How the episode went, for its metadata and for the metrics."""

    @abstractmethod
    def score(self, starts: Sequence[StartResult]) -> dict[str, Any]:
        """Metrics of all starts beside the success rate and those of the arm."""

    @abstractmethod
    def note(self, starts: Sequence[StartResult]) -> str:
        """How it goes so far, in a phrase; at least one start has been made."""

    @abstractmethod
    def draw(self, store: EpisodeStore, out: Path) -> dict[str, Any]:
        """Writes a picture and videos of the recorded episodes to `out`; returns metrics about
        them."""


@dataclass(frozen=True)
class TwinSetup:
    """What stays the same from start to start."""

    config: DeployConfig | DeployTaskConfig
    policy: OnnxPolicy
    table: DeployTable
    twin: Twin
    store: EpisodeStore


def deploy_at_twin(
    config: DeployConfig | DeployTaskConfig,
    bundle: Path,
    make_table: Callable[[Contract], DeployTable],
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Runs the policy of `bundle` from every start; writes `store.zarr`, a picture and videos.

    A start that a limit or the robot ends counts with what it had reached until then, and is
    recorded with its fault.

    Args:
        config: starts, robot and limits.
        bundle: directory with `policy.onnx`.
        make_table: the table for a policy of that contract.
        out: folder to write to.
        progress: told the policy steps done, of all starts together.

    Returns:
        The metrics.
    """
    from real.deploy.onnx_policy import OnnxPolicy
    from robots.episodes.store import EpisodeStore
    from sim.twin.twin import start_twin

    policy = OnnxPolicy(bundle / "policy.onnx")
    table = make_table(policy.contract)
    path = out / "store.zarr"
    began = time.perf_counter()
    with (
        processor_for_twin() as cpu,
        start_twin(replace(config.twin, cpu=cpu), table.make_world) as twin,
    ):
        # An interrupted deployment starts over, so that its figures belong to one run.
        shutil.rmtree(path, ignore_errors=True)
        with EpisodeStore.create(path, table.schema(twin)) as store:
            starts = run_starts(TwinSetup(config, policy, table, twin, store), progress)
        stats = twin.stats()
    metrics = summarise_starts(table, starts, stats, time.perf_counter() - began)
    return metrics | table.draw(EpisodeStore.open(path, "r"), out)


def run_starts(setup: TwinSetup, progress: Progress) -> list[StartResult]:
    """Runs one episode from every start of the configuration."""
    config, starts = setup.config, []

    def tell(done: int, total: int, note: str = "") -> None:
        note = setup.table.note(starts) if starts else note
        progress(len(starts) * total + done, config.starts * total, note)

    for number in range(config.starts):
        starts.append(run_start(setup, config.first_seed + number, tell))
    return starts


def run_start(setup: TwinSetup, seed: int, progress: Progress) -> StartResult:
    """Lays the table, connects, runs one episode and records it; the arm is at rest when this
    returns or raises.

    Raises:
        HandoffError: what ended the episode was no limit of the arm and no stop of its own, or it
            cannot be stored.
    """
    from real.deploy.loop import run_episode
    from real.deploy.recording import EpisodeRecording
    from real.franka.arm import FrankaArm

    config, table, twin = setup.config, setup.table, setup.twin
    table.place(twin, seed)

    def outcome() -> dict[str, Any]:
        robot = f"{table.robot.name} twin"
        return {"seed": seed, **table.describe(), "success": table.success, "robot": robot}

    settings = replace(config.arm, host=config.twin.host, robot=table.robot.name)
    recording = EpisodeRecording(setup.store, outcome)
    with (
        recording,
        table.gripper(twin) as gripper,
        FrankaArm(settings, twin, twin.wait_for_motion) as arm,
    ):
        space, loop = table.motion(arm.preflight().base_T_ee)
        try:
            with recording.of(arm):
                run_episode(
                    arm,
                    twin,
                    setup.policy,
                    setup.policy.contract,
                    table.observe,
                    loop,
                    space=space,
                    flange_T_ee=arm.flange_T_ee,
                    seed=seed,
                    gripper=gripper,
                    stop=table.over,
                    record=recording.record,
                    progress=progress,
                )
        except SafetyError:
            # For the person who has seen what happened, and lays the table anew.
            arm.recover()
        table.look()
    return StartResult(
        seed=seed,
        success=table.success,
        about=table.describe(),
        seconds=recording.record.end - recording.record.begin,
        figures=recording.figures,
        fault=recording.fault,
    )


def summarise_starts(
    table: DeployTable,
    starts: Sequence[StartResult],
    stats: Mapping[str, float],
    wall_seconds: float,
) -> dict[str, Any]:
    """The metrics of all starts; `stats` are the twin's."""
    from sim.evaluation.intervals import success_rate

    def over_starts(name: str, pick: Callable[[list[float]], float]) -> float | None:
        found = [start.figures[name] for start in starts if start.figures]
        return pick(found) if found else None

    return {
        "starts": len(starts),
        **table.score(starts),
        "success": success_rate([start.success for start in starts]),
        "faults": sum(start.fault is not None for start in starts),
        "realtime_factor": stats["realtime_factor"],
        "lost_packets": int(stats["lost_packets"]),
        "command_success_rate": over_starts("min_success_rate", min),
        "robot_seconds": sum(start.seconds for start in starts),
        "wall_seconds": wall_seconds,
        "tracking_rms_m": over_starts(
            "tracking_rms_m", lambda values: float(np.sqrt(np.mean(np.square(values))))
        ),
        "peak_speed_m_s": over_starts("peak_speed_m_s", max),
        "peak_tau_ext_nm": over_starts("peak_tau_ext_nm", max),
        "per_start": [
            {"seed": start.seed, **start.about, "fault": start.fault, "seconds": start.seconds}
            for start in starts
        ],
    }


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
