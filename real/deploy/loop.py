"""The deploy loop: chunks at the policy's rate become a governed stream of impedance targets, on
robot time.

Per policy step: observe, infer when a chunk is due, hand the due action to the agent's dynamics.
Per stream tick: watchdog, sample the agent, governor, joint limits, target to the arm. No
wall-clock time enters, so a lockstep twin repeats a run bit for bit; on hardware the clock waits
for the robot. A person beside the arm (`real.deploy.supervision`) goes the same way: what they ask
for is one more target, under the same governor and limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from real.arm import Arm, ArmState, stopping
from real.deploy.action_space import Space
from real.deploy.governor import GovernorConfig, ReferenceGovernor
from real.deploy.schedule import (
    ChunkSchedule,
    Freshness,
    ObservationHistory,
    Watchdog,
    WatchdogConfig,
)
from real.deploy.supervision import Oversight
from real.franka.gripper import Hand, HandTarget
from real.franka.joint_limits import JointGuardConfig, check_joints, joint_velocity, velocity_bounds
from robots.config import config
from robots.contract import Contract
from robots.control.actions import Motion
from robots.control.noise import chunk_noise
from robots.errors import HandoffError
from robots.interfaces import (
    Clock,
    Intervention,
    Label,
    Observation,
    Policy,
    PolicyInput,
    Progress,
    SeeingPolicy,
    no_progress,
)
from robots.language.text import INSTRUCTION, decode
from robots.spec import check_field

GEOMETRY_TICKS = 2
"""Stream ticks between two looks at the arm's Jacobian: at 2 rad/s a joint turns 0.016 rad in 8
ms."""


@config
class LoopConfig:
    """How an episode is run."""

    max_steps: int = 300
    """Policy steps after which the episode ends."""
    stream_hz: float = 250.0
    """Targets per second."""
    wait_for_policy: bool = True
    """Robot time stands still while the policy thinks: exact in lockstep. False on hardware: the
    arm goes on along the old chunk until the new one is there."""
    governor: GovernorConfig = field(default_factory=GovernorConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    joints: JointGuardConfig = field(default_factory=JointGuardConfig)


@dataclass
class EpisodeRecord:
    """What happened, as far as it got."""

    policy: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """One row per policy step: what `observe` gave, `action` as executed, `action_proposed`; with a
    person also the fields of `real.deploy.episode_recorder.PERSON`."""
    reference: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """One row per stream tick: `position`, `velocity` streamed, `asked` before the governor,
    `measured` at its end."""
    begin: float = 0.0
    """The robot's own time at the first policy step [s]."""
    end: float = 0.0
    """The robot's own time of the newest state [s]."""
    inference_ms: list[float] = field(default_factory=list)
    """Host time of every inference."""
    stopped: bool = False
    """Whether the stop condition ended it."""
    label: Label = Label.NONE
    """Said by the person, which ended it."""
    held: float = 0.0
    """Robot time for which the person held the arm still [s]."""
    people: set[str] = field(default_factory=set)
    """Who had the arm, apart from the policy."""


