"""Actor process of the stage `correct`: runs the newest policy with an operator and records all
episodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from flows.correction.config import CorrectConfig
from flows.correction.guide import GuidePolicy, recorded_schedule
from flows.correction.hints import session_hints
from flows.correction.pictures import session_trunk
from flows.correction.success_reward import detected_reward, judged_by
from flows.correction.versions import newer_success
from flows.deployment.arm_environment.engine import TwinEngine
from flows.deployment.arm_environment.environment import open_session_env
from flows.session.environment import (
    inform,
    make_operator,
    session_origin,
    session_schema,
    wall_clock,
)
from flows.session.hints import LIMITS, restore_limits
from policies.rl.hil.config import HilAlgorithm, commands_gripper
from policies.rl.off_policy.jsrl import GuideSchedule
from real.hil.actor import Actor, ActorStep
from real.hil.interfaces import (
    ActionMapping,
    IdentityActions,
    ScaledActions,
    ScaledWallClock,
    observation_vector,
)
from real.hil.journal import Journal
from real.hil.learner_client import LearnerClient, LearnerClientConfig
from real.hil.rewards import EnvReward
from real.hints.monitor import HintMonitor
from robots.control.gripper_commands import CommandedGripper
from robots.episodes.corrections import (
    STREAM,
    EpisodeAssembler,
    StepOutcome,
    open_corrections,
)
from robots.episodes.metadata.episode_metadata import EpisodeEnd, episode_end
from robots.episodes.running_episode import recover_interrupted
from robots.errors import HandoffError, error_text
from robots.franka.robot import Robot
from robots.interfaces import Clock, Intervention, Label, Observation, Operator, Requests
from robots.signals import delayed_signals
from robots.spec import ActionSpec

STATUS_SECONDS = 0.2
"""Interval between two status messages to the parent [s]."""
FLUSH_SECONDS = 30.0
"""Time limit for sending the remaining steps to the learner, after the actor has ended [s]."""


def act(
    config: CorrectConfig,
    folder: Path,
    classifier: Path | None,
    guide: Path | None,
    uri: str,
    token: str,
    parent: Connection,
) -> None:
    """Acts until the parent sends `stop` or the person stops; records episodes in
    `folder/store.zarr`.

    The episode in which the session ends is recorded up to then, as unfinished, or with its fault
    if e.g. a lost sensor or a signal ended it. `guide` is the policy that guides episodes in JSRL.
    Sends the parent `("status", line)` at intervals, and `("stopped",)` if the person stopped.
    """
    with ExitStack() as stack:
        # Environment and operator.
        env, engine = open_session_env(
            config.env,
            on_end="reset",
            ignore_success=classifier is not None,
            paced=config.speed > 0.0,
            progress=lambda done, total, note="": parent.send(("status", note)),
        )
        stack.enter_context(closing(env))
        operator = _TrackedOperator(
            make_operator(config.operator, engine, max_steps=env.max_steps),
            config.operator.half_life,
        )
        stack.enter_context(closing(operator))
        # Episode store, journal and connection to the learner.
        newer = (lambda number: None) if config.refresh is None else newer_success(folder)
        rewards = (
            EnvReward(sparse=True) if classifier is None else detected_reward(classifier, newer)
        )
        hints = session_hints(config.hints, env.rate_hz, rewards, operator.show_hint)
        schema = session_schema(config.env, env, None if hints is None else hints.fields)
        store = stack.enter_context(open_corrections(folder / "store.zarr", schema))
        recover_interrupted(store)
        if hints is not None:
            restore_limits(hints.monitor, store, list(hints.fields))
        operator.steps = int(store.ends(STREAM)[-1]) if store.num_episodes else 0
        journal = stack.enter_context(Journal(folder / "actor"))
        client = stack.enter_context(
            LearnerClient(journal, LearnerClientConfig(uri=uri), token, folder / "actor")
        )
        live = config.operator.kind != "simulated"
        origin = session_origin(config.env, engine, "training", live=live)
        schedule = recorded_schedule(config.algorithm, folder / "store.zarr", config.seed)
        assembler = EpisodeAssembler(store, 1, origin.entries(), now=wall_clock(live=live))
        recorder = _Recorder(
            assembler,
            operator,
            client.digest,
            schedule,
            config.steps,
            fault=lambda: engine.fault if isinstance(engine, TwinEngine) else None,
            hints=None if hints is None else hints.monitor,
            judge=lambda episode: judged_by(rewards, episode),
        )
        actions = learner_actions(config.algorithm, env.action_spec, engine.task.robot)

        def watch(step: ActorStep) -> None:
            with delayed_signals():
                recorder(step)
            if hints is not None:
                hints.finish(step)
            operator.report_step(step)
            if parent.poll() and parent.recv() == "stop":
                actor.stop()
            recorder.report(parent, client)

        def hold() -> None:
            if parent.poll() and parent.recv() == "stop":
                actor.stop()
            recorder.report(parent, client)

        # Act until the steps are made or somebody stops.
        actor = Actor(
            env,
            operator,
            journal,
            client,
            config.actor,
            rewards=rewards,
            actions=actions,
            clock=_actor_clock(config),
            vector=observation_vector(env.observation_spec, config.env.observation_fields),
            encode=session_trunk(config, folder),
            guide=None
            if schedule is None or guide is None
            else GuidePolicy(guide, schedule, env, actions),
            starts=lambda: env.episode_seeds,
            monitor=hints,
            hold=hold,
            watch=watch,
        )
        try:
            actor.run()
        except BaseException as error:
            with delayed_signals():
                recorder.cut_off(error_text(error))
            raise
        with delayed_signals():
            recorder.close()
        if operator.stopped:
            parent.send(("stopped",))
        client.flush(FLUSH_SECONDS)


def _actor_clock(config: CorrectConfig) -> Clock | None:
    """The clock of the actor; None where nothing is to be waited for, or the arm has its own."""
    if config.speed <= 0.0 or config.env.arm is not None:
        return None
    return ScaledWallClock(config.speed)


def learner_actions(algorithm: HilAlgorithm, spec: ActionSpec, robot: Robot) -> ActionMapping:
    """Returns the mapping from the learner's actions to the environment's: most algorithms command
    the gripper discretely, other entries are scaled from [-1, 1] to their bounds.

    Raises:
        HandoffError: an entry without bounds.
    """
    if commands_gripper(algorithm, spec):
        return CommandedGripper(spec.size, robot.gripper.width_max)
    if not np.isfinite([spec.low, spec.high]).all():
        raise HandoffError(
            f"correct: the actions ({spec.interface}) have the bounds {spec.low} and {spec.high}, expected finite ones."
        )
    if set(spec.low) == {-1.0} and set(spec.high) == {1.0}:
        return IdentityActions(spec.size)
    return ScaledActions(spec.low, spec.high)


class _TrackedOperator:
    """An operator with a record of stop requests and episode seeds, and with decreasing
    attention."""

    def __init__(self, operator: Operator, half_life: int) -> None:
        self._operator = operator
        self._half_life = half_life
        self.seeds: list[int] = [0]
        self.stopped = False
        self.steps = 0
        self.hint = ""
        """Hint that is shown; empty without one."""

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> None:
        self.seeds = list(seeds)
        if self._half_life > 0 and hasattr(self._operator, "attention"):
            self._operator.attention = 0.5 ** (self.steps / self._half_life)  # type: ignore[attr-defined]
        self._operator.reset(seeds, env_ids)

    def intervene(self, proposed: np.ndarray, observation: Observation) -> Intervention:
        self.steps += 1
        return self._operator.intervene(proposed, observation)

    def requests(self) -> Requests:
        requests = self._operator.requests()
        self.stopped |= requests.stop
        return requests

    def status(self) -> str:
        return self._operator.status()

    def inform(self, facts: Mapping[str, str]) -> None:
        inform(self._operator, facts)

    def close(self) -> None:
        self._operator.close()

    def show_hint(self, text: str) -> None:
        """Shows a hint at the console, or in the status line of a terminal; empty removes it."""
        from real.console.console_operator import ConsoleOperator

        self.hint = text
        if isinstance(self._operator, ConsoleOperator):
            self._operator.show_hint(text)

    def report_step(self, step: ActorStep) -> None:
        """Reports the result of the step to an operator at a console."""
        from real.console.console_operator import ConsoleOperator

        if isinstance(self._operator, ConsoleOperator):
            verdict = step.verdict
            self._operator.report_step(
                step.observation,
                step.intervention,
                reward=float(verdict.reward[0]),
                success=bool(verdict.success[0]),
                probability=None if verdict.probability is None else float(verdict.probability[0]),
                label=step.label,
                last=bool(step.last[0]),
            )


def _end(step: ActorStep, fault: str | None) -> EpisodeEnd:
    """The end of the episode that ended with this step, by a fault of the arm or otherwise."""
    if fault is not None:
        return EpisodeEnd(ended_by="fault", discard_reason="fault", fault=fault)
    judge = "task" if step.verdict.probability is None else "classifier"
    terminated = bool(step.verdict.terminated[0])
    return episode_end(step.label, step.intervention.operator, terminated=terminated, judge=judge)


class _Recorder:
    """Records every episode when it ends, also for a guide's schedule, and reports the status to
    the parent."""

    def __init__(
        self,
        assembler: EpisodeAssembler,
        operator: _TrackedOperator,
        digest: Callable[[int], str | None],
        schedule: GuideSchedule | None = None,
        steps: int = 0,
        *,
        fault: Callable[[], str | None] = lambda: None,
        hints: HintMonitor | None = None,
        judge: Callable[[int], Mapping[str, Any]] = lambda episode: {},
    ) -> None:
        self._hints = hints
        self._judge = judge
        self._total_steps = steps
        self._fault = fault
        self._assembler = assembler
        self._operator = operator
        self._digest = digest
        self._schedule = schedule
        self._solved = False
        self._corrected = False
        self._last_report = 0.0
        self._running: tuple[Observation, dict[str, Any]] | None = None
        """Observation after the running episode's last step, and its metadata; None before the
        first step."""

    def __call__(self, step: ActorStep) -> None:
        self._solved |= bool(step.step.info["success"][0])
        self._corrected |= bool(step.intervention.intervening[0])
        dropped = step.label in (Label.REDO, Label.DISCARD)
        about: dict[str, Any] = {"seed": self._operator.seeds[0], "true_success": self._solved}
        about |= self._judge(int(step.episode[0]))
        digest = self._digest(int(step.steps.policy_version[-1])) if step.steps.rows else None
        if digest is not None:
            about["policy_digest"] = digest
        if self._schedule is not None:
            about["guide_steps"] = int(self._schedule.horizon(step.episode)[0])
        if self._hints is not None:
            about[LIMITS] = self._hints.limits
        outcome = StepOutcome(
            reward=step.verdict.reward,
            success=np.where(step.last, np.where(step.verdict.success, 1, -1), 0),
            final_observation=step.step.final_observation,
            last=step.last,
            policy_version=step.steps.policy_version,
        )
        moved = step.step.executed > 0
        running = self._running
        self._running = None
        end = _end(step, self._fault()).entries() if step.last[0] else {}
        self._assembler.add(
            step.observation,
            step.intervention,
            outcome,
            moved,
            [about | end],
            further=step.monitored,
        )
        if step.last[0]:
            corrected = self._corrected
            self._solved = False
            self._corrected = False
            if self._schedule is not None and not dropped:
                self._schedule.record_episode(bool(step.verdict.success[0]) and not corrected)
        elif not moved[0]:
            self._running = running
        else:
            # Copy: the environment may write its next observation into the same arrays.
            final = {name: np.array(array) for name, array in step.step.final_observation.items()}
            person = {"operator": step.intervention.operator, "device": step.intervention.device}
            self._running = final, person | about

    def cut_off(self, fault: str) -> None:
        """Records the running episode up to now, which a fault ended, if it has at least one
        step."""
        self._end(EpisodeEnd(ended_by="fault", discard_reason="fault", fault=fault))

    def close(self) -> None:
        """Records the episode in which the session ended, if it has at least one step."""
        self._end(EpisodeEnd(ended_by="session_end", discard_reason="unfinished"))

    def _end(self, end: EpisodeEnd) -> None:
        if self._running is not None:
            final, about = self._running
            self._running = None
            self._assembler.cut_off(0, final, about | end.entries())

    def report(self, parent: Connection, client: LearnerClient) -> None:
        now = time.monotonic()
        if now - self._last_report >= STATUS_SECONDS:
            self._last_report = now
            state = client.state
            line = (
                self._operator.status()
                if state.condition == "connected"
                else f"{state.condition} {state.trouble}"
            )
            line += f", {self._operator.hint}" if self._operator.hint else ""
            if self._schedule is not None:
                line += f", guide's share {self._schedule.horizons[self._schedule.stage]} steps"
            parent.send(("status", line))
            learner = f"policy {state.version}" if state.version >= 0 else "no policy yet"
            if state.condition != "connected":
                learner = f"{state.condition}, {learner}"
            steps = f"{self._operator.steps:,} of {self._total_steps:,}"
            self._operator.inform({"steps": steps, "learner": learner})
