"""`handoff deploy GATE`: a released policy on an arm, with a person at the console beside it.

Where no arm is named, a simulated one behind the same network protocol takes its place: client,
loop, limits, console and record are the same; `flows.deployment.arms` is all that differs. Nothing
that did not pass a gate is run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.config.files import compose_file
from flows.deployment.arms import (
    WAIT_SECONDS,
    Bench,
    arm_bench,
    await_go,
    require_simulator,
    simulated_bench,
)
from flows.deployment.config import DeploySession, check_robot_of_session
from flows.deployment.push_t_table import EXTRA, PushTScene
from flows.session.config import HilOperator, HilWorld
from real.deploy.cameras import CameraConfig
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import Label

if TYPE_CHECKING:
    from argparse import Namespace

    from real.console.server import ConsoleConfig
    from real.deploy.loop import LoopRecord
    from real.deploy.onnx_policy import OnnxPolicy
    from real.deploy.supervision import Supervision
    from robots.episodes.store import EpisodeStore

SPARE_SECONDS = 10.0
"""Of memory for robot states, beyond what an episode may last [s]."""


@dataclass(frozen=True)
class Deployed:
    """How one episode ended."""

    seed: int
    success: bool
    label: Label
    seconds: float
    """Robot time [s]."""
    held: float
    """Of it under hold [s]."""
    coverage: float
    """Largest coverage of the goal, 0..1."""
    corrected: float
    """Share of the steps that the person made."""
    recorded: bool
    """False: the person ended the session in it, or the episode before its first step."""


def deploy_command(options: Namespace) -> None:
    """`handoff deploy`: see `flows.__main__` for its options."""
    from rich.console import Console

    from flows.deployment.release import released_bundle
    from real.console.server import ConsoleConfig

    screen = Console()

    def say(text: str) -> None:
        screen.print(text, highlight=False, soft_wrap=True)

    bundle = released_bundle(options.gate)
    overrides = list(options.overrides)
    overrides += [] if options.arm is None else [f"host='{options.arm}'"]
    overrides += [] if options.tracker is None else [f"tracker.uri='{options.tracker}'"]
    out = options.out or Path("runs") / "deploy"
    made = deploy(
        compose_deploy("push_t", overrides),
        bundle,
        out,
        ConsoleConfig(host=options.host, port=options.port, spacemouse=options.spacemouse),
        person=options.person or "",
        episodes=options.episodes,
        cameras=cameras_of(options.camera or []),
        say=say,
    )
    say(
        f"{made} episodes in {out / 'store.zarr'}, actions at the console in {out / 'console' / 'audit.jsonl'}"
    )


def compose_deploy(task: str, overrides: Sequence[str] = ()) -> DeploySession:
    """`configs/deploy/<task>.yaml` over the defaults of the configuration classes, with Hydra
    overrides.

    Raises:
        HandoffError: no such file, unknown key, or ill-typed value.
    """
    return compose_file(DeploySession, task, overrides, group="deploy")


def cameras_of(words: Sequence[str]) -> dict[str, CameraConfig]:
    """Cameras by name, of `NAME=SOURCE`.

    Raises:
        HandoffError: no name or no source, or a name twice.
    """
    found: dict[str, CameraConfig] = {}
    for word in words:
        name, _, source = word.partition("=")
        if not name or not source or name in found:
            raise HandoffError(
                f"--camera {word}: expected a new name and a source, e.g. front=0 or wrist=/dev/video2."
            )
        found[name] = CameraConfig(source=source)
    return found


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
        session: arm, limits, rates.
        bundle: directory with `policy.onnx`.
        out: folder of the store and of the console's log; a session that is run again goes on in
            it.
        console: where it listens.
        person: name that is recorded while nobody has control; empty: the login.
        episodes: after which it ends by itself; None: never.
        cameras: by name, shown at the console.
        say: told the console's address and how every episode ended.

    Raises:
        SafetyError: a limit or the robot ended an episode; what was recorded of it is in the store,
            as it is after any other error in an episode.
        HandoffError: a policy of another task or robot, no arm or tracker there, a lost connection,
            or a store of other fields.
    """
    from flows.session.viewer import drawn
    from real.console.process import open_console
    from real.deploy.cameras import camera_streams
    from real.deploy.episode_recorder import deploy_schema
    from real.deploy.onnx_policy import OnnxPolicy
    from robots.episodes.corrections import open_corrections

    simulated = not session.host
    if simulated:
        require_simulator()
    policy = OnnxPolicy(bundle / "policy.onnx")
    if policy.contract.task != "push_t":
        raise HandoffError(
            f"{bundle}: a policy of task '{policy.contract.task}'; arms have a table for push_t alone."
        )
    check_robot_of_session(policy.contract, session.arm)
    name = session.arm.robot
    schema = deploy_schema(
        policy.contract, EXTRA, session.loop.stream_hz, find_robot(name), supervised=True
    )
    seconds = (
        session.loop.max_steps / policy.contract.rate_hz
        + session.supervision.hold_seconds
        + SPARE_SECONDS
    )
    session = replace(session, arm=replace(session.arm, record_seconds=seconds))
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        store = stack.enter_context(open_corrections(out / "store.zarr", schema))
        opened = stack.enter_context(open_console(console, out / "console"))
        stack.enter_context(drawn(HilWorld(task="push_t", robot=name), opened, pictures=simulated))
        stack.enter_context(camera_streams(cameras or {}, opened))
        bench = stack.enter_context(simulated_bench(session) if simulated else arm_bench(session))
        say(f"console  {opened.url}")
        shown = _Shown(session, policy, person, bench)
        stack.enter_context(closing(shown.operator))
        while episodes is None or store.num_episodes < episodes:
            if not next_episode(session, bench, policy, shown, store, say):
                break
        return store.num_episodes