def run_episode(
    arm: Arm,
    clock: Clock,
    policy: Policy | SeeingPolicy,
    contract: Contract,
    observe: Callable[[ArmState], Observation],
    config: LoopConfig,
    *,
    space: Space,
    flange_T_ee: np.ndarray,
    seed: int,
    hand: Hand | None = None,
    stop: Callable[[], bool] = lambda: False,
    record: EpisodeRecord | None = None,
    progress: Progress = no_progress,
    oversight: Oversight | None = None,
) -> EpisodeRecord:
    """Runs one episode; the arm is at rest, out of control, when this returns or raises.

    Args:
        arm: connected, idle, where an episode begins.
        clock: the robot's.
        policy: a pure function of observation and noise; told sentences too where the contract says
            that it reads.
        contract: of the policy.
        observe: the contract's observation fields but those that `space` and `hand` tell, and more
            to be recorded, given the arm's state; `robots.language.text.INSTRUCTION` is what a
            policy that reads is to do. Without it such a policy follows the words of its own.
        config: rates and limits.
        space: in which the policy's actions are understood.
        flange_T_ee: (4, 4) the end effector in the flange frame [m].
        seed: of the policy's noise.
        hand: that the last entry of an action tells how far to open; None: no entry does.
        stop: asked at every policy step.
        record: filled while the episode runs; pass one to keep what a fault interrupts.
        progress: told the policy steps done.
        oversight: of a person beside the arm; held still, the episode makes no steps but time
            passes.

    Raises:
        SafetyError: a limit, the watchdog or the robot ended the episode.
        HandoffError: an observation, a space or a hand that does not fit the contract, a lost
            connection.
    """
    if space.interface != contract.action_interface:
        raise HandoffError(
            f"contract: actions of {contract.task} are '{contract.action_interface}', the loop's space is one of "
            f"'{space.interface}'."
        )
    record = EpisodeRecord() if record is None else record
    executor = ThreadPoolExecutor(1, thread_name_prefix="policy")
    try:
        # The arm first, and without waiting for a policy that may hang.
        with stopping(arm):
            arm.start()
            settings = (config, space, flange_T_ee, seed, hand, record, executor, oversight)
            episode = _Episode(arm, clock, policy, contract, observe, *settings)
            episode.run(stop, progress)
    finally:
        # What the person has said counts, even where a fault comes before the step that would tell
        # it.
        record.label = record.label if oversight is None else oversight.label
        executor.shutdown(wait=False, cancel_futures=True)
    return record


