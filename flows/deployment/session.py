"""Implements `handoff deploy RELEASE`: a released policy on an arm, supervised by a person at the
console.

Without an arm's address, a simulated arm behind the same network protocol is used: client, control
loop, limits, console and recording are the same, only `flows.deployment.arms` differs. Policies
that did not pass a gate are refused, by a real arm also those that no trusted key has signed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flows.config.options import build_session
from flows.config.overrides import arm_overrides, quoted
from flows.deployment.arms import held_for_session, require_simulator
from flows.deployment.cameras.pictures import ArmPictures, PictureSource, age_limits
from flows.deployment.cameras.policy_cameras import (
    camera_overrides,
    policy_cameras,
    sensor_fields,
)
from flows.deployment.config import DeploySession, DeployTaskSession, check_robot_of_session
from flows.deployment.safety import check_law, check_session, is_real, longest_episode
from flows.deployment.session_tables.instructions import with_instruction
from flows.deployment.session_tables.open_table import BOARD_TASK, open_table
from flows.deployment.session_tables.replayed_run import (
    RecordedSession,
    ReplayedRun,
    replay_contract,
)
from flows.deployment.session_tables.session_table import SessionPictures, SessionTable
from flows.deployment.session_tables.supervised_run import SupervisedRun
from flows.deployment.session_tables.tracked_objects import (
    check_objects,
    tracker_overrides,
    unmeasured,
)
from flows.reports.dataset_text import counted
from flows.session.arm_supervisor import ArmSupervisor
from flows.session.config import HilEnvConfig
from flows.session.hints import FILE as HINTS_FILE
from flows.session.hints import recorded_usefulness, restore_limits, usefulness_line
from robots.contract import ONNX_FILE, Contract
from robots.control.actions import PD_TARGET, CartesianDelta, JointDelta, JointTarget
from robots.errors import HandoffError
from robots.storage.durable import write_atomically

if TYPE_CHECKING:
    from real.console.server import ConsoleConfig
    from real.deploy.hints import DeployHints
    from real.deploy.onnx_policy import OnnxPolicy
    from robots.episodes.store import EpisodeStore

Mode = Literal["live", "dry-run", "shadow", "replay"]
"""What a policy does at an arm: it acts, acts at a tenth of its speed, or only thinks; or recorded
actions take its place."""
DRY_RUN_SPEED = 0.1
"""Speed of a dry run in units of that of the training."""
SPARE_SECONDS = 10.0
"""Margin of the buffer for robot states beyond the longest episode [s]."""


def deploy_command(
    release: Path,
    overrides: Sequence[str],
    out: Path,
    console: ConsoleConfig,
    *,
    arm: str | None,
    trackers: Sequence[str],
    cameras: Sequence[str],
    instruction: str | None,
    mode: Mode,
    recording: Path | None,
    person: str,
    episodes: int | None,
) -> None:
    """Runs `handoff deploy`, whose parameters `flows.commands.sessions.deploy` describes.

    Raises:
        HandoffError: see `deploy`; the mode `replay` without a recording, or one for another mode;
            or the folder of a blinded comparison.
    """
    from rich.console import Console

    from flows.deployment.blinded.sealed_order import FILE as SEALED
    from flows.deployment.verified_policy import release_entries, verified_policy

    if (out / SEALED).exists():
        raise HandoffError(
            f"deploy: {out} is the folder of a blinded comparison, which no other session adds to. Give --against as "
            "it was begun to go on with it, or another --out."
        )

    say = partial(Console().print, highlight=False, markup=False, soft_wrap=True)
    session = session_options(
        release,
        overrides,
        arm=arm,
        trackers=trackers,
        cameras=cameras,
        instruction=instruction,
        mode=mode,
        recording=recording,
        warn=say,
    )
    # What moves an arm is signed and approved; a simulated arm takes what passed its gate.
    robot = f"{session.arm.robot} at {session.host}" if is_real(session) else None
    with verified_policy(release, arm=robot, warn=say) as bundle:
        recorded = deploy(
            session,
            bundle,
            out,
            console,
            person=person,
            episodes=episodes,
            about=release_entries(bundle),
            say=say,
        )
    number = counted(recorded, "episode")
    say(
        f"{number} in {out / 'store.zarr'}, actions at the console in {out / 'console' / 'audit.jsonl'}"
    )


def session_options(
    release: Path,
    overrides: Sequence[str],
    *,
    arm: str | None,
    trackers: Sequence[str],
    cameras: Sequence[str],
    instruction: str | None,
    mode: Mode,
    recording: Path | None,
    warn: Callable[[str], None],
) -> DeploySession | DeployTaskSession:
    """The options of a session with the policy of `release`, from the parameters of
    `flows.commands.sessions.deploy`.

    Raises:
        HandoffError: no release, the mode `replay` without a recording, or one for another mode;
            see also `session_of`.
    """
    from flows.deployment.verified_policy import task_of_release, verified_policy

    chosen = list(overrides)
    chosen += arm_overrides(arm)
    chosen += [] if instruction is None else [f"instruction={quoted(instruction)}"]
    if (recording is None) == (mode == "replay"):
        raise HandoffError(
            "deploy: --mode replay and --recording PATH, the folder of a session, belong together."
        )
    chosen += {"dry-run": [f"speed={DRY_RUN_SPEED}"], "shadow": ["shadow=true"]}.get(mode, [])
    chosen += [] if recording is None else [f"recording={quoted(str(recording))}"]
    chosen += camera_overrides(cameras)
    task = task_of_release(release)
    if instruction is not None and task == BOARD_TASK:
        raise HandoffError(
            "deploy: --instruction is given, but policies of push_t take none. Leave it out."
        )
    if task is None:
        # Says why before options are read that depend on the task.
        with verified_policy(release, arm=None, warn=warn):
            pass
    return session_of(task, [*chosen, *tracker_overrides(trackers, task)])


def session_of(task: str | None, overrides: Sequence[str]) -> DeploySession | DeployTaskSession:
    """The options of a session with a policy of `task`; None is one that is not known.

    Raises:
        HandoffError: see `flows.config.options.build_session`.
    """
    if task in (BOARD_TASK, None):
        return build_session(DeploySession, BOARD_TASK, overrides)
    return build_session(DeployTaskSession, "task", overrides)


def deploy(
    session: DeploySession | DeployTaskSession,
    bundle: Path,
    out: Path,
    console: ConsoleConfig,
    *,
    person: str = "",
    episodes: int | None = None,
    about: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
    make_run: Callable[..., SupervisedRun] = SupervisedRun,
    instructable: bool = True,
) -> int:
    """Runs episodes until the person ends the session; returns how many the store holds.

    A fault ends the episode, whose steps are stored with its message; the session goes on once the
    person has recovered the arm.

    Args:
        session: options of arm, limits and rates, of the class that fits the policy's task.
        bundle: directory with `policy.onnx`.
        out: folder of the store and the console's log; a later session appends to it.
        console: address and port of the console.
        person: operator name recorded while nobody has control; empty takes the login.
        episodes: the session ends when the store holds this many; None runs until the person ends
            it.
        about: JSON-ready metadata of every episode, such as the name of the release.
        say: called with the console's address, the outcome of every episode, and the interrupted
            recording of an earlier session that is recovered.
        make_run: makes what plays the episodes, with the arguments of `SupervisedRun`; recorded
            actions in the policy's place have their own.
        instructable: whether a policy that takes instructions takes them from the pages, too.

    Raises:
        HandoffError: a policy of another task or robot, no arm or tracker, a kept fault of the arm
            from before, or a store with other fields.
    """
    from real.deploy.onnx_policy import OnnxPolicy
    from real.franka.impedance import differing_gains
    from real.motion.step_spaces import with_law
    from robots.episodes.metadata.episode_metadata import new_session

    if not session.host:
        require_simulator()
    policy = OnnxPolicy(bundle / ONNX_FILE)
    acting = policy.contract
    if session.recording:
        recording = RecordedSession(Path(session.recording), acting)
        acting = replay_contract(acting, _not_measured(session, acting))
        session = replace(session, loop=replace(session.loop, max_steps=recording.longest))
        make_run = partial(ReplayedRun, recording)
    check_policy(session, acting)
    session = with_instruction(session, acting, policy.tokenizer)
    contract = slowed(acting, session.speed)
    # At a simulated arm a policy sees the simulated scene, unless cameras are given.
    drawn = not session.host and not session.cameras
    cameras = {} if drawn else policy_cameras(contract.sensors, session.cameras)
    session = replace(session, cameras=cameras)
    # The recording must hold the longest episode.
    seconds = longest_episode(session, acting) + SPARE_SECONDS
    session = replace(session, arm=replace(with_law(session.arm, contract), record_seconds=seconds))
    for gain in differing_gains(session.arm.impedance, contract.impedance):
        say(f"arm.impedance differs from the arm that the policy knows: {gain}")
    limits = replace(console.arbiter, hold_to_run=holds_to_run(session))
    console = replace(console, arbiter=limits)
    with ExitStack() as stack:
        run, store = _open(
            stack, session, policy, contract, make_run, out, console, person, say, instructable
        )
        known = {"session": new_session(), "mode": mode_of(session), "speed": session.speed}
        run.about = {**(about or {}), **run.about, **known}
        first = store.num_episodes
        try:
            while episodes is None or store.num_episodes < episodes:
                if not run.next_episode(say):
                    break
        except KeyboardInterrupt:
            # A terminal that is closed takes no line any more.
            with suppress(OSError, HandoffError):
                _report(run, store, first, contract, out, say)
            raise
        run.supervisor.operator.finish(run.ending())
        _report(run, store, first, contract, out, say)
        return store.num_episodes


def _report(
    run: SupervisedRun,
    store: EpisodeStore,
    first: int,
    contract: Contract,
    out: Path,
    say: Callable[[str], None],
) -> None:
    """Says how late the session was and how useful its hints were, unless the run tells neither."""
    if run.reports:
        _report_latency(store, first, [*contract.sensors], out, say)
        _report_hints(store, first, out, say)


def _report_latency(
    store: EpisodeStore, first: int, cameras: Sequence[str], out: Path, say: Callable[[str], None]
) -> None:
    """Says how late the session was, and writes it to its folder; nothing without an episode."""
    from flows.session.latency import FILE, latency_line, session_latency

    report = session_latency(store, first, cameras)
    if report:
        write_atomically(out / FILE, json.dumps(report, indent=2).encode())
        say(f"latency  {latency_line(report)}")


def _report_hints(store: EpisodeStore, first: int, out: Path, say: Callable[[str], None]) -> None:
    """Says how useful the hints of the session were, and writes it to its folder; nothing where
    none was possible."""
    report = recorded_usefulness(store, first)
    if report:
        write_atomically(out / HINTS_FILE, json.dumps(report, indent=2).encode())
        say(f"hints    {usefulness_line(report)}")


def _open(
    stack: ExitStack,
    session: DeploySession | DeployTaskSession,
    policy: OnnxPolicy,
    contract: Contract,
    make_run: Callable[..., SupervisedRun],
    out: Path,
    console: ConsoleConfig,
    person: str,
    say: Callable[[str], None],
    instructable: bool,
) -> tuple[SupervisedRun, EpisodeStore]:
    """Holds the arm, and opens console, viewer, cameras, store and arm, until `stack` is closed;
    `make_run` takes the arguments of `SupervisedRun`."""
    from flows.session.viewer import scene_viewer
    from real.cameras.camera_process import camera_streams
    from real.console.process import check_address, open_console
    from real.franka.connection import check_answers
    from robots.episodes.corrections import open_corrections
    from robots.episodes.running_episode import recover_interrupted

    simulated, cameras = not session.host, session.cameras
    stack.enter_context(held_for_session(session, say))
    if session.host:
        # A wrong address is found here, not when the person at the page is ready.
        check_answers(session.host)
    check_address(console)
    out.mkdir(parents=True, exist_ok=True)
    opened = stack.enter_context(open_console(console, out / "console"))
    if simulated or contract.task == BOARD_TASK:
        env = HilEnvConfig(task=contract.task, robot=session.arm.robot)
        # Cameras of the session take the place of drawn ones.
        stack.enter_context(scene_viewer(env, opened, images=simulated and not cameras))
    newest = stack.enter_context(camera_streams(cameras, opened))
    if contract.sensors and not cameras:
        table = stack.enter_context(open_table(session, contract))
        observed = stack.enter_context(table.cameras(contract.sensors, session.clocks))
        fields = observed.pictures.fields()
    else:
        pictures = observed_pictures(contract, newest, age_limits(cameras, session.max_age))
        calibrations = pictures.calibrations(session.calibration, cameras)
        observed = SessionPictures(pictures, calibrations, lambda seed: pictures.begin(), newest)
        fields = pictures.fields()
        table = stack.enter_context(open_table(session, contract))
    supervisor = stack.enter_context(
        closing(_supervisor(session, contract, table, person, instructable))
    )
    hints = _hints(session, policy, contract, supervisor)
    if hints is not None:
        stack.enter_context(closing(hints))
        fields = {**fields, **hints.fields}
    schema = table.schema(fields)
    store = stack.enter_context(open_corrections(out / "store.zarr", schema))
    recover_interrupted(store, log=say)
    if hints is not None:
        restore_limits(hints.monitor, store, list(hints.fields))
    say(f"console  {opened.url}")
    run = make_run(session, policy, contract, table, observed, store, supervisor, hints)
    run.check.report_unknown(say)
    return run, store


def _hints(
    session: DeploySession | DeployTaskSession,
    policy: OnnxPolicy,
    contract: Contract,
    supervisor: ArmSupervisor,
) -> DeployHints | None:
    """The hints to the person at the console; None without a source."""
    from real.deploy.hints import DeployHints

    if not session.hints.sources:
        return None
    show, wait = supervisor.operator.show_hint, session.loop.wait_for_policy
    hints = DeployHints(session.hints, policy, contract, show, wait=wait)
    supervisor.supervision.hints = hints
    return hints


def _supervisor(
    session: DeploySession | DeployTaskSession,
    contract: Contract,
    table: SessionTable,
    person: str,
    instructable: bool,
) -> ArmSupervisor:
    """The person at the console, who supervises the table's arm."""
    drawn = table.scene() is not None
    supervisor = ArmSupervisor(
        contract.task,
        table.robot,
        contract.rate_hz,
        table.spec,
        session.supervision,
        table.person_motion,
        person,
        (lambda: table.scene() or b"") if drawn else None,
        table.width_max,
        shown={
            **_described(session, contract),
            "instructable": instructable and contract.instruction,
        },
        drawn=drawn,
        still=session.shadow,
    )
    supervisor.supervision.shadow = session.shadow
    return supervisor


