"""Runs a policy on the twin from every start and records the episodes.

This module connects `sim` (a simulation behind the robot's network protocols) and `real` (franky,
governor, control loop), which do not import each other. Only the address and the clock differ from
a real robot. `flows.deployment.push_t_table` and `flows.deployment.task_table` implement the
tables.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.deployment.config import INFERENCES
from flows.deployment.robot_limit import held_arm
from flows.deployment.starts import StartJournal, StartResult, open_store
from flows.runner.artifact import file_digest
from robots.config import to_plain
from robots.contract import ONNX_FILE
from robots.errors import HandoffError, SafetyError
from robots.franka.robot import Robot
from robots.interfaces import Observation, Progress
from robots.specifications.shares import outcomes, satisfied_shares

if TYPE_CHECKING:
    from flows.deployment.config import DeployConfig, DeployTaskConfig
    from real.arm import ArmState
    from real.deploy.loop import LoopConfig
    from real.deploy.onnx_policy import OnnxPolicy
    from real.driver.driver import Driver
    from real.franka.gripper import FrankaGripper
    from real.motion.action_space import Space
    from robots.contract import Contract
    from robots.episodes.metadata.camera_calibration import CameraCalibration
    from robots.episodes.schema import EpisodeSchema
    from robots.episodes.store import EpisodeStore
    from sim.twin.twin import Twin


PATIENCE = 3600.0
"""Time for which a run waits while a session or another run has the simulated arm [s]."""
JOURNAL = "starts.jsonl"
"""File with the finished starts of a deployment that has not ended."""
MAX_REPEATS = 3
"""Largest number of times that a start is run again because its connection to the twin was lost,
which happens only on a computer that delays both for seconds."""
COUNTED = ("motion_ticks", "motion_s", "lost_packets")
"""Counts of `sim.twin.twin.Twin.stats` that are summed over the starts."""


class DeployTable(ABC):
    """The objects on the simulated arm's table, and the policy's observation of them."""

    robot: Robot
    """The arm."""

    @property
    @abstractmethod
    def success(self) -> bool:
        """Whether the episode has been solved at any time."""

    @property
    @abstractmethod
    def make_world(self) -> Callable[[], Any]:
        """Factory of the simulated world in the twin's process; picklable."""

    @property
    def calibration(self) -> Mapping[str, CameraCalibration]:
        """Calibration of the cameras by the name of the field with their pictures."""
        return {}

    @abstractmethod
    def schema(self, twin: Twin) -> EpisodeSchema:
        """Returns the streams and fields of the recorded episodes."""

    @abstractmethod
    def place(self, twin: Twin, seed: int) -> None:
        """Places the objects for the start with that seed; called before the arm is connected."""

    def cameras(self, twin: Twin) -> AbstractContextManager[object]:
        """Opens the cameras that the policy observes, for all episodes of a deployment."""
        return nullcontext()

    def gripper(self, twin: Twin) -> AbstractContextManager[FrankaGripper | None]:
        """Connects the gripper, if the policy commands one."""
        return nullcontext()

    @abstractmethod
    def motion(self, state: ArmState, flange_T_ee: np.ndarray) -> tuple[Space, LoopConfig]:
        """Returns the coordinates of the policy's actions, with rates and limits of the loop.

        Args:
            state: state of the arm at the start of the episode.
            flange_T_ee: (4, 4) end effector in the flange frame [m].
        """

    @abstractmethod
    def observe(self, state: ArmState) -> Observation:
        """Returns the contract's fields that arm and gripper do not provide, and further recorded
        fields."""

    @abstractmethod
    def update(self) -> None:
        """Updates the outcome of the episode, once the arm is at rest."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether the episode is over; called at every step of the policy."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Returns the outcome of the episode, for its metadata and the metrics."""

    @abstractmethod
    def score(self, starts: Sequence[StartResult]) -> dict[str, Any]:
        """Returns metrics of all starts in addition to the success rate and the arm's metrics."""

    @abstractmethod
    def note(self, starts: Sequence[StartResult]) -> str:
        """Summarises the episodes so far in a phrase, for the progress display; there is at least
        one."""

    @abstractmethod
    def render(self, store: EpisodeStore, out: Path) -> dict[str, Any]:
        """Writes a plot and videos of the recorded episodes to `out`; returns metrics about
        them."""


@dataclass(frozen=True)
class TwinSetup:
    """The parts of a deployment that all starts share."""

    config: DeployConfig | DeployTaskConfig
    policy: OnnxPolicy
    table: DeployTable
    twin: Twin
    store: EpisodeStore
    driver: Driver