def next_episode(
    session: DeploySession,
    bench: Bench,
    policy: OnnxPolicy,
    shown: _Shown,
    store: EpisodeStore,
    say: Callable[[str], None],
) -> bool:
    """Waits for the person, runs an episode and tells how it ended; False when the session is
    over."""
    if not await_go(shown.supervision):
        return False
    # What is to be done again stands in the store, too.
    seed = session.first_seed + store.num_episodes - shown.again
    ended = run_overseen(session, bench, policy, shown, seed, store)
    if shown.supervision.stopped:
        return False
    if ended.recorded:
        shown.again = ended.label is Label.REDO
        say(_told(store.num_episodes, ended))
    if bench.laid_by_hand:
        shown.hold("lay the table, then go on")
    return True


def run_overseen(
    session: DeploySession,
    bench: Bench,
    policy: OnnxPolicy,
    shown: _Shown,
    seed: int,
    store: EpisodeStore,
) -> Deployed:
    """One episode; the arm is at rest and what was recorded is in the store when this returns or
    raises."""
    from real.deploy.loop import run_episode
    from real.deploy.recording import EpisodeRecording

    bench.place(seed)
    shown.scene = scene = PushTScene(bench.pose, shown.plane)

    def outcome() -> dict[str, Any] | None:
        ended = _ended(seed, record, scene, shown.supervision)
        if not ended.recorded and recording.fault is None:
            return None
        return {"robot": bench.robot, "policy": policy.contract.policy, **_about(record, ended)}

    recording = EpisodeRecording(store, outcome)
    record = recording.record
    with recording, bench.arm() as arm:
        arm.preflight()
        if not bench.ready(arm, shown.supervision):
            return _ended(seed, record, scene, shown.supervision)
        shown.supervision.begin(seed)
        with recording.of(arm):
            run_episode(
                arm,
                bench.clock(arm),
                policy,
                policy.contract,
                shown.observe,
                session.loop,
                space=shown.plane,
                flange_T_ee=arm.flange_T_ee,
                seed=seed,
                stop=lambda: scene.solved,
                record=record,
                supervision=shown.supervision,
            )
    return _ended(seed, record, scene, shown.supervision)