def _described(session: DeploySession | DeployTaskSession, contract: Contract) -> dict[str, str]:
    """What the console shows of the task: what is to be done, where a simulator knows it, the
    instruction, and the mode if it is not `live`."""
    shown: dict[str, str] = {}
    if mode_of(session) != "live":
        shown["mode"] = mode_of(session)
    if not session.host:
        from sim.make import find_task

        shown["brief"] = find_task(contract.task, robot=session.arm.robot).brief
    if isinstance(session, DeployTaskSession) and session.instruction is not None:
        shown["instruction"] = session.instruction
    return shown


def check_policy(session: DeploySession | DeployTaskSession, contract: Contract) -> None:
    """Checks that a policy fits the options and the arm of a session.

    Raises:
        HandoffError: another task, action interface or robot, observations that a real arm has
            not, or no tracker of the T at a real one, or none with a WebSocket address.
    """
    if session.recording and session.shadow:
        raise HandoffError(
            "deploy: `recording` and `shadow` exclude each other: recorded actions move the arm."
        )
    if session.recording and session.hints.sources:
        raise HandoffError(
            "deploy: `recording` and `hints` exclude each other: recorded actions take the policy's "
            "place. Remove hints."
        )
    board = isinstance(session, DeploySession)
    if board != (contract.task == BOARD_TASK):
        kind = "push_t" if board else "a task with a gripper"
        raise HandoffError(
            f"deploy: the options are those of {kind}, the policy's task is '{contract.task}'."
        )
    known = [PD_TARGET] if board else [CartesianDelta.kind, JointDelta.kind, JointTarget.kind]
    if contract.action_interface not in known:
        raise HandoffError(
            f"deploy: actions of the policy are '{contract.action_interface}'; a session of {contract.task} supports "
            f"{' and '.join(known)} only."
        )
    check_robot_of_session(contract, session.arm)
    check_session(session, contract)
    if isinstance(session, DeploySession):
        if session.host and not session.tracker.uri:
            raise HandoffError(
                "deploy: a real arm needs a tracker of the T: add --tracker ws://host:port, see "
                "docs/guides/deploying.md."
            )
        if session.host:
            from real.deploy.object_tracker import check_tracker_address

            check_tracker_address("tracker", session.tracker.uri)
        return
    check_law(session, contract)
    check_objects(session, contract)
    if session.instruction is not None and not contract.instruction:
        raise HandoffError(
            f"deploy: an instruction is given, but the policy of {contract.task} takes none. Leave it out."
        )