def deploy_at_twin(
    config: DeployConfig | DeployTaskConfig,
    bundle: Path,
    make_table: Callable[[Contract], DeployTable],
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Runs the policy of `bundle` from every start; writes `store.zarr`, the times of the
    inferences, a plot and videos.

    An episode that a limit or the robot ends counts with its outcome up to then, and is recorded
    with its fault. An interrupted deployment goes on with the first start that it has not finished;
    metrics and episodes are those of an uninterrupted one.

    Args:
        config: starts, robot and limits.
        bundle: directory with `policy.onnx`.
        make_table: creates the table for a policy with that contract.
        out: folder to write to.
        progress: called with the policy steps of all starts together.

    Returns:
        The metrics.
    """
    from real.deploy.loop import make_guard
    from real.deploy.onnx_policy import OnnxPolicy
    from real.driver.driver import Driver
    from real.motion.force_guard import check_reflex
    from robots.episodes.store import EpisodeStore
    from sim.twin.twin import start_twin

    check_reflex(config.loop.force, config.arm)
    policy = OnnxPolicy(bundle / ONNX_FILE)
    # Specifications that do not fit the policy are refused before anything starts.
    make_guard(config.loop, policy.contract)
    table = make_table(policy.contract)
    deciding = {"config": to_plain(config), "policy": file_digest(bundle / ONNX_FILE)}
    journal = StartJournal(out / JOURNAL, deciding)
    path = out / "store.zarr"
    with (
        held_arm(config.twin.host, table.robot.name, patience=PATIENCE, progress=progress),
        processor_for_twin() as cpu,
        start_twin(replace(config.twin, cpu=cpu), table.make_world) as twin,
        Driver() as driver,
        table.cameras(twin),
        open_store(path, table.schema(twin), journal) as store,
    ):
        starts = run_starts(
            TwinSetup(config, policy, table, twin, store, driver), journal, progress
        )
    inferences = {start.seed: [round(ms, 3) for ms in start.inference_ms] for start in starts}
    (out / INFERENCES).write_text(json.dumps(inferences) + "\n")
    metrics = summarise_starts(table, starts, config.loop.specifications)
    metrics |= table.render(EpisodeStore.open(path, "r"), out)
    journal.remove()
    return metrics


def run_starts(setup: TwinSetup, journal: StartJournal, progress: Progress) -> list[StartResult]:
    """Runs one episode from every start of the configuration that the journal does not hold yet."""
    config = setup.config
    starts = journal.starts
    if starts:
        kept = f"{len(starts)} of {config.starts} starts kept from the interrupted attempt"
        progress(len(starts), config.starts, kept)

    def report(done: int, total: int, note: str = "") -> None:
        note = setup.table.note(starts) if starts else note
        progress(len(starts) * total + done, config.starts * total, note)

    for number in range(len(starts), config.starts):
        began = time.perf_counter()
        before = setup.twin.stats()
        start = _run_with_repeats(setup, config.first_seed + number, report)
        after = setup.twin.stats()
        counted = {name: after[name] - before[name] for name in COUNTED}
        start = replace(start, wall_seconds=time.perf_counter() - began, twin=counted)
        journal.add(start, setup.store.num_episodes)
    return starts


def _run_with_repeats(setup: TwinSetup, seed: int, progress: Progress) -> StartResult:
    """Runs one start; again if its connection to a twin in lockstep is lost, because such a twin
    computes the same as if it had not been."""
    repeats = 0
    while True:
        repeatable = repeats < MAX_REPEATS and setup.config.twin.clock == "lockstep"
        try:
            return replace(run_start(setup, seed, progress, repeatable), repeats=repeats)
        except HandoffError as error:
            if not (repeatable and lost_connection(error)):
                raise
            repeats += 1


def lost_connection(error: BaseException | None) -> bool:
    """Whether an episode ended because client and robot lost each other, whichever noticed it."""
    from real.arm import ArmFaultError, ConnectionLostError

    if isinstance(error, ArmFaultError):
        return "communication_constraints_violation" in error.errors
    return isinstance(error, ConnectionLostError)


def run_start(
    setup: TwinSetup, seed: int, progress: Progress, repeatable: bool = False
) -> StartResult:
    """Places the objects, connects, runs one episode and records it; the arm is at rest when this
    returns or raises.

    Args:
        setup: the parts of the deployment.
        seed: seed of the start.
        progress: called with the policy steps of this episode.
        repeatable: whether the caller runs the start again after a lost connection; then such an
            attempt is not recorded and raises its error.

    Raises:
        HandoffError: an error other than a limit or a stop of the arm ended the episode, or it
            cannot be stored.
    """
    from flows.session.simulated_arm import arm_of_twin
    from real.deploy.loop import run_episode
    from real.deploy.recording import EpisodeRecording
    from real.motion.step_spaces import with_law

    config = setup.config
    table = setup.table
    twin = setup.twin
    table.place(twin, seed)

    def solved() -> bool:
        # What a fault ended is not solved, even if it was near its goal.
        return table.success and recording.fault is None

    def outcome() -> dict[str, Any] | None:
        if repeatable and lost_connection(recording.error):
            return None
        about: dict[str, Any] = {"robot": f"{table.robot.name} twin"}
        if table.calibration:
            about["calibration"] = to_plain(table.calibration)
        return {"seed": seed, **table.describe(), "success": solved(), **about}

    arm_options = with_law(config.arm, setup.policy.contract)
    settings = replace(arm_options, host=config.twin.host, robot=table.robot.config_name)
    # In memory: a start that a kill cuts off is run again.
    recording = EpisodeRecording(setup.store, outcome)
    with (
        recording,
        table.gripper(twin) as gripper,
        arm_of_twin(setup.driver, settings, config.twin, twin) as arm,
    ):
        space, loop = table.motion(arm.preflight(), arm.flange_T_ee)
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
                    seed=seed,
                    gripper=gripper,
                    stop=table.is_over,
                    record=recording.record,
                    progress=progress,
                )
        except SafetyError as error:
            # Recover as a person would after checking the robot and resetting the table.
            arm.recover()
            if repeatable and lost_connection(error):
                raise
        table.update()
    return StartResult(
        seed=seed,
        success=solved(),
        about={**table.describe(), "success": solved()},
        # To the clock's 1 ms: the last bits depend on how long the twin has been running.
        seconds=round(recording.record.end - recording.record.begin, 3),
        figures=recording.figures,
        specifications=outcomes(recording.record.specifications),
        fault=recording.fault,
        inference_ms=recording.record.inference_ms,
    )


def summarise_starts(
    table: DeployTable, starts: Sequence[StartResult], specifications: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the metrics of all starts, with the share of those that satisfy each specification;
    a start that made no step satisfies none."""
    from sim.evaluation.intervals import success_rate
    from sim.twin.twin import realtime_factor

    counted = {name: sum(start.twin[name] for start in starts) for name in COUNTED}

    def over_starts(name: str, reduce: Callable[[list[float]], float]) -> float | None:
        values = [start.figures[name] for start in starts if start.figures]
        return reduce(values) if values else None

    none = outcomes(dict.fromkeys(specifications, -np.inf))
    shares = satisfied_shares([start.specifications or none for start in starts], specifications)
    return {
        "starts": len(starts),
        **table.score(starts),
        **({"specifications": shares} if shares else {}),
        "success": success_rate([start.success for start in starts]),
        "robot": table.robot.config_name,
        "faults": sum(start.fault is not None for start in starts),
        "fault_reasons": dict(Counter(fault_reason(one.fault) for one in starts if one.fault)),
        "repeated_starts": sum(start.repeats for start in starts),
        "realtime_factor": realtime_factor(counted["motion_ticks"], counted["motion_s"]),
        "lost_packets": int(counted["lost_packets"]),
        "command_success_rate": over_starts("min_success_rate", min),
        "robot_seconds": round(sum(start.seconds for start in starts), 3),
        "wall_seconds": sum(start.wall_seconds for start in starts),
        "tracking_rms_m": over_starts("tracking_rms_m", _root_mean_square),
        "jerk_rms_m_s3": over_starts("jerk_rms_m_s3", _root_mean_square),
        "peak_speed_m_s": over_starts("peak_speed_m_s", max),
        "peak_tau_ext_nm": over_starts("peak_tau_ext_nm", max),
        "per_start": [
            {
                "seed": start.seed,
                **start.about,
                "fault": start.fault,
                "seconds": start.seconds,
                **start.figures,
                **({"specifications": start.specifications} if start.specifications else {}),
            }
            for start in starts
        ],
    }


def _root_mean_square(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def fault_reason(fault: str) -> str:
    """The reason in the message of a fault, for counting: `joint_reflex` of "arm: stopped at robot
    time 1.563 s in mode Reflex: joint_reflex. Find the cause.."; else what found it, e.g.
    `governor`."""
    sentence = fault.partition(". ")[0].removesuffix(".")
    found, _, about = sentence.partition(": ")
    return about.rpartition(": ")[2] if " in mode " in about else found


@contextmanager
def processor_for_twin() -> Iterator[int | None]:
    """Reserves one processor for the twin: in lockstep, both processes must respond without
    delay."""
    available = os.sched_getaffinity(0)
    if len(available) < 2:
        yield None
        return
    cpu = max(available)
    os.sched_setaffinity(0, available - {cpu})
    try:
        yield cpu
    finally:
        os.sched_setaffinity(0, available)
