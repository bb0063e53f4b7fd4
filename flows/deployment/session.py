"""Implements `handoff deploy RELEASE`: a released policy on an arm, supervised by a person at the
console.

Without an arm's address, a simulated arm behind the same network protocol is used: client, control
loop, limits, console and recording are the same, only `flows.deployment.arms` differs. Policies
that did not pass a gate are refused, by a real arm also those that no trusted key has signed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.config.options import build_session
from flows.config.overrides import quoted
from flows.deployment.arms import (
    ArmSetup,
    held_for_session,
    real_setup,
    require_simulator,
    simulated_setup,
    wait_for_resume,
)
from flows.deployment.cameras.picture_check import PictureCheck
from flows.deployment.cameras.pictures import ArmPictures, PictureSource, age_limits
from flows.deployment.cameras.policy_cameras import (
    camera_overrides,
    policy_cameras,
    sensor_fields,
)
from flows.deployment.config import DeploySession, check_robot_of_session
from flows.deployment.deployed_episode import (
    DEVICE,
    DeployedEpisode,
    episode_metadata,
    episode_outcome,
)
from flows.deployment.push_t_table import EXTRA, PushTScene
from flows.deployment.safety import check_session, is_real, longest_episode
from flows.reports.dataset_text import counted
from flows.session.arm_supervisor import ArmSupervisor
from flows.session.config import HilEnvConfig
from robots.config import to_plain
from robots.contract import ONNX_FILE, Contract
from robots.control.actions import PD_TARGET
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import Observation

if TYPE_CHECKING:
    from real.arm import ArmState
    from real.console.server import ConsoleConfig
    from real.deploy.onnx_policy import OnnxPolicy
    from robots.episodes.store import EpisodeStore

SPARE_SECONDS = 10.0
"""Margin of the buffer for robot states beyond the longest episode [s]."""


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

    from flows.deployment.verified_policy import release_entries, verified_policy

    say = partial(Console().print, highlight=False, soft_wrap=True)
    chosen = list(overrides)
    chosen += [] if arm is None else [f"host={quoted(arm)}"]
    chosen += [] if tracker is None else [f"tracker.uri={quoted(tracker)}"]
    chosen += camera_overrides(cameras)
    session = build_session(DeploySession, "push_t", chosen)
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


def deploy(
    session: DeploySession,
    bundle: Path,
    out: Path,
    console: ConsoleConfig,
    *,
    person: str = "",
    episodes: int | None = None,
    about: Mapping[str, Any] | None = None,
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
        about: JSON-ready metadata of every episode, such as the name of the release.
        say: called with the console's address, the outcome of every episode, and the interrupted
            recording of an earlier session that is recovered.

    Raises:
        SafetyError: a limit or the robot ended an episode; the store contains its steps, as after
        any other error during an episode. HandoffError: a policy of another task or robot, no arm
        or tracker, a lost connection, or a store with other fields.
    """
    from flows.session.viewer import scene_viewer
    from real.cameras.camera_process import camera_streams
    from real.console.process import open_console
    from real.deploy.episode_recorder import deploy_schema
    from real.deploy.onnx_policy import OnnxPolicy
    from robots.episodes.corrections import open_corrections
    from robots.episodes.metadata.episode_metadata import new_session
    from robots.episodes.running_episode import recover_interrupted

    # The policy must fit task and robot.
    simulated = not session.host
    if simulated:
        require_simulator()
    policy = OnnxPolicy(bundle / ONNX_FILE)
    _check_policy(session, policy.contract)
    name = session.arm.robot
    cameras = policy_cameras(policy.contract.sensors, session.cameras)
    # The recording must hold the longest episode.
    seconds = longest_episode(session, policy.contract) + SPARE_SECONDS
    session = replace(session, arm=replace(session.arm, record_seconds=seconds))
    out.mkdir(parents=True, exist_ok=True)
    # Hold the arm; open console, viewer, cameras, store and arm; then run episodes.
    with ExitStack() as stack:
        stack.enter_context(held_for_session(session, say))
        opened_console = stack.enter_context(open_console(console, out / "console"))
        # Cameras of the session take the place of drawn ones.
        drawn = simulated and not cameras
        stack.enter_context(
            scene_viewer(HilEnvConfig(task="push_t", robot=name), opened_console, images=drawn)
        )
        newest = stack.enter_context(camera_streams(cameras, opened_console))
        pictures = observed_pictures(policy.contract, newest, age_limits(cameras, session.max_age))
        calibrations = pictures.calibrations(session.calibration, cameras)
        calibration = {"calibration": to_plain(calibrations)} if calibrations else {}
        schema = deploy_schema(
            policy.contract,
            {**EXTRA, **pictures.fields()},
            session.loop.stream_hz,
            find_robot(name),
            supervised=True,
        )
        store = stack.enter_context(open_corrections(out / "store.zarr", schema))
        recover_interrupted(store, log=say)
        setup = stack.enter_context(simulated_setup(session) if simulated else real_setup(session))
        say(f"console  {opened_console.url}")
        supervisor = _TableSupervisor(session, policy, person, setup, pictures)
        stack.enter_context(closing(supervisor))
        supervisor.check.report_unknown(say)
        about = {**(about or {}), **calibration, "session": new_session()}
        while episodes is None or store.num_episodes < episodes:
            if not next_episode(session, setup, policy, supervisor, store, about, say):
                break
        supervisor.operator.finish(f"{counted(store.num_episodes, 'episode')} recorded.")
        return store.num_episodes


