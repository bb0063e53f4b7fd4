"""A policy at a table with a person beside it, one episode after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flows.deployment.arms import recovered, wait_for_resume
from flows.deployment.cameras.picture_check import PictureCheck
from flows.deployment.cameras.policy_cameras import sensor_fields
from flows.deployment.config import DeploySession, DeployTaskSession
from flows.deployment.deployed_episode import (
    DEVICE,
    DeployedEpisode,
    episode_metadata,
    episode_outcome,
)
from flows.deployment.safety import is_real
from flows.deployment.session_tables.instructions import tell
from flows.deployment.session_tables.reset_phase import ResetPhase
from flows.deployment.session_tables.session_table import SessionPictures, SessionTable
from flows.reports.dataset_text import counted
from flows.session.arm_supervisor import ArmSupervisor
from flows.session.hints import LIMITS
from robots.config import to_plain
from robots.contract import Contract
from robots.errors import HandoffError
from robots.interfaces import MultimodalPolicy, Observation, Policy

if TYPE_CHECKING:
    from real.arm import ArmState
    from real.deploy.episode_recorder import LoopRecord
    from real.deploy.hints import DeployHints
    from real.deploy.loop import LoopConfig
    from real.deploy.onnx_policy import OnnxPolicy
    from real.deploy.supervision import Supervision
    from real.driver.driven_arm import DrivenArm
    from robots.episodes.store import EpisodeStore


class SupervisedRun:
    """A policy at a table, with a person at the console.

    Args:
        session: options of arm, limits and rates.
        policy: the policy.
        contract: its contract, slowed by the session's speed.
        table: the arm and what is on its table.
        observed: cameras that the policy observes.
        store: store of the episodes.
        supervisor: the person at the console.
        hints: hints to that person; None gives none.
    """

    reports = True
    """Whether a session says and writes how late its inferences were, and how useful its hints."""

    def __init__(
        self,
        session: DeploySession | DeployTaskSession,
        policy: OnnxPolicy,
        contract: Contract,
        table: SessionTable,
        observed: SessionPictures,
        store: EpisodeStore,
        supervisor: ArmSupervisor,
        hints: DeployHints | None = None,
    ) -> None:
        self._session = session
        self._hints = hints
        self._policy: Policy | MultimodalPolicy = policy if hints is None else hints.policy
        self._tokenizer = policy.tokenizer
        self._contract = contract
        self._table = table
        self._observed = observed
        self._store = store
        calibrations = to_plain(dict(observed.calibrations))
        self.about: dict[str, Any] = {"calibration": calibrations} if calibrations else {}
        """JSON-ready metadata of every episode."""
        self.check = PictureCheck(
            policy.training_pictures, sensor_fields(contract.sensors), observed.pictures
        )
        """Comparison of the pictures with those of the training."""
        self.supervisor = supervisor
        self._reset = ResetPhase(table, supervisor, session.reset, session.loop.fence, session.host)

    def next_episode(self, say: Callable[[str], None]) -> bool:
        """Waits for the person, runs an episode and reports its outcome; returns False when the
        session is over. A fault ends the episode, and the session goes on once the person has
        recovered the arm."""
        from robots.episodes.metadata.episode_metadata import next_start

        table, supervision = self._table, self.supervisor.supervision
        seed = self.seed(next_start(self._store))
        # The person sees the start before they let the arm move.
        self._place(seed)
        self.supervisor.show()
        try:
            if not (
                self.await_start()
                and tell(self._tokenizer, table, self.supervisor, say)
                and self._confirmed(say)
            ):
                return False
            episode = self.run(seed)
        except HandoffError as fault:
            return recovered(fault, self.supervisor, table.arm(), say)
        if supervision.stopped:
            return False
        if episode.recorded:
            say(f"episode {self._store.num_episodes}: {episode.summary}")
        return True

    def await_start(self) -> bool:
        """Waits until the person starts the episode; returns False if they end the session."""
        return self._reset.await_start()

    def stated(self, entries: dict[str, Any], error: BaseException | None = None) -> dict[str, Any]:
        """Returns those of an episode's metadata that are recorded.

        Args:
            entries: metadata that are known when the episode begins, or when it has ended.
            error: what ended the episode; None without an error, and when it begins.
        """
        return entries

    def ending(self) -> str:
        """Returns what the pages say when the session is over, as a sentence."""
        return f"{counted(self._store.num_episodes, 'episode')} recorded."

    def seed(self, start: int) -> int:
        """Returns the seed of a start, which places the simulated objects."""
        return self._session.first_seed + start

    def prepared(self, arm: DrivenArm, supervision: Supervision) -> bool:
        """Moves the arm once the table has brought it to its start; returns False if the person
        ends the session meanwhile."""
        return True

    def loop(self, loop: LoopConfig) -> LoopConfig:
        """Returns the options of the loop in an episode, from those of the table."""
        return loop

    def compared(self, record: LoopRecord) -> dict[str, Any]:
        """Returns further metadata of an episode, as far as it has come."""
        return {}

    def note(self, about: dict[str, Any]) -> str:
        """Returns the metadata of `compared` in a phrase; empty if there is nothing to say."""
        return ""

    def run(self, seed: int) -> DeployedEpisode:
        """Runs one episode; the arm is at rest and the recording is in the store when this returns
        or raises."""
        from real.deploy.loop import run_episode
        from real.deploy.recording import EpisodeRecording
        from robots.episodes.metadata.episode_metadata import utc_now

        table, supervision = self._table, self.supervisor.supervision
        self._place(seed)

        def outcome() -> dict[str, Any] | None:
            episode = self._outcome(seed, record)
            if not episode.recorded and recording.fault is None:
                return None
            metadata = episode_metadata(record, episode, self.supervisor.person, recording.fault)
            return {**self.stated(metadata, recording.error), "ended": utc_now()}

        def observe(state: ArmState) -> Observation:
            return {**table.observe(state), **self._observed.pictures.observe(state, record.begin)}

        recording = EpisodeRecording(self._store, outcome, partial(self._origin, seed))
        record = recording.record
        with recording, table.gripper() as gripper, table.arm() as arm:
            # Move to the start; the person may end the session meanwhile.
            arm.preflight()
            if not (table.ready(arm, gripper, supervision) and self.prepared(arm, supervision)):
                return self._outcome(seed, record)
            space, loop = table.motion(arm)
            supervision.begin(seed)
            if self._hints is not None:
                self._hints.begin(seed)
            with recording.of(arm):
                run_episode(
                    arm,
                    table.clock(arm),
                    self._policy,
                    self._contract,
                    observe,
                    self.loop(loop),
                    space=space,
                    seed=seed,
                    gripper=gripper,
                    stop=table.is_over,
                    record=record,
                    supervision=supervision,
                )
        episode = self._outcome(seed, record)
        if self._hints is not None:
            self._hints.end(solved=episode.success)
        return episode

    def _place(self, seed: int) -> None:
        """Places the objects for the start with that seed."""
        self._table.place(seed)
        self._observed.begin(seed)

    def _outcome(self, seed: int, record: LoopRecord) -> DeployedEpisode:
        """The outcome of an episode, as far as it has come."""
        episode = episode_outcome(seed, record, self._table, self.supervisor.supervision)
        about = self.compared(record)
        if self._hints is not None:
            about |= {LIMITS: self._hints.monitor.limits}
        note = ", ".join(filter(None, (episode.note, self.note(about))))
        return replace(episode, about={**episode.about, **about}, note=note)

    def _origin(self, seed: int) -> dict[str, Any]:
        """Metadata that are known when an episode begins."""
        from robots.episodes.metadata.episode_metadata import EpisodeOrigin, utc_now

        digest, person = self._contract.policy, self.supervisor.person
        origin = EpisodeOrigin(
            robot=self._table.robot,
            host="real" if is_real(self._session) else "twin",
            source="deployment",
            policy=digest,
            policy_digest=digest,
            action_steps=self._contract.steps,
        )
        people = [{"name": person, "device": DEVICE}]
        known = {"seed": seed, "operator": person, "device": DEVICE, "people": people}
        distances = self.check.distances
        compared = {"picture_distance": dict(distances)} if distances else {}
        stated = self.stated({**self.about, **origin.entries(), **known, **compared})
        return {**stated, "began": utc_now()}

    def _confirmed(self, say: Callable[[str], None]) -> bool:
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
        self.supervisor.hold(f"{'; '.join(unlike)}. Resume nevertheless?")
        return wait_for_resume(self.supervisor.supervision)
