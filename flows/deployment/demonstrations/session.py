"""Implements `handoff record TASK --arm ADDRESS`: a person at the console demonstrates at an arm.

The episodes run in the loop of a deployment, under the same governor, joint limits and watchdog; in
a policy's place stands one that keeps the arm still. Episodes that count are in `demos.zarr`, the
others in `dropped.zarr`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.deployment.arms import (
    held_for_session,
    recovered,
    require_simulator,
)
from flows.deployment.cameras.pictures import ArmPictures, age_limits
from flows.deployment.demonstrations.config import (
    DemonstrationSession,
    action_spec,
    check_demonstrations,
    demonstration_contract,
    host_options,
)
from flows.deployment.session_tables.hosts import GripperHost, real_host, simulated_host
from flows.deployment.session_tables.reset_phase import ResetPhase
from flows.reports.dataset_text import counted
from flows.session.arm_supervisor import ArmSupervisor
from flows.session.config import HilEnvConfig
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import Label, Observation
from robots.wire.policy import pack

if TYPE_CHECKING:
    from real.arm import ArmState
    from real.console.server import ConsoleConfig
    from real.deploy.episode_recorder import LoopRecord
    from robots.contract import Contract
    from robots.episodes.metadata.camera_calibration import CameraCalibration
    from robots.episodes.metadata.episode_metadata import Host
    from robots.episodes.store import EpisodeStore
    from robots.franka.robot import Robot

DEMOS, DROPPED = "demos.zarr", "dropped.zarr"
"""Stores of the episodes that count, and of the others."""
DEVICE = "console"
SPARE_SECONDS = 10.0
"""Margin of the buffer for robot states beyond the longest episode [s]."""


def record_at_arm(
    session: DemonstrationSession,
    task: str,
    out: Path,
    console: ConsoleConfig,
    *,
    person: str = "",
    episodes: int,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Records demonstrations until there are enough or the person ends the session.

    Args:
        session: options of arm, cameras and limits.
        task: name of what is demonstrated; at a simulated arm the task whose table it has.
        out: folder of the stores and of the console's log; a later session appends to it.
        console: address and port of the console.
        person: name that is recorded while nobody has control; empty takes the login.
        episodes: number of successful demonstrations in the store that ends the session.
        say: called with the console's address, the outcome of every episode, and the interrupted
            recording of an earlier session that is kept among the dropped episodes.

    Returns:
        The store of the demonstrations.

    A fault ends the episode, whose steps are stored among the dropped ones; the session goes on
    once the person has recovered the arm.

    Raises:
        HandoffError: options that do not fit, no arm or camera, a kept fault of the arm from
            before, or a store with other fields.
    """
    from robots.episodes.metadata.episode_metadata import new_session
    from sim.make import check_task

    if not session.host:
        require_simulator()
        # The simulated table is that of a task; at an arm a task is a name.
        check_task(task)
    check_demonstrations(session)
    seconds = session.longest_episode + SPARE_SECONDS
    session = replace(session, arm=replace(session.arm, record_seconds=seconds))
    kind: Host = "real" if session.host else "twin"
    _check_hosts(out / DROPPED, kind)
    recorded = _check_hosts(out / DEMOS, kind)
    if recorded >= episodes:
        say(
            f"{counted(recorded, 'demonstration')} of {episodes} are there already; give a larger "
            "number with --episodes to add to them"
        )
        return out / DEMOS
    with ExitStack() as stack:
        recorder = _open(stack, session, task, out, console, person, say)
        recorder.session = new_session()
        while recorder.demos.num_episodes < episodes and recorder.next_episode(say):
            pass
        number = counted(recorder.demos.num_episodes, "demonstration")
        recorder.supervisor.operator.finish(f"{number} recorded.")
        return recorder.demos.path


def _check_hosts(path: Path, kind: Host) -> int:
    """Number of episodes in the store at `path`, 0 without one.

    Raises:
        HandoffError: some are of another kind of arm than `kind`.
    """
    from robots.episodes.store import EpisodeStore

    if not path.exists():
        return 0
    store = EpisodeStore.open(path)
    names = {"twin": "a simulated arm", "real": "a real arm", "simulated": "a simulation"}
    for episode in range(store.num_episodes):
        host = store.metadata(episode).get("host", kind)
        if host != kind:
            raise HandoffError(
                f"{path}: episode {episode} is of {names.get(host, host)}, this session of {names[kind]}. "
                "Give another folder with --out."
            )
    return store.num_episodes