def _check_policy(session: DeploySession, contract: Contract) -> None:
    """Checks that a policy fits the task and the arm of a session.

    Raises:
        HandoffError: another task, action interface or robot.
    """
    if contract.task != "push_t":
        raise HandoffError(
            f"deploy: a policy of task '{contract.task}'; sessions at an arm support push_t only."
        )
    if contract.action_interface != PD_TARGET:
        raise HandoffError(
            f"deploy: actions of the policy are '{contract.action_interface}'; sessions at an arm support {PD_TARGET} "
            "only. Deploy it at the twin by a recipe."
        )
    check_robot_of_session(contract, session.arm)
    check_session(session, contract)


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


def next_episode(
    session: DeploySession,
    setup: ArmSetup,
    policy: OnnxPolicy,
    supervisor: _TableSupervisor,
    store: EpisodeStore,
    about: Mapping[str, Any],
    say: Callable[[str], None],
) -> bool:
    """Waits for the person, runs an episode and reports its outcome; returns False when the session
    is over."""
    from robots.episodes.metadata.episode_metadata import next_start

    seed = session.first_seed + next_start(store)
    # The person sees the start before they let the arm move.
    setup.place(seed)
    if not setup.manual_reset:
        supervisor.preview(setup.pose())
    if not wait_for_resume(supervisor.supervision) or not supervisor.confirmed(say):
        return False
    episode = run_supervised(session, setup, policy, supervisor, seed, store, about)
    if supervisor.supervision.stopped:
        return False
    if episode.recorded:
        say(f"episode {store.num_episodes}: {episode.summary}")
    if setup.manual_reset:
        supervisor.hold("Place the objects, then resume.")
    return True


