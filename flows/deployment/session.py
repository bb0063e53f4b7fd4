"""Implements `handoff deploy RELEASE`: a released policy on an arm, supervised by a person at the
console.

Without an arm's address, a simulated arm behind the same network protocol is used: client, control
loop, limits, console and recording are the same, only `flows.deployment.arms` differs. Policies
that did not pass a gate are refused, by a real arm also those that no trusted key has signed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.config.files import CONFIGS, read_options
from flows.config.options import build
from flows.config.overrides import parse_overrides, quoted, set_value
from flows.deployment.arms import (
    WAIT_SECONDS,
    ArmSetup,
    held_for_session,
    real_setup,
    require_simulator,
    simulated_setup,
    wait_for_resume,
)
from flows.deployment.config import DeploySession, check_robot_of_session
from flows.deployment.push_t_table import EXTRA, PushTScene
from flows.deployment.safety import check_session, is_real, longest_episode
from flows.session.config import HilEnvConfig, HilOperator
from real.deploy.cameras import CameraConfig
from robots.contract import ONNX_FILE
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import Label

if TYPE_CHECKING:
    from real.console.server import ConsoleConfig
    from real.deploy.episode_recorder import LoopRecord
    from real.deploy.onnx_policy import OnnxPolicy
    from real.deploy.supervision import Supervision
    from robots.episodes.store import EpisodeStore

SPARE_SECONDS = 10.0
"""Margin of the buffer for robot states beyond the longest episode [s]."""


@dataclass(frozen=True)
class DeployedEpisode:
    """Outcome of one episode."""

    seed: int
    success: bool
    label: Label
    seconds: float
    """Duration in robot time [s]."""
    held: float
    """Time on hold [s], part of `seconds`."""
    coverage: float
    """Largest coverage of the goal, 0..1."""
    corrected: float
    """Share of the steps that the person controlled."""
    recorded: bool
    """False if the person ended the session during the episode, or the episode before its first
    step."""


def deploy_command(
    release: Path,
    overrides: Sequence[str],
    out: Path,
    console: ConsoleConfig,
    *,
    arm: str | None,
    tracker: str | None,
    cameras: Sequence[str],
    person: str,
    episodes: int | None,
) -> None:
    """Runs `handoff deploy`, whose parameters `flows.commands.sessions.deploy` describes."""
    from rich.console import Console

    from flows.deployment.verified_policy import verified_policy

    say = partial(Console().print, highlight=False, soft_wrap=True)
    chosen = list(overrides)
    chosen += [] if arm is None else [f"host={quoted(arm)}"]
    chosen += [] if tracker is None else [f"tracker.uri={quoted(tracker)}"]
    session = compose_deploy("push_t", chosen)
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
            cameras=parse_cameras(cameras),
            say=say,
        )
    say(
        f"{recorded} episodes in {out / 'store.zarr'}, actions at the console in {out / 'console' / 'audit.jsonl'}"
    )


def compose_deploy(task: str, overrides: Sequence[str] = ()) -> DeploySession:
    """Reads `configs/deploy/<task>.yaml` over the defaults of the configuration classes, with
    overrides.

    Raises:
        HandoffError: no such file, unknown key, or ill-typed value.
    """
    values = read_options("deploy", task, [CONFIGS], "deploy")
    for override in parse_overrides(overrides):
        if override.deletes:
            raise HandoffError(
                f"override '{override.text}': a session's options cannot be removed."
            )
        set_value(values, override.keys, override.value)
    return build(DeploySession, values, "", [CONFIGS])


def parse_cameras(arguments: Sequence[str]) -> dict[str, CameraConfig]:
    """Parses arguments `NAME=SOURCE`; returns cameras by name.

    Raises:
        HandoffError: a missing name or source, or a duplicate name.
    """
    cameras: dict[str, CameraConfig] = {}
    for argument in arguments:
        name, _, source = argument.partition("=")
        if not name or not source or name in cameras:
            raise HandoffError(
                f"--camera {argument}: expected a new name and a source, e.g. front=0 or wrist=/dev/video2."
            )
        cameras[name] = CameraConfig(source=source)
    return cameras


def deploy(
    session: DeploySession,
    bundle: Path,
    out: Path,
    console: ConsoleConfig,
    *,
    person: str = "",
    episodes: int | None = None,
    cameras: Mapping[str, CameraConfig] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Runs episodes until the person ends the session; returns how many the store holds.

    Args:
        session: options of arm, limits and rates.
        bundle: directory with `policy.onnx`.
        out: folder of the store and the console's log; a later session appends to it.
        console: address and port of the console.
        person: operator name recorded while nobody has control; empty takes the login.
        episodes: the session ends when the store holds this many; None runs until the person ends
            it.
        cameras: cameras shown at the console, by name.
        say: called with the console's address and the outcome of every episode.

    Raises:
        SafetyError: a limit or the robot ended an episode; the store contains its steps, as after
        any other error during an episode. HandoffError: a policy of another task or robot, no arm
        or tracker, a lost connection, or a store with other fields.
    """
    from flows.session.viewer import scene_viewer
    from real.console.process import open_console
    from real.deploy.cameras import camera_streams
    from real.deploy.episode_recorder import deploy_schema
    from real.deploy.onnx_policy import OnnxPolicy
    from robots.episodes.corrections import open_corrections

    # The policy must fit task and robot.
    simulated = not session.host
    if simulated:
        require_simulator()
    policy = OnnxPolicy(bundle / ONNX_FILE)
    if policy.contract.task != "push_t":
        raise HandoffError(
            f"deploy: a policy of task '{policy.contract.task}'; sessions at an arm support push_t only."
        )
    check_robot_of_session(policy.contract, session.arm)
    check_session(session, policy.contract)
    name = session.arm.robot
    # The recording must hold the longest episode.
    schema = deploy_schema(
        policy.contract, EXTRA, session.loop.stream_hz, find_robot(name), supervised=True
    )
    seconds = longest_episode(session, policy.contract) + SPARE_SECONDS
    session = replace(session, arm=replace(session.arm, record_seconds=seconds))
    out.mkdir(parents=True, exist_ok=True)
    # Hold the arm; open store, console, viewer, cameras and arm; then run episodes.
    with ExitStack() as stack:
        stack.enter_context(held_for_session(session, say))
        store = stack.enter_context(open_corrections(out / "store.zarr", schema))
        opened_console = stack.enter_context(open_console(console, out / "console"))
        stack.enter_context(
            scene_viewer(HilEnvConfig(task="push_t", robot=name), opened_console, images=simulated)
        )
        stack.enter_context(camera_streams(cameras or {}, opened_console))
        setup = stack.enter_context(simulated_setup(session) if simulated else real_setup(session))
        say(f"console  {opened_console.url}")
        supervisor = _ConsoleSupervisor(session, policy, person, setup)
        stack.enter_context(closing(supervisor.operator))
        while episodes is None or store.num_episodes < episodes:
            if not next_episode(session, setup, policy, supervisor, store, say):
                break
        return store.num_episodes