def _open(
    stack: ExitStack,
    session: DemonstrationSession,
    task: str,
    out: Path,
    console: ConsoleConfig,
    person: str,
    say: Callable[[str], None],
) -> _Recorder:
    """Holds the arm, and opens console, cameras, stores and arm, until `stack` is closed."""
    from flows.session.viewer import scene_viewer
    from real.cameras.camera_process import camera_streams
    from real.console.process import check_address, open_console
    from real.deploy.episode_recorder import deploy_schema
    from real.franka.connection import check_answers
    from robots.episodes.corrections import open_corrections
    from robots.episodes.running_episode import recover_interrupted
    from robots.episodes.schema import with_videos

    robot = find_robot(session.arm.robot)
    contract = demonstration_contract(session, task, robot)
    stack.enter_context(held_for_session(session, say))
    if session.host:
        check_answers(session.host)
    check_address(console)
    out.mkdir(parents=True, exist_ok=True)
    opened = stack.enter_context(open_console(console, out / "console"))
    say(f"console  {opened.url}")
    cameras = stack.enter_context(camera_streams(session.cameras, opened))
    pictures = ArmPictures(cameras, age_limits(session.cameras, session.max_age))
    calibration = pictures.calibrations(session.calibration, session.cameras)
    schema = deploy_schema(
        contract,
        pictures.fields(),
        session.loop,
        robot,
        "base",
        supervised=True,
        coordinates=len(session.steps.axes),
    )
    schema = with_videos(schema, session.video)
    demos = stack.enter_context(open_corrections(out / DEMOS, schema))
    dropped = stack.enter_context(open_corrections(out / DROPPED, schema))
    for store in (demos, dropped):
        recover_interrupted(store, into=dropped, log=say)
    options = host_options(session)
    if not session.host:
        env = HilEnvConfig(task=task, robot=session.arm.robot)
        # Cameras of the session take the place of drawn ones.
        stack.enter_context(scene_viewer(env, opened, images=not session.cameras))
    provided = real_host(options) if session.host else simulated_host(options, task)
    host: GripperHost = stack.enter_context(provided)
    recorder = _Recorder(session, contract, host, pictures, (demos, dropped), person)
    recorder.calibration = calibration
    stack.enter_context(closing(recorder.supervisor))
    return recorder