def run_supervised(
    session: DeploySession,
    setup: ArmSetup,
    policy: OnnxPolicy,
    supervisor: _TableSupervisor,
    seed: int,
    store: EpisodeStore,
    about: Mapping[str, Any],
) -> DeployedEpisode:
    """Runs one episode, with the metadata `about`; the arm is at rest and the recording is in the
    store when this returns or raises."""
    from real.deploy.loop import run_episode
    from real.deploy.recording import EpisodeRecording
    from robots.episodes.metadata.episode_metadata import EpisodeOrigin, utc_now

    setup.place(seed)
    supervisor.scene = scene = PushTScene(setup.pose, supervisor.plane)

    def begin() -> dict[str, Any]:
        digest = policy.contract.policy
        person = supervisor.person
        origin = EpisodeOrigin(
            robot=setup.robot,
            host="real" if is_real(session) else "twin",
            source="deployment",
            policy=digest,
            policy_digest=digest,
        )
        people = [{"name": person, "device": DEVICE}]
        known = {"seed": seed, "operator": person, "device": DEVICE, "people": people}
        distances = supervisor.check.distances
        compared = {"picture_distance": dict(distances)} if distances else {}
        return {**about, **origin.entries(), **known, **compared, "began": utc_now()}

    def outcome() -> dict[str, Any] | None:
        episode = episode_outcome(seed, record, scene, supervisor.supervision)
        if not episode.recorded and recording.fault is None:
            return None
        metadata = episode_metadata(record, episode, supervisor.person, recording.fault)
        return {**metadata, "ended": utc_now()}

    recording = EpisodeRecording(store, outcome, begin)
    record = recording.record
    with recording, setup.arm() as arm:
        # Move to the start; the person may end the session meanwhile.
        arm.preflight()
        if not setup.ready(arm, supervisor.supervision):
            return episode_outcome(seed, record, scene, supervisor.supervision)
        # Run the episode until the T is at the goal.
        supervisor.supervision.begin(seed)
        supervisor.pictures.begin()
        with recording.of(arm):
            run_episode(
                arm,
                setup.clock(arm),
                policy,
                policy.contract,
                lambda state: supervisor.observe(state, record.begin),
                session.loop,
                space=supervisor.plane,
                flange_T_ee=arm.flange_T_ee,
                seed=seed,
                stop=lambda: scene.solved,
                record=record,
                supervision=supervisor.supervision,
            )
    return episode_outcome(seed, record, scene, supervisor.supervision)


class _TableSupervisor(ArmSupervisor):
    """The person at the console, and the observation of arm and table for person and policy."""

    def __init__(
        self,
        session: DeploySession,
        policy: OnnxPolicy,
        person: str,
        setup: ArmSetup,
        pictures: ArmPictures,
    ) -> None:
        from real.deploy.person_motion import STEPS, BoardMotion
        from real.deploy.planar_space import Plane

        self.plane = Plane(session.plane)
        self.pictures = pictures
        """Cameras that the policy observes."""
        self.check = PictureCheck(
            policy.training_pictures, sensor_fields(policy.contract.sensors), pictures
        )
        """Comparison of their pictures with the training data."""
        self.scene: PushTScene | None = None
        self._q = find_robot(session.arm.robot).q_home
        self._pose = np.zeros(3)
        contract, config = policy.contract, session.supervision
        super().__init__(
            contract.task,
            setup.robot,
            contract.rate_hz,
            STEPS,
            config,
            BoardMotion(self.plane, config.speed, contract.rate_hz),
            person,
            self._packed_scene,
            drawn=True,
        )

    def preview(self, pose: np.ndarray) -> None:
        """Shows the table before an episode begins.

        Args:
            pose: (3,) of the T [m, m, rad], board frame.
        """
        self._pose = pose
        self.show()

    def confirmed(self, say: Callable[[str], None]) -> bool:
        """Asks the person whether to go on if a picture looks unlike the training data; returns
        False if they end the session.

        Args:
            say: called with a line for every such camera.
        """
        unlike = self.check.unlike()
        if not unlike:
            return True
        for line in unlike:
            say(line)
        self.hold(f"{'; '.join(unlike)}. Resume nevertheless?")
        return wait_for_resume(self.supervision)

    def observe(self, state: ArmState, begin: float) -> Observation:
        """The observation of arm and table, with the newest pictures.

        Args:
            state: state of the arm, just read.
            begin: robot time of the episode's first observation [s].

        Raises:
            SafetyError: a tracked pose or a picture is too old.
        """
        assert self.scene is not None
        observation = self.scene.observe(state)
        self._q = state.q
        self._pose = observation["block_pose"]
        return {**observation, **self.pictures.observe(state, begin)}

    def _packed_scene(self) -> bytes:
        from robots.wire.policy import pack
        from sim.tasks.push_t.geometry import base_pose_of_tee

        return pack(
            {"qpos": np.concatenate([self._q, base_pose_of_tee(self._pose)]), "goal": np.zeros(3)}
        )