class _Episode:
    """The state of one running episode."""

    def __init__(
        self,
        arm: Arm,
        clock: Clock,
        policy: Policy | SeeingPolicy,
        contract: Contract,
        observe: Callable[[ArmState], Observation],
        config: LoopConfig,
        space: Space,
        flange_T_ee: np.ndarray,
        seed: int,
        hand: Hand | None,
        record: EpisodeRecord,
        executor: ThreadPoolExecutor,
        oversight: Oversight | None,
    ) -> None:
        self.arm, self.clock, self.policy, self.contract, self.observe = (
            arm,
            clock,
            policy,
            contract,
            observe,
        )
        self.config, self.space, self.flange_T_ee, self.seed, self.record = (
            config,
            space,
            flange_T_ee,
            seed,
            record,
        )
        self.executor, self.oversight = executor, oversight
        self.period = 1.0 / config.stream_hz
        self.ticks = _ticks_per_step(config.stream_hz, contract.rate_hz)
        self.state = arm.state()
        self.now = clock.now()
        record.begin = record.end = self.state.time
        start = space.position(self.state.base_T_ee)
        self.governor = ReferenceGovernor(config.governor, self.period, start)
        self.reference = space.reference(start)
        self.hand = None if hand is None else HandTarget(hand, 1.0 / contract.rate_hz)
        self.schedule = ChunkSchedule(contract)
        self.history = ObservationHistory(contract.n_obs_steps)
        self.told: tuple[str, ...] = ()
        self.watchdog = Watchdog(config.watchdog, 1.0 / contract.rate_hz)
        self.pending: tuple[Future[np.ndarray], int] | None = None
        self.chunks = 0
        self.tick = 0
        self.untold: tuple[Observation, Intervention] | None = None
        self.held_out = False
        self.dq_per_speed = self.bounds = np.zeros((7, len(start)))
        self.streamed = Motion(start, np.zeros_like(start), np.zeros_like(start))

    def run(self, stop: Callable[[], bool], progress: Progress) -> None:
        """All policy steps, until one ends the episode."""
        most = self.config.max_steps
        for step in range(most):
            self.while_held()
            if not self.policy_step(step, stop):
                return
            progress(step + 1, most)
            self.stream()
        self.tell(solved=False, last=True)

    def while_held(self) -> None:
        """Lets robot time pass for as long as the person holds the arm still."""
        person = self.oversight
        if person is None:
            return
        person.look()
        if not person.paused or person.over:
            return
        limit = person.config.hold_seconds
        while person.paused and not person.over and not self.held_out:
            self.stream_tick()
            self.watchdog.feed(self.now)
            self.record.held += self.period
            self.held_out = self.record.held >= limit
        # What was seen and planned before is of another moment.
        self.history = ObservationHistory(self.contract.n_obs_steps)
        self._forget()

    def policy_step(self, step: int, stop: Callable[[], bool]) -> bool:
        """Observes, infers and hands over the due action; False when the episode is over."""
        observation = {**self._own(), **self.observe(self.state)}
        self.record.stopped = stop()
        over = (
            self.record.stopped
            or self.held_out
            or (self.oversight is not None and self.oversight.over)
        )
        self.tell(solved=self.record.stopped, last=over)
        if over:
            return False
        self.history.append(_flat(self.contract, observation))
        if self.contract.instruction and INSTRUCTION in observation:
            self.told = decode(np.asarray(observation[INSTRUCTION])[None])
        if self.pending is None and self.schedule.due(step):
            self._request(step)
        self._receive()
        proposed = self.schedule.action(step)
        row = {**observation, **self._decided(step, observation, proposed)}
        for name, value in row.items():
            self.record.policy.setdefault(name, []).append(np.array(value))
        return True

    def stream(self) -> None:
        """The ticks of one policy step; fewer where the arm changes hands."""
        for _ in range(self.ticks):
            self.stream_tick()
            if self.oversight is not None and self.oversight.interrupts:
                break

    def stream_tick(self) -> None:
        """Sends the target for the end of this tick and lets the tick pass."""
        if self.watchdog.judge(self.now) is Freshness.DECELERATE:
            self.reference.push(self.governor.clamp(self.streamed.position))
        self.tick += 1
        q, joints = self.state.q, self.config.joints
        if self.tick % GEOMETRY_TICKS == 1:
            self.dq_per_speed = joint_velocity(q, self.space.velocity_axes(), self.flange_T_ee)
            self.bounds = velocity_bounds(joints, q, self.dq_per_speed)
        measured = self.space.position(self.state.base_T_ee)
        if self.oversight is not None and self.oversight.still:
            asked = self.streamed = self.governor.brake(measured, self.bounds)
            self.reference = self.space.reference(asked.position, self.tick * self.period)
        else:
            asked = self.reference.sample(self.tick * self.period)
            self.streamed = self.governor.step(asked, measured, self.bounds)
        check_joints(joints, q, self.dq_per_speed @ self.streamed.velocity)
        target = self.space.target(self.streamed)
        self.arm.set_target(target)
        self.now = self.clock.advance(self.period)
        self.state = self.arm.state()
        if self.oversight is not None:
            self.oversight.look()
        self.record.end = self.state.time
        row = {
            "position": self.streamed.position,
            "velocity": self.streamed.velocity,
            "asked": asked.position,
            "measured": self.space.position(self.state.base_T_ee),
        }
        for name, value in row.items():
            self.record.reference.setdefault(name, []).append(value)

    def tell(self, *, solved: bool, last: bool) -> None:
        """Tells what became of the newest step, and takes down how the person ended the episode."""
        person = self.oversight
        if person is None:
            return
        self.record.label = person.label
        if self.untold is None or person.tell is None:
            return
        observation, intervention = self.untold
        self.untold = None
        person.tell(
            observation,
            intervention,
            reward=float(solved),
            success=person.label is Label.SUCCESS or (solved and person.label is not Label.FAILURE),
            probability=None,
            label=person.label,
            last=last,
        )

    def _decided(
        self, step: int, observation: Observation, proposed: np.ndarray | None
    ) -> dict[str, Any]:
        """Hands the due target to the agent's dynamics: the policy's, or that of a person who has
        the arm."""
        person, words = self.oversight, {}
        executed = proposed
        if person is not None:
            led = person.leading
            present = self.reference.target if proposed is None else self.governor.clamp(proposed)
            said = person.step(
                present, self._shown(observation), self.streamed.position, self.governor.clamp
            )
            if person.leading:
                executed = said.executed[0]
                self.record.people.add(said.operator)
            elif led:
                # They gave it back: the policy plans from here, not from where it last had the arm.
                self._forget()
                self._request(step)
                self._receive()
                executed = proposed = self.schedule.action(step)
            words = {
                "intervention": np.uint8(person.leading),
                "segment": np.int32(said.segment[0]),
                "reason": np.uint8(said.reason[0]),
                "step_time": self.state.time - self.record.begin,
            }
            self.untold = (self._shown(observation, batch=True), said)
        if executed is not None:
            measured = self.space.position(self.state.base_T_ee)
            target = self.space.asked(executed, self.reference.target, measured)
            self.reference.push(self.governor.clamp(target))
            self.watchdog.feed(self.now)
            if self.hand is not None:
                self.hand.take(float(executed[-1]))
        taken = self.space.taken(executed, self.reference.target)
        return {
            "action": taken,
            "action_proposed": taken if proposed is None else proposed,
            **words,
        }

    def _own(self) -> Observation:
        """What the policy sees of what the arm and its hand know of themselves."""
        own = self.space.shown(self.state, self.reference.target)
        own |= {} if self.hand is None else self.hand.shown()
        return {name: value for name, value in own.items() if name in self.contract.observation}

    def _shown(self, observation: Observation, batch: bool = False) -> Observation:
        """What a person's side is shown: the observation and the arm's own state."""
        shown = {**observation, "q": self.state.q, "tau_ext": self.state.tau_ext}
        return {name: np.asarray(value)[None] for name, value in shown.items()} if batch else shown

    def _forget(self) -> None:
        """Drops the chunk, and any that is being inferred."""
        self.schedule, self.pending = ChunkSchedule(self.contract), None

    def _request(self, step: int) -> None:
        size = int(np.prod(self.contract.action.shape))
        noise = chunk_noise(self.seed, self.chunks, self.contract.horizon, size)[None]
        seen = self.history.stacked()
        shown = PolicyInput(seen, {}, self.told) if self.contract.instruction else seen
        future = self.executor.submit(self._infer, shown, noise)
        self.pending, self.chunks = (future, step), self.chunks + 1
        self.schedule.requested(step)

    def _infer(self, shown: np.ndarray | PolicyInput, noise: np.ndarray) -> np.ndarray:
        begin = time.perf_counter()
        # A contract with an instruction comes with a policy that can be told one.
        chunk = self.policy(shown, noise)[0]  # type: ignore[arg-type]
        self.record.inference_ms.append((time.perf_counter() - begin) * 1e3)
        return chunk

    def _receive(self) -> None:
        if self.pending is None or not (self.config.wait_for_policy or self.pending[0].done()):
            return
        future, step = self.pending
        self.pending = None
        self.schedule.receive(future.result(), step)


def _ticks_per_step(stream_hz: float, rate_hz: float) -> int:
    ticks = round(stream_hz / rate_hz)
    milliseconds = 1000.0 / stream_hz
    if (
        ticks < 1
        or abs(ticks * rate_hz - stream_hz) > 1e-9
        or abs(milliseconds - round(milliseconds)) > 1e-9
    ):
        raise HandoffError(
            f"loop: {stream_hz} Hz targets for a policy at {rate_hz} Hz, expected a whole multiple with a period of "
            "whole milliseconds, e.g. 250 or 1000."
        )
    return ticks


def _flat(contract: Contract, observation: dict[str, Any]) -> np.ndarray:
    missing = sorted(contract.observation.keys() - observation.keys())
    if missing:
        raise HandoffError(
            f"observation: lacks {missing}, which the policy's contract wants; it has {sorted(observation)}."
        )
    for name, spec in contract.observation.items():
        check_field(name, spec, np.asarray(observation[name]), leading=0)
    return np.concatenate([np.ravel(observation[name]) for name in contract.observation]).astype(
        np.float32
    )