def _not_measured(session: DeploySession | DeployTaskSession, contract: Contract) -> list[str]:
    """Fields of a contract that nothing measures at the arm of a session, and that recorded actions
    do not need."""
    if isinstance(session, DeploySession) or not session.host:
        return []
    return unmeasured(session, contract)


def slowed(contract: Contract, speed: float) -> Contract:
    """The contract of a policy whose every step lasts 1 / `speed` times as long."""
    return contract if speed == 1.0 else replace(contract, rate_hz=contract.rate_hz * speed)


def holds_to_run(session: DeploySession | DeployTaskSession) -> bool:
    """Whether the policy acts only while a person holds a key; one that only thinks needs none."""
    chosen = is_real(session) if session.hold_to_run is None else session.hold_to_run
    return chosen and not session.shadow


def mode_of(session: DeploySession | DeployTaskSession) -> str:
    """What is recorded of the way in which the policy was run: `replay` if recorded actions took
    its place, `shadow`, `dry-run` if it was slowed, else `live`."""
    if session.recording:
        return "replay"
    if session.shadow:
        return "shadow"
    return "live" if session.speed == 1.0 else "dry-run"


def observed_pictures(
    contract: Contract, newest: Mapping[str, PictureSource], limits: Mapping[str, float]
) -> ArmPictures:
    """The cameras that the policy observes, among all that are open.

    Args:
        contract: contract of the policy.
        newest: newest picture of every camera, by name.
        limits: age above which a picture is an error [s], by camera.
    """
    fields = sensor_fields(contract.sensors)
    return ArmPictures(
        {name: newest[name] for name in fields},
        {name: limits[name] for name in fields},
        sources=fields,
    )