class StillPolicy:
    """Implements `robots.interfaces.Policy` by the action that keeps arm and gripper as they are.

    Args:
        contract: contract by `demonstration_contract`.
        width_max: largest opening of the gripper [m]; None if actions have no entry for one.
    """

    def __init__(self, contract: Contract, width_max: float | None) -> None:
        from real.deploy.person_motion import StepMotion

        self._motion = StepMotion(contract.action.shape[0], width_max)
        sizes = [int(np.prod(spec.shape)) for spec in contract.observation.values()]
        ends = np.cumsum(sizes)
        self._fields = {
            name: slice(end - size, end)
            for name, size, end in zip(contract.observation, sizes, ends, strict=True)
        }

    def __call__(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """See `robots.interfaces.Policy`."""
        newest = {name: observation[:, -1, part] for name, part in self._fields.items()}
        return np.broadcast_to(self._motion.still(newest), noise.shape).astype(np.float32)


class _Recorder:
    """The person, the arm and the stores of a session."""

    def __init__(
        self,
        session: DemonstrationSession,
        contract: Contract,
        host: GripperHost,
        pictures: ArmPictures,
        stores: tuple[EpisodeStore, EpisodeStore],
        person: str,
    ) -> None:
        from real.deploy.person_motion import StepMotion
        from real.deploy.supervision import SupervisionConfig

        self._options = session
        self._contract = contract
        self._host = host
        self._pictures = pictures
        self.demos, self._dropped = stores
        self._robot: Robot = find_robot(session.arm.robot)
        width_max = self._robot.gripper.width_max if session.use_gripper else None
        self._policy = StillPolicy(contract, width_max)
        self.session = ""
        """Name of the session, recorded with every episode."""
        self.calibration: dict[str, CameraCalibration] = {}
        """Calibration of the cameras by the name of the field with the pictures, recorded too."""
        self.supervisor = ArmSupervisor(
            contract.task,
            "demonstration",
            session.rate_hz,
            action_spec(session, self._robot),
            SupervisionConfig(hold_seconds=session.hold_seconds, takeover=session.takeover),
            StepMotion(contract.action.shape[0], width_max),
            person,
            self._packed_scene if host.scene() is not None else None,
            width_max,
            drawn=host.scene() is not None,
            still=True,
        )
        self._reset = ResetPhase(
            host, self.supervisor, session.reset, session.loop.fence, session.host
        )

    def next_episode(self, say: Callable[[str], None]) -> bool:
        """Waits for the person, records an episode and reports it; returns False when the session
        is over. A fault ends the episode, and the session goes on once the person has recovered the
        arm."""
        from robots.episodes.metadata.episode_metadata import next_start

        supervision = self.supervisor.supervision
        start = next_start(self.demos, self._dropped)
        # The person sees the start before they let the arm move.
        self._host.place(start)
        self.supervisor.show()
        try:
            if not self._reset.await_start():
                return False
            record = self._run(start)
        except HandoffError as fault:
            return recovered(fault, self.supervisor, self._host.arm(), say)
        if supervision.stopped:
            return False
        if record is not None:
            outcome = record.label.name.lower() if record.label else "no label, dropped"
            say(
                f"episode {self.demos.num_episodes + self._dropped.num_episodes}: {outcome}, "
                f"{record.end - record.begin:.1f} s; "
                f"{counted(self.demos.num_episodes, 'demonstration')}"
            )
        return True

    def _run(self, seed: int) -> LoopRecord | None:
        """Records one episode; the arm is at rest and the episode is stored when this returns or
        raises. None if it did not begin."""
        from real.deploy.loop import run_episode
        from real.deploy.recording import EpisodeRecording

        host, supervision = self._host, self.supervisor.supervision
        host.place(seed)

        def observe(state: ArmState) -> Observation:
            return self._pictures.observe(state, record.begin)

        def outcome() -> dict[str, Any] | None:
            if supervision.stopped and recording.fault is None:
                return None
            return self._outcome(record, recording.fault)

        recording = EpisodeRecording(
            self.demos, outcome, partial(self._origin, seed), dropped=self._dropped
        )
        record = recording.record
        with recording, host.gripper() as gripper, host.arm() as arm:
            arm.preflight()
            if not host.ready(arm, gripper, supervision):
                return None
            space, loop = self._motion(arm.state().base_T_ee)
            supervision.begin(seed)
            self._pictures.begin()
            with recording.of(arm):
                run_episode(
                    arm,
                    host.clock(arm),
                    self._policy,
                    self._contract,
                    observe,
                    loop,
                    space=space,
                    seed=seed,
                    gripper=gripper,
                    record=record,
                    supervision=supervision,
                )
        return record

    def _motion(self, base_T_ee: np.ndarray) -> tuple[Any, Any]:
        """The coordinates of the actions, and the loop's options with their workspace."""
        from real.motion.action_space import CartesianSteps

        loop = self._options.loop
        space = CartesianSteps(self._contract, base_T_ee, self._robot)
        return space, replace(loop, governor=space.governed(loop.governor))

    def _origin(self, seed: int) -> dict[str, Any]:
        """Metadata that are known when an episode begins."""
        from robots.episodes.metadata.episode_metadata import EpisodeOrigin, utc_now
        from robots.language.text import INSTRUCTION

        person = self.supervisor.person
        origin = EpisodeOrigin(
            robot=self._host.robot,
            host=self._host.kind,
            source="demonstration",
            session=self.session,
            action_steps=self._options.steps,
            calibration=self.calibration,
        )
        words = self._options.instruction
        return {
            **origin.entries(),
            **({} if words is None else {INSTRUCTION: words}),
            "seed": seed,
            "operator": person,
            "device": DEVICE,
            "people": [{"name": person, "device": DEVICE}],
            "began": utc_now(),
        }

    def _outcome(self, record: LoopRecord, fault: str | None) -> dict[str, Any]:
        """Metadata that are known when an episode has ended: only what a person calls a success
        counts."""
        from robots.episodes.metadata.episode_metadata import EpisodeEnd, utc_now

        people = sorted(record.people or record.beside) or [self.supervisor.person]
        operator = ", ".join(people)
        label, judge = record.label, record.labelled_by or operator
        if fault is not None:
            end = EpisodeEnd(ended_by="fault", discard_reason="fault", fault=fault)
        elif label is Label.NONE:
            end = EpisodeEnd(ended_by="time_limit", discard_reason="unlabelled")
        elif label is Label.SUCCESS:
            end = EpisodeEnd(ended_by="label", labelled_by=judge)
        else:
            ended = "label" if label is Label.FAILURE else "discarded"
            reason = label.name.lower()
            end = EpisodeEnd(ended_by=ended, labelled_by=judge, discard_reason=reason)
        return {
            **end.entries(),
            "success": label is Label.SUCCESS and fault is None,
            "label": label.name.lower(),
            "operator": operator,
            "people": [{"name": name, "device": DEVICE} for name in people],
            "takeovers": int(np.max(record.policy["segment"])) + 1,
            "interventions": float(np.mean(record.policy["intervention"])),
            "held_seconds": record.held,
            "ended": utc_now(),
        }

    def _packed_scene(self) -> bytes:
        return pack(self._host.scene() or {})