def next_episode(
    session: DeploySession,
    setup: ArmSetup,
    policy: OnnxPolicy,
    supervisor: _ConsoleSupervisor,
    store: EpisodeStore,
    say: Callable[[str], None],
) -> bool:
    """Waits for the person, runs an episode and reports its outcome; returns False when the session
    is over."""
    if not wait_for_resume(supervisor.supervision):
        return False
    # An episode to be repeated is in the store as well.
    seed = session.first_seed + store.num_episodes - supervisor.repeat
    episode = run_supervised(session, setup, policy, supervisor, seed, store)
    if supervisor.supervision.stopped:
        return False
    if episode.recorded:
        supervisor.repeat = episode.label is Label.REDO
        say(_summary(store.num_episodes, episode))
    if setup.manual_reset:
        supervisor.hold("place the objects, then go on")
    return True


def run_supervised(
    session: DeploySession,
    setup: ArmSetup,
    policy: OnnxPolicy,
    supervisor: _ConsoleSupervisor,
    seed: int,
    store: EpisodeStore,
) -> DeployedEpisode:
    """Runs one episode; the arm is at rest and the recording is in the store when this returns or
    raises."""
    from real.deploy.loop import run_episode
    from real.deploy.recording import EpisodeRecording

    setup.place(seed)
    supervisor.scene = scene = PushTScene(setup.pose, supervisor.plane)

    def outcome() -> dict[str, Any] | None:
        episode = _episode_outcome(seed, record, scene, supervisor.supervision)
        if not episode.recorded and recording.fault is None:
            return None
        return {
            "robot": setup.robot,
            "policy": policy.contract.policy,
            **_metadata(record, episode, supervisor.person),
        }

    recording = EpisodeRecording(store, outcome)
    record = recording.record
    with recording, setup.arm() as arm:
        # Move to the start; the person may end the session meanwhile.
        arm.preflight()
        if not setup.ready(arm, supervisor.supervision):
            return _episode_outcome(seed, record, scene, supervisor.supervision)
        # Run the episode until the T is at the goal.
        supervisor.supervision.begin(seed)
        with recording.of(arm):
            run_episode(
                arm,
                setup.clock(arm),
                policy,
                policy.contract,
                supervisor.observe,
                session.loop,
                space=supervisor.plane,
                flange_T_ee=arm.flange_T_ee,
                seed=seed,
                stop=lambda: scene.solved,
                record=record,
                supervision=supervisor.supervision,
            )
    return _episode_outcome(seed, record, scene, supervisor.supervision)


