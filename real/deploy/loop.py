"""Runs a policy on an arm: its chunks become a governed stream of impedance targets, on robot time.

Each policy step observes, infers a chunk if one is due, and sets the target of the due action. Each
stream tick checks the watchdog, samples the reference, applies the governor and the joint limits,
and sends a target to the arm. No wall-clock time enters, so a lockstep twin repeats a run bit for
bit; on hardware the clock waits for the robot. The actions of a person who supervises the arm
(`real.deploy.supervision`) are targets as well, under the same governor and limits.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from real.arm import ArmState, stopping
from real.deploy.episode_recorder import LoopRecord, add_row
from real.deploy.inference import ChunkInference, InferenceDelay
from real.deploy.person_motion import ReferenceAtStep
from real.deploy.supervision import Supervision
from real.franka.gripper import GripperDevice, GripperTarget
from real.motion.action_space import Space
from real.motion.stream import ActionAge, Stream, StreamConfig, StreamingArm, ticks_per_step
from real.motion.watchdog import WatchdogConfig
from robots.config import config
from robots.contract import Contract
from robots.errors import HandoffError
from robots.interfaces import (
    Clock,
    Intervention,
    Label,
    MultimodalPolicy,
    Observation,
    Policy,
    Progress,
    no_progress,
)
from robots.specifications.guard import SpecificationGuard, check_stops
from robots.specifications.parser import check_syntax


@config
class LoopConfig(StreamConfig):
    """Length, rates and limits of an episode."""

    max_steps: Annotated[int, Field(ge=1, le=100_000)] = 300
    """Largest number of policy steps in an episode."""
    wait_for_policy: bool = True
    """Whether the loop waits for a running inference, as robot time in lockstep permits. On
    hardware (False) it waits for one tick of the stream, and the arm executes the last chunk until
    the new one has arrived."""
    delay: InferenceDelay = field(default_factory=InferenceDelay)
    """Delay of the policy that is simulated where the loop waits for it, for comparing policies
    that take longer elsewhere."""
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    """Age limits of the newest action."""
    specifications: dict[str, str] = field(default_factory=dict)
    """Formulas of signal temporal logic by name, such as `always (grasp_pose.z > 0.02)`, over the
    observation of the policy, whose robustness is measured in every episode."""
    stop_on: tuple[str, ...] = ()
    """Names of specifications that end the episode as a fault once they can no longer be
    satisfied."""

    def __post_init__(self) -> None:
        """Checks the formulas.

        Raises:
            HandoffError: one cannot be read, or `stop_on` names none.
        """
        check_syntax(self.specifications)
        check_stops(self.specifications, self.stop_on)


def make_guard(config: LoopConfig, contract: Contract) -> SpecificationGuard:
    """Makes the monitors of an episode's specifications, which take the policy's observations.

    Raises:
        HandoffError: a specification that does not fit the contract.
    """
    return SpecificationGuard(
        config.specifications,
        config.stop_on,
        contract.observation,
        rate_hz=contract.rate_hz,
        max_steps=config.max_steps,
    )


def run_episode(
    arm: StreamingArm,
    clock: Clock,
    policy: Policy | MultimodalPolicy,
    contract: Contract,
    observe: Callable[[ArmState], Observation],
    config: LoopConfig,
    *,
    space: Space,
    seed: int,
    gripper: GripperDevice | None = None,
    stop: Callable[[], bool] = lambda: False,
    record: LoopRecord | None = None,
    progress: Progress = no_progress,
    supervision: Supervision | None = None,
) -> LoopRecord:
    """Runs one episode; the arm is at rest and out of control when this returns or raises.

    Args:
        arm: a connected arm, at rest where an episode begins.
        clock: clock of the robot.
        policy: a pure function of observation and noise; takes instructions if the contract has
            them.
        contract: contract of the policy.
        observe: returns, given the arm's state, the contract's fields and sensors except those of
            `space` and `gripper`, and further fields to be recorded;
            `robots.language.text.INSTRUCTION` is the instruction of a language-conditioned policy,
            which without it follows its default instruction.
        config: length, rates and limits.
        space: space of the policy's actions.
        seed: seed of the policy's noise.
        gripper: gripper that the last entry of an action opens and closes; None if actions have no
            such entry.
        stop: called at every policy step; returns True to end the episode.
        record: record to be filled while the episode runs; pass one to keep what a fault
            interrupts.
        progress: called with the number of policy steps done.
        supervision: the person who supervises the arm. While they hold the arm still, time passes
            and the episode makes no steps.

    Raises:
        SafetyError: a limit, the watchdog, a specification or the robot ended the episode.
        HandoffError: an observation, a space, a gripper or a specification that does not fit the
            contract, or a lost connection.
    """
    if space.interface != contract.action_interface:
        raise HandoffError(
            f"contract: actions of {contract.task} are '{contract.action_interface}', the loop's space is one of "
            f"'{space.interface}'."
        )
    record = LoopRecord() if record is None else record
    guard = make_guard(config, contract)
    executor = ThreadPoolExecutor(1, thread_name_prefix="policy")
    try:
        # The arm is stopped first, without waiting for a policy that may hang.
        with stopping(arm):
            arm.start()
            episode = _Episode(
                arm=arm,
                clock=clock,
                policy=policy,
                contract=contract,
                observe=observe,
                config=config,
                space=space,
                seed=seed,
                gripper=gripper,
                record=record,
                executor=executor,
                supervision=supervision,
                guard=guard,
            )
            episode.run(stop, progress)
    finally:
        # The person's label counts even if a fault ended the episode before it was recorded.
        if supervision is not None:
            record.label = supervision.label
            record.labelled_by = supervision.labelled_by
        record.specifications = guard.finish()
        executor.shutdown(wait=False, cancel_futures=True)
    return record


@dataclass
class _Episode:
    """One running episode; its fields are the arguments of `run_episode`."""

    arm: StreamingArm
    clock: Clock
    policy: Policy | MultimodalPolicy
    contract: Contract
    observe: Callable[[ArmState], Observation]
    config: LoopConfig
    space: Space
    seed: int
    gripper: GripperDevice | None
    record: LoopRecord
    executor: ThreadPoolExecutor
    supervision: Supervision | None
    guard: SpecificationGuard

    def __post_init__(self) -> None:
        config, contract = self.config, self.contract
        robot = self.arm.robot
        policy_period, period = 1.0 / contract.rate_hz, 1.0 / config.stream_hz
        age = ActionAge(config.watchdog, policy_period)
        self.ticks = ticks_per_step(config.stream_hz, contract.rate_hz)
        # The reference starts where the arm is found.
        self.motion: Stream = self.arm.stream(self.clock, self.space, config, age)
        self.write_due = 0
        """Number of the tick before whose end the record is written again."""
        self.record.begin = self.motion.last.state.time
        self.record.end = self.motion.last.state.time
        # The gripper and the policy.
        self.gripper_target = (
            None
            if self.gripper is None
            else GripperTarget(self.gripper, policy_period, robot.gripper)
        )
        self.inference = ChunkInference(
            self.policy,
            contract,
            self.executor,
            seed=self.seed,
            wait=config.wait_for_policy,
            inference_ms=self.record.inference_ms,
            # A tick that is late by less than its length is made up.
            grace=period,
            delay=config.delay if config.wait_for_policy else None,
        )
        # The person.
        self.unreported_step: tuple[Observation, Intervention] | None = None
        self.hold_expired = False

    def run(self, stop: Callable[[], bool], progress: Progress) -> None:
        """Makes policy steps until one ends the episode."""
        most = self.config.max_steps
        for step in range(most):
            self.wait_while_held()
            if not self.policy_step(step, stop):
                return
            progress(step + 1, most)
            self.stream()
        self.report_step(solved=False, last=True)

    def wait_while_held(self) -> None:
        """Lets robot time pass for as long as the person holds the arm still."""
        person = self.supervision
        if person is None:
            return
        person.poll()
        if not person.paused or person.episode_ended:
            return
        limit = person.config.hold_seconds
        while person.paused and not person.episode_ended and not self.hold_expired:
            passed = self.stream_tick()
            self.motion.feed()
            self.record.held += passed * self.motion.period
            self.hold_expired = self.record.held >= limit
        # Observations and chunks from before the hold are out of date.
        self.inference.restart()

    def policy_step(self, step: int, stop: Callable[[], bool]) -> bool:
        """Observes, infers and executes the due action; False if the episode has ended."""
        observation = {**self._proprioception(), **self.observe(self.motion.last.state)}
        self.guard.step(observation)
        self.record.stopped = stop()
        ended = (
            self.record.stopped
            or self.hold_expired
            or (self.supervision is not None and self.supervision.episode_ended)
        )
        self.report_step(solved=self.record.stopped, last=ended)
        if ended:
            return False
        self.inference.observe(observation)
        proposed = self.inference.action(step)
        executed = self._execute(step, observation, proposed)
        add_row(self.record.policy, {**observation, **executed})
        return True

    def stream(self) -> None:
        """Makes the ticks of one policy step; fewer if the person interrupts it."""
        left = self.ticks
        while left > 0:
            left -= self.stream_tick()
            if self.supervision is not None and self.supervision.interrupts:
                break

    def stream_tick(self) -> int:
        """Lets a tick begin and pass; returns how many have passed, more than one if this process
        was late."""
        motion = self.motion
        # The reference brakes while a person holds the arm.
        motion.send(brake=self.supervision is not None and self.supervision.must_hold)
        # The record is written in the time that is left of a tick.
        if motion.last.number >= self.write_due:
            self.write_due = motion.last.number + self.ticks
            self.record.write()
        passed = motion.pass_tick()
        if self.supervision is not None:
            self.supervision.poll()
        # The record of the ticks.
        for tick in passed:
            self.record.end = tick.state.time
            row = {
                "position": tick.streamed.position,
                "velocity": tick.streamed.velocity,
                "asked": tick.asked,
                "measured": tick.measured,
                **tick.monitored,
            }
            add_row(self.record.reference, row)
        return len(passed)

    def report_step(self, *, solved: bool, last: bool) -> None:
        """Reports the last step to the person's side, and records the person's label."""
        person = self.supervision
        if person is None:
            return
        self.record.label = person.label
        if self.unreported_step is None or person.on_step is None:
            return
        observation, intervention = self.unreported_step
        self.unreported_step = None
        person.on_step(
            observation,
            intervention,
            reward=float(solved),
            success=person.label is Label.SUCCESS or (solved and person.label is not Label.FAILURE),
            probability=None,
            label=person.label,
            last=last,
        )

    def _execute(
        self, step: int, observation: Observation, proposed: np.ndarray | None
    ) -> dict[str, Any]:
        """Sets the target of the policy's action, or of the person's who has the arm; returns the
        fields to be recorded."""
        executed = proposed
        fields: dict[str, Any] = {}
        person = self.supervision
        if person is not None:
            was_intervening = person.intervening
            last = self.motion.last
            reference = ReferenceAtStep(
                self.motion.target, last.streamed.position, self.motion.clamp
            )
            intervention = person.step(proposed, self._with_arm_state(observation), reference)
            self.record.beside.add(intervention.operator)
            if person.intervening:
                executed = intervention.executed[0]
                self.record.people.add(intervention.operator)
            elif person.shadow:
                executed = intervention.executed[0]
            elif was_intervening:
                # The person gave the arm back, so the policy plans from where it is now.
                proposed = self.inference.replan(step)
                executed = proposed
            fields = {
                "intervention": np.uint8(person.intervening),
                "segment": np.int32(intervention.segment[0]),
                "reason": np.uint8(intervention.reason[0]),
                "step_time": self.motion.last.state.time - self.record.begin,
            }
            if person.hints is not None:
                fields |= person.hints.step(observation, person=person.intervening)
            batch = {
                name: np.asarray(value)[None]
                for name, value in self._with_arm_state(observation).items()
            }
            self.unreported_step = (batch, intervention)
        if executed is not None:
            last = self.motion.last
            target = self.space.next_target(executed, self.motion.target, last.measured)
            self.motion.set_target(target)
            self.motion.feed()
            if self.gripper_target is not None:
                self.gripper_target.apply(float(executed[-1]))
        action = self.space.executed_action(executed, self.motion.target)
        return {
            "action": action,
            "action_proposed": action if proposed is None else proposed,
            **fields,
        }

    def _proprioception(self) -> Observation:
        """The contract's fields that the arm and its gripper measure themselves."""
        fields = self.space.proprioception(self.motion.last.state, self.motion.target)
        fields |= {} if self.gripper_target is None else self.gripper_target.observation()
        return {name: value for name, value in fields.items() if name in self.contract.observation}

    def _with_arm_state(self, observation: Observation) -> Observation:
        """The observation with the arm's state, for the person's side."""
        gripper = {} if self.gripper_target is None else self.gripper_target.observation()
        state = self.motion.last.state
        felt = {"q": state.q, "tau_ext": state.tau_ext, **self.motion.last.monitored}
        return {**observation, **gripper, **felt}