def _ended(seed: int, record: LoopRecord, scene: PushTScene, supervision: Supervision) -> Deployed:
    said = {Label.SUCCESS: True, Label.FAILURE: False}
    by_hand = record.policy.get("intervention", [])
    return Deployed(
        seed=seed,
        success=said.get(record.label, scene.was_solved),
        label=record.label,
        seconds=record.end - record.begin,
        held=record.held,
        coverage=scene.best,
        corrected=float(np.mean(by_hand)) if by_hand else 0.0,
        recorded=not supervision.stopped and bool(record.policy),
    )


def _about(record: LoopRecord, ended: Deployed) -> dict[str, Any]:
    """What is stored of the episode beside its streams."""
    dropped = ended.label in (Label.REDO, Label.DISCARD)
    return {
        "seed": ended.seed,
        "success": ended.success,
        "coverage": ended.coverage,
        "label": ended.label.name.lower(),
        "discard_reason": ended.label.name.lower() if dropped else None,
        "operator": ", ".join(sorted(record.people)),
        "device": "console",
        "interventions": ended.corrected,
        "takeovers": int(np.max(record.policy["segment"])) + 1,
        "held_seconds": ended.held,
    }


def _told(number: int, ended: Deployed) -> str:
    how = "solved" if ended.success else "not solved"
    said = "" if ended.label is Label.NONE else f", {ended.label.name.lower()}"
    return (
        f"episode {number}: {how}{said}, coverage {ended.coverage:.2f}, {ended.seconds:.1f} s"
        f" ({ended.held:.1f} s held), {100 * ended.corrected:.0f} % by hand"
    )


class _Shown:
    """What person and policy are shown of arm and table, and the person."""

    def __init__(
        self, session: DeploySession, policy: OnnxPolicy, person: str, bench: Bench
    ) -> None:
        from flows.session.worlds import person_of
        from real.console.client import ConsoleClient
        from real.console.console_operator import ConsoleOperator
        from real.console.process import console_address
        from real.deploy.planar_space import Plane
        from real.deploy.supervision import STEPS, Supervision

        self.plane = Plane(session.plane)
        self.scene: PushTScene | None = None
        self.again = False
        """The same start is to be run once more."""
        joints = find_robot(session.arm.robot).num_joints
        self._q, self._pose = np.zeros(joints), np.zeros(3)
        where, token = console_address()
        rate = policy.contract.rate_hz
        line = ConsoleClient(
            where, token, {"task": policy.contract.task, "stage": bench.robot, "rate_hz": rate}
        )
        line.start()
        name = person_of(HilOperator(kind="console", person=person))
        self.operator = ConsoleOperator(
            STEPS, session.supervision.takeover, line, name, rate, self._scene
        )
        self.supervision = Supervision(
            self.operator, session.supervision, self.plane, rate, self.operator.report_step
        )

    def hold(self, why: str) -> None:
        """Returns when the console holds; nothing moves before somebody says go on."""
        self.operator.hold(why)
        while not (self.supervision.paused or self.supervision.stopped):
            time.sleep(WAIT_SECONDS)
            self.supervision.poll()

    def observe(self, state: Any) -> Any:
        """See `PushTScene.observe`."""
        assert self.scene is not None
        observation = self.scene.observe(state)
        self._q, self._pose = state.q, observation["block_pose"]
        return observation

    def _scene(self) -> bytes:
        from robots.wire.policy import pack
        from sim.tasks.push_t.geometry import base_pose_of_tee

        return pack(
            {"qpos": np.concatenate([self._q, base_pose_of_tee(self._pose)]), "goal": np.zeros(3)}
        )