def _episode_outcome(
    seed: int, record: LoopRecord, scene: PushTScene, supervision: Supervision
) -> DeployedEpisode:
    labelled = {Label.SUCCESS: True, Label.FAILURE: False}
    interventions = record.policy.get("intervention", [])
    return DeployedEpisode(
        seed=seed,
        success=labelled.get(record.label, scene.was_solved),
        label=record.label,
        seconds=record.end - record.begin,
        held=record.held,
        coverage=scene.best,
        corrected=float(np.mean(interventions)) if interventions else 0.0,
        recorded=not supervision.stopped and bool(record.policy),
    )


def _metadata(record: LoopRecord, episode: DeployedEpisode, person: str) -> dict[str, Any]:
    """Returns the metadata of the episode; `person` is recorded if nobody had the arm."""
    dropped = episode.label in (Label.REDO, Label.DISCARD)
    return {
        "seed": episode.seed,
        "success": episode.success,
        "coverage": episode.coverage,
        "label": episode.label.name.lower(),
        "discard_reason": episode.label.name.lower() if dropped else None,
        "operator": ", ".join(sorted(record.people)) or person,
        "device": "console",
        "interventions": episode.corrected,
        "takeovers": int(np.max(record.policy["segment"])) + 1,
        "held_seconds": episode.held,
        "inference_ms": [round(value, 3) for value in record.inference_ms],
    }


def _summary(number: int, episode: DeployedEpisode) -> str:
    outcome = "solved" if episode.success else "not solved"
    label = "" if episode.label is Label.NONE else f", {episode.label.name.lower()}"
    return (
        f"episode {number}: {outcome}{label}, coverage {episode.coverage:.2f}, {episode.seconds:.1f} s"
        f" ({episode.held:.1f} s held), {100 * episode.corrected:.0f} % corrected"
    )


class _ConsoleSupervisor:
    """The person at the console, and the observation of arm and table for person and policy."""

    def __init__(
        self, session: DeploySession, policy: OnnxPolicy, person: str, setup: ArmSetup
    ) -> None:
        from flows.session.environment import person_name
        from real.console.client import ConsoleClient
        from real.console.console_operator import ConsoleOperator
        from real.console.process import console_address
        from real.deploy.planar_space import Plane
        from real.deploy.supervision import STEPS, Supervision

        self.plane = Plane(session.plane)
        self.scene: PushTScene | None = None
        self.repeat = False
        """Whether the next episode repeats the same start."""
        joints = find_robot(session.arm.robot).num_joints
        self._q = np.zeros(joints)
        self._pose = np.zeros(3)
        address, token = console_address()
        rate = policy.contract.rate_hz
        client = ConsoleClient(
            address, token, {"task": policy.contract.task, "stage": setup.robot, "rate_hz": rate}
        )
        client.start()
        self.person = person_name(HilOperator(kind="console", person=person))
        """Name that is recorded where nobody at the console had the arm."""
        self.operator = ConsoleOperator(
            STEPS, session.supervision.takeover, client, self.person, rate, self._scene
        )
        self.supervision = Supervision(
            self.operator, session.supervision, self.plane, rate, self.operator.report_step
        )

    def hold(self, reason: str) -> None:
        """Requests a hold and waits until the console holds; the arm stays still until a person
        resumes."""
        self.operator.hold(reason)
        while not (self.supervision.paused or self.supervision.stopped):
            time.sleep(WAIT_SECONDS)
            self.supervision.poll()

    def observe(self, state: Any) -> Any:
        """See `PushTScene.observe`."""
        assert self.scene is not None
        observation = self.scene.observe(state)
        self._q = state.q
        self._pose = observation["block_pose"]
        return observation

    def _scene(self) -> bytes:
        from robots.wire.policy import pack
        from sim.tasks.push_t.geometry import base_pose_of_tee

        return pack(
            {"qpos": np.concatenate([self._q, base_pose_of_tee(self._pose)]), "goal": np.zeros(3)}
        )
